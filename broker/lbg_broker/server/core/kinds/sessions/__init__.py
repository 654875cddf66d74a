"""The sessions queue: every message belongs to one named session for ever, and has the next number there.

«Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers» describes what it does. Messages that no
session has room for wait in the pool, the queue's first line; each session has a line of its own behind it, in which
a message's position is its sequence number less one (docs/adr/0030).
"""
