"""The operator's process: kopf's watches in, reconciles out, and its own health and metrics."""
