"""Collects the status reports of the members of many groups on one queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import AdminError, Refused
from lbg_core.client import Channel, ClientConnection, Delivery
from lbg_core.group import MEMBERS_VERSION, TO_ALL, TO_OBSERVERS, Names, group_in
from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat, Message, Watch
from lbg_core.group.message_codec import decode

REPORT_KEYS = (TO_OBSERVERS,)
"""Routing keys of status reports."""

VIEW_KEYS = (*REPORT_KEYS, TO_ALL)
"""Routing keys for a view, which shows also who joins and leaves."""

KEPT_S = 120.0
"""Seconds after which the reports of a group are no longer received, without a request for them. Autoscalers
send one every 15 s by default."""

BIND_AGAIN_S = 10.0
"""Between two bindings to a group without reports: it may have been deleted and made anew, and a binding does not
outlive its exchange."""

FRESH_S = 2.0
"""Members that are watched send a report every second, 1.2 s apart at most; an older one may be out of date."""

WATCH_S = 60.0
"""Seconds for which an observer that stays asks for reports. Without an observer members send one when it has changed,
and every 5 s if it has not."""

WATCH_AGAIN_S = 20.0
"""Between two requests of an observer that stays. A member that joins sends a report every second for 30 s, because it
does not know who watches."""


def watch_reports(amqp: AmqpAdmin, groups: Sequence[str], *, seconds: float = WATCH_S) -> None:
    """Has the members of these groups send their status reports soon, and every second for so long. Waits for nothing.

    If they cannot be asked, as without the permission to publish to them, reports come every 5 s.
    """
    amqp.send_soon(groups, Watch(Identity(0, "observer", ""), seconds, keys=False))


def beat_in(group: str, body: bytes) -> Beat | None:
    """The status report in a message of a member of `group`; None in any other message. Raises Refused for a message of
    a newer version than this one."""
    message = message_in(group, body)
    return message if isinstance(message, Beat) else None


def message_in(group: str, body: bytes) -> Message | None:
    """The message; None for bytes that are none. Raises Refused for one of a newer version than this one."""
    try:
        return decode(body)
    except NewerMessage as error:
        raise Refused(
            f"member {error.name} of group {group!r} sends messages of version {error.version}, and this LBG reads "
            f"version {MEMBERS_VERSION}: upgrade it",
            status=0,
        ) from None
    except MessageError:
        return None


_OURS = f'{{"v":{MEMBERS_VERSION},'.encode()


class CollectedReports:
    """Messages of one group's members, each once, in the order in which it came last: an idle member sends the same
    bytes every second."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._bodies: dict[bytes, None] = {}

    def append(self, body: bytes) -> None:
        self._bodies.pop(body, None)
        self._bodies[body] = None

    @property
    def digests(self) -> frozenset[bytes]:
        return frozenset(blake2b(body, digest_size=16).digest() for body in self._bodies)

    @cached_property
    def beats(self) -> list[Beat]:
        beats = []
        for body in self._bodies:
            with contextlib.suppress(Refused):  # one that names its version twice
                if (beat := beat_in(self._group, body)) is not None:
                    beats.append(beat)
        return beats


@contextlib.asynccontextmanager
async def receiving(
    amqp: AmqpAdmin,
    groups: Sequence[str],
    keys: Sequence[str],
    on_deliveries: Callable[[list[Delivery]], None],
) -> AsyncIterator[dict[str, Refused]]:
    """Receives what members of these groups send by these routing keys, for the length of the block. Yields the groups
    of which that is refused, and why."""
    queue = await amqp.own_queue(of_members_of=groups[0] if len(groups) == 1 else None)
    try:
        async with amqp.link.channel(within_s=None) as channel:
            tag = await channel.consume(queue, on_deliveries, no_ack=True)
            exchanges = {Names(group).members: group for group in groups}
            refused = await amqp.bind_own(queue, list(exchanges), keys=keys)
            yield {exchanges[name]: error for name, error in refused.items()}
            await channel.cancel(tag)
    finally:
        # If it cannot be deleted, its connection is lost, and the queue with it.
        with contextlib.suppress(AdminError):
            await amqp.delete_own(queue)


