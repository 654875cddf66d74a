"""The embedded broker: AMQP 0-9-1 on one node, durable in one SQLite file.

- ``core/``        a pure machine: commands in, effects and batches of changes out; no I/O
- ``store/``       batches on disk, pages back
- ``management/``  the part of RabbitMQ's management HTTP API that provisioning and observation use
- here             the asyncio shell: sockets, heartbeats, back-pressure, start and stop

``running(settings)`` is a broker for the length of a block, ``serve(settings)`` one until SIGTERM.
"""

from __future__ import annotations

from lbg_broker.main import running, serve
from lbg_broker.server import Server
from lbg_broker.settings import (
    Address,
    AdministratorFiles,
    ServerError,
    ServerSettings,
    StartError,
    TlsSettings,
)

__all__ = [
    "Address",
    "AdministratorFiles",
    "Server",
    "ServerError",
    "ServerSettings",
    "StartError",
    "TlsSettings",
    "running",
    "serve",
]
