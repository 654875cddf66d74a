"""A member's two connections, and on them the product's channels of parking and of moves of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from lbg_core.client import Channel, ClientConnection, ClientError, ConfirmingPublisher
from lbg_core.client.retransmit import OpenTags, Outgoing
from lbg_core.group.key_moves import Entry as KeyMoveEntry
from lbg_core.group.parked_keys import Entry
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.protocol import Identity
from lbg_sidecar.core.retransmit import Retransmitter
from lbg_sidecar.io.key_move_channels import KeyMoveChannels
from lbg_sidecar.io.last_wills import LastWills
from lbg_sidecar.io.parking_channels import ParkingChannels
from testing.simulation.client import Channel as SimChannel
from testing.simulation.client import Client
from testing.simulation.clock import EPOCH_S
from testing.simulation.cluster import CONSUMER_TIMEOUT_S
from testing.simulation.event_loop import LoopConnection, VirtualLoop

if TYPE_CHECKING:
    from testing.simulation.member import SimMember


class LoopLink:
    """Both connections of a member, as the product's channels use them."""

    def __init__(self, member: SimMember, consuming: Client, publishing: Client) -> None:
        self.member = member
        self.loop = VirtualLoop(member.history, member.process)
        engine = member.history.broker.engine
        self._publishing = LoopConnection(publishing, self.loop, engine)
        self.consume_connection = cast(ClientConnection, LoopConnection(consuming, self.loop, engine))
        self.is_closed = False

    @property
    def is_blocked(self) -> bool:
        return self._publishing.is_blocked

    async def new_publisher(self) -> ConfirmingPublisher:
        publisher = await ConfirmingPublisher.open(cast(ClientConnection, self._publishing))
        self.watch(publisher.channel)
        return publisher

    def watch(self, channel: Channel) -> None:
        channel.closed.add_done_callback(self._ended)

    def _ended(self, closed: asyncio.Future[ClientError | None]) -> None:
        if (error := closed.result()) is not None:
            self.disconnect(str(error))

    def disconnect(self, why: str) -> None:
        if not self.is_closed:
            self.member.disconnect(why)


class ChannelsEnd:
    """Events of channels, for the member's machine."""

    def __init__(self, link: LoopLink) -> None:
        self._link = link
        self._member = link.member
        self._loop = link.loop

    def on_confirmed(self, in_flight: InFlight, action: NextCall) -> None:
        self._member.machine.confirmed(in_flight, action, self._member.now)
        self._member.run()

    def disconnect(self, why: str) -> None:
        self._link.disconnect(why)


class KeyMoveEnd(ChannelsEnd):
    """`KeyMoveEvents` of the product's `KeyMoveChannels`."""

    def __init__(self, link: LoopLink) -> None:
        super().__init__(link)
        self._channels = self._loop.run_now(KeyMoveChannels, link.member.history.names, link, self)

    def follow(self, is_on: bool) -> None:
        self._loop.run_now(self._channels.follow, is_on)

    def record(self, entry: KeyMoveEntry) -> None:
        self._loop.run_now(self._channels.record, entry)

    def forward(self, in_flight: InFlight, queue: int) -> None:
        self._loop.run_now(self._channels.forward, in_flight, queue)

    def close(self) -> None:
        self._channels.close()

    def on_key_moves_read(self, entries: list[KeyMoveEntry]) -> None:
        self._member.machine.key_moves_read(entries, self._member.now)
        self._member.run()

    def on_key_move_absent(self) -> None:
        self._member.machine.key_move_absent(self._member.now)
        self._member.run()


