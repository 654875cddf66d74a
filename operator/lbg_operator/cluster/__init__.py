"""The Kubernetes API, as far as the operator needs it: one seam, `Cluster`, and what can go wrong behind it."""
