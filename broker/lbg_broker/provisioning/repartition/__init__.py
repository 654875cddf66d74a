"""Another number of queues for a group that is in use, with nothing lost or out of order: `lbg group repartition`.

`procedure` is the whole of it; its decisions are in docs/adr/0033-repartitioning.md.
"""
