"""The management HTTP API: the part of RabbitMQ's that provisioning and the observation of lag use.

Paths, JSON fields and status codes are those of RabbitMQ 3.10 («HTTP API Reference», served by every RabbitMQ at
`/api/index.html`), so that one provisioner serves both engines. What it answers is read from the broker's state
at the moment of the request, never sampled. What it changes goes through the same functions as AMQP methods and
is answered after it is on disk. No state of its own.
"""

from __future__ import annotations

from lbg_broker.management.request import ApiError, ManagedBroker, ManagementError
from lbg_broker.management.server import application, managing

__all__ = ["ApiError", "ManagedBroker", "ManagementError", "application", "managing"]
