"""The Kubernetes API in memory and over HTTP, and the objects in it."""
