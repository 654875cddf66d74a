"""A member: the product's `Driver` with one machine, between the broker and the application of the world."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from lbg_core.group.members_protocol import Message
from lbg_core.group.message_codec import encode
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.member_core import Setup
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io.body_memory import BodyMemory
from lbg_sidecar.io.connection import OnCounted
from lbg_sidecar.io.delivery_journal import WallClock
from lbg_sidecar.io.driver import Driver
from testing.member.world.application import Application, Call
from testing.member.world.broker import Broker
from testing.member.world.history import PREFIX, mail
from testing.member.world.queues import Link
from testing.simulation.application import SimChannel
from testing.simulation.clock import EPOCH_S, Process
from testing.simulation.event_loop import VirtualLoop

HEARTBEAT_S = 10.0


class Connection(Link):
    """`MemberConnection`, with all that the product does over it: its consumers, last wills, outbox and channels."""

    heartbeat_s = HEARTBEAT_S

    def __init__(self, broker: Broker, member: Process, driver: Driver, index: int) -> None:
        super().__init__(broker.history, broker.process, member, driver)
        self.index = index
        self.publish_connection = self.consumers = self.last_wills = self
        self.attach = partial(self.up, "queues", broker.attach, self)
        self.watch = partial(self.up, "wills", broker.await_will, self)
        self.dead_letter = partial(self.up, "group", broker.dead_letter, self)
        self.republish = partial(self.up, "group", broker.confirm, self, "republish")
        self.copy = partial(self.up, "copies", broker.park, self)
        self.record = partial(self.up, "entries", broker.record_of, self)
        self.key_moves = SimpleNamespace(
            close=self.close,
            follow=partial(self.up, "moves", broker.follow_moves, self),
            find_staging=partial(self.up, "moves", broker.find_staging, self),
            record=partial(self.up, "entries", broker.record_move),
            forward=partial(self.up, "copies", broker.forward, self),
        )
        self._broker = broker
        broker.connected(self, index)

    def abort(self) -> None:
        self._broker.drops(self)

    def part(self) -> None:
        """In order: what was said before still arrives."""
        self._history.at(max(self._clear_at.values()), self._broker.drops, self)

    def released(self, *_: object) -> None:
        """Nobody validates; and what comes behind the end of the connection is heard by nobody."""

    close = flush = released

    def post(self, post: Post) -> None:
        body = encode(post.message)
        for to in post.to if isinstance(post.to, tuple) else (post.to,):
            self.up("group", self._broker.post, self, body, to)

    def count_ready(self, queue: int, on_counted: OnCounted) -> None:
        self.up("queues", self._broker.count, self, queue, on_counted)

    def detach(self, effect: fx.Detach) -> None:
        attachment = effect.attachment
        if effect.ack_tag is not None:
            self.ack(attachment, effect.ack_tag, multiple=True)
        for tag in effect.single_tags:
            self.ack(attachment, tag, multiple=False)
        self.up("queues", self._broker.close, self, attachment)

    def perform(self, effect: fx.Ack) -> None:
        self.ack(effect.attachment, effect.tag, multiple=effect.multiple)

    def ack(self, attachment: Attachment, tag: int, *, multiple: bool) -> None:
        if attachment.beside_of is None:
            self.up("queues", self._broker.ack, attachment, tag, multiple)


OFTEN = (fx.Ack, fx.Attach, fx.AwaitWill, fx.CountReady, fx.Detach, fx.LiveSet, fx.Post)
"""Effects that are no events of a history."""


class SimMember:
    """`exited`: it has left for good; `stood_down`: until `connect`."""

    def __init__(self, broker: Broker, application: Application, name: str, *, fixed: int | None) -> None:
        self.name = name
        self.index: int | None = None  # that it claimed last
        self.process = Process(name)
        self.channel = SimChannel(application, self)
        self.calls: dict[InFlight, Call] = {}
        self.exited = self.stood_down = False
        self._history = broker.history
        self._broker = broker
        self._fixed = fixed
        self._loop = VirtualLoop(self._history, self.process)
        self.driver = self.channel.calls = self._loop.run_now(self._driver)
        self.driver.start()

    def _driver(self) -> Driver:
        return Driver(
            self._machine(None),
            self.channel,
            group="g",
            prefix=PREFIX,
            clock=WallClock(self._history.now, lambda: EPOCH_S + self._history.now),
            journal=None,
            bodies=BodyMemory(64_000_000),
            on_lost=self._connect_soon,
            on_exit=self._on_exit,
            on_stood_down=self._on_stood_down,
            on_reread=lambda why: None,
            observer=self._observe,
        )

    def _machine(self, former: ExclusiveMember | None) -> ExclusiveMember:
        history = self._history
        return ExclusiveMember(
            Setup(
                self.name,
                balancing=BalancingRules(queue_count=history.queue_count, **history.balancing),
                rules=history.rules,
                timings=Timings(),
                uniform=history.random.random,
                incarnation=lambda: f"{self.name}-{history.random.getrandbits(64):x}",
                former=former,
            )
        )

    # What it has

    @property
    def machine(self) -> ExclusiveMember:
        return self.driver.machine

    @property
    def link(self) -> Connection | None:
        return self.driver.link

    @property
    def stalled(self) -> bool:
        return self.process.frozen_until > self._history.now

    # Its connection

    def connect(self) -> None:
        """Claims an index; without a free one a little later."""
        broker, driver = self._broker, self.driver
        if driver.failure is not None:
            raise driver.failure
        if self.link is not None or self.exited or not driver.app_ready.is_set():
            return
        claiming = IndexClaim(previous=self.index, fixed=self._fixed)
        while (index := claiming.candidate()) in broker.mailboxes:
            claiming.refused(index)
        if index is None:
            self._history.clock.after(0.5, self.process, self.connect)
            return
        self.stood_down = False
        self.index = index
        rules, history = self.machine.rules, self._history
        told = history.balancing["assignment"], history.balancing["client_count"]
        if rules.queue_count != history.queue_count or (rules.assignment, rules.client_count) != told:
            driver.drive(self._machine(self.machine))
        link = Connection(broker, self.process, driver, index)
        move = "" if broker.key_move is None else broker.key_move.id
        driver.connect(link, link, link.key_moves, link, key_move=move)

    def reread(self) -> None:
        """Takes the assignment of the group's record on the connection that it has."""
        if self.link is not None:
            balancing = self._history.balancing
            self.driver.assign(
                balancing["assignment"],
                balancing["client_count"],
                self.machine.rules.rebalance_threshold_percent,
            )

    def _connect_soon(self) -> None:
        self._history.clock.after(0.05 + self._history.delay(), self.process, self.connect)

    def _on_exit(self) -> None:
        self.exited = True
        self._loop.call_soon(self._part)

    def _on_stood_down(self) -> None:
        self.stood_down = True
        self._loop.call_soon(self._part)

    def _part(self) -> None:
        link = self.link
        self.driver.part()
        if link is not None:
            link.part()
        if self.exited:
            self.driver.close()
        else:
            self._connect_soon()

    # What happens to it

    def stop(self) -> None:
        """SIGTERM."""
        if self.stalled:
            self._history.clock.at(self._history.now, self.process, self.stop)
        elif self.process.alive and not self.exited:
            self.driver.stop("SIGTERM")

    def app_ready(self, is_ready: bool) -> None:
        self.channel.ready(is_ready)
        self.connect()

    def receives(self, message: Message) -> None:
        self.driver.on_mail(mail(encode(message)))

    def run(self) -> None:
        """Runs the effects of what a test has done to the machine."""
        self.driver.pause(self.machine.dispatcher.paused)

    def _observe(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Done):
            assert all(in_flight.outcome is not None for in_flight in effect.deliveries)
        elif not isinstance(effect, OFTEN):
            self._history.events.append((self._history.now, self.name, effect))
