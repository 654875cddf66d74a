"""Deliveries in flight, and what has been processed.

A hint (docs/internals/assignment.md, "Safety and balance"): an entry that is missing here only lets a repeat through.
Nothing is ever marked as processed that was not.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": the consumer stores the sequence number of
the last message that it has certainly processed, and reports it to the broker when it connects.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from lbg_core.client.ack_window import AckFrames, AckWindow
from lbg_core.group import SequenceSet
from lbg_core.group.member_state import REPORTED_RUNS_MAX, REPORTED_STREAMS_MAX, Positions, Suspected
from lbg_core.group.sequences import MessageIdentity, Run
from lbg_sidecar.core.message_states import HANDOFF_HOLDS, IS_RUNNING, NO_HOLD, Hold, State


class Outcome(enum.StrEnum):
    """Outcome of a delivery, in the words of the journal (`lbg_core.group.journal_record.VERDICTS`)."""

    ACK = "ack"
    DEAD = "dead"
    REPEAT = "repeat"
    END = "end"  # of a session: not a publisher's message, so the journal has no record of it
    RELEASED = "released"
    PARKED = "parked"  # in the parking queue: it is delivered again, so the journal has it as released
    FORWARDED = "forwarded"  # in the queue to which its hash went: it is delivered again from there
    FENCE = "fence"  # not a publisher's message


@dataclass(slots=True)
class Suspect:
    """A suspect, as one member knows it. `due`: it is not called before that time; None before its first turn since the
    last report, when its wait begins."""

    last: Suspected
    due: float | None
    reported_at: float


@dataclass(slots=True, eq=False, repr=False)
class InFlight:
    """One delivery, from its arrival until it is settled or forgotten.

    `state` is changed by `Lanes` alone. `delivery` is the client's object and stays opaque in here, `size` the length
    of its body in bytes; `body_lease` counts that body as used while the message lives. `redelivered`: the broker
    delivered it before (AMQP 0-9-1, basic.deliver). `number` counts the member's deliveries. `sequence` is its number
    in a session, from 1, where there is one; `ends_session`: it is that session's End-of-Session. `calls` counts those
    of the application through this attachment, the running one included, `earlier` those before, as far as they were
    reported. Times are of the machine's clock, in seconds: `started_at` of the last call, `first_started_at` of the
    first one through this attachment. `is_slow`: half of the call timeout is over. `extended`: None unless the
    application asked for more time for this call. `is_recalled`: the broker requests
    it back, and it was at work. `is_uncounted`: done, and an application that commits its session's position need not
    count it. `hash_`: that of its routing key, None where it has none. `fence`: id of the change whose fence it is;
    None of any other message. `suspect`: what is known of it as one; None of any other message. `is_copyable`: its
    headers leave room for those of a copy, in the parking queue or the queue to which its hash went; else it is a dead
    letter. `is_only_stamped`: it has the headers of our publisher and no others. `settles_as`: the outcome to come of
    one that is SETTLING. `audited`: of the sequence audit alone.
    """

    attachment: Attachment
    tag: int
    _: KW_ONLY
    key: str | None = None
    identity: MessageIdentity | None = None
    delivery: Any = None
    state: State = State.ARRIVED
    size: int = 0
    body_lease: object = None
    redelivered: bool = False
    sequence: int | None = None
    epoch: str | None = None
    ends_session: bool = False
    hash_: int | None = None
    fence: str | None = None
    lane: Hashable = None
    is_recalled: bool = False
    is_uncounted: bool = False
    is_slow: bool = False
    is_copyable: bool = True
    is_only_stamped: bool = False
    calls: int = 0
    earlier: int = 0
    number: int = 0
    published_at_us: int = 0
    received_at: float = 0.0
    started_at: float = 0.0
    first_started_at: float | None = None
    finished_at: float | None = None
    extended: Extended | None = None
    abort_reason: str | None = None
    outcome: Outcome | None = None
    settles_as: Outcome = Outcome.ACK
    audited: Any = None
    reason: str = ""
    suspect: Suspect | None = None

    @property
    def attempts(self) -> int:
        return self.earlier + self.calls

    @property
    def queue(self) -> int:
        """The number of its queue, or of its partition in a queue that has partitions."""
        attachment, identity = self.attachment, self.identity
        if attachment.partitions == 1 or identity is None:
            return attachment.queue
        return identity[1] % attachment.partitions

    @property
    def id(self) -> str:
        """The same for every delivery of the same message, if a publisher of ours stamped it; else of this delivery."""
        if self.identity is None:
            return f"q{self.queue}-{self.attachment.epoch}-{self.tag}"
        return "-".join(map(str, self.identity))

    def id_in(self, group: str) -> str:
        """Its id for applications: without a stamp the group's name is a part of it."""
        return self.id if self.identity is not None else f"{group}-{self.id}"

    @property
    def is_called(self) -> bool:
        """True while it is inside the application."""
        return IS_RUNNING[self.state]

    @property
    def is_over(self) -> bool:
        """True if it is not this member's any more: what comes of it here has no effect on the broker."""
        return self.state >= State.ABANDONED

    @property
    def is_aborted(self) -> bool:
        """True if its call, should it run, is to end without effect: a blocking one may run on for long."""
        return self.abort_reason is not None or self.is_over

    @property
    def is_abort_requested(self) -> bool:
        """True if its channel was requested to stop its call. Of one that another member has it stops only what harms
        no other."""
        return self.abort_reason is not None or self.attachment.closed

    def __repr__(self) -> str:
        return f"InFlight(q{self.queue} tag {self.tag} key {self.key!r} attempts {self.attempts})"


