"""The partitioned queue («Configuring Partitioned Queues», «Message Distribution With Partitioned Queues»): lines of
messages by key, each for one consumer at a time.

`balancing` and `mapping` are pure and know neither messages nor consumers. Nothing is imported here: `rules` is needed
by what `policy` needs.
"""
