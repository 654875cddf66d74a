"""Statuses: conditions with reasons from a closed list, and numbers of a group. No I/O."""
