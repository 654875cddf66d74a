"""Waiting while a group gets another number of queues, and going on with that many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from lbg_broker.client import ChannelClosed, ClientConnection
from lbg_broker.group import GroupSpec, is_closed_in, repartition_in
from lbg_broker.provisioning.errors import ProvisioningError, RecordUnreadable
from lbg_broker.provisioning.reading import read_record, spec_in

from .errors import GroupClosed, GroupGone
from .events import IngressClosed, IngressOpen
from .identity import group_facts

LOOK_S = 1.0
"""Between two looks at the record of a group that takes nothing, spread by a half: publishers are many."""


async def read_spec(connection: ClientConnection, group: str) -> GroupSpec:
    """Raises ProvisioningError, GroupClosed, ChannelClosed, ConnectionLost."""
    spec, _ = await _read(connection, group)
    return spec


async def is_changing(connection: ClientConnection, spec: GroupSpec) -> bool:
    """Whether the group is on its way to another number of queues, or has one; not as far as nothing can be read.

    Raises GroupClosed, ConnectionLost.
    """
    try:
        found, wanted = await _read(connection, spec.name)
    except (ProvisioningError, ChannelClosed):
        return False
    return wanted is not None or found.queue_count != spec.queue_count


async def until_open(
    connection: ClientConnection, spec: GroupSpec, *, tell: Callable[[IngressClosed | IngressOpen], None]
) -> GroupSpec:
    """Return the group as it is, once nobody changes its number of queues.

    Raises ConnectionLost, GroupClosed, and GroupGone when another group took the place of `spec`: while the connection
    was gone it may have been made anew, and hashes may lead elsewhere. A record that cannot be read (its node may be
    down) changes nothing: publishing will show whether the exchange is there.
    """
    told: int | None = None
    while True:
        try:
            found, wanted = await _read(connection, spec.name)
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


async def _read(connection: ClientConnection, group: str) -> tuple[GroupSpec, int | None]:
    channel = await connection.open_channel()
    try:
        text = await read_record(channel, group)
    except BaseException:
        channel.close_soon()  # it may still get the record, and must not keep it from others
        raise
    await channel.close()
    if text is None:
        raise RecordUnreadable(group, "its queue is empty")
    if is_closed_in(text):
        raise GroupClosed(group)
    return spec_in(text, group), repartition_in(text)
