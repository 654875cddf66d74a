"""What comes before a member joins: its group is read, and its application is waited for."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from typing import Any

from lbg_broker.client import ClientConnection, ConnectionLost
from lbg_broker.group import GroupSpec
from lbg_broker.provisioning import read_group

from ..machine import MemberMachine
from ..membership.roster import Timings
from ..settings import MemberSettings
from .driving import Driver

log = logging.getLogger("lbg.member")


async def group_of(work: ClientConnection, name: str) -> GroupSpec:
    """Raises ClientError and the errors of `read_group`."""
    channel = await work.open_channel()
    spec = await read_group(channel, name)
    await channel.close()
    return spec


def machine_of(
    settings: MemberSettings, spec: GroupSpec, *, concurrency: int, chance: random.Random
) -> MemberMachine:
    """`concurrency`: where the settings say none. Raises SettingsError when settings and group do not fit together."""
    return MemberMachine(
        settings.name,
        balancing=settings.balancing_rules(spec),
        rules=settings.processing_rules(concurrency=concurrency),
        timings=Timings(),
        uniform=chance.random,
        incarnation=lambda: secrets.token_hex(8),
    )


async def app_ready(driver: Driver, work: ClientConnection) -> None:
    """Return when the application can take messages. Raises ClientError if the connection goes before that."""
    if driver.app_ready.is_set():
        return
    log.info("%s: waiting for the application: %s", driver.machine.name, driver.app_unready_why)
    ready: asyncio.Future[object] = asyncio.ensure_future(driver.app_ready.wait())
    either: tuple[asyncio.Future[Any], ...] = (ready, work.closed)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if work.closed.done():
        raise work.closed.result() or ConnectionLost("closed")