async def collect_reports(
    amqp: AmqpAdmin, groups: Sequence[str], *, seconds: float
) -> dict[str, CollectedReports | Refused]:
    """The reports of each group within `seconds`, or why they could not be received."""
    collected: dict[str, CollectedReports | Refused] = {group: CollectedReports(group) for group in groups}

    def on_report(group: str, body: bytes) -> None:
        reports = collected[group]
        if isinstance(reports, Refused):
            return
        try:
            if body.startswith(_OURS) or beat_in(group, body) is not None:
                reports.append(body)
        except Refused as newer:
            collected[group] = newer

    async with receiving(amqp, groups, REPORT_KEYS, _deliveries_to(on_report)) as refused:
        watch_reports(amqp, [group for group in groups if group not in refused], seconds=seconds)
        await asyncio.sleep(seconds)
    return {**collected, **refused}


async def member_reports(amqp: AmqpAdmin, group: str, *, seconds: float) -> list[Beat]:
    """The reports of one group within `seconds`. Raises AdminError."""
    collected = (await collect_reports(amqp, [group], seconds=seconds))[group]
    if isinstance(collected, Refused):
        raise collected
    return collected.beats


@dataclass(slots=True)
class _Subscription:
    """To a group, `since` it was first bound. `beats`: the last one of each member, by its index, with its time."""

    since: float | None = None
    requested_at: float = float("-inf")
    bound_at: float = float("-inf")
    watched_at: float = float("-inf")
    beats: dict[int, tuple[float, Beat]] = field(default_factory=dict)
    refusal: Refused | None = None


class ReportQueue:
    """Subscribes to the groups that are requested, and stores the last report of each of their members."""

    def __init__(self, amqp: AmqpAdmin) -> None:
        self._amqp = amqp
        self._connection: ClientConnection | None = None
        self._channel: Channel | None = None
        self._queue = ""
        self._groups: dict[str, _Subscription] = {}
        self._turn = asyncio.Lock()

    async def attend(self, group: str) -> float:
        """Subscribes to `group`, and returns since when it is subscribed. Raises AdminError, also for a member of a
        newer version."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            await self._open()
            one = self._groups.setdefault(group, _Subscription())
            one.requested_at = now
            if one.since is None:
                await self._bind(group, one)
                one.since = one.bound_at
            elif not self.latest(group) and one.bound_at < now - BIND_AGAIN_S:
                await self._bind(group, one)
            if one.watched_at < now - WATCH_AGAIN_S:
                one.watched_at = now
                watch_reports(self._amqp, [group])
            await self._leave(
                [name for name, each in self._groups.items() if each.requested_at < now - KEPT_S]
            )
            newer, one.refusal = one.refusal, None
            if newer is not None:
                raise newer
            return one.since

    def latest(self, group: str) -> list[Beat]:
        """Last report of each member of `group`, unless that was too long ago."""
        one, now = self._groups.get(group), asyncio.get_running_loop().time()
        return [] if one is None else [beat for at, beat in one.beats.values() if at > now - FRESH_S]

    async def _open(self) -> None:
        connection = await self._amqp.link.connection()
        if connection is self._connection and self._channel is not None and self._channel.is_open:
            return
        self._groups.clear()
        self._queue = await self._amqp.own_queue()
        with self._amqp.link.translated_errors():
            channel = await connection.open_channel()
            await channel.consume(
                self._queue, _deliveries_to(self._on_report), no_ack=True, on_cancelled=channel.close_soon
            )
        self._connection, self._channel = connection, channel

    async def _bind(self, group: str, one: _Subscription) -> None:
        exchange = Names(group).members
        if refused := await self._amqp.bind_own(self._queue, [exchange], keys=REPORT_KEYS):
            self._groups.pop(group)
            raise refused[exchange]
        one.bound_at, one.watched_at = asyncio.get_running_loop().time(), float("-inf")

    async def _leave(self, groups: Sequence[str]) -> None:
        if groups:
            await self._amqp.unbind_own(
                self._queue, [Names(group).members for group in groups], keys=REPORT_KEYS
            )
        for group in groups:
            del self._groups[group]

    def _on_report(self, group: str, body: bytes) -> None:
        if (one := self._groups.get(group)) is None:
            return
        try:
            beat = beat_in(group, body)
        except Refused as newer:
            one.refusal = newer
            return
        if beat is not None:
            one.beats[beat.index] = asyncio.get_running_loop().time(), beat


def _deliveries_to(on_report: Callable[[str, bytes], None]) -> Callable[[list[Delivery]], None]:
    """`on_report` gets each message, with the group that it came from."""

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            on_report(group_in(delivery.exchange), bytes(delivery.body))

    return on_deliveries
