"""Applications behind a sidecar, and what they note."""