class WillsEnd(ChannelsEnd):
    """The product's `LastWills`. Nothing on the model of RabbitMQ, which has no such queues."""

    def __init__(self, link: LoopLink, index: int, publish: Callable[[str, str, bytes], object]) -> None:
        super().__init__(link)
        self._wills: LastWills | None = None
        self._wanted: int | None = None
        self._is_closed = link.member.history.broker.engine.is_rabbitmq
        link.loop.call_soon(self._begin, index, publish)

    def _begin(self, index: int, publish: Callable[[str, str, bytes], object]) -> None:
        if self._is_closed:
            return
        history = self._member.history
        self._wills = LastWills(
            self._link.consume_connection,
            history.names,
            index,
            publish=lambda key: publish(history.names.members, key, b""),
            on_will=self._on_will,
            on_watched=self._on_watched,
            consumer_timeout_s=CONSUMER_TIMEOUT_S,
            uniform=history.random.random,
        )
        self._wills.watch(self._wanted)

    def watch(self, index: int | None) -> None:
        self._wanted = index
        if self._wills is not None:
            self._loop.run_now(self._wills.watch, index)

    def close(self) -> None:
        self._is_closed = True
        if self._wills is not None and self._member.process.alive:
            self._loop.run_now(self._wills.close)

    def _on_will(self, index: int) -> None:
        self._member.machine.willed(index, self._member.now)
        self._member.run()

    def _on_watched(self, index: int | None) -> None:
        self._member.machine.will_watched(index, self._member.now)
        self._member.run()


class ParkingEnd(ChannelsEnd):
    """`ParkingEvents` of the product's `ParkingChannels`."""

    def __init__(self, link: LoopLink, index: int) -> None:
        super().__init__(link)
        member = self._member
        me = Identity(index, member.name, "")
        self._channels = self._loop.run_now(
            partial(ParkingChannels, member.history.names, me, link, self, wall_us=_wall_us)
        )

    def follow(self) -> None:
        """Reads the stream from now on."""
        place = self._member.history.repartitions.record.parked_from
        self._loop.create_task(self._channels.follow(place)).add_done_callback(self._followed)

    def _followed(self, following: asyncio.Task[None]) -> None:
        error = following.exception()
        if isinstance(error, ClientError):
            self.disconnect(str(error))
        elif error is not None:
            raise error

    def copy(self, in_flight: InFlight, copy: str) -> None:
        self._loop.run_now(self._channels.copy, in_flight, copy)

    def record(self, entry: Entry, in_flight: InFlight | None) -> None:
        self._loop.run_now(self._channels.record, entry, in_flight)

    def close(self) -> None:
        self._channels.close()

    # `ParkingEvents`

    def on_recorded(self, in_flight: InFlight, entry: Entry) -> None:
        self._member.machine.recorded(in_flight, entry, self._member.now)
        self._member.run()

    def on_parked_read(self, entries: list[Entry]) -> None:
        self._member.machine.parked_read(entries, self._member.now)
        self._member.run()


def _wall_us(now: float) -> int:
    return int((EPOCH_S + now) * 1e6)


class Link:
    """Both connections of a member that has claimed an index."""

    def __init__(self, consuming: Client, publishing: Client) -> None:
        self.consuming = consuming
        self.publishing = publishing
        self.index = -1
        self.posting: SimChannel
        self.dead: SimChannel
        self.counting: SimChannel | None = None
        self.directed = OpenTags[tuple[bytes, int]]()
        self.letters = OpenTags[Outgoing[InFlight]]()
        self.retransmitter = Retransmitter()
        self.channels: dict[Attachment, SimChannel] = {}
        self.attached: set[Attachment] = set()
        self.attachments: dict[int, Attachment] = {}
        """By the number of their channels."""
        self.products: LoopLink | None = None
        self.parking: ParkingEnd | None = None
        self.key_moves: KeyMoveEnd | None = None
        self.wills: WillsEnd | None = None

    def abort(self) -> None:
        if self.products is not None:
            self.products.is_closed = True
        if self.parking is not None:
            self.parking.close()
        if self.key_moves is not None:
            self.key_moves.close()
        if self.wills is not None:
            self.wills.close()
        self.consuming.abort()
        self.publishing.abort()
