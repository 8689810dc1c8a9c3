"""The bench: the same three hops through handoff and through its peers, interleaved in one run.

`python -m infra.bench` starts the services, measures each peer in a process group of its own, and
prints jobs/s, the ratio to the control of the same round, CPU, memory and an exactly-once verdict.

    throughput  a backlog, three hops: classify -> enrich -> act -> done
    io          a burst onto a warm peer; each of the three stages waits 50 ms
    latency     200 jobs/s; time from the sender to a reader of `done`
    crash       kill -9 in mid-stream, restart, then count what was lost and what came twice
"""
