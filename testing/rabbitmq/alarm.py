"""A memory or disk alarm on a RabbitMQ node: it stops reading from connections that publish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from testing.aside import aside
from testing.rabbitmq.node import RabbitNode

ALARMS = {
    "memory": "vm_memory_monitor:set_vm_memory_high_watermark({})",
    "disk": 'rabbit_disk_monitor:set_disk_free_limit("{}")',
}
"""The expression that sets a limit, and so raises or ends the alarm at once."""

_LIMITS = {"memory": ("0.000001", "0.6"), "disk": ("900000GB", "50MB")}


@asynccontextmanager
async def alarm(node: RabbitNode, kind: str) -> AsyncIterator[None]:
    on, off = _LIMITS[kind]
    # The answer of the alarms themselves comes behind the alarm: connections know of it then.
    await aside(node.evaluate, f"{ALARMS[kind].format(on)}, rabbit_alarm:get_alarms()")
    try:
        yield
    finally:
        await aside(node.evaluate, ALARMS[kind].format(off))
