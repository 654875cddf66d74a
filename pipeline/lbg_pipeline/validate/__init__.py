"""Proving from journals that nothing was lost or out of order.

evidence      a worker: parsed lines -> the narrow rows that judging needs, published numbers as ranges
(shuffle)     all evidence of a (group, hash) goes to one worker
deposition    those rows as numpy columns, with names as numbers
ordering, completeness, overlaps, moving, placing
              what is wrong, each a question of its own
findings      a worker's answers as rows; DataFrames of each table out of them
judging       the DataFrame transforms from evidence to tables
reporting     report.json and what a person reads
job           reads, judges, writes
"""
