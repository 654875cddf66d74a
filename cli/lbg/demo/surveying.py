"""Asking the broker again and again how it shares the demo's one queue out, in modes where it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lbg.options import management_of
from lbg_broker.client import BrokerAddress
from lbg_broker.group import Names
from lbg_broker.provisioning import ProvisioningError
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.observed import QueueSeen

LOOK_EVERY_S = 0.4


async def keep_looking(address: BrokerAddress, group: str, on_seen: Callable[[QueueSeen], None]) -> None:
    """Until it is cancelled. What cannot be told now is passed over."""
    parent = Names(group).parent
    admin = LiveAdmin(address.places(), management_of(address))
    try:
        while True:
            try:
                seen = (await admin.observe(group)).queues.get(parent)
            except ProvisioningError:
                seen = None
            if isinstance(seen, QueueSeen):
                on_seen(seen)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        await admin.close()
