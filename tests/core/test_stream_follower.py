"""Entries that a follower reads of a stream, over channels that are only replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from lbg_core.client import ClientConnection
from lbg_core.group.errors import EntryError
from lbg_core.group.parked_keys import (
    PARKED_ENTRIES,
    BarrierEntry,
    Entry,
    MarkEntry,
    ParkEntry,
    SettledEntry,
    SnapshotEntry,
)
from lbg_core.group.parked_snapshot import SnapshotPlace
from lbg_core.stream_follower import StreamFollower, follow_parked

PARKED = ParkEntry("k", ("p", 0, 1), 10, "cause", "copy")
SETTLED = SettledEntry("p", 0, ((0, 4),))


@dataclass
class Delivered:
    body: bytes
    delivery_tag: int


@dataclass
class FakeChannel:
    """`sends`: what the broker delivers as soon as it is consumed from."""

    sends: list[bytes]
    offset: str | int = ""
    acked: list[int] = field(default_factory=list)
    is_open: bool = True
    on_cancelled: Callable[[], None] = lambda: None

    async def consume(self, queue: str, on_deliveries: Any, **options: Any) -> None:
        self.offset, self.on_cancelled = options["arguments"]["x-stream-offset"], options["on_cancelled"]
        self.deliver = on_deliveries
        if self.sends:
            on_deliveries([Delivered(body, tag) for tag, body in enumerate(self.sends, 1)])

    def ack(self, tag: int, *, multiple: bool) -> None:
        self.acked.append(tag)

    def close_soon(self) -> None:
        self.is_open = False


class Followed:
    """A follower over these channels, one after another."""

    def __init__(self, *sends: list[bytes]) -> None:
        self.channels = [FakeChannel(one) for one in sends]
        self.read: list[Entry] = []
        self.errors: list[EntryError] = []
        self.cancelled = 0
        self.is_opening = asyncio.Event()
        self.is_opening.set()
        self._next = iter(self.channels)
        self.follower = StreamFollower(
            cast(ClientConnection, self),
            "lbg.orders.parked",
            PARKED_ENTRIES,
            on_read=lambda read: self.read.extend(entry for entry, _ in read),
            on_unreadable=self.errors.append,
            on_cancelled=self._on_cancelled,
        )

    async def open_channel(self) -> FakeChannel:
        await self.is_opening.wait()
        return next(self._next)

    def _on_cancelled(self) -> None:
        self.cancelled += 1


def bodies(*entries: Entry) -> list[bytes]:
    return list(map(PARKED_ENTRIES.encode, entries))


async def test_entries_are_read_in_order_and_acknowledged_at_once() -> None:
    followed = Followed(bodies(PARKED, SETTLED))
    await followed.follower.follow()
    assert followed.read == [PARKED, SETTLED]
    assert (followed.channels[0].offset, followed.channels[0].acked) == ("first", [2])


async def test_deliveries_and_the_end_of_a_channel_that_is_no_longer_the_present_one_are_dropped() -> None:
    followed = Followed(bodies(PARKED), bodies(SETTLED))
    former, present = followed.channels
    for _ in followed.channels:
        await followed.follower.follow()
    former.deliver([Delivered(*bodies(PARKED), delivery_tag=9)])
    former.on_cancelled()
    assert (former.is_open, former.acked, followed.cancelled) == (False, [1], 0)
    assert followed.read == [PARKED, SETTLED]
    followed.follower.stop()
    present.deliver([Delivered(*bodies(PARKED), delivery_tag=9)])
    assert followed.read == [PARKED, SETTLED]


async def test_a_channel_that_opens_after_the_stop_is_closed_and_delivers_nothing() -> None:
    followed = Followed(bodies(PARKED))
    following = asyncio.create_task(followed.follower.follow())
    followed.is_opening.clear()
    await asyncio.sleep(0)
    followed.follower.stop()
    followed.is_opening.set()
    await following
    assert (followed.read, followed.channels[0].is_open) == ([], False)


async def test_a_stream_that_is_deleted_is_reported_once() -> None:
    followed = Followed([])
    await followed.follower.follow()
    for _ in range(2):
        followed.channels[0].on_cancelled()
    assert (followed.cancelled, followed.channels[0].is_open) == (1, False)


async def test_a_message_that_is_no_entry_ends_the_reading_and_fails_each_barrier() -> None:
    followed = Followed([*bodies(PARKED), b"{}"])
    await followed.follower.follow()
    assert (followed.read, len(followed.errors), followed.channels[0].is_open) == ([], 1, False)

    async def write() -> None:
        raise AssertionError("nothing is written to a stream that cannot be read")

    with pytest.raises(EntryError):
        await followed.follower.read_up_to(BarrierEntry("b"), write)


async def test_a_barrier_is_awaited_until_it_is_read() -> None:
    followed = Followed([])
    await followed.follower.follow()
    barrier = BarrierEntry("b")

    async def write() -> None:
        loop = asyncio.get_running_loop()
        for tag, entry in enumerate((BarrierEntry("another"), PARKED, barrier)):
            loop.call_soon(followed.channels[0].deliver, [Delivered(*bodies(entry), delivery_tag=tag)])

    await followed.follower.read_up_to(barrier, write)
    assert followed.read[-1] == barrier


async def test_a_snapshot_is_read_from_its_mark_on() -> None:
    snapshot = SnapshotEntry("m", (SETTLED,), is_last=True)
    followed = Followed(bodies(MarkEntry("m"), PARKED, snapshot))
    assert await follow_parked(followed.follower, SnapshotPlace(17, "m"))
    assert (followed.channels[0].offset, followed.read) == (17, [SETTLED, PARKED])


async def test_without_the_snapshot_at_its_place_all_of_the_stream_is_read() -> None:
    followed = Followed(bodies(PARKED), bodies(SETTLED, PARKED))
    assert not await follow_parked(followed.follower, SnapshotPlace(17, "m"))
    assert [channel.offset for channel in followed.channels] == [17, "first"]
    assert followed.read == [SETTLED, PARKED]
