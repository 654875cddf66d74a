"""Parking over one connection: copies, entries, and the stream of parked keys, which is read from a snapshot on."""

from __future__ import annotations

import logging
from functools import partial

from lbg_core.group import HEADER_PARKED_COPY, Names
from lbg_core.group.errors import EntryError
from lbg_core.group.member_state import Identity
from lbg_core.group.parked_keys import PARKED_ENTRIES, Entry
from lbg_core.group.parked_snapshot import SnapshotPlace
from lbg_core.stream_follower import StreamFollower, entry_properties, follow_parked
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.io.member_events import MemberEvents
from lbg_sidecar.io.outbox import ExchangePublisher, StreamLink, WallClock, refused_properties

log = logging.getLogger("lbg.member")


class ParkingChannels:
    """`follow` reads the stream from then on."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: StreamLink,
        events: MemberEvents,
        *,
        wall_us: WallClock,
    ) -> None:
        self._names = names
        self._link = link
        self._events = events
        self._me = me
        self._wall_us = wall_us
        self._stream = StreamFollower(
            link.consume_connection,
            names.parked,
            PARKED_ENTRIES,
            on_read=lambda read: events.feed(MemberCore.entries, Parking, [entry for entry, _ in read]),
            on_unreadable=self._on_unreadable,
            on_cancelled=link.consume_connection.abort,
            watch=link.watch,
        )
        self._copies = ExchangePublisher(
            names.parking,
            link,
            on_confirmed=events.on_confirmed,
            refused_hint=f"is queue {names.parking} there? Parked keys wait for it",
        )
        self._entries = ExchangePublisher(
            names.parked,
            link,
            on_confirmed=partial(events.feed, MemberCore.recorded),
            refused_hint=f"is stream {names.parked} there? Parked keys wait for it",
        )

    async def follow(self, parked_from: str) -> None:
        """Reads the stream from this place on, or from its first entry: `Record.parked_from`. Raises ClientError."""
        place = SnapshotPlace.parse(parked_from)
        if not await follow_parked(self._stream, place):
            log.warning("stream %s has no snapshot at %s: reading all of it", self._names.parked, place)

    def copy(self, in_flight: InFlight, copy: str) -> None:
        """`copy`: id of the copy."""
        properties = refused_properties(in_flight, self._me, self._wall_us)
        properties.headers = {**(properties.headers or {}), HEADER_PARKED_COPY: copy}
        self._copies.publish(in_flight, properties)

    def record(self, entry: Entry, in_flight: InFlight | None) -> None:
        """Without a message the entry may get lost: then it is written again, or not needed."""
        body = PARKED_ENTRIES.encode(entry)
        if in_flight is not None:
            self._entries.publish(in_flight, entry_properties(), body=body)
        elif not self._link.is_blocked:
            self._entries.publish_once("", entry_properties(), body)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._stream.stop()
        self._copies.close()
        self._entries.close()

    def _on_unreadable(self, error: EntryError) -> None:
        """Disconnects: who does not know all parked keys must not deliver anything."""
        self._events.disconnect(f"the parked keys cannot be read from {self._names.parked}: {error}")
