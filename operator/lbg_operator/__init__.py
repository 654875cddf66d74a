"""The operator: LoadBalancedGroups and Brokers of a Kubernetes cluster made real, by kopf.

A manifest is parsed (`manifests`), what is there is observed, a pure plan says what to do and what the status is, and a
thin shell does it. `manifests` and `children` do no I/O.
"""
