"""The peers: the three hops without handoff. Each module is a program: `python -m <module>`.

All read `BENCH_*` from the environment (see `setting`) and run until they are killed.
"""
