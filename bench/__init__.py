"""Benchmarks: everything docs/benchmarks.md quotes comes from here."""
