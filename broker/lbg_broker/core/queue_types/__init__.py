"""Queue types: partitioned queues, message groups and sessions, beside the plain queue.

Nothing is imported here: `arguments` needs the rules of a kind, and a kind's policy needs what needs `arguments`.
"""
