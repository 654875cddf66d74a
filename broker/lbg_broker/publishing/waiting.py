"""Waiting while a group gets another number of queues, and going on with that many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from lbg_broker.client import Channel, ChannelClosed, ClientConnection
from lbg_broker.group import GroupSpec, repartition_in
from lbg_broker.provisioning.errors import ProvisioningError, RecordUnreadable
from lbg_broker.provisioning.reading import read_record, spec_in

from .errors import GroupGone
from .events import IngressClosed, IngressOpen
from .identity import group_facts

LOOK_S = 1.0
"""Between two looks at the record of a group that takes nothing, spread by a half: publishers are many."""


async def read_spec(connection: ClientConnection, group: str) -> GroupSpec:
    """Raises ProvisioningError, ChannelClosed, ConnectionLost."""
    channel = await connection.open_channel()
    spec, _ = await _read(channel, group)
    await channel.close()
    return spec


async def queue_count_to_be(connection: ClientConnection, group: str) -> int | None:
    """How many queues the group is on its way to; None if it stays as it is, as far as can be read.

    Raises ConnectionLost.
    """
    try:
        channel = await connection.open_channel()
        _, wanted = await _read(channel, group)
        await channel.close()
    except (ProvisioningError, ChannelClosed):
        return None
    return wanted


async def until_open(
    connection: ClientConnection, spec: GroupSpec, *, tell: Callable[[IngressClosed | IngressOpen], None]
) -> GroupSpec:
    """Return the group as it is, once nobody changes its number of queues.

    Raises ConnectionLost, and GroupGone when another group took the place of `spec`: while the connection was gone it
    may have been made anew, and hashes may lead elsewhere. A record that cannot be read (its node may be down) changes
    nothing: publishing will show whether the exchange is there.
    """
    told: int | None = None
    while True:
        try:
            channel = await connection.open_channel()
            found, wanted = await _read(channel, spec.name)
            await channel.close()
        except (ProvisioningError, ChannelClosed):
            if told is None:
                return spec
            wanted = told
        else:
            if group_facts(found) != group_facts(spec):
                raise GroupGone(
                    f"group {spec.name!r} was made anew with other attributes while it was published to: "
                    "sequences cannot go on there; start anew"
                )
        if wanted is None:
            if told is not None:
                tell(IngressOpen(spec.name, found.queue_count))
            return found
        if wanted != told:
            tell(IngressClosed(spec.name, wanted))
            told = wanted
        await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.5))


async def _read(channel: Channel, group: str) -> tuple[GroupSpec, int | None]:
    text = await read_record(channel, group)
    if text is None:
        raise RecordUnreadable(group, "its queue is empty")
    return spec_in(text, group), repartition_in(text)
