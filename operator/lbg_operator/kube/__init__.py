"""The Kubernetes API as the operator uses it: one protocol, `Cluster`, and its errors."""
