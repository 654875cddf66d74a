"""A memory or disk alarm on a RabbitMQ node: it stops reading from connections that publish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from testing.aside import aside
from testing.rabbitmq.node import RabbitNode

ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.000001"), ("set_vm_memory_high_watermark", "0.6")),
    "disk": (("set_disk_free_limit", "900000GB"), ("set_disk_free_limit", "50MB")),
}


@asynccontextmanager
async def alarm(node: RabbitNode, kind: str) -> AsyncIterator[None]:
    on, off = ALARMS[kind]
    await aside(node.control, *on)
    try:
        yield
    finally:
        await aside(node.control, *off)
