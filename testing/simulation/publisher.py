"""A publisher's process: its send window, its state on disk, and an input that it reads again after a crash."""

from __future__ import annotations

import itertools
from hashlib import blake2b

from lbg_core.amqp.methods import ConfirmSelect
from lbg_core.client.backoff import Backoff
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import incarnation_of_epoch
from lbg_core.publisher import resume as layout
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage, StartingPoint
from testing.simulation.client import Channel, ChannelRefused, Client
from testing.simulation.clock import Process, Sleep, Step, Task, wall_us
from testing.simulation.judge import Judged
from testing.simulation.network import Connection

ROWS_UNCONFIRMED_MAX = 64
DOUBT_EVERY_S = 1.0
READ_EVERY_S = 1.0
NO_TOTALS = layout.Totals()

SlotFields = tuple[
    int, int, int, layout.Totals, tuple[int, ...], tuple[int, ...], layout.SlotEpoch
]  # of `layout.Slot`


MarkFields = tuple[int, int, layout.SlotEpoch]  # of `layout.Mark`


class StateOnDisk:
    """The state file, which is packed in the product's layout when it is read."""

    def __init__(self, hash_count: int) -> None:
        zeros = (0,) * hash_count
        self.hash_count = hash_count
        epoch = layout.SlotEpoch()
        self.slots: list[SlotFields | None] = [(0, 0, 0, NO_TOTALS, zeros, zeros, epoch), None]
        self.mark: MarkFields = (0, 0, epoch)

    def copied(self) -> StateOnDisk:
        copied = StateOnDisk(self.hash_count)
        copied.slots, copied.mark = list(self.slots), self.mark
        return copied

    def read(self) -> tuple[layout.Slot, layout.Mark]:
        newest = max((one for one in self.slots if one is not None), key=lambda one: one[0])
        slot = layout.unpacked_slot(layout.packed_slot(layout.Slot(*newest)), self.hash_count)
        position, digest, epoch = self.mark
        mark = layout.unpacked_mark(layout.packed_mark(layout.Mark(position, digest, epoch.tag)))
        assert slot is not None
        assert mark is not None
        return slot, mark


