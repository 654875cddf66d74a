"""Ordered publishing: a machine that decides what is sent when, so that a refusal or a lost connection keeps
order.

Events go in (`accept`, `connected`, `answered`, `returned`, `blocked`, `disconnected`), and `step(now)` says
what to do: send confirm.select again (the barrier), then send these messages in this order, and come back at
`wake_at`.

The rules, and why they keep order:

- A queue that refuses a message (it is full; `x-overflow: reject-publish`) may accept the next ones already
  under way. So at the first refusal its line stops, every open answer is awaited, and the refused are sent
  again in sequence order, one at a time at first. What was accepted behind the gap is counted, and never sent
  again.
- A broker with ordered refusal (the embedded one) accepts nothing behind a refused message, per channel and
  queue, until it sees confirm.select again: then there is never anything behind the gap. The barrier opens
  *every* queue of the channel, so a line with open answers must not send behind it before they are in: one of
  them may be a refusal.
- After a lost connection the open messages are unknown. They are sent again with the sequence they had, in
  order: a consumer sees some of them twice, and still the first sight of each in order.

No asyncio, socket or clock here: `now` is seconds on any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lbg_broker.group import GroupSpec

from .counts import Counts
from .errors import PublishingError, Unroutable
from .floor import Floor
from .line import Line, LineState, Round
from .message import Extra, Stamped
from .settings import PublishingSettings
from .stamping import Stamper, StartingPoint

# What a message costs beside its body: the object, its place in two deques and a dict. Measured: about 400
# bytes.
MESSAGE_OVERHEAD_BYTES = 400


@dataclass(slots=True)
class Step:
    """What to do now. First the barrier, then the sends, whose delivery tags are consecutive."""

    sends: list[Stamped] = field(default_factory=list)
    barrier: bool = False
    wake_at: float | None = None


class OrderedPublishing:
    """The state of one publisher over its whole life, connections coming and going."""

    def __init__(
        self,
        spec: GroupSpec,
        settings: PublishingSettings | None = None,
        *,
        seed: int = 0,
        start: StartingPoint | None = None,
    ) -> None:
        self.settings = settings or PublishingSettings()
        self._start = start or StartingPoint()
        self.stamper = Stamper(spec, seed=seed, start=self._start)
        self.counts = Counts()
        self.failure: PublishingError | None = None
        self.lines = [Line(queue, self.settings) for queue in range(spec.queue_count)]
        self.confirmed_seq = list(self._start.confirmed_seq) or [0] * spec.hash_count
        self.full_queues: set[int] = set()
        """Queues that refuse, until they have taken a number of messages again."""
        self.floor = Floor(self._start, spec.hash_count)
        self._sendable: dict[int, Line] = {}
        self._held: dict[int, Line] = {}
        self._by_tag: dict[int, Stamped] = {}
        self._lowest_tag = 1
        self._next_tag = 1
        self._unconfirmed_bytes = 0
        self._is_connected = False
        self._is_blocked = False
        self._is_fenced = False
        self.ended_epoch: list[int] | None = None
        """Each hash's next sequence in the epoch that it started in, once a new one has begun."""

    @property
    def has_room(self) -> bool:
        """Whether one more message may be accepted."""
        if self._is_at_epoch and self.floor.open:
            return False
        return (
            self._unconfirmed_bytes < self.settings.read_ahead_bytes
            and len(self.floor.open) < self.settings.span_messages
        )

    @property
    def _is_at_epoch(self) -> bool:
        """Whether the next message is the first of a new epoch."""
        start = self._start
        return start.is_resumed and self.ended_epoch is None and self.stamper.position >= start.sent_position

    @property
    def new_epoch_count(self) -> int:
        """Messages accepted in the epoch that began in this run."""
        return 0 if self.ended_epoch is None else self.stamper.position - self._start.sent_position

    @property
    def is_settled(self) -> bool:
        """Whether every accepted message is confirmed."""
        return not self.floor.open

    @property
    def in_flight(self) -> int:
        return len(self._by_tag)

    def accept(self, key: str | None, topic: str, body: bytes, extra: Extra | None = None) -> Stamped:
        """Stamp a message and put it in line; the caller looks at `has_room` first.

        Raises SpecError, and is as before, for a key that the hash function cannot take or a topic that is
        too long.

        After a restart, a message that the state file knows to be confirmed is only stamped and counted, and a new
        epoch begins with the first that was not sent: when all before it is confirmed, so that nothing of the old epoch
        comes behind anything of the new one.
        """
        if self._is_at_epoch:
            self._begin_epoch()
        message = self.stamper.stamp(key, topic, body)
        counts = self.counts
        counts.published += 1
        counts.without_key += message.key is None
        self.floor.open.append(message)
        if message.seq < self.confirmed_seq[message.hash]:
            counts.skipped += 1
            message.confirmed = True
            self.floor.advance()
            return message
        if message.position < self._start.sent_position:
            message.unknown = True
            counts.maybe_twice += 1
        message.body_bytes = len(body)
        weight = len(body) + MESSAGE_OVERHEAD_BYTES
        if extra is not None:
            message.extra = extra
            weight += extra.size_bytes
        message.weight_bytes = weight
        self._unconfirmed_bytes += weight
        line = self.lines[message.queue]
        line.pending.append(message)
        self._sendable[line.queue] = line
        return message

    def connected(self, *, fenced: bool) -> None:
        """A channel in confirm mode is open. `fenced`: the broker has ordered refusal."""
        self._is_connected = True
        self._is_blocked = False
        self._is_fenced = fenced
        self._by_tag.clear()
        self._lowest_tag = self._next_tag = 1
        self.counts.connections += 1
        for line in self.lines:
            if line.pending:
                self._sendable[line.queue] = line

    def disconnected(self, now: float) -> None:
        """The channel is gone, and the answers to everything in flight with it."""
        self._is_connected = False
        self._by_tag.clear()
        for line in self.lines:
            if not line.sent:
                continue
            for message in self._end_round(line, now).unknown:
                if not message.unknown:
                    message.unknown = True
                    self.counts.maybe_twice += 1
            if line.state is LineState.FLOWING:
                line.restart_window()

    def repartition(self, spec: GroupSpec) -> None:
        """Between two connections: the group has another number of queues. What waits keeps sequence and order."""
        waiting = sorted((one for line in self.lines for one in line.pending), key=lambda one: one.position)
        self.stamper.repartition(spec)
        self.lines = [Line(queue, self.settings) for queue in range(spec.queue_count)]
        for message in waiting:
            message.queue = self.stamper.queue_of(message.hash)
            self.lines[message.queue].pending.append(message)
        self.full_queues = set()
        self._sendable.clear()
        self._held.clear()

    def blocked(self, is_blocked: bool) -> None:
        """connection.blocked or unblocked: while blocked nothing is sent, answers still come."""
        self._is_blocked = is_blocked

    def returned(self, routing_key: str, reply: str) -> None:
        """basic.return. It comes before the message's ack, which must not be taken for a delivery: no answer
        counts from now on.
        """
        self.failure = self.failure or Unroutable(routing_key, reply)

    def answered(self, tag: int, *, multiple: bool, ok: bool, now: float) -> list[Stamped]:
        """basic.ack or basic.nack from the broker. Returns the messages it accepted with it.

        An answer to a tag that is not open is ignored. Tag 0 with `multiple` means all (AMQP 0-9-1,
        basic.ack).
        """
        if self.failure is not None:
            return []
        answered = self._take_answered(tag, multiple)
        touched: dict[int, Line] = {}
        for message in answered:
            line = self.lines[message.queue]
            line.answered(message, ok)
            touched[line.queue] = line
        for queue, line in touched.items():
            line.asked_at = now
            self._confirm(line.take_accepted(), in_order=True)
            if not line.open and line.state is LineState.DRAINING:
                self._end_round(line, now)
            if line.pending:
                self._sendable[queue] = line
            if self.full_queues and not line.is_full:
                self.full_queues.discard(queue)
        if not ok:
            self.counts.refused += len(answered)
            return []
        self.floor.advance()
        return answered

    def _begin_epoch(self) -> None:
        if self.floor.open:
            raise RuntimeError(
                "a new epoch begins when all of the old one is confirmed: look at has_room first"
            )
        self.ended_epoch = self.stamper.next_seq
        self.stamper.begin_epoch()
        self.floor.begin_epoch()
        self.confirmed_seq = [0] * len(self.confirmed_seq)

    def silent_queues(self, now: float, *, for_s: float) -> set[int]:
        """Queues that have been sent messages and have answered none of them for so long; none while the broker
        blocks publishers, which is told otherwise."""
        if not self._is_connected or self._is_blocked:
            return set()
        return {line.queue for line in self.lines if line.open and now - line.asked_at >= for_s}

    def refusing_queues(self, now: float, *, for_s: float) -> list[int]:
        """Queues that have taken nothing and refused everything for so long."""
        return [
            line.queue for line in self.lines if line.refusals_in_a_row and now - line.refused_at >= for_s
        ]

    def step(self, now: float) -> Step:
        """What may be done now. The messages in `sends` count as sent, with the next delivery tags."""
        step = Step()
        if not self._is_connected or self._is_blocked or self.failure is not None:
            return step
        due = [line for line in self._held.values() if line.resume_at <= now]
        if due:
            step.barrier = self._is_fenced
            self._resume(due)
        if self._sendable:
            for line in self._sendable.values():
                if line.state is LineState.FLOWING:
                    if not line.open:
                        line.asked_at = now
                    line.take_sendable(step.sends)
            self._sendable.clear()
            tag = self._next_tag
            for message in step.sends:
                self._by_tag[tag] = message
                tag += 1
                if message.sends > 1:
                    self.counts.resends += 1
            self._next_tag = tag
        if self._held:
            step.wake_at = min(line.resume_at for line in self._held.values())
        return step

    def _resume(self, due: list[Line]) -> None:
        if self._is_fenced:
            for line in self.lines:
                if line.open:
                    line.state = LineState.DRAINING
        for line in due:
            line.state = LineState.FLOWING
            del self._held[line.queue]
            self._sendable[line.queue] = line

    def _take_answered(self, tag: int, multiple: bool) -> list[Stamped]:
        if not multiple:
            message = self._by_tag.pop(tag, None)
            return [] if message is None else [message]
        last = tag or self._next_tag - 1
        taken = [
            message
            for each in range(self._lowest_tag, last + 1)
            if (message := self._by_tag.pop(each, None)) is not None
        ]
        self._lowest_tag = max(self._lowest_tag, last + 1)
        return taken

    def _end_round(self, line: Line, now: float) -> Round:
        ended = line.end_round(now, unknown_is_gap=not self._is_fenced)
        self._confirm(ended.accepted, in_order=True)
        self._confirm(ended.behind, in_order=False)
        self.counts.accepted_after_gap += ended.after_gap
        self.counts.inverted += ended.inverted
        if line.state is LineState.HELD:
            self._held[line.queue] = line
            self.full_queues.add(line.queue)
        if line.pending:
            self._sendable[line.queue] = line
        self.floor.advance()
        return ended

    def _confirm(self, messages: list[Stamped], *, in_order: bool) -> None:
        for message in messages:
            message.confirmed = True
            message.body = b""
            message.extra = None
            self._unconfirmed_bytes -= message.weight_bytes
            if in_order:
                self.confirmed_seq[message.hash] = message.seq + 1
        self.counts.confirmed += len(messages)