@dataclass(slots=True)
class Extended:
    """More time for a call. `limit_s`: how long it may last in all. Times in microseconds since the epoch, 0 until
    somebody sets them."""

    limit_s: float
    progress: str = ""
    since_us: int = 0
    until_us: int = 0


@dataclass(slots=True)
class Retry:
    """A retry that is reported: the reply is no verdict (`is_unreadable`), or the application asked for a long wait.

    `at` is the time of the next call, `at_us` the same in microseconds since the epoch, 0 until somebody sets it.
    """

    is_unreadable: bool
    at: float
    at_us: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Attachment:
    """One consumer on one queue, as long as its channel lives: all its state ends with the channel.

    `holds` and the collections of messages are changed by `Lanes` alone: `lanes` maps a lane to those that wait
    behind its first one (None while nobody does); `ready`, a heap, may start now, and `shelved` would but for
    the holds; `running` are called, in order of start; `underway` wait for an answer of the broker. `poisoned` are
    those whose attempts are used up and which are retried, with the time since then. `limit`: what was delivered up to
    this tag may start while it is drained. `highest`: the highest tag that was taken.

    `calls` have ended, and took `busy_s` together. `acks_soon`: somebody waits for its acks.

    `beside` is that of released copies of parked messages, which come over the mailbox while this one serves the queue:
    the broker knows nothing of it. `beside_of` is the other way round.
    """

    queue: int
    epoch: int
    _: KW_ONLY
    prefetch: int = 0
    partitions: int = 1
    session: str | None = None
    ack_window: AckWindow[InFlight] = field(init=False)
    ack_frames: AckFrames = field(default_factory=AckFrames)
    lanes: dict[Hashable, deque[InFlight] | None] = field(default_factory=dict)
    ready: list[tuple[int, int, InFlight]] = field(default_factory=list)
    shelved: deque[InFlight] = field(default_factory=deque)
    running: dict[InFlight, None] = field(default_factory=dict)
    underway: dict[InFlight, None] = field(default_factory=dict)
    poisoned: dict[InFlight, float] = field(default_factory=dict)
    retries: dict[InFlight, Retry] = field(default_factory=dict)
    delivered: int = 0
    highest: int = 0
    holds: Hold = NO_HOLD
    closed: bool = False
    limit: int = 0
    listed: bool = False  # in the rota of attachments that have something ready
    acked_at: float = float("-inf")
    acks_soon: bool = False
    unacked_listed: bool = False  # among the attachments that have something to acknowledge
    is_moving: bool = False  # a handoff of it is under way
    calls: int = 0
    busy_s: float = 0.0
    beside: Attachment | None = None
    beside_of: Attachment | None = None

    def __post_init__(self) -> None:
        self.ack_window = AckWindow(in_order=self.session is not None)

    @property
    def paused(self) -> bool:
        return bool(self.holds & HANDOFF_HOLDS)

    @property
    def is_at_work(self) -> bool:
        """Something is inside the application, on its way to a confirm, or may start now or as soon as what holds it is
        read. Retries that wait for their time do not count."""
        if self.beside is not None and self.beside.is_at_work:
            return True
        return bool(self.running or self.ready or self.underway or (self.shelved and not self.paused))

    @property
    def unacked(self) -> Iterator[InFlight]:
        """Deliveries that are not acknowledged yet, and released copies that are not settled."""
        beside = () if self.beside is None else self.beside.ack_window.all_unacked()
        return itertools.chain(self.ack_window.all_unacked(), beside)

    @property
    def drained(self) -> bool:
        """True if it is not at work; of use for paused attachments only."""
        return not self.is_at_work


class _HashesOf(dict[int, bool]):
    """True for each hash that has one of these queues: each hash is looked up once, however many streams it has."""

    def __init__(self, queues_of: Callable[[int], Collection[int]], queues: Collection[int]) -> None:
        self._queues_of = queues_of
        self._queues = queues

    def __missing__(self, hash_: int) -> bool:
        found = self[hash_] = any(queue in self._queues for queue in self._queues_of(hash_))
        return found


