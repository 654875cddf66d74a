"""The sidecar as a process: its settings, its two HTTP listeners, its logs and metrics, and how it ends.

Nothing outside the command line imports this package: a member inside an application needs none of it.
"""
