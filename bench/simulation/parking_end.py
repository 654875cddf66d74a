"""A member's end of parking: the product's channels for copies, entries and the stream, on its two connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from bench.simulation.client import ChannelRefused, Client
from bench.simulation.clock import EPOCH_S, Task
from bench.simulation.event_loop import LoopConnection, VirtualLoop
from lbg_broker.client import Channel, ClientConnection, ClientError, ConfirmingPublisher
from lbg_broker.group.parked_keys import Entry
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.protocol import Identity
from lbg_sidecar.io.parking_channels import ParkingChannels

if TYPE_CHECKING:
    from bench.simulation.member import SimMember


class Awaited:
    """A wait of a process's steps for what a coroutine of the product returns; ClientError ends it as a refusal."""

    def __init__(self, loop: VirtualLoop, coroutine: Coroutine[Any, Any, object]) -> None:
        self._loop = loop
        self._coroutine = coroutine

    def begin(self, task: Task) -> None:
        turn = task.turn

        def done(awaited: asyncio.Task[object]) -> None:
            error = awaited.exception()
            if error is None:
                task.resume(turn, awaited.result())
            elif isinstance(error, ClientError):
                task.resume(turn, ChannelRefused(200, str(error)))
            else:
                raise error

        self._loop.create_task(self._coroutine).add_done_callback(done)


class ParkingEnd:
    """`ParkingLink` and `ParkingEvents` of the product's `ParkingChannels`, for one link of a member."""

    def __init__(self, member: SimMember, consuming: Client, publishing: Client) -> None:
        self._member = member
        self._loop = VirtualLoop(member.history, member.process)
        engine = member.history.broker.engine
        self._publishing = LoopConnection(publishing, self._loop, engine)
        self.consume_connection = cast(ClientConnection, LoopConnection(consuming, self._loop, engine))
        self._channels: ParkingChannels | None = None
        self._is_closed = False

    def opened(self, index: int) -> Awaited:
        return Awaited(self._loop, self._open(index))

    async def _open(self, index: int) -> None:
        member = self._member
        self._channels = await ParkingChannels.open(
            member.history.names,
            Identity(index, member.name, ""),
            self,
            self,
            wall_us=lambda now: int((EPOCH_S + now) * 1e6),
        )

    def follow(self) -> None:
        """Reads the stream from now on."""
        assert self._channels is not None
        place = self._member.history.repartitions.record.parked_from
        self._loop.create_task(self._channels.follow(place)).add_done_callback(self._followed)

    def _followed(self, following: asyncio.Task[None]) -> None:
        error = following.exception()
        if isinstance(error, ClientError):
            self.disconnect(str(error))
        elif error is not None:
            raise error

    def copy(self, in_flight: InFlight, copy: str) -> None:
        if self._channels is not None:
            self._loop.run_now(self._channels.copy, in_flight, copy)

    def record(self, entry: Entry, in_flight: InFlight | None) -> None:
        if self._channels is not None:
            self._loop.run_now(self._channels.record, entry, in_flight)

    def close(self) -> None:
        self._is_closed = True
        if self._channels is not None:
            self._channels.close()

    # `ParkingLink`

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

    # `ParkingEvents`

    def on_confirmed(self, in_flight: InFlight, action: NextCall) -> None:
        self._member.machine.confirmed(in_flight, action, self._member.now)
        self._member.run()

    def on_recorded(self, in_flight: InFlight, entry: Entry) -> None:
        self._member.machine.recorded(in_flight, entry, self._member.now)
        self._member.run()

    def on_parked_read(self, entries: list[Entry]) -> None:
        self._member.machine.parked_read(entries, self._member.now)
        self._member.run()

    def disconnect(self, why: str) -> None:
        if not self._is_closed:
            self._member.disconnect(why)
