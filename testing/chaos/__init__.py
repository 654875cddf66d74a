"""Random faults under load, and a judge of everything the applications saw: `make chaos`, docs/internals/chaos.md.

`schedule` and `stream` are pure functions of the seed: what breaks when, and what is published. `places` are brokers
and clusters to break. `member`, `command` and `publisher` are the processes; their applications write a `ledger` of
every call. `faults` breaks them, `playing` plays a schedule, and `judging` is a pure function over all ledgers.
"""
