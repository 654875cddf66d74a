"""Forecast of a group's demand, and the minimum replicas that follow from it.

    arrived (messages at times) -> counted -> demand -> modelled -> scored, chosen -> forecast -> schedule

`model` and `backtest` are the method, on the numbers of one group; `groups` does it for all groups on Spark;
`schedule` makes the minimum replicas, and `apply` patches the LoadBalancedGroup.
"""
