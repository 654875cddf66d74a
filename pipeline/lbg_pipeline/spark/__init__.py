"""Spark: session, concurrent jobs, progress, and output."""
