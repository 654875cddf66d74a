"""A member's process: the product's `Member`, on a simulated host."""

from __future__ import annotations

import asyncio
from typing import cast

from lbg_core.amqp.events import DeliverEvent
from lbg_core.client import ClientConnection, ConnectError, ConnectionSettings
from lbg_core.group import BY_LOAD
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Message as GroupMessage
from lbg_core.group.members_protocol import Pause
from lbg_core.group.message_codec import encode
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.by_load import LOAD
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.io.connection import Host
from lbg_sidecar.io.driver import Driver
from lbg_sidecar.member import Member
from lbg_sidecar.message import Message, Verdict
from lbg_sidecar.settings import MemberSettings
from testing.simulation.application import Application, SimChannel
from testing.simulation.clock import EPOCH_S, Process
from testing.simulation.cluster import CONSUMER_TIMEOUT_S
from testing.simulation.event_loop import SimConnection, VirtualLoop
from testing.simulation.judge import Judged
from testing.simulation.network import Connection

CONCURRENCY = 4
CONCURRENCY_BY_LOAD = 2
"""With which slow members have much to do."""

ADMINISTRATOR = Identity(0, "lbg group pause", "command")


class SimMember:
    """`is_up` until its process has ended."""

    process_type = Process
    loop_type = VirtualLoop

    def __init__(self, history: Judged, application: Application, name: str) -> None:
        self.history = history
        self.application = application
        self.name = name
        self.process = self.process_type(name)
        self.stopped_at: float | None = None
        self.mute_until = float("-inf")
        """Until then all that it sends to all members is lost."""
        self.channel = SimChannel(application, self)
        self._connections: list[SimConnection] = []
        self._attachments: dict[Attachment, None] = {}
        self._loop = self.loop_type(history, self.process)
        host = Host(connect=self._connect, chance=history.random, wall_s=lambda: EPOCH_S + history.clock.now)
        self._member = Member(self._settings(), self.channel, observer=self._observe, host=host)
        self._loop.create_task(self._live()).add_done_callback(_succeeded)

    def _settings(self) -> MemberSettings:
        history = self.history
        engine = history.broker.engine
        return MemberSettings(
            group=history.spec.name,
            name=self.name,
            shutdown_grace_s=history.grace_s,
            **history.parking_settings,
            retry_first_s=0.1,
            retry_max_s=2.0,
            call_timeout_s=history.call_timeout_s,
            concurrency=CONCURRENCY_BY_LOAD if history.setting.assignment == BY_LOAD else CONCURRENCY,
            body_memory_mb=64,
            **({"consumer_timeout_s": CONSUMER_TIMEOUT_S} if engine.is_rabbitmq else {}),
        )

    async def _live(self) -> None:
        async with self._member:
            await self._member.run()
        self._end()

    async def _connect(self, where: ConnectionSettings, *, name: str) -> ClientConnection:
        history = self.history
        await asyncio.sleep(history.delay_s())
        connection = SimConnection.connected(history, self._loop, name, settings=where, watch=self)
        if connection is None:
            raise ConnectError("the broker refuses connections")
        self._connections = [*self.connections, connection]
        return cast(ClientConnection, connection)

    def _observe(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Done(deliveries):
                self.history.judge.done(self, deliveries)
            case fx.Attach(attachment):
                self._attachments = dict.fromkeys((*self.attachments, attachment))
            case fx.Detach(attachment):
                self.history.judge.detached(self, attachment)
            case fx.Moved(why=why) if why == LOAD:
                self.history.judge.moves_by_load += 1

    # What it has

    @property
    def is_app_ready(self) -> bool:
        return self.channel.is_ready

    @property
    def is_up(self) -> bool:
        return self.process.alive

    @property
    def driver(self) -> Driver | None:
        """None until it has read the group's record."""
        calls = self.channel.calls
        return calls if isinstance(calls, Driver) else None

    @property
    def machine(self) -> MemberCore:
        assert self.driver is not None
        return self.driver.machine

    @property
    def connections(self) -> list[SimConnection]:
        return [one for one in self._connections if one.is_open]

    @property
    def wires(self) -> list[Connection]:
        return [one.wire for one in self.connections]

    @property
    def consuming(self) -> SimConnection | None:
        """The connection over which it consumes; None while it has none."""
        link = self.driver.link if self.driver is not None else None
        return None if link is None else cast(SimConnection, link.consume_connection)

    @property
    def attachments(self) -> list[Attachment]:
        return [one for one in self._attachments if not one.closed]

    # Its process

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.alive:
            self._end()

    def _end(self) -> None:
        self.process.alive = False
        self.application.killed(self)
        for connection in self.connections:
            connection.abort()

    def freeze(self, seconds: float) -> None:
        clock = self.history.clock
        self.process.frozen_until = max(self.process.frozen_until, clock.now + seconds)
        for wire in self.wires:
            self.history.frozen(wire, seconds)

    def stop(self) -> None:
        """SIGTERM, once: with a second one a member cuts off its calls."""
        if self.stopped_at is None:
            self.stopped_at = self.history.clock.now
            self._loop.run_now(self._member.stop, "SIGTERM")

    def answered(self, message: Message, verdict: Verdict) -> None:
        """The application has answered a call."""
        self._loop.run_now(self.channel.ended, message, verdict)

    def app_ready(self, is_ready: bool) -> None:
        if self.is_up:
            self._loop.run_now(self.channel.ready, is_ready)

    def pause(self, is_paused: bool) -> None:
        """An administrator's request reaches its mailbox."""
        self.receive(Pause(ADMINISTRATOR, is_paused))

    def receive(self, message: GroupMessage) -> None:
        """It reaches its mailbox."""
        if self.is_up and self.driver is not None:
            mail = DeliverEvent.__new__(DeliverEvent)
            mail.header, mail.body = b"\x00\x00", encode(message)
            self._loop.run_now(self.driver.on_mail, mail)

    # `Watch`

    @property
    def is_mute(self) -> bool:
        return self.history.clock.now < self.mute_until

    def ended(self, connection: SimConnection) -> None:
        self.history.judge.cut(self)

    def channel_closed(self, connection: SimConnection, number: int) -> None:
        self.history.judge.channel_closed(connection, number)

    def dead_letter(self, body: bytes) -> None:
        self.history.judge.dead(body)


def _succeeded(life: asyncio.Task[None]) -> None:
    life.result()