class SimPublisher:
    """`input` is read again after a crash. What a state that was put back has not sent is new input: the application
    that made the former is not asked twice."""

    def __init__(self, history: Judged, name: str, *, rate_hz: float) -> None:
        self.history = history
        self.name = name
        self.rate_hz = rate_hz
        self.is_one_per_key = history.broker.engine.is_rabbitmq and name.endswith("0")
        self.state = StateOnDisk(history.spec.hash_count)
        self._first_incarnation = blake2b(f"{history.seed} {name}".encode(), digest_size=16).hexdigest()
        self.is_stopped = False
        self.due_rows = 0
        self.input: list[int] = []
        self._numbers = itertools.count()
        self._start(is_new=True)

    def row(self, position: int) -> tuple[str, bytes]:
        while len(self.input) <= position:
            self.input.append(next(self._numbers))
        number = self.input[position]
        key = self.history.key_of(self.name, number)
        return key, b"%s %s %d" % (self.name.encode(), key.encode(), number)

    def put_back(self, state: StateOnDisk) -> None:
        """Its state is an old copy from now on."""
        self.state = state
        slot, mark = state.read()
        sent = max(slot.position, mark.position if mark.tag == slot.epoch.tag else 0)
        del self.input[sent:]

    # Its process

    def _start(self, *, is_new: bool = False) -> None:
        """`is_new`: it has made its state file itself, so nobody has published from it."""
        history = self.history
        self.process = Process(self.name)
        slot, mark = self.state.read()
        self._generation = slot.generation
        self._epoch = slot.epoch
        sent_position = slot.position
        if mark.tag == slot.epoch.tag:
            sent_position = max(sent_position, mark.position)
        is_unused = is_new and not slot.generation and not mark.position
        self._next_epoch = layout.SlotEpoch(
            max(wall_us(history.clock.now), slot.epoch.began_us + 1), history.random.randbytes(16)
        )
        start = StartingPoint(
            position=slot.position,
            digest=slot.digest,
            next_seq=slot.next_seq,
            confirmed_seq=slot.confirmed_seq,
            sent_position=sent_position,
            is_resumed=not is_unused,
        )
        self._sent_position = sent_position
        settings = PublishingSettings(one_per_key=self.is_one_per_key)
        self.machine = SendWindow(history.spec, settings, start=start)
        self._encoder = HeaderEncoder(self._identity(self._epoch), "text/plain")
        self._client: Client | None = None
        self._channel: Channel | None = None
        self._task: Task | None = None
        self._failures = 0
        self._step_at = float("inf")
        self._connect_soon(0.0)
        history.clock.after(1 / self.rate_hz, self.process, self._produce)

    def _identity(self, epoch: layout.SlotEpoch) -> str:
        first = self._first_incarnation
        return f"{self.name}-{incarnation_of_epoch(first, epoch.began_us, epoch.random) if epoch.began_us else first}"

    def kill(self) -> None:
        if not self.process.alive:
            return
        self.process.alive = False
        self.history.judge.publisher_ended(self)
        self._part()

    def restart(self) -> None:
        if not self.process.alive:
            self._start()

    def freeze(self, seconds: float) -> None:
        self.process.frozen_until = max(self.process.frozen_until, self.history.clock.now + seconds)
        if self._client is not None:
            self.history.frozen(self._client.connection, seconds)

    @property
    def wire(self) -> Connection | None:
        return None if self._client is None else self._client.connection

    def _part(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        client, self._client, self._channel = self._client, None, None
        if client is not None:
            client.abort()

    # Its input

    def _produce(self) -> None:
        if not self.is_stopped:
            self.due_rows += 1
            self.history.clock.after(
                self.history.random.random() * 2 / self.rate_hz, self.process, self._produce
            )
        self._accept()

    def _accept(self) -> None:
        """Rows that are due, and those that were read before a crash."""
        machine = self.machine
        while (
            machine.stamper.position < self.due_rows
            and machine.has_room
            and len(machine.floor.open) < ROWS_UNCONFIRMED_MAX
        ):
            key, body = self.row(machine.stamper.position)
            machine.accept(key, "", body)
        self._step()

    @property
    def is_settled(self) -> bool:
        return self.machine.is_settled and self.machine.stamper.position >= self.due_rows

    # Its connection

    def _connect_soon(self, seconds: float) -> None:
        self.history.clock.after(seconds, self.process, self._connect)

    def _connect(self) -> None:
        if self._client is None and self._task is None:
            self._task = Task(self.history.clock, self.process, self._open())

    def _open(self) -> Step:
        history = self.history
        yield Sleep(history.delay_s())
        client = Client.connected(history, self.process, self.name, self._lost)
        if client is None:
            history.clock.after(0.0, self.process, self._retry)
            return
        self._client = client
        client.on_blocked = self._on_blocked
        # The record is read, and ingress waited for (`lbg_core.publisher.channel_session`).
        while history.repartitions.is_closed:
            yield Sleep(READ_EVERY_S * (0.5 + history.random.random()))
        if self.machine.stamper.spec.queue_count != history.spec.queue_count:
            self.machine.repartition(history.spec)
        channel = client.open_channel()
        try:
            yield channel.ask(ConfirmSelect())
        except ChannelRefused:
            history.clock.after(0.0, self.process, self._retry)
            return
        self._task = None
        self._failures = 0
        self._channel = channel
        channel.on_confirm = self._on_confirm
        channel.on_return = lambda key, text, _: self.machine.returned(key, text)
        channel.on_closed = self._on_channel_closed
        self.machine.connected(fenced=history.broker.refuses_in_order)
        if client.is_blocked:
            self._on_blocked(True)
        self._step()
        history.clock.after(DOUBT_EVERY_S, self.process, self._doubt, channel)

    def _retry(self) -> None:
        self._task = None
        client, self._client = self._client, None
        if client is not None:
            client.abort()
        self._failures += 1
        self._connect_soon(Backoff().delay_s(self._failures, self.history.random.random))

    def _lost(self, why: str) -> None:
        if self._task is not None:
            self._task.cancel()
            self._retry()
            return
        self._client = self._channel = None
        self._disconnected()
        self._connect_soon(0.0)

    def _disconnected(self) -> None:
        self.machine.disconnected(self.history.clock.now)
        self.history.judge.resends(self)

    def _on_channel_closed(self, refusal: ChannelRefused | None) -> None:
        if refusal is not None and self._client is not None:
            client, self._client, self._channel = self._client, None, None
            client.abort()
            self._disconnected()
            self._connect_soon(0.2)

    def _doubt(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        if self.machine.silent_queues(self.history.clock.now, for_s=ANSWER_S):
            client, self._client, self._channel = self._client, None, None
            if client is not None:
                client.abort()
            self._disconnected()
            self._connect_soon(0.0)
            return
        self.history.clock.after(DOUBT_EVERY_S, self.process, self._doubt, channel)

    def _on_blocked(self, is_blocked: bool) -> None:
        self.machine.blocked(is_blocked, self.history.clock.now)
        self._step()

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        accepted = self.machine.answered(tag, multiple=multiple, ok=ok, now=self.history.clock.now)
        publisher = self._encoder.publisher
        for message in accepted:
            self.history.judge.confirmed(self, publisher, message)
        self._save()
        self._accept()

    # Sending

    def _step(self) -> None:
        channel = self._channel
        if self.machine.failure is not None:
            self.history.judge.violation(f"{self.name}: {self.machine.failure}")
        if channel is None or not channel.is_open:
            return
        step = self.machine.step(self.history.clock.now)
        if step.barrier:
            channel.ask_soon(ConfirmSelect())
        if step.sends:
            self._send(channel, step.sends)
        if step.wake_at is not None and step.wake_at < self._step_at:
            self._step_at = step.wake_at
            self.history.clock.at(step.wake_at, self.process, self._wake)

    def _wake(self) -> None:
        self._step_at = float("inf")
        self._step()

    def _send(self, channel: Channel, messages: list[StampedMessage]) -> None:
        if self.machine.ended_epoch is not None and self._epoch is not self._next_epoch:
            self._epoch = self._next_epoch
            self._encoder = self._encoder.of_epoch(self._identity(self._epoch))
            self._save()
        last = max(messages, key=lambda one: one.position)
        if last.position >= self._sent_position:
            self._sent_position = last.position + 1
            self.state.mark = (self._sent_position, last.digest, self._epoch)
        now_us = wall_us(self.history.clock.now)
        sent, encoder, exchange = self.history.judge.sent, self._encoder, self.history.names.exchange
        for message in messages:
            message.sent_at_us = message.sent_at_us or now_us
            sent(self, encoder.publisher, message)
            channel.publish(
                exchange, message.routing_key, message.body, header=encoder.of(message), mandatory=True
            )

    def _save(self) -> None:
        self._generation += 1
        floor = self.machine.floor
        self.state.slots[self._generation % 2] = (
            self._generation,
            floor.position,
            floor.digest,
            NO_TOTALS,
            tuple(floor.next_seq),
            tuple(self.machine.confirmed_seq),
            self._epoch,
        )
