"""The soak: random faults against real workers, a real broker and a real database, then a judge.

`make soak SECONDS=600 SEED=7`, or `python -m tests.soak --help`. `schedule` says what happens when,
`plant` is what it happens to, `faults` how, `load` what goes on meanwhile, `judge` what must be
true.
"""
