"""The operator's process: kopf's watches in, rounds out, and what it shows of itself."""