class Processed:
    """Sequence numbers per (publisher, hash), bounded.

    At most `streams_max` streams of at most `runs_max` sparse runs each: 65,536 streams without holes take
    about 30 MB. The stream that was idle for longest is forgotten first: each start of a publisher may open streams
    of its own, and they must not displace those of a publisher that lives.
    """

    def __init__(self, *, queue_count: int, streams_max: int = 65_536, runs_max: int = 64) -> None:
        self.queues_of: Callable[[int], Collection[int]] = lambda hash_: (hash_ % queue_count,)
        """Numbers of the queues that may have messages of a hash: several while its keys move from one to another."""
        self.write: Callable[[str, int, SequenceSet], None] | None = None
        """Called with a stream for each of its messages that was processed here, before that can be acknowledged."""
        self._streams_max = streams_max
        self._runs_max = runs_max
        self._streams: OrderedDict[tuple[str, int], SequenceSet] = OrderedDict()
        """The one used last is the last."""
        self._attempts: dict[MessageIdentity, int] = {}
        self._reported_attempts: dict[MessageIdentity, int] = {}  # by the former consumer, and not read yet
        self.merges = 0
        """Grows with each merge."""

    def __contains__(self, identity: MessageIdentity) -> bool:
        stream = self._streams.get(identity[:2])
        return stream is not None and identity[2] in stream

    def runs_of(self, name: tuple[str, int]) -> list[tuple[int, int]]:
        """Numbers of a stream that were processed."""
        stream = self._streams.get(name)
        return [] if stream is None else stream.runs()

    def add(self, identity: MessageIdentity) -> None:
        name = identity[:2]
        stream = self._used(name)
        stream.add(identity[2])
        if stream.sparse_count > self._runs_max:
            stream.forget(self._runs_max)
        if self.write is not None:
            self.write(*name, stream)
        if self._attempts or self._reported_attempts:
            self.forget_attempts(identity)

    def highest(self, name: tuple[str, int]) -> int:
        """The highest number of this stream; -1 without one."""
        stream = self._streams.get(name)
        return -1 if stream is None else stream.highest

    def missing(self, name: tuple[str, int], first: int, last: int) -> list[Run]:
        """Numbers from `first` to `last` that are not in this stream, as rising runs."""
        stream = self._streams.get(name)
        if stream is None:
            return [(first, last)]
        return [(max(first, low), high) for low, high in stream.holes(last + 1) if high >= first]

    def failed(self, identity: MessageIdentity, attempts: int) -> None:
        """Records the count of attempts, for handoffs in either direction."""
        _set_bounded(self._attempts, identity, attempts, self._streams_max)

    def forget_attempts(self, identity: MessageIdentity) -> None:
        """Its attempts are counted from 0 when it is delivered again."""
        self._attempts.pop(identity, None)
        self._reported_attempts.pop(identity, None)

    def attempts(self, identity: MessageIdentity) -> int:
        """Number of attempts here, or as reported by former members."""
        if not self._attempts and not self._reported_attempts:
            return 0
        return max(self._attempts.get(identity, 0), self.take_reported_attempts(identity))

    def take_reported_attempts(self, identity: MessageIdentity) -> int:
        """Attempts that a former consumer reported since the last request, else 0."""
        return self._reported_attempts.pop(identity, 0) if self._reported_attempts else 0

    def of_queue(
        self, queue: int, *, streams_max: int = REPORTED_STREAMS_MAX, runs_max: int = REPORTED_RUNS_MAX
    ) -> Positions:
        """The latest positions of one queue, for its next consumer: at most about 100 kB as JSON.

        The streams share `runs_max` evenly. A queue has few of them where publishers are few, and each has a run for
        every message that is done behind a key that waits: what is left out here is processed again.
        """
        is_here = _HashesOf(self.queues_of, (queue,))
        latest = (name for name in reversed(self._streams) if is_here[name[1]])
        names = list(itertools.islice(latest, streams_max))
        share = max(1, runs_max // len(names)) if names else 0
        streams = tuple((*name, tuple(self._streams[name].runs()[-share:])) for name in names)
        attempts = (
            (*identity, count) for identity, count in reversed(self._attempts.items()) if is_here[identity[1]]
        )
        return Positions(streams, tuple(itertools.islice(attempts, streams_max)))

    def merge(self, positions: Positions, *, queues: Collection[int] | None = None) -> None:
        """Adds positions of messages that were processed before: by an earlier process, or by another member.

        `queues`: only those whose hash has a queue among these (None: all).
        """
        is_here = None if queues is None else _HashesOf(self.queues_of, queues)
        self.merges += 1
        for publisher, hash_, runs in positions.streams:
            if is_here is not None and not is_here[hash_]:
                continue
            if not runs:
                continue
            stream = self._used((publisher, hash_))
            for first, last in runs:
                stream.add_run(first, last)
            stream.forget(self._runs_max)
        for publisher, hash_, seq, count in positions.attempts:
            if is_here is not None and not is_here[hash_]:
                continue
            _set_bounded(self._reported_attempts, (publisher, hash_, seq), count, self._streams_max)

    def _used(self, name: tuple[str, int]) -> SequenceSet:
        """The stream of this name, a new one if there is none. It is the last to be forgotten."""
        stream = self._streams.get(name)
        if stream is not None:
            self._streams.move_to_end(name)
            return stream
        if len(self._streams) >= self._streams_max:
            self._streams.popitem(last=False)
        stream = self._streams[name] = SequenceSet()
        return stream


def _set_bounded(
    counts: dict[MessageIdentity, int], identity: MessageIdentity, count: int, limit: int
) -> None:
    if identity not in counts and len(counts) >= limit:
        del counts[next(iter(counts))]
    counts[identity] = count
