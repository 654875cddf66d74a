"""What comes before a member joins: its group is read, and its application is waited for."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lbg_broker.client import ChannelClosed, ClientConnection, ConnectionLost
from lbg_broker.group import (
    IDENTITY_BYTES,
    MESSAGE_GROUPS,
    PARTITIONED,
    SESSIONS,
    Engine,
    GroupSpec,
    is_native,
    stream_queues,
)
from lbg_broker.provisioning import ProvisioningError, read_group

from ..consuming.concurrency_limit import CallLimit
from ..consuming.session import SessionPosition
from ..fitting import balancing_rules, keys_at_once, processing_rules, require_fit
from ..machine import MemberMachine
from ..membership.roster import Timings
from ..native import NativeMachine
from ..participating import Participant
from ..settings import MemberSettings
from .driving import Driver

RECORD_S = 2.0
"""Whoever comes back to its group does not wait for longer than this to be told that it is as it was."""

LIMITED_MODES = (PARTITIONED, MESSAGE_GROUPS)
"""In which the broker wants messages back from a member that lives, and gets those that its application has not got."""

log = logging.getLogger("lbg.member")


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its member finds it: `queues` are the names of those that carry its messages, by number."""

    spec: GroupSpec
    engine: Engine

    @property
    def is_native(self) -> bool:
        return is_native(self.spec, self.engine)

    @property
    def queues(self) -> tuple[str, ...]:
        return stream_queues(self.spec, self.engine)


async def group_of(work: ClientConnection, name: str) -> Group:
    """Raises ClientError and the errors of `read_group`."""
    channel = await work.open_channel()
    try:
        spec = await read_group(channel, name)
    except BaseException:
        channel.close_soon()  # it may still get the record, and must not keep it from others
        raise
    await channel.close()
    server = work.server_properties
    return Group(spec, Engine.parse(str(server["product"]), str(server["version"])))


async def group_again(work: ClientConnection, known: GroupSpec) -> Group | None:
    """The group, if it has another number of queues than is known; None also where that cannot be read in time, as its
    record's node may be down: then it is heard of on the members exchange. Raises ClientError when `work` is lost."""
    try:
        async with asyncio.timeout(RECORD_S):
            group = await group_of(work, known.name)
    except (TimeoutError, ProvisioningError, ChannelClosed):
        return None
    same = (known.queue_count, known.max_clients)
    return None if (group.spec.queue_count, group.spec.max_clients) == same else group


def machine_of(
    settings: MemberSettings,
    group: Group,
    *,
    concurrency: int,
    chance: random.Random,
    limit: Callable[[int, float], CallLimit] | None = None,
    former: Participant | None = None,
) -> Participant:
    """`concurrency`: where the settings say none. `limit`: see `app.limit_of`. `former`: see `Participant`. Raises
    SettingsError when settings and group do not fit together."""
    spec = group.spec
    require_fit(settings, spec, is_native=group.is_native)
    balancing = balancing_rules(
        settings,
        spec,
        is_native=group.is_native,
        on_rabbitmq=group.engine.is_rabbitmq,
    )
    rules = processing_rules(settings, spec, concurrency=concurrency)

    def incarnation() -> str:
        return secrets.token_hex(IDENTITY_BYTES)

    if not group.is_native:
        return MemberMachine(
            settings.name,
            balancing=balancing,
            rules=rules,
            timings=Timings(),
            uniform=chance.random,
            incarnation=incarnation,
            former=former,
        )
    machine = NativeMachine(
        settings.name,
        balancing=balancing,
        rules=rules,
        timings=Timings(),
        uniform=chance.random,
        incarnation=incarnation,
        partitions=spec.queue_count if spec.mode == PARTITIONED else 1,
        moves=spec.mode == PARTITIONED,
        session=_session_of(settings, spec, former),
        keys_at_once=keys_at_once(rules) if spec.mode == MESSAGE_GROUPS else None,
        former=former,
    )
    if limit is not None and spec.mode in LIMITED_MODES and machine.consumption.limit is None:
        machine.limit_calls(limit(rules.concurrency, spec.max_handoff_s))
    return machine


def _session_of(
    settings: MemberSettings, spec: GroupSpec, former: Participant | None
) -> SessionPosition | None:
    if spec.mode != SESSIONS:
        return None
    known = former.consumption.session if former is not None else None
    return SessionPosition(settings.name) if known is None else known


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
