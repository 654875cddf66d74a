"""Measurements and long runs: everything docs/benchmarks.md and docs/soak.md quote comes from here."""
