"""A member's process: its machine, two connections, and the shell that runs its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.events import DeliverEvent
from lbg_core.amqp.methods import (
    BasicCapacity,
    BasicConsume,
    BasicNack,
    BasicQos,
    BasicRevokeOk,
    ConfirmSelect,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
)
from lbg_core.client import PreconditionFailed
from lbg_core.client.backoff import Backoff
from lbg_core.group import (
    MESSAGE_GROUPS,
    PARTITIONED,
    SESSIONS,
    TO_ALL,
    is_native,
    mailbox_of,
)
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.broker_assigned import BrokerAssignedMember
from lbg_sidecar.core.delivery import Attachment, InFlight, SessionPosition
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.protocol import KeysMove
from lbg_sidecar.core.queue_bindings import Assignment
from lbg_sidecar.core.roster import Post
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io.consumers import consumer_timeout_in
from lbg_sidecar.message import ACK, Verdict, forwarded, in_flight_of
from lbg_sidecar.settings import MemberSettings, balancing_rules, keys_at_once, processing_rules
from testing.simulation.application import place_of
from testing.simulation.client import Channel, ChannelRefused, Client
from testing.simulation.clock import EPOCH_S, Process, Sleep, Step, Task
from testing.simulation.cluster import CONSUMER_TIMEOUT_S
from testing.simulation.member_channels import KeyMoveEnd, Link, LoopLink, ParkingEnd, WillsEnd
from testing.simulation.network import HEARTBEAT_S

if TYPE_CHECKING:
    from testing.simulation.history import History

RETRY_DEAD_S = 0.5
TICK_MIN_S = 0.001
TIMINGS = Timings(report_s=10.0, changed_report_s=10.0)
"""Status reports are for observers, and there are none: so they are rare."""


class SimMember:
    """`is_up` until its process has ended. `link` is None while it has no connection."""

    def __init__(self, history: History, name: str) -> None:
        self.history = history
        self._clock = history.clock
        self.name = name
        self.process = Process(name)
        self.link: Link | None = None
        self._is_native = is_native(history.spec, history.broker.engine)
        self.machine = self._machine(None)
        self.has_left = False
        self.stopped_at: float | None = None
        self.is_app_ready = True
        self._announced_move = ""
        self._previous: int | None = None
        self._failures = 0
        self._task: Task | None = None
        self._tick_at = float("inf")
        self._flush_at = float("inf")
        self._turned_at = 0.0
        self._is_running = False
        self._is_ticking = False
        self._opening: tuple[Client, ...] = ()
        self._connect_soon(0.0)

    @property
    def is_up(self) -> bool:
        return self.process.alive and not self.has_left

    def _machine(self, former: MemberCore | None) -> MemberCore:
        history = self.history
        spec, random = history.spec, history.random
        native = self._is_native
        on_rabbitmq = history.broker.engine.is_rabbitmq
        settings = MemberSettings(
            group=spec.name,
            name=self.name,
            assignment=history.assignment if not native else "balanced",
            shutdown_grace_s=history.grace_s,
            **history.parking_settings,
            retry_first_s=0.1,
            retry_max_s=2.0,
            call_timeout_s=history.call_timeout_s,
            concurrency=4,
            **({"consumer_timeout_s": CONSUMER_TIMEOUT_S} if on_rabbitmq else {}),
        )
        balancing = balancing_rules(settings, spec, is_native=native, on_rabbitmq=on_rabbitmq)
        has_parking = history.setting.has_parking
        rules = processing_rules(settings, spec, concurrency=4, has_parking=has_parking)

        def incarnation() -> str:
            return f"{random.getrandbits(128):032x}"

        if not native:
            return ExclusiveMember(
                self.name,
                balancing=balancing,
                rules=rules,
                timings=TIMINGS,
                uniform=random.random,
                incarnation=incarnation,
                former=former,
            )
        return BrokerAssignedMember(
            self.name,
            balancing=balancing,
            rules=rules,
            timings=TIMINGS,
            uniform=random.random,
            incarnation=incarnation,
            partitions=spec.queue_count if spec.mode == PARTITIONED else 1,
            moves=spec.mode == PARTITIONED,
            session=SessionPosition(self.name) if spec.mode == SESSIONS else None,
            keys_at_once=keys_at_once(rules) if spec.mode == MESSAGE_GROUPS else None,
            former=former,
        )

    # Its process

    def kill(self) -> None:
        """SIGKILL."""
        if not self.process.alive:
            return
        self.process.alive = False
        self.history.application.killed(self)
        self._abandon()

    def freeze(self, seconds: float) -> None:
        clock = self.history.clock
        self.process.frozen_until = max(self.process.frozen_until, clock.now + seconds)
        if self.link is not None:
            self.history.frozen(self.link.consuming.connection, seconds)
            self.history.frozen(self.link.publishing.connection, seconds)

    def stop(self) -> None:
        """SIGTERM, once: with a second one a member cuts off its calls."""
        if self.stopped_at is not None:
            return
        self.stopped_at = self.now
        if self.link is None:
            self._exit()
            return
        self.machine.stop("SIGTERM", self.now)
        self.run()

    def app_ready(self, is_ready: bool) -> None:
        if not self.is_up or self.is_app_ready == is_ready:
            return
        self.is_app_ready = is_ready
        if not is_ready and self.link is not None:
            self.machine.stand_down("the application is not ready", self.now)
            self.run()
        elif is_ready and self.link is None:
            self._connect_soon(0.0)

    def _abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for client in self._opening:
            client.abort()
        self._opening = ()
        link, self.link = self.link, None
        if link is not None:
            link.abort()

    def _exit(self) -> None:
        self.has_left = True
        self._abandon()
        self.history.application.killed(self)
        self.process.alive = False

    @property
    def now(self) -> float:
        return self._clock.now

    # Connections

    def _connect_soon(self, seconds: float) -> None:
        self.history.clock.after(seconds, self.process, self._connect)

    def _connect(self) -> None:
        if self.link is not None or not self.is_up or not self.is_app_ready or self._task is not None:
            return
        self._task = Task(self.history.clock, self.process, self._join())
        if self._task._steps is None:
            self._task = None

    def _retry(self, why: str = "") -> None:
        """A connection was not to be had, or was lost while it was opened."""
        task, self._task = self._task, None
        for client in self._opening:
            client.abort()
        self._opening = ()
        self._failures += 1
        self._connect_soon(Backoff().delay_s(self._failures, self.history.random.random))
        if task is not None:
            task.cancel()

    def _join(self) -> Step:
        history, names = self.history, self.history.names
        yield Sleep(history.delay_s())
        consuming = Client.connected(history, self.process, self.name, self._lost)
        publishing = Client.connected(history, self.process, self.name, self._lost) if consuming else None
        if consuming is None or publishing is None:
            if consuming is not None:
                consuming.abort()
            history.clock.after(0.0, self.process, self._retry)
            return
        self._opening = (consuming, publishing)
        link = Link(consuming, publishing)
        try:
            link.posting = publishing.open_channel()
            yield link.posting.ask(ConfirmSelect())
            link.dead = publishing.open_channel()
            yield link.dead.ask(ConfirmSelect())
            claiming = IndexClaim(previous=self._previous)
            while True:
                index = claiming.candidate()
                assert index is not None
                mailbox, bindings = mailbox_of(names, index)
                channel = consuming.open_channel()
                try:
                    yield channel.ask(QueueDeclare(mailbox.name, exclusive=True))
                    break
                except ChannelRefused:
                    claiming.refused(index)
            for one in bindings:
                yield channel.ask(QueueBind(one.queue, one.exchange, one.routing_key))
            channel.on_deliveries = self._on_mail
            yield channel.ask(BasicConsume(mailbox.name, "mail", no_ack=True))
            link.products = LoopLink(self, consuming, publishing)
            link.key_moves = KeyMoveEnd(link.products)
            if history.setting.has_parking:
                link.parking = ParkingEnd(link.products, index)
        except ChannelRefused:
            history.clock.after(0.0, self.process, self._retry)
            return
        link.posting.on_return = self._on_return
        link.posting.on_confirm = self._on_post_confirm
        link.dead.on_confirm = self._on_letter_confirm
        link.index = index
        self._opening = ()
        self._task = None
        self._failures = 0
        self._previous = index
        self.link = link
        link.wills = WillsEnd(link.products, index, link.posting.publish)
        if history.spec.queue_count != self.machine.rules.queue_count and not self._is_native:
            self.machine = self._machine(self.machine)
        self._turned_at = self.now
        self.machine.pause(history.is_paused, self.now)
        key_moves, key_move = self.machine.dispatcher.key_moves, history.repartitions.record.key_move
        if key_moves is not None and (key_move or self._announced_move):
            key_moves.follow(key_move or self._announced_move)
        self._announced_move = ""
        self.machine.connected(index, self.now)
        self.run()
        if link.parking is not None:
            link.parking.follow()
        self._tick_soon()

    def _reread(self, link: Link, why: str) -> None:
        """The record has been read on this connection."""
        if link is not self.link:
            return
        is_there = self.machine.rules.queue_count == self.history.spec.queue_count
        if self.machine.rules.assignment is Assignment.STATIC and not is_there:
            self.disconnect(why)
            return
        assert isinstance(self.machine, ExclusiveMember)
        self.machine.reshape(self.history.spec.queue_count, self.now)
        self.run()

    def _queue_name(self, number: int) -> str:
        names = self.history.names
        return names.parent if self._is_native else names.queue(number)

    def _lost(self, why: str) -> None:
        if self._opening:
            self._retry(why)
        else:
            self.disconnect(why)

    def disconnect(self, why: str) -> None:
        link, self.link = self.link, None
        if link is None:
            return
        self.history.judge.cut(self)
        link.abort()
        self.machine.disconnected(self.now)
        self.run()
        self._connect_soon(0.0)

    # Events of the broker

    def _on_mail(self, events: list[DeliverEvent]) -> None:
        decoded, machine, now = self.history.decoded, self.machine, self._clock.now
        for event in events:
            message = decoded(event.body)
            if isinstance(message, KeysMove) and self.link is None:
                self._announced_move = message.move
            if message is not None and self.link is not None:
                machine.message(message, now)
        if machine.effects:
            self.run()
        elif self.link is not None:
            self._tick_soon()

    def _on_return(self, key: str, _text: str, body: bytes) -> None:
        self._returned(body, int(key))

    def _returned(self, body: bytes, to: int) -> None:
        message = self.history.decoded(body)
        if message is not None and self.link is not None:
            self.machine.returned(message, to, self.now)
            self.run()

    def _on_post_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        if self.link is not None:
            for body, to in self.link.directed.answered(tag, multiple=multiple):
                if not ok:
                    self._returned(body, to)

    def _on_deliveries(self, attachment: Attachment, events: list[DeliverEvent]) -> None:
        if self.link is None:
            return
        history = self.history
        prefix = history.spec.hash_prefix
        members = history.names.members
        arrivals = [
            in_flight_of(attachment, event if event.exchange != members else forwarded(event), prefix)
            for event in events
        ]
        for in_flight in arrivals:
            if in_flight.fence is None:
                history.judge.delivered(self, in_flight)
        self.machine.deliver(attachment, arrivals, self.now)
        self.run(is_sooner=False)

    def _on_letter_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        link = self.link
        if link is None:
            return
        for outgoing in link.letters.answered(tag, multiple=multiple):
            done = link.retransmitter.answered(outgoing, self.now, ok=ok)
            if done is not None:
                self.history.judge.dead(place_of(done)[0], done.delivery.body)
                self.machine.confirmed(done, NextCall.DEAD_LETTER, self.now)
        self._send_letters()
        self.run()

    def _send_letters(self) -> None:
        link = self.link
        if link is None or link.publishing.is_blocked:
            return
        while (outgoing := link.retransmitter.next_to_send(self.now)) is not None:
            delivery: DeliverEvent = outgoing.item.delivery
            tag = link.dead.publish(
                self.history.names.dlx,
                delivery.routing_key,
                delivery.body,
                header=BasicProperties(delivery_mode=2).encode(),
                mandatory=True,
            )
            link.letters.sent(tag, outgoing)
        if link.retransmitter.next_due is not None:
            self.history.clock.after(RETRY_DEAD_S, self.process, self._send_letters)

    # The shell

    def _attach(self, link: Link, effect: fx.Attach) -> Step:
        attachment = effect.attachment
        channel = link.consuming.open_channel()
        link.channels[attachment] = channel
        link.attachments[channel.number] = attachment
        channel.on_deliveries = lambda events: self._on_deliveries(attachment, events)
        channel.on_revoked = lambda tags, taken: self._on_revoked(attachment, tags, taken)
        channel.on_cancelled = lambda: self._on_cancelled(attachment, channel)
        channel.on_closed = lambda refusal: self._on_closed(link, attachment, refusal)
        try:
            yield channel.ask(BasicQos(0, attachment.prefetch, False))
            queue = self._queue_name(attachment.queue)
            yield channel.ask(BasicConsume(queue, f"m{link.index}", arguments=dict(effect.arguments)))
        except ChannelRefused:
            return
        if link is self.link:
            link.attached.add(attachment)
            self.machine.attached(attachment, self.now)
            self.run()

    def _on_closed(self, link: Link, attachment: Attachment, refusal: ChannelRefused | None) -> None:
        link.channels.pop(attachment, None)
        if link is not self.link:
            return
        self.history.judge.channel_closed(self, attachment)
        if refusal is not None and (timeout_s := _consumer_timeout_in(refusal)) is not None:
            self.machine.timed_out(attachment, timeout_s)
        elif refusal is not None and attachment not in link.attached:
            self.machine.refused(attachment, refusal.code, refusal.text)
        self.machine.closed(attachment, self.now)
        self.run()

    def _on_cancelled(self, attachment: Attachment, channel: Channel) -> None:
        self.machine.cancelled(attachment)
        channel.close()

    def _on_revoked(self, attachment: Attachment, tags: list[int], taken: bool) -> None:
        link = self.link
        if link is None:
            return
        self.machine.revoked(attachment, tags, self.now, reassigned=taken)
        self.run()
        channel = link.channels.get(attachment)
        if channel is not None:
            channel.send(BasicRevokeOk(taken, tuple(tags)))

    def _detach(self, link: Link, effect: fx.Detach) -> None:
        channel = link.channels.get(effect.attachment)
        if channel is None:
            return
        self.history.judge.detached(self, effect.attachment)
        if effect.ack_tag is not None:
            channel.ack(effect.ack_tag, multiple=True)
        for tag in effect.single_tags:
            channel.ack(tag, multiple=False)
        channel.close()

    def _count(self, link: Link, queue: int) -> None:
        if link.counting is None or not link.counting.is_open:
            link.counting = link.consuming.open_channel()
        method = QueueDeclare(self._queue_name(queue), passive=True)
        link.counting.ask_soon(method, lambda answer: self._counted(link, queue, answer))

    def _counted(self, link: Link, queue: int, answer: Any) -> None:
        ready = consumers = None
        if isinstance(answer, QueueDeclareOk):
            ready, consumers = answer.message_count, answer.consumer_count
        if link is self.link:
            self.machine.ready_counted(queue, ready, consumers, self.now)
            self.run()

    def ended(self, in_flight: InFlight, verdict: Verdict) -> None:
        """The application has answered a call."""
        self.machine.end(in_flight, verdict, self.now)
        self.run(is_sooner=verdict is not ACK)

    def pause(self, is_paused: bool) -> None:
        if self.is_up:
            self.machine.pause(is_paused, self.now)
            self.run()

    def run(self, *, is_sooner: bool = True) -> None:
        """Effects until there are none, then calls, then acks. `is_sooner`: the next tick may be due before the one
        that is planned, even if there are no effects."""
        if self._is_running:
            return
        self._is_running = True
        is_sooner = is_sooner or bool(self.machine.effects) or self.machine.dispatcher.parking is not None
        machine, now, process = self.machine, self._clock.now, self.process
        effects, lanes = machine.effects, machine.dispatcher.lanes
        starts_calls = now - self._turned_at <= HEARTBEAT_S
        while process.alive and not self.has_left:
            if effects:
                due = effects[:]
                effects.clear()
                for effect in due:
                    self._effect(effect)
                continue
            if lanes.available and starts_calls and self.is_app_ready:
                in_flight = machine.take(now)
                if in_flight is not None:
                    self.history.application.call(self, in_flight)
                    continue
            due_at = machine.flush(now)
            if not effects:
                if due_at < self._flush_at:
                    self._flush_at = due_at
                    self._clock.at(due_at, process, self._flush)
                break
        self._is_running = False
        if is_sooner and self.link is not None:
            self._tick_soon()

    def _flush(self) -> None:
        self._flush_at = float("inf")
        self.run(is_sooner=False)

    def _effect(self, effect: fx.Effect) -> None:
        """The frequent ones first."""
        link, kind = self.link, type(effect)
        if kind is Post:
            if link is not None:
                self._post(link, effect)
            return
        if kind is fx.Done:
            self.history.judge.done(self, effect.deliveries)
            return
        match effect:
            case fx.Ack(attachment, tag, multiple) if link is not None:
                channel = link.channels.get(attachment)
                if channel is not None:
                    channel.ack(tag, multiple=multiple)
            case fx.Abort(calls):
                self.history.application.abort(self, calls)
            case fx.Withdraw(calls, reassigned):
                if reassigned:
                    self.history.application.abort(self, calls)
            case fx.Exit():
                self._exit()
            case fx.StoodDown():
                self.link = None
                if link is not None:
                    self.history.judge.cut(self)
                    link.abort()
                    self.machine.disconnected(self.now)
                if self.is_app_ready:
                    self._connect_soon(0.0)
            case fx.Reconnect(why):
                self.history.clock.after(0.0, self.process, self.disconnect, why)
            case fx.Fail(error):
                self.history.judge.violation(f"{self.name} failed: {error}")
            case fx.TakenOver():
                self.machine.taken_over(effect)
            case _ if link is None:
                pass
            case fx.Reread(why):
                self.history.clock.after(self.history.delay_s(), self.process, self._reread, link, why)
            case fx.Limit(attachment, prefetch):
                self._send(link, attachment, BasicQos(0, prefetch, False), is_answered=True)
            case fx.Capacity(attachment, keys):
                self._send(link, attachment, BasicCapacity(f"m{link.index}", keys))
            case fx.Requeue(attachment, tags):
                for tag in tags:
                    self._send(link, attachment, BasicNack(tag, False, True))
            case fx.Attach():
                Task(self.history.clock, self.process, self._attach(link, effect))
            case fx.Detach():
                self._detach(link, effect)
            case fx.CountReady(queue):
                self._count(link, queue)
            case fx.AwaitWill(willing) if link.wills is not None:
                link.wills.watch(willing)
            case fx.DeadLetter(in_flight):
                link.retransmitter.offer(in_flight)
                self._send_letters()
            case fx.ParkCopy(in_flight, copy) if link.parking is not None:
                link.parking.copy(in_flight, copy)
            case fx.RecordEntry(entry, of) if link.parking is not None:
                link.parking.record(entry, of)
            case fx.FollowKeyMove(is_on) if link.key_moves is not None:
                link.key_moves.follow(is_on)
            case fx.RecordKeyMove(entry) if link.key_moves is not None:
                link.key_moves.record(entry)
            case fx.Forward(in_flight, queue) if link.key_moves is not None:
                link.key_moves.forward(in_flight, queue)

    def _post(self, link: Link, post: Post) -> None:
        body, to = self.history.decoded.encode(post.message), post.to
        exchange = self.history.names.members
        if to is None:
            link.posting.publish(exchange, TO_ALL, body)
        elif isinstance(to, str):
            link.posting.publish(exchange, to, body)
        else:
            for index in to if isinstance(to, tuple) else (to,):
                tag = link.posting.publish(exchange, str(index), body, mandatory=True)
                link.directed.sent(tag, (body, index))

    @staticmethod
    def _send(
        link: Link,
        attachment: Attachment,
        method: BasicQos | BasicCapacity | BasicNack,
        *,
        is_answered: bool = False,
    ) -> None:
        channel = link.channels.get(attachment)
        if channel is not None:
            if is_answered:
                channel.ask_soon(method)
            else:
                channel.send(method)

    def _tick_soon(self) -> None:
        now = self._clock.now
        soonest = now + TICK_MIN_S
        if self._tick_at <= soonest:
            return
        due = self.machine.next_due(now)
        if due < soonest:
            due = soonest
        if due < self._tick_at:
            self._tick_at = due
            self._clock.at(due, self.process, self._tick, due)

    def _tick(self, due: float) -> None:
        if due != self._tick_at:
            return
        self._tick_at = float("inf")
        if self.now - self._turned_at > HEARTBEAT_S and self.link is not None:
            self._turned_at = self.now
            self.disconnect("this process stood still")
        self._turned_at = self.now
        self.machine.tick(self.now)
        self.run()
        if self.link is None and self.is_up:
            self._tick_soon()


def _consumer_timeout_in(refusal: ChannelRefused) -> float | None:
    return consumer_timeout_in(PreconditionFailed(406, refusal.text)) if refusal.code == 406 else None


def wall_us(now: float) -> int:
    return int((EPOCH_S + now) * 1e6)
