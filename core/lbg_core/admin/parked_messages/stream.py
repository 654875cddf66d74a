"""The stream of parked keys, as an administrator reads it and writes to it.

DeadLetterError
└── NoParking    the group has no parking queue
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.dead_letters.letter import DeadLetterError
from lbg_core.admin.errors import AdminError, RecordUnavailable
from lbg_core.admin.group_locks import hold_lock
from lbg_core.admin.record import Record, read_record, spec_in
from lbg_core.admin.status_reports import member_reports
from lbg_core.client import (
    ClientConnection,
    ConfirmingPublisher,
    ConnectionSettings,
    Delivery,
    connect_any,
)
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import IDENTITY_BYTES, GroupSpec, Names
from lbg_core.group.members_protocol import Beat
from lbg_core.group.parked_keys import (
    PARKED_ENTRIES,
    BarrierEntry,
    Entry,
    MarkEntry,
    ParkedKeys,
    RecordedCopies,
    SnapshotEntry,
)
from lbg_core.group.parked_snapshot import SnapshotPlace, parts_of
from lbg_core.stream_follower import StreamFollower, entry_properties, follow_parked

REPORTS_S = 1.5
"""For the status reports of members, which come every second once they are asked for."""


class NoParking(DeadLetterError):
    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} has no parking queue: `lbg park enable {group}` gives it one")


class ParkedStream:
    """`keys` and `copies` follow the stream from the place that the group's `record` has, or from its first entry.
    `read_count`: entries that were read, those in snapshots counted each. `changed` is set with each of them."""

    def __init__(
        self,
        connection: ClientConnection,
        spec: GroupSpec,
        publisher: ConfirmingPublisher,
        record: Record,
    ) -> None:
        self.connection = connection
        self.spec = spec
        self.record = record
        self.names = Names(spec.name)
        self.keys = ParkedKeys()
        self.copies = RecordedCopies()
        self.read_count = 0
        self.changed = asyncio.Event()
        self._place = SnapshotPlace.parse(record.parked_from)
        self._stream = StreamFollower(
            connection,
            self.names.parked,
            PARKED_ENTRIES,
            on_read=self._on_read,
            on_unreadable=lambda error: self.changed.set(),
        )
        self._marks: dict[str, asyncio.Future[tuple[SnapshotPlace, list[SnapshotEntry]]]] = {}
        self._publisher = publisher

    async def follow(self) -> None:
        """Reads the stream. Raises ClientError."""
        await follow_parked(self._stream, self._place)

    async def mark(self) -> tuple[SnapshotPlace, list[SnapshotEntry]]:
        """Writes a mark; returns its place, and the set as it is there in parts. Raises as `catch_up`."""
        mark = MarkEntry(secrets.token_hex(IDENTITY_BYTES))
        read = self._marks[mark.id] = asyncio.get_running_loop().create_future()
        try:
            await self.write([mark])
            await self.catch_up()
            place, parts = read.result()
            return place, parts
        finally:
            del self._marks[mark.id]

    async def catch_up(self) -> None:
        """Returns when all that was confirmed before is read. Raises ClientError, EntryError, RecordUnavailable."""
        barrier = BarrierEntry(secrets.token_hex(IDENTITY_BYTES))
        try:
            await self._stream.read_up_to(barrier, lambda: self.write([barrier]))
        except TimeoutError:
            why = f"stream {self.names.parked} gives no answer in {ANSWER_S:g} s"
            raise RecordUnavailable(self.spec.name, cause=why) from None

    async def write(self, entries: Iterable[Entry]) -> None:
        """Returns when the stream has the entries. Raises ClientError."""
        confirms = [
            self._publisher.publish_soon(
                self.names.parked,
                "",
                PARKED_ENTRIES.encode(entry),
                properties=entry_properties(),
                mandatory=True,
            )
            for entry in entries
        ]
        await asyncio.gather(*confirms)

    async def reports(self) -> Sequence[Beat]:
        """Status reports of the group's members; none if they cannot be had."""
        amqp = AmqpAdmin([self.connection.settings])
        try:
            return await member_reports(amqp, self.spec.name, seconds=REPORTS_S)
        except AdminError:
            return ()
        finally:
            await amqp.close()

    async def wait(self, seconds: float) -> None:
        """Until an entry is read, for so long at most. Raises EntryError."""
        self.changed.clear()
        self._raise_failure()
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            pass
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._stream.failure is not None:
            raise self._stream.failure

    def _on_read(self, read: list[tuple[Entry, Delivery]]) -> None:
        for entry, delivery in read:
            self.read_count += len(entry.entries) if isinstance(entry, SnapshotEntry) else 1
            self.keys.apply(entry)
            self.copies.applied(entry, self.keys)
            if isinstance(entry, MarkEntry) and (mark := self._marks.get(entry.id)) and not mark.done():
                offset = delivery.headers["x-stream-offset"]
                assert isinstance(offset, int)
                parts = parts_of(entry.id, self.keys.snapshot(self.copies))
                mark.set_result((SnapshotPlace(offset, entry.id), parts))
        self.changed.set()


@asynccontextmanager
async def open_parked_stream(
    places: Sequence[ConnectionSettings], group: str, *, is_locked: bool = False
) -> AsyncIterator[ParkedStream]:
    """The parked keys as they are now; `is_locked`: with the group's lock, which is lost with the connection alone.
    Raises NoParking, GroupNotFound and the other errors of `read_group`, Busy, ClientError, and EntryError for a stream
    that cannot be read."""
    connection = await connect_any(places, name=f"lbg park {group}")
    try:
        if is_locked:
            await hold_lock(connection, group)
        channel = await connection.open_channel()
        record = await read_record(channel, group)
        if not record.has_parking:
            raise NoParking(group)
        publisher = await ConfirmingPublisher.open(connection)
        stream = ParkedStream(connection, spec_in(record.text, group), publisher, record)
        await stream.follow()
        await stream.catch_up()
        yield stream
    finally:
        await connection.close()
