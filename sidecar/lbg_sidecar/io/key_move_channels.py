"""Keys that move between queues, over one connection: the stream of the change, its entries, and forwarded messages."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from lbg_core.client import BasicProperties, ClientError, Delivery, NotFound
from lbg_core.client.republication import copied_properties
from lbg_core.group import HEADER_ROUTING_KEY, TO_MOVES, Names, forwarded_key
from lbg_core.group.errors import EntryError
from lbg_core.group.key_moves import KEY_MOVE_ENTRIES, Entry
from lbg_core.stream_follower import StreamFollower, entry_properties
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.io.member_events import MemberEvents
from lbg_sidecar.io.outbox import ExchangePublisher, StreamLink

log = logging.getLogger("lbg.member")


class KeyMoveChannels:
    """`follow` opens the channels, of which a group whose queues stay needs none."""

    def __init__(self, names: Names, link: StreamLink, events: MemberEvents) -> None:
        self._names = names
        self._link = link
        self._events = events
        self._publisher = ExchangePublisher(
            names.members,
            link,
            on_confirmed=events.on_confirmed,
            refused_hint="is the queue there to which its key moves? The key waits for it",
        )
        self._stream = StreamFollower(
            link.consume_connection,
            names.moves,
            KEY_MOVE_ENTRIES,
            on_read=lambda read: events.feed(MemberCore.entries, KeyMoves, [entry for entry, _ in read]),
            on_unreadable=self._on_unreadable,
            on_cancelled=self._absent,
            watch=link.watch,
        )
        self._opening: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None

    def follow(self, is_on: bool) -> None:
        """Reads the stream from its first entry on, or stops that."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._stream.stop()
        if is_on:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    def find_staging(self, move: str, queue: int) -> None:
        """Looks for the first staging queue of this change."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._find_staging(move, queue))

    def record(self, entry: Entry) -> None:
        """It may get lost: then the machine writes it again."""
        if not self._link.is_blocked:
            self._publisher.publish_once(TO_MOVES, entry_properties(), KEY_MOVE_ENTRIES.encode(entry))

    def forward(self, in_flight: InFlight, queue: int) -> None:
        """To this queue of the group, until it is confirmed."""
        self._publisher.publish(in_flight, _forwarded_properties(in_flight), routing_key=forwarded_key(queue))

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._stream.stop()
        for task in (self._opening, self._finding):
            if task is not None:
                task.cancel()
        self._publisher.close()

    async def _open(self) -> None:
        try:
            await self._stream.follow()
        except NotFound:
            self._absent()
        except ClientError as error:
            self._on_unreadable(error)

    async def _find_staging(self, move: str, queue: int) -> None:
        name = self._names.queue(queue)
        try:
            channel = await self._link.consume_connection.open_channel()
            await channel.queue_declare(name, passive=True)
        except NotFound:
            self._events.on_staging_found(move, False)
        except ClientError as error:
            self._events.disconnect(f"queue {name} cannot be looked for: {error}")
        else:
            log.warning(
                "stream %s has no beginning of a change of the number of queues, but queue %s of it is there: no call "
                "starts until `lbg group repartition %s --queues %s` goes on with the change",
                *(self._names.moves, name, self._names.group, move.split("-")[1]),
            )
            await channel.close()
            self._events.on_staging_found(move, True)

    def _absent(self) -> None:
        self._events.feed(MemberCore.absent, KeyMoves)

    def _on_unreadable(self, error: EntryError | ClientError) -> None:
        """Disconnects: who does not know where keys are must not deliver anything."""
        self._events.disconnect(f"the stream {self._names.moves} cannot be read: {error}")


def _forwarded_properties(in_flight: InFlight) -> BasicProperties:
    delivery: Delivery = in_flight.delivery
    copied = copied_properties(delivery, added={HEADER_ROUTING_KEY: delivery.routing_key})
    return replace(copied, expiration=delivery.properties.expiration)
