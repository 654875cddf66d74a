"""The embedded broker as a process or in memory, RabbitMQ and it as equals, and a broker reduced to a model."""
