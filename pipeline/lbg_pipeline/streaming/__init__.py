"""`validate --stream`: judges journals while they are written, in memory that does not grow with their history.

Spark reads, sorts records to buckets of hashes and keeps what is remembered of each bucket (`epochs`); what is judged
is plain numpy on the columns of one bucket (`bucket`), without Spark and without files.
"""
