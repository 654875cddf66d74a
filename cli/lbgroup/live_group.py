"""A group as it is now, for the demo.

`LiveGroup` is a description that status reports and counts of queues keep up to date. It is pure; `observed` reads the
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from lbg_core.admin import ProvisioningError
from lbg_core.admin.describe import describe
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.record import Record
from lbg_core.admin.snapshot import UNKNOWN, Snapshot
from lbg_core.admin.status_reports import VIEW_KEYS, WATCH_AGAIN_S, watch_reports
from lbg_core.client import Delivery
from lbg_core.group import Engine, GroupSpec, Names, stream_queues
from lbg_core.group.errors import MessageError
from lbg_core.group.members_protocol import Beat, Message
from lbg_core.group.message_codec import decode

READ_EVERY_S = 0.4


class LiveGroup:
    """The last snapshot, and the last status report of each member until it is forgotten. No I/O."""

    def __init__(self, spec: GroupSpec, engine: Engine) -> None:
        self.spec = spec
        self._beats: dict[str, Beat] = {}
        self.on_snapshot(
            Snapshot(
                engine,
                record=Record(spec.to_record(), paused=None),
                queues=dict.fromkeys(stream_queues(spec, engine), UNKNOWN),
            )
        )

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._describe()

    def on_report(self, beat: Beat) -> None:
        self._beats[beat.name] = beat
        self._describe()

    def forget(self, name: str) -> None:
        """A member has left or died."""
        if self._beats.pop(name, None) is not None:
            self._describe()

    def name_of(self, index: int) -> str:
        """The name of the member with this index."""
        return next((one.name for one in self._beats.values() if one.index == index), f"member {index}")

    def _describe(self) -> None:
        self.description = describe(self.spec.name, self._snapshot, beats=self._beats.values())


@contextlib.asynccontextmanager
async def observed(
    admin: LiveAdmin,
    spec: GroupSpec,
    *,
    on_message: Callable[[Message], None],
    on_snapshot: Callable[[Snapshot], None],
) -> AsyncIterator[None]:
    """For the length of the block: the members' status reports and what they send to all, and the group's queues
    several times a second."""

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(MessageError):
                if (message := decode(delivery.body)) is not None:
                    on_message(message)

    async def read() -> None:
        while True:
            with suppress(ProvisioningError):  # what cannot be read now is passed over
                on_snapshot(await admin.observe_queues(spec))
            await asyncio.sleep(READ_EVERY_S)

    async def watch() -> None:
        while True:
            watch_reports(admin.amqp, [spec.name])
            await asyncio.sleep(WATCH_AGAIN_S)

    queue = await admin.amqp.own_queue()
    async with admin.amqp.link.channel(within_s=None) as channel:
        await channel.consume(queue, on_deliveries, no_ack=True)
        await admin.amqp.bind_own(queue, [Names(spec.name).members], keys=VIEW_KEYS)
        async with running(watch()), running(read()):
            yield


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    """`work` for the length of the block; its errors are raised at the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
