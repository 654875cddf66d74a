"""The operator: its rounds on clusters and brokers in memory, and as a process."""
