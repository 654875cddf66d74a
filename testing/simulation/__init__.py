"""A whole installation in one process and in virtual time.

The machines are the product's own (`SendWindow`, the embedded broker's core, the members of all modes), as is the
procedure of `lbg group repartition`. Sockets, clocks, disks, processes and RabbitMQ are simulated, so that one seed
gives one history (docs/internals/testing.md, "Simulation").
"""
