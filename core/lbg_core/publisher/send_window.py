"""Send window: numbered messages to the queues of one group, in order through refusals, without I/O.

Each queue has a window (`lbg_core.client.retransmit`, with its states); `Sender` drives the whole of it. Events go in
(`accept`, `connected`, `answered`, `returned`, `blocked`, `disconnected`), and `step(now)` returns what to do: send
confirm.select again (the barrier), then send these messages in this order, and come back at `wake_at`.

What a group adds to the rules of a window:

- A message that a queue accepts behind one that it refused is counted, and never sent again.
- A broker with ordered refusal (the embedded one) accepts nothing behind a refused message, per channel and
  queue, until it sees confirm.select again: then there is never anything behind the gap. The barrier opens
  *every* queue of the channel, so a window with open answers must not send behind it before they are in: one of
  them may be a refusal.
- What is sent again keeps the sequence that it had.

No asyncio, socket or clock here: `now` is seconds on any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lbg_core.client.retransmit import OpenTags, QueueWindow, RetransmitSettings, WindowState
from lbg_core.group import GroupSpec, Key, key_of
from lbg_core.publisher.errors import PublishingError, Unroutable
from lbg_core.publisher.stamper import MessageOptions, StampedMessage, Stamper, StartingPoint


@dataclass(frozen=True, slots=True)
class PublishingSettings(RetransmitSettings):
    """The limits of ordered publishing: those of each queue's window, and of all together.

    `read_ahead_bytes`: accepted and not yet confirmed, over all queues; publish() waits beyond it. This is
        what lets other queues go on while one is full.
    `span_messages`: how far acceptance may run ahead of the oldest unconfirmed message; it bounds what is
        kept in memory about messages that are done while one queue is stuck.
    `max_message_bytes`: a larger body is not accepted; None: as large as the broker announces to take. RabbitMQ
        announces nothing, and ends the publisher (SizeRefused) at a message over its own `max_message_size`.
    `first_connection_s`: how long a publisher waits for its first connection before it gives up; None: for
        ever. Later ones are always waited for.
    """

    read_ahead_bytes: int = 8 * 1024 * 1024
    span_messages: int = 100_000
    max_message_bytes: int | None = None
    first_connection_s: float | None = None

    def __post_init__(self) -> None:
        RetransmitSettings.__post_init__(self)
        for name in ("read_ahead_bytes", "span_messages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_message_bytes is not None and self.max_message_bytes < 1:
            raise ValueError(f"max_message_bytes must be at least 1, not {self.max_message_bytes}")


@dataclass(slots=True)
class Counts:
    """Messages, each counted once under a name however often it was sent; `refused` counts refusals.

    `skipped`: confirmed by an earlier run, by its state file; stamped and not sent.
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
    after_gap: int = 0
    inverted: int = 0

    @classmethod
    def of(cls, ended: list[StampedMessage], *, unknown_is_gap: bool) -> WindowResult:
        """`ended`: as `QueueWindow.end_round` returns it.

        An unanswered message (its connection was lost) may have been refused; `unknown_is_gap` False: the broker
        would then not have accepted a later one.
        """
        result = cls()
        missing: set[int] = set()
        gaps: set[int] = set()
        gap_keys: set[str | None] = set()
        for message in ended:
            hash_ = message.hash
            if message.accepted:
                if hash_ not in missing:
                    result.accepted.append(message)
                    continue
                result.behind.append(message)
                result.after_gap += hash_ in gaps
                message.inverted = message.key in gap_keys
                result.inverted += message.inverted
                continue
            missing.add(hash_)
            if message.accepted is None:
                result.unknown.append(message)
            if unknown_is_gap or message.accepted is False:
                gaps.add(hash_)
                if message.key is not None:
                    gap_keys.add(message.key)
        return result


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
        self.windows = self._new_windows(spec)
        self.confirmed_seq = list(self._start.confirmed_seq) or [0] * spec.hash_count
        self.full_queues: set[int] = set()
        """Queues that refuse, until they have taken a number of messages again."""
        self.floor = CommitFloor(self._start, spec.hash_count)
        self._sendable: dict[int, QueueWindow[StampedMessage]] = {}
        self._backing_off: dict[int, QueueWindow[StampedMessage]] = {}
        self._open = OpenTags[StampedMessage]()
        self._unconfirmed_bytes = 0
        self._is_connected = False
        self._is_blocked = False
        self._is_fenced = False
        self.ended_epoch: list[int] | None = None
        """Each hash's next sequence in the epoch that it started in, once a new one has begun."""

    def _new_windows(self, spec: GroupSpec) -> list[QueueWindow[StampedMessage]]:
        return [QueueWindow(self.settings, queue) for queue in range(spec.queue_count)]

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
        return len(self._open)

    def accept(
        self, key: Key | None, topic: str, body: bytes, extra: MessageOptions | None = None
    ) -> StampedMessage:
        """Stamps a message and queues it; the caller checks `has_room` first. Without a key, one in the headers of
        `extra` counts, as it does for members.

        Raises SpecError, and is as before, for a key that the hash function cannot take or a topic that is
        too long.

        After a restart, a message that is confirmed in the state file is only stamped and counted, and a new
        epoch begins with the first that was not sent: when all before it is confirmed, so that nothing of the old epoch
        comes behind anything of the new one.
        """
        if self._is_at_epoch:
            self._begin_epoch()
        if extra is not None and (key is None or key == ""):
            key = key_of(extra.headers)
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
        window = self.windows[message.queue]
        window.pending.append(message)
        self._sendable[window.queue] = window
        return message

    def connected(self, *, fenced: bool) -> None:
        """A channel in confirm mode is open. `fenced`: the broker has ordered refusal."""
        self._is_connected = True
        self._is_blocked = False
        self._is_fenced = fenced
        self._open.clear()
        self.counts.connections += 1
        for window in self.windows:
            if window.pending:
                self._sendable[window.queue] = window

    def disconnected(self, now: float) -> None:
        """The channel is gone, and the answers to everything in flight with it."""
        self._is_connected = False
        self._open.clear()
        for window in self.windows:
            if not window.sent:
                continue
            for message in self._ended(window, window.interrupted(now)).unknown:
                if not message.unknown:
                    message.unknown = True
                    self.counts.maybe_twice += 1

    def repartition(self, spec: GroupSpec) -> None:
        """Between two connections: the group has another number of queues. What waits keeps sequence and order."""
        waiting = sorted(
            (one for window in self.windows for one in window.pending), key=lambda one: one.position
        )
        self.stamper.repartition(spec)
        self.windows = self._new_windows(spec)
        for message in waiting:
            message.queue = self.stamper.queue_of(message.hash)
            self.windows[message.queue].pending.append(message)
        self.full_queues = set()
        self._sendable.clear()
        self._backing_off.clear()

    def blocked(self, is_blocked: bool, now: float) -> None:
        """connection.blocked or unblocked: while blocked nothing is sent, answers still come."""
        if self._is_blocked and not is_blocked:
            for window in self.windows:
                window.excuse_silence(now)
        self._is_blocked = is_blocked

    def returned(self, routing_key: str, reply: str) -> None:
        """basic.return. It comes before the message's ack, which must not be taken for a delivery: no answer
        counts from now on.
        """
        self.failure = self.failure or Unroutable(self.stamper.spec.name, routing_key, reply)

    def answered(self, tag: int, *, multiple: bool, ok: bool, now: float) -> list[StampedMessage]:
        """basic.ack or basic.nack from the broker. Returns the messages it accepted with it.

        An answer to a tag that is not open is ignored. Tag 0 with `multiple` means all (AMQP 0-9-1,
        basic.ack).
        """
        if self.failure is not None:
            return []
        answered = self._open.answered(tag, multiple=multiple)
        touched: dict[int, QueueWindow[StampedMessage]] = {}
        for message in answered:
            window = self.windows[message.queue]
            window.answered(message, ok)
            touched[window.queue] = window
        for queue, window in touched.items():
            self._confirm(window.settle(now), in_order=True)
            if window.is_drained:
                self._ended(window, window.end_round(now))
            if window.pending:
                self._sendable[queue] = window
            if self.full_queues and not window.is_full:
                self.full_queues.discard(queue)
        if not ok:
            self.counts.refused += len(answered)
            return []
        self.floor.advance()
        return answered

    def _begin_epoch(self) -> None:
        if self.floor.open:
            raise RuntimeError(
                "a new epoch begins when all of the old one is confirmed: check has_room first"
            )
        self.ended_epoch = self.stamper.next_seq
        self.stamper.begin_epoch()
        self.floor.begin_epoch()
        self.confirmed_seq = [0] * len(self.confirmed_seq)

    def silent_queues(self, now: float, *, for_s: float) -> set[int]:
        """Queues that have been sent messages and have answered none of them for so long; none while the broker
        blocks publishers, which has an event of its own."""
        if not self._is_connected or self._is_blocked:
            return set()
        return {window.queue for window in self.windows if window.silent_s(now) >= for_s}

    def refusing_queues(self, now: float, *, for_s: float) -> list[int]:
        """Queues that have taken nothing and refused everything for so long."""
        return [window.queue for window in self.windows if window.refusing_s(now) >= for_s]

    def step(self, now: float) -> Step:
        """Next step. The messages in `sends` count as sent, with the next delivery tags."""
        step = Step()
        if not self._is_connected or self._is_blocked or self.failure is not None:
            return step
        due = [window for window in self._backing_off.values() if window.resume_at <= now]
        if due:
            step.barrier = self._is_fenced
            self._resume(due)
        if self._sendable:
            for window in self._sendable.values():
                window.pop_sendable(step.sends, now)
            self._sendable.clear()
            self._open.sent_next(step.sends)
            for message in step.sends:
                if message.sends > 1:
                    self.counts.resends += 1
        if self._backing_off:
            step.wake_at = min(window.resume_at for window in self._backing_off.values())
        return step

    def _resume(self, due: list[QueueWindow[StampedMessage]]) -> None:
        if self._is_fenced:
            for window in self.windows:
                window.drain()
        for window in due:
            window.resume()
            del self._backing_off[window.queue]
            self._sendable[window.queue] = window

    def _ended(self, window: QueueWindow[StampedMessage], ended: list[StampedMessage]) -> WindowResult:
        result = WindowResult.of(ended, unknown_is_gap=not self._is_fenced)
        self._confirm(result.accepted, in_order=True)
        self._confirm(result.behind, in_order=False)
        self.counts.accepted_after_gap += result.after_gap
        self.counts.inverted += result.inverted
        if window.state is WindowState.BACKOFF:
            self._backing_off[window.queue] = window
            self.full_queues.add(window.queue)
        if window.pending:
            self._sendable[window.queue] = window
        self.floor.advance()
        return result

    def _confirm(self, messages: list[StampedMessage], *, in_order: bool) -> None:
        for message in messages:
            message.confirmed = True
            message.body = b""
            message.extra = None
            self._unconfirmed_bytes -= message.weight_bytes
            if in_order:
                self.confirmed_seq[message.hash] = message.seq + 1
        self.counts.confirmed += len(messages)
