"""Create, show, list and delete a group on a broker: AMQP for what carries messages, the management HTTP API for
users, permissions and what only it can tell.

Plans are pure (`planning`, `describing`); everything that talks to a broker is behind one seam, `BrokerAdmin`.
"""
