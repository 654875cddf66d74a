"""Send window: numbered messages, confirms, refusals and ordered retransmission, without I/O.

States of the window of one queue:

    FLOWING  --a refusal, or a barrier sent for another queue-->  DRAINING   send nothing, await every answer
    DRAINING --all answered, none refused-->                      FLOWING
    DRAINING --all answered, some refused-->                      HELD       the refused wait first in line
    HELD     --the wait is over, a barrier is sent-->             FLOWING    with a window of 1

`Sender` drives the whole of it.

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

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from lbg_broker.group import GroupSpec
from lbg_broker.publisher.errors import PublishingError, Unroutable
from lbg_broker.publisher.stamper import MessageOptions, StampedMessage, Stamper, StartingPoint


@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """The limits of ordered publishing.

    `window_messages`: unconfirmed messages per queue, at most; it bounds what a crash can repeat.
    `first_window_messages`: where a connection's window starts; it doubles each round trip up to the maximum.
    `read_ahead_bytes`: accepted and not yet confirmed, over all queues; publish() waits beyond it. This is
        what lets other queues go on while one is full.
    `span_messages`: how far acceptance may run ahead of the oldest unconfirmed message; it bounds what is
        kept in memory about messages that are done while one queue is stuck.
    `backoff_first_s`, `backoff_max_s`: the wait before a refused message is tried again, doubling while the
        queue stays full.
    `one_per_key`: never two unconfirmed messages of one key. It makes an inversion impossible on a broker
        without ordered refusal (RabbitMQ), and costs throughput when few keys carry the load: about one
        message per key and round trip.
    `max_message_bytes`: a larger body is not accepted; None: as large as the broker announces to take. RabbitMQ
        announces nothing, and ends the publisher (SizeRefused) at a message over its own `max_message_size`.
    `first_connection_s`: how long a publisher waits for its first connection before it gives up; None: for
        ever. Later ones are always waited for.
    """

    window_messages: int = 256
    first_window_messages: int = 16
    read_ahead_bytes: int = 8 * 1024 * 1024
    span_messages: int = 100_000
    backoff_first_s: float = 0.01
    backoff_max_s: float = 1.0
    one_per_key: bool = False
    max_message_bytes: int | None = None
    first_connection_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("window_messages", "first_window_messages", "read_ahead_bytes", "span_messages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_message_bytes is not None and self.max_message_bytes < 1:
            raise ValueError(f"max_message_bytes must be at least 1, not {self.max_message_bytes}")
        if not 0 < self.backoff_first_s <= self.backoff_max_s:
            raise ValueError("0 < backoff_first_s <= backoff_max_s must hold")


@dataclass(slots=True)
class Counts:
    """Messages, each counted once under a name however often it was sent; `refused` counts refusals.

    `skipped`: confirmed by an earlier run, as its state file says; stamped and not sent.
    `resends`: sends beyond a message's first.
    `maybe_twice`: sent again because their fate was unknown; the group may see them twice and drops the
    second.
    `accepted_after_gap`: accepted behind a refused message of the same hash, by a broker without ordered
    refusal.
    `inverted`: those of them that are of the refused message's own key: these do arrive before it.
    """

    published: int = 0
    without_key: int = 0
    confirmed: int = 0
    skipped: int = 0
    refused: int = 0
    resends: int = 0
    maybe_twice: int = 0
    accepted_after_gap: int = 0
    inverted: int = 0
    connections: int = 0


class CommitFloor:
    """Confirmed prefix of the input: the position below which every message is confirmed, and what a restart
    needs.
    """

    def __init__(self, start: StartingPoint, hash_count: int) -> None:
        self.position = start.position
        self.digest = start.digest
        self.next_seq = list(start.next_seq) or [0] * hash_count
        self.open: deque[StampedMessage] = deque()

    def begin_epoch(self) -> None:
        """With nothing open: the sequences of every hash begin at 0."""
        self.next_seq = [0] * len(self.next_seq)

    def advance(self) -> None:
        waiting = self.open
        while waiting and waiting[0].confirmed:
            message = waiting.popleft()
            self.next_seq[message.hash] = message.seq + 1
            self.digest = message.digest
            self.position += 1


class WindowState(Enum):
    FLOWING = auto()
    DRAINING = auto()
    HELD = auto()


@dataclass(slots=True)
class WindowResult:
    """Outcome of a round of answers.

    `accepted` were accepted with nothing of their hash missing before them; `behind` were accepted while an
    earlier message of their hash goes back to be sent again. Of those, `after_gap` counts the ones whose
    earlier message is known to be refused, and `inverted` the ones of the refused message's own key.
    `unknown` were never answered.
    """

    accepted: list[StampedMessage] = field(default_factory=list)
    behind: list[StampedMessage] = field(default_factory=list)
    unknown: list[StampedMessage] = field(default_factory=list)
    refused: int = 0
    after_gap: int = 0
    inverted: int = 0


@dataclass(slots=True)
class QueueWindow:
    """`sent` holds what was sent from the oldest message on that is not accepted yet, answered or not."""

    queue: int
    settings: PublishingSettings
    state: WindowState = WindowState.FLOWING
    pending: deque[StampedMessage] = field(default_factory=deque)
    sent: deque[StampedMessage] = field(default_factory=deque)
    open: int = 0
    open_keys: set[str] = field(default_factory=set)
    window: int = 0
    slow_start_until: int = 0
    refusals_in_a_row: int = 0
    is_full: bool = False  # from a refusal on until the window is back at its start, or all is accepted
    resume_at: float = 0.0
    refused_at: float = 0.0  # the first of the refusals in a row
    asked_at: float = 0.0  # when it was last answered, or when the first open message was sent since
    _credit: int = 0

    def __post_init__(self) -> None:
        self.slow_start_until = self.settings.window_messages
        self.restart_window()

    def restart_window(self) -> None:
        self.window = min(self.settings.first_window_messages, self.settings.window_messages)

    def grow_window(self) -> None:
        """After an accepted message: double per round trip up to half of where it broke, then add one per
        window.

        This is the additive increase of AIMD with the slow start of TCP (RFC 5681, section 3.1): after a
        short burst of refusals the window is soon back, and near a limit that stays it creeps.
        """
        self.refusals_in_a_row = 0
        if self.window >= self.settings.window_messages:
            return
        if self.window < self.slow_start_until:
            self.window += 1
            return
        self._credit += 1
        if self._credit >= self.window:
            self._credit = 0
            self.window += 1

    def take_sendable(self, into: list[StampedMessage]) -> None:
        """Move what may be sent now from pending to sent, in order, and append it to `into`."""
        pending, room = self.pending, self.window - self.open
        one_per_key = self.settings.one_per_key
        while pending and room > 0:
            message = pending[0]
            if one_per_key and message.key is not None:
                if message.key in self.open_keys:
                    return
                self.open_keys.add(message.key)
            pending.popleft()
            message.accepted = None
            message.sends += 1
            self.sent.append(message)
            into.append(message)
            self.open += 1
            room -= 1

    def answered(self, message: StampedMessage, ok: bool) -> None:
        message.accepted = ok
        self.open -= 1
        if message.key is not None:
            self.open_keys.discard(message.key)
        if ok:
            self.grow_window()
            if self.is_full and (
                self.window >= self.settings.first_window_messages or not (self.open or self.pending)
            ):
                self.is_full = False
        else:
            self.state = WindowState.DRAINING

    def take_accepted(self) -> list[StampedMessage]:
        """Remove and return the sent messages from the oldest up to the first that is open or refused."""
        sent = self.sent
        accepted = []
        while sent and sent[0].accepted:
            accepted.append(sent.popleft())
        return accepted

    def end_round(self, now: float, *, unknown_is_gap: bool = True) -> WindowResult:
        """No more answers will come: what is not accepted goes back to the front, in order.

        If any was refused the line waits; else it flows. An unanswered message (its connection was lost) may
        have been refused; `unknown_is_gap` False says that the broker would then not have accepted a later
        one.
        """
        ended = WindowResult()
        missing: set[int] = set()
        gaps: set[int] = set()
        gap_keys: set[str | None] = set()
        back = []
        for message in self.sent:
            hash_ = message.hash
            if message.accepted:
                if hash_ not in missing:
                    ended.accepted.append(message)
                    continue
                ended.behind.append(message)
                ended.after_gap += hash_ in gaps
                message.inverted = message.key in gap_keys
                ended.inverted += message.inverted
                continue
            back.append(message)
            missing.add(hash_)
            if message.accepted is None:
                ended.unknown.append(message)
            else:
                ended.refused += 1
            if unknown_is_gap or message.accepted is False:
                gaps.add(hash_)
                if message.key is not None:
                    gap_keys.add(message.key)
        self.pending.extendleft(reversed(back))
        self.sent.clear()
        self.open_keys.clear()
        self.open = 0
        if ended.refused:
            self._hold(now)
        elif self.state is WindowState.DRAINING:
            self.state = WindowState.FLOWING
        return ended

    def _hold(self, now: float) -> None:
        settings = self.settings
        if not self.refusals_in_a_row:
            self.refused_at = now
        doublings = min(self.refusals_in_a_row, 32)
        self.refusals_in_a_row += 1
        self.resume_at = now + min(settings.backoff_first_s * 2**doublings, settings.backoff_max_s)
        self.slow_start_until = max(1, self.window // 2)
        self.window = 1
        self._credit = 0
        self.is_full = True
        self.state = WindowState.HELD


# What a message costs beside its body: the object, its place in two deques and a dict. Measured: about 400
# bytes.
MESSAGE_OVERHEAD_BYTES = 400


@dataclass(slots=True)
class Step:
    """Sends that are due now. First the barrier, then the sends, whose delivery tags are consecutive."""

    sends: list[StampedMessage] = field(default_factory=list)
    barrier: bool = False
    wake_at: float | None = None


class SendWindow:
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
        self.lines = [QueueWindow(queue, self.settings) for queue in range(spec.queue_count)]
        self.confirmed_seq = list(self._start.confirmed_seq) or [0] * spec.hash_count
        self.full_queues: set[int] = set()
        """Queues that refuse, until they have taken a number of messages again."""
        self.floor = CommitFloor(self._start, spec.hash_count)
        self._sendable: dict[int, QueueWindow] = {}
        self._held: dict[int, QueueWindow] = {}
        self._by_tag: dict[int, StampedMessage] = {}
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
        """True if one more message may be accepted."""
        if self._is_at_epoch and self.floor.open:
            return False
        return (
            self._unconfirmed_bytes < self.settings.read_ahead_bytes
            and len(self.floor.open) < self.settings.span_messages
        )

    @property
    def _is_at_epoch(self) -> bool:
        """True if the next message is the first of a new epoch."""
        start = self._start
        return start.is_resumed and self.ended_epoch is None and self.stamper.position >= start.sent_position

    @property
    def new_epoch_count(self) -> int:
        """Messages accepted in the epoch that began in this run."""
        return 0 if self.ended_epoch is None else self.stamper.position - self._start.sent_position

    @property
    def is_settled(self) -> bool:
        """True if every accepted message is confirmed."""
        return not self.floor.open

    @property
    def in_flight(self) -> int:
        return len(self._by_tag)

    def accept(
        self, key: str | None, topic: str, body: bytes, extra: MessageOptions | None = None
    ) -> StampedMessage:
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
            if line.state is WindowState.FLOWING:
                line.restart_window()

    def repartition(self, spec: GroupSpec) -> None:
        """Between two connections: the group has another number of queues. What waits keeps sequence and order."""
        waiting = sorted((one for line in self.lines for one in line.pending), key=lambda one: one.position)
        self.stamper.repartition(spec)
        self.lines = [QueueWindow(queue, self.settings) for queue in range(spec.queue_count)]
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

    def answered(self, tag: int, *, multiple: bool, ok: bool, now: float) -> list[StampedMessage]:
        """basic.ack or basic.nack from the broker. Returns the messages it accepted with it.

        An answer to a tag that is not open is ignored. Tag 0 with `multiple` means all (AMQP 0-9-1,
        basic.ack).
        """
        if self.failure is not None:
            return []
        answered = self._take_answered(tag, multiple)
        touched: dict[int, QueueWindow] = {}
        for message in answered:
            line = self.lines[message.queue]
            line.answered(message, ok)
            touched[line.queue] = line
        for queue, line in touched.items():
            line.asked_at = now
            self._confirm(line.take_accepted(), in_order=True)
            if not line.open and line.state is WindowState.DRAINING:
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
        """Next step. The messages in `sends` count as sent, with the next delivery tags."""
        step = Step()
        if not self._is_connected or self._is_blocked or self.failure is not None:
            return step
        due = [line for line in self._held.values() if line.resume_at <= now]
        if due:
            step.barrier = self._is_fenced
            self._resume(due)
        if self._sendable:
            for line in self._sendable.values():
                if line.state is WindowState.FLOWING:
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

    def _resume(self, due: list[QueueWindow]) -> None:
        if self._is_fenced:
            for line in self.lines:
                if line.open:
                    line.state = WindowState.DRAINING
        for line in due:
            line.state = WindowState.FLOWING
            del self._held[line.queue]
            self._sendable[line.queue] = line

    def _take_answered(self, tag: int, multiple: bool) -> list[StampedMessage]:
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

    def _end_round(self, line: QueueWindow, now: float) -> WindowResult:
        ended = line.end_round(now, unknown_is_gap=not self._is_fenced)
        self._confirm(ended.accepted, in_order=True)
        self._confirm(ended.behind, in_order=False)
        self.counts.accepted_after_gap += ended.after_gap
        self.counts.inverted += ended.inverted
        if line.state is WindowState.HELD:
            self._held[line.queue] = line
            self.full_queues.add(line.queue)
        if line.pending:
            self._sendable[line.queue] = line
        self.floor.advance()
        return ended

    def _confirm(self, messages: list[StampedMessage], *, in_order: bool) -> None:
        for message in messages:
            message.confirmed = True
            message.body = b""
            message.extra = None
            self._unconfirmed_bytes -= message.weight_bytes
            if in_order:
                self.confirmed_seq[message.hash] = message.seq + 1
        self.counts.confirmed += len(messages)
