"""Verification of journals: order, completeness, overlaps, moves and sessions, in batch and as a stream.

checks          the checks, functions of arrays: one implementation for both
shuffle         a worker: parsed lines -> the narrow rows that checks need, packed, by (group, hash)
batch_columns   those rows as numpy columns, with names as numbers
batch_findings  a worker's rows -> arguments of the checks -> findings
batch           reads, checks, writes: the DataFrame transforms from records to tables
stream, stream_* the same while journals are written: a bucket of keys in an epoch, and the state between two
report, tables  report.json and its text; schemas, and violations as rows
"""
