"""Parking over one connection: copies, entries, and the stream of parked keys, which is read from a snapshot on."""

from __future__ import annotations

import logging
from typing import Protocol

from lbg_core.client import BasicProperties
from lbg_core.group import HEADER_PARKED_COPY, Names
from lbg_core.group.errors import EntryError
from lbg_core.group.members_protocol import Identity
from lbg_core.group.parked_keys import PARKED_ENTRIES, Entry
from lbg_core.group.parked_snapshot import SnapshotPlace
from lbg_core.stream_follower import StreamFollower, entry_properties, follow_parked
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.part import Stream
from lbg_sidecar.core.retransmit import RetransmitTimeouts
from lbg_sidecar.io.outbox import ExchangePublisher, StreamLink, WallClock, refused_properties

log = logging.getLogger("lbg.member")


class ParkingEvents(Protocol):
    """Callbacks for what comes of copies, entries and the stream."""

    def on_confirmed(self, in_flight: InFlight) -> None: ...
    def on_recorded(self, in_flight: InFlight, entry: Entry) -> None: ...
    def on_entries(self, stream: Stream, entries: list[Entry]) -> None: ...
    def disconnect(self, why: str) -> None: ...


class ParkingChannels:
    """`follow` reads the stream from then on."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: StreamLink,
        events: ParkingEvents,
        *,
        wall_us: WallClock,
        patience: RetransmitTimeouts | None = None,
    ) -> None:
        patience = patience or RetransmitTimeouts()
        self._names = names
        self._link = link
        self._events = events
        self._me = me
        self._wall_us = wall_us
        self._entry_of: dict[InFlight, Entry] = {}
        self._copy_of: dict[InFlight, str] = {}
        self._stream = StreamFollower(
            link.consume_connection,
            names.parked,
            PARKED_ENTRIES,
            on_read=lambda read: events.on_entries(Stream.PARKED_KEYS, [entry for entry, _ in read]),
            on_unreadable=self._on_unreadable,
            on_cancelled=link.consume_connection.abort,
            watch=link.watch,
        )
        self._copies = ExchangePublisher(
            names.parking,
            link,
            stamp=self._copy_properties,
            on_confirmed=self._copied,
            refused_hint=f"is queue {names.parking} there? Parked keys wait for it",
            patience=patience,
        )
        self._entries = ExchangePublisher(
            names.parked,
            link,
            stamp=lambda _: entry_properties(),
            body=lambda in_flight: PARKED_ENTRIES.encode(self._entry_of[in_flight]),
            on_confirmed=self._recorded,
            refused_hint=f"is stream {names.parked} there? Parked keys wait for it",
            patience=patience,
        )

    async def follow(self, parked_from: str) -> None:
        """Reads the stream from this place on, or from its first entry: `Record.parked_from`. Raises ClientError."""
        place = SnapshotPlace.parse(parked_from)
        if not await follow_parked(self._stream, place):
            log.warning("stream %s has no snapshot at %s: reading all of it", self._names.parked, place)

    def copy(self, in_flight: InFlight, copy: str) -> None:
        """`copy`: id of the copy."""
        self._copy_of[in_flight] = copy
        self._copies.publish(in_flight)

    def record(self, entry: Entry, in_flight: InFlight | None) -> None:
        """Without a message the entry may get lost: then it is written again, or not needed."""
        if in_flight is None:
            if not self._link.is_blocked:
                self._entries.publish_once("", entry_properties(), PARKED_ENTRIES.encode(entry))
            return
        self._entry_of[in_flight] = entry
        self._entries.publish(in_flight)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._stream.stop()
        self._copies.close()
        self._entries.close()
        self._entry_of.clear()
        self._copy_of.clear()

    def _copy_properties(self, in_flight: InFlight) -> BasicProperties:
        properties = refused_properties(in_flight, self._me, self._wall_us)
        headers = properties.headers or {}
        properties.headers = {**headers, HEADER_PARKED_COPY: self._copy_of[in_flight]}
        return properties

    def _copied(self, in_flight: InFlight) -> None:
        del self._copy_of[in_flight]
        self._events.on_confirmed(in_flight)

    def _recorded(self, in_flight: InFlight) -> None:
        self._events.on_recorded(in_flight, self._entry_of.pop(in_flight))

    def _on_unreadable(self, error: EntryError) -> None:
        """Disconnects: who does not know all parked keys must not deliver anything."""
        self._events.disconnect(f"the parked keys cannot be read from {self._names.parked}: {error}")
