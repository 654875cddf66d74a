"""Parking over one connection: copies, entries, and the stream of parked keys, which is read from a snapshot on."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from lbg_core.client import BasicProperties, Channel, ClientConnection, Delivery
from lbg_core.group import HEADER_PARKED_COPY, Names
from lbg_core.group.members_protocol import Identity
from lbg_core.group.parked_keys import Entry, EntryError, decoded_entry, encoded_entry
from lbg_core.group.parked_snapshot import FIRST_ENTRY_S, SnapshotMissing, SnapshotPlace, SnapshotReader
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.retransmit import RetransmitTimeouts
from lbg_sidecar.io.outbox import ExchangePublisher, PublishingLink, WallClock, refused_properties

log = logging.getLogger("lbg.member")

READ_AHEAD_MESSAGES = 2000
"""Entries that the broker sends before they are acknowledged; an acknowledgement in a stream only asks for more."""


class ParkingEvents(Protocol):
    """Callbacks for what comes of copies, entries and the stream."""

    def on_confirmed(self, in_flight: InFlight, action: NextCall) -> None: ...
    def on_recorded(self, in_flight: InFlight, entry: Entry) -> None: ...
    def on_parked_read(self, entries: list[Entry]) -> None: ...
    def disconnect(self, why: str) -> None: ...


class ParkingLink(PublishingLink, Protocol):
    """The link, as far as parking uses it."""

    consume_connection: ClientConnection

    def watch(self, channel: Channel) -> None: ...


class ParkingChannels:
    """`follow` reads the stream from then on."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: ParkingLink,
        events: ParkingEvents,
        *,
        wall_us: WallClock,
        patience: RetransmitTimeouts | None = None,
    ) -> None:
        patience = patience or RetransmitTimeouts()
        self._names = names
        self._link = link
        self._events = events
        self._is_closed = False
        self._me = me
        self._wall_us = wall_us
        self._entry_of: dict[InFlight, Entry] = {}
        self._copy_of: dict[InFlight, str] = {}
        self._reader = SnapshotReader(None)
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
            stamp=lambda _: _entry_properties(),
            body=lambda in_flight: encoded_entry(self._entry_of[in_flight]),
            on_confirmed=self._recorded,
            refused_hint=f"is stream {names.parked} there? Parked keys wait for it",
            patience=patience,
        )

    async def follow(self, parked_from: str) -> None:
        """Reads the stream from this place on, or from its first entry: `Record.parked_from`. Raises ClientError."""
        place = SnapshotPlace.parse(parked_from)
        channel = await self._consume(place)
        if place is None:
            return
        try:
            async with asyncio.timeout(FIRST_ENTRY_S):
                await self._begun
        except (SnapshotMissing, TimeoutError):
            log.warning("stream %s has no snapshot at %s: reading all of it", self._names.parked, place)
            await channel.close()
            await self._consume(None)

    async def _consume(self, place: SnapshotPlace | None) -> Channel:
        channel = await self._link.consume_connection.open_channel()
        self._link.watch(channel)
        self._reader = SnapshotReader(place)
        await channel.consume(
            self._names.parked,
            lambda deliveries: self._on_deliveries(channel, deliveries),
            prefetch_count=READ_AHEAD_MESSAGES,
            arguments={"x-stream-offset": "first" if place is None else place.offset},
            on_cancelled=self._link.consume_connection.abort,
        )
        return channel

    def copy(self, in_flight: InFlight, copy: str) -> None:
        """`copy`: id of the copy."""
        self._copy_of[in_flight] = copy
        self._copies.publish(in_flight)

    def record(self, entry: Entry, in_flight: InFlight | None) -> None:
        """Without a message the entry may get lost: then it is written again, or not needed."""
        if in_flight is None:
            if not self._link.is_blocked:
                self._entries.publish_once("", _entry_properties(), encoded_entry(entry))
            return
        self._entry_of[in_flight] = entry
        self._entries.publish(in_flight)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._is_closed = True
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
        self._events.on_confirmed(in_flight, NextCall.PARK)

    def _recorded(self, in_flight: InFlight) -> None:
        self._events.on_recorded(in_flight, self._entry_of.pop(in_flight))

    def _on_deliveries(self, channel: Channel, deliveries: list[Delivery]) -> None:
        if self._is_closed:
            return
        channel.ack(deliveries[-1].delivery_tag, multiple=True)
        try:
            entries = list(self._reader.read(decoded_entry(bytes(one.body)) for one in deliveries))
        except SnapshotMissing as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            return
        except EntryError as error:
            # Whoever does not know all parked keys must not deliver anything.
            self._events.disconnect(f"the parked keys cannot be read from {self._names.parked}: {error}")
            return
        if not self._begun.done():
            self._begun.set_result(None)
        if entries:
            self._events.on_parked_read(entries)


def _entry_properties() -> BasicProperties:
    return BasicProperties(content_type="application/json", delivery_mode=2)
