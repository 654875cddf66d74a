"""The operator: reconciles the LoadBalancedGroups and Brokers of a Kubernetes cluster, with kopf.

A manifest is parsed (`crds`), what is there is observed, a pure plan says what to do and what the status is, and a
thin shell does it. `crds` and `resources` do no I/O.
"""
