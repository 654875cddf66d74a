"""Parking over one connection: copies, entries, and the stream of parked keys, which is read from its first entry."""

from __future__ import annotations

from typing import Protocol

from lbg_broker.client import BasicProperties, Channel, ClientConnection, ConfirmingPublisher, Delivery
from lbg_broker.group import Names
from lbg_broker.group.parked_keys import Entry, EntryError, decoded_entry, encoded_entry
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.protocol import Identity
from lbg_sidecar.core.retransmit import RetransmitTimeouts
from lbg_sidecar.io.outbox import ExchangePublisher, RenewableChannels, WallClock, refused_properties

READ_AHEAD_MESSAGES = 2000
"""Entries that the broker sends before they are acknowledged; an acknowledgement in a stream only asks for more."""


class ParkingEvents(Protocol):
    """Callbacks for what comes of copies, entries and the stream."""

    def on_confirmed(self, in_flight: InFlight, action: NextCall) -> None: ...
    def on_recorded(self, in_flight: InFlight, entry: Entry) -> None: ...
    def on_parked_read(self, entries: list[Entry]) -> None: ...
    def disconnect(self, why: str) -> None: ...


class ParkingLink(RenewableChannels, Protocol):
    """The link, as far as parking uses it."""

    consume_connection: ClientConnection

    def watch(self, channel: Channel) -> None: ...


class ParkingChannels:
    """Opened for each connection, by `open`. `follow` reads the stream from then on."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: ParkingLink,
        events: ParkingEvents,
        *,
        copies: ConfirmingPublisher,
        entries: ConfirmingPublisher,
        wall_us: WallClock,
        patience: RetransmitTimeouts | None = None,
    ) -> None:
        patience = patience or RetransmitTimeouts()
        self._names = names
        self._link = link
        self._events = events
        self._is_closed = False
        self._entry_of: dict[InFlight, Entry] = {}
        self._copies = ExchangePublisher(
            names.parking,
            copies,
            link,
            stamp=lambda in_flight: refused_properties(in_flight, me, wall_us),
            on_confirmed=lambda in_flight: events.on_confirmed(in_flight, NextCall.PARK),
            refused_hint=f"is queue {names.parking} there? Parked keys wait for it",
            patience=patience,
        )
        self._entries = ExchangePublisher(
            names.parked,
            entries,
            link,
            stamp=lambda _: _entry_properties(),
            body=lambda in_flight: encoded_entry(self._entry_of[in_flight]),
            on_confirmed=self._recorded,
            refused_hint=f"is stream {names.parked} there? Parked keys wait for it",
            patience=patience,
        )

    @classmethod
    async def open(
        cls,
        names: Names,
        me: Identity,
        link: ParkingLink,
        events: ParkingEvents,
        *,
        wall_us: WallClock,
    ) -> ParkingChannels:
        """Raises ClientError."""
        copies, entries = await link.new_publisher(), await link.new_publisher()
        return cls(names, me, link, events, copies=copies, entries=entries, wall_us=wall_us)

    async def follow(self) -> None:
        """Reads the stream from its first entry on. Raises ClientError."""
        channel = await self._link.consume_connection.open_channel()
        self._link.watch(channel)
        await channel.consume(
            self._names.parked,
            lambda deliveries: self._on_deliveries(channel, deliveries),
            prefetch_count=READ_AHEAD_MESSAGES,
            arguments={"x-stream-offset": "first"},
            on_cancelled=self._link.consume_connection.abort,
        )

    def copy(self, in_flight: InFlight) -> None:
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

    def _recorded(self, in_flight: InFlight) -> None:
        self._events.on_recorded(in_flight, self._entry_of.pop(in_flight))

    def _on_deliveries(self, channel: Channel, deliveries: list[Delivery]) -> None:
        if self._is_closed:
            return
        channel.ack(deliveries[-1].delivery_tag, multiple=True)
        try:
            entries = [decoded_entry(bytes(delivery.body)) for delivery in deliveries]
        except EntryError as error:
            # Whoever does not know all parked keys must not deliver anything.
            self._events.disconnect(f"the parked keys cannot be read from {self._names.parked}: {error}")
            return
        self._events.on_parked_read(entries)


def _entry_properties() -> BasicProperties:
    return BasicProperties(content_type="application/json", delivery_mode=2)
