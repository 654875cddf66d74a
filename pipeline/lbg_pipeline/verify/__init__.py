"""Verification of journals: order, completeness, overlaps, moves and sessions, in batch and as a stream.

shuffle          a worker: parsed lines -> the narrow rows that checks need, packed, by (group, hash)
batch_columns    those rows as numpy columns, with names as numbers
batch_checks     order, overlaps, moves, sessions and completeness, a function each
batch_findings   a worker's findings as rows
batch            reads, checks, writes: the DataFrame transforms from records to tables
stream, stream_* the same while journals are written: a bucket of keys in an epoch, and the state between two
report, tables   report.json and its text, and the schemas
"""
