"""How much will be asked of a group, and so how many replicas it needs at least, and when.

    arrived (messages at times) -> counted -> demand -> modelled -> scored, chosen -> forecast -> schedule

`seasons`, `fitting`, `quantiles` and `backtesting` are the method, on the numbers of one group; `modelling` and
`scoring` do it for all groups on Spark; `scheduling` and `weekly` make the floors of replicas, `manifest` the
LoadBalancedGroup's patch.
"""
