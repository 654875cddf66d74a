"""Who does the work of `lbg group`: an admin for as long as a command takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from lbg.options import management_of

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress
    from lbg_broker.provisioning.live import LiveAdmin

T = TypeVar("T")


def with_admin(
    address: BrokerAddress,
    work: Callable[[LiveAdmin], Awaitable[T]],
    *,
    with_management: bool = True,
) -> T:
    """Run `work` on an admin that is closed afterwards."""
    from lbg_broker.provisioning.live import LiveAdmin

    async def run() -> T:
        admin = LiveAdmin(address.places(), management_of(address) if with_management else None)
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(run())
