"""RabbitMQ nodes of the tests' own, alone or as a cluster."""
