"""Histories and conversations that compare the embedded broker with RabbitMQ, whose answers are recorded."""
