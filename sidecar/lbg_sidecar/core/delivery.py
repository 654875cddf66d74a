"""Deliveries in flight, settled deliveries of a channel, and what has been processed.

Calls finish in any order, but RabbitMQ is kept cheapest, and a closing channel safest, by few cumulative acks:
a quorum queue's channel that closes with more than about 32 commands behind it can discard acks (docs/rabbitmq.md,
"Facts"). So the contiguous prefix of what was delivered is acknowledged with one frame, and what is done
behind a delivery that is not is acknowledged singly only when it has waited for long, or before a close. Of a session
nothing is: how far it is, is one number, and what was acknowledged beyond it would be neither done nor to come.

A hint (docs/assignment.md, "Safety and balance"): whatever is forgotten here can only let a repeat through. Nothing in
here is ever marked as processed that was not.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": the consumer keeps the sequence number of
the last message that it is sure to have processed, and tells the broker when it connects.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from lbg_broker.group import SequenceSet


class AckWindow:
    """The deliveries of one channel: outstanding, done behind one that is not, and done without such a gap.

    `in_order`: none is acknowledged before all that were delivered before it."""

    __slots__ = ("_in_order", "_outstanding", "_singly", "prefix", "scattered")

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._outstanding: deque[InFlight] = deque()
        self._singly: set[InFlight] = set()  # acknowledged alone, and not the oldest yet
        self.prefix: list[InFlight] = []
        """Done, in the order they were delivered, with nothing undone before them, and not acked yet."""
        self.scattered: dict[InFlight, None] = {}
        """Done, in the order they were done, with something undone before them, and not acked yet."""

    def delivered(self, arrivals: Iterable[InFlight]) -> None:
        self._outstanding.extend(arrivals)

    def done(self, held: InFlight) -> None:
        outstanding = self._outstanding
        if outstanding[0] is not held:
            self.scattered[held] = None
            return
        self.prefix.append(outstanding.popleft())
        if self.scattered or self._singly:
            self._advance()

    def of_tags(self, tags: Collection[int]) -> list[InFlight]:
        """Those of these deliveries that are not acknowledged yet, in the order they were delivered."""
        unacked = itertools.chain(self.prefix, self._outstanding)
        return [held for held in unacked if held.tag in tags and held not in self._singly]

    def forget(self, gone: Collection[InFlight]) -> None:
        """These unacknowledged deliveries are the broker's again, and never acknowledged here."""
        self.prefix = [held for held in self.prefix if held not in gone]
        for held in gone:
            self.scattered.pop(held, None)
        self._singly.update(held for held in self._outstanding if held in gone)
        self._advance()

    def take_these(self, wanted: Iterable[InFlight]) -> list[InFlight]:
        """Of these what is done, to acknowledge singly; it counts as acked from now on."""
        taken = [] if self._in_order else [held for held in wanted if held in self.scattered]
        self._acked_singly(taken)
        return taken

    def _acked_singly(self, taken: Iterable[InFlight]) -> None:
        for held in taken:
            del self.scattered[held]
            self._singly.add(held)

    def _advance(self) -> None:
        """Let what is done, or not to be acknowledged any more, leave the front."""
        outstanding, scattered, singly = self._outstanding, self.scattered, self._singly
        while outstanding and (scattered or singly):
            held = outstanding[0]
            if held in scattered:
                del scattered[held]
                self.prefix.append(held)
            elif held in singly:
                singly.remove(held)
            else:
                break
            outstanding.popleft()

    def take(self) -> list[InFlight]:
        """Messages that the next cumulative ack covers: ack the tag of the last. It counts as acked from now on."""
        prefix, self.prefix = self.prefix, []
        return prefix

    @property
    def next_single(self) -> InFlight | None:
        """The delivery to acknowledge singly before others."""
        return None if self._in_order else next(iter(self.scattered), None)

    def take_scattered(self, limit: int, *, done_before: float = float("inf")) -> list[InFlight]:
        """Up to `limit` deliveries to acknowledge singly, those done first; they count as acked from now on."""
        taken: list[InFlight] = []
        for held in () if self._in_order else self.scattered:
            if len(taken) == limit or (held.finished_at or 0.0) > done_before:
                break
            taken.append(held)
        self._acked_singly(taken)
        return taken

    @property
    def unacked(self) -> int:
        """Deliveries that the broker still counts against the prefetch window."""
        return len(self._outstanding) - len(self._singly) + len(self.prefix)

    @property
    def oldest(self) -> InFlight | None:
        """The delivery that has waited for its verdict longest."""
        return self._outstanding[0] if self._outstanding else None

    def leave(self) -> list[InFlight]:
        """Everything that was never acked, in order of delivery: the broker delivers it again."""
        rest = self.prefix + [held for held in self._outstanding if held not in self._singly]
        self.prefix = []
        self._outstanding.clear()
        self._singly.clear()
        self.scattered.clear()
        return rest


Identity = tuple[str, int, int]  # publisher, hash, sequence: what makes two deliveries the same message


class Outcome(enum.StrEnum):
    """Outcome of a delivery, in the words of the journal (`lbg_broker.group.journal_record.VERDICTS`)."""

    ACK = "ack"
    DEAD = "dead"
    REPEAT = "repeat"
    END = "end"  # of a session: no message of anybody's, so the journal has none of it
    RELEASED = "released"


class InFlight:
    """One delivery, from its arrival until it is settled or forgotten.

    `delivery` is the client's object and stays opaque in here. `redelivered`: the broker says that somebody had it
    before (AMQP 0-9-1, basic.deliver). `number` counts the member's deliveries. `sequence` is its number in a session,
    from 1, where there is one; `ends_session`: it is that session's End-of-Session.
    `calls` counts those of the application through this attachment, the running one included, `earlier` those that
    were made before, as far as is known. Times are the clock that the
    machine is driven with, in seconds: `started_at` of the last call, `first_started_at` of the first one
    through this attachment.
    `is_asked`: the broker wants it back, and it was at work. `is_taken`: the broker has given it to another consumer.
    """

    __slots__ = (
        "abort_reason",
        "attachment",
        "calls",
        "delivery",
        "earlier",
        "ends_session",
        "epoch",
        "finished_at",
        "first_started_at",
        "identity",
        "is_asked",
        "is_taken",
        "key",
        "lane",
        "number",
        "outcome",
        "published_at_us",
        "reason",
        "received_at",
        "redelivered",
        "sequence",
        "started_at",
        "tag",
    )

    def __init__(
        self,
        attachment: Attachment,
        tag: int,
        *,
        key: str | None = None,
        identity: Identity | None = None,
        delivery: Any = None,
    ) -> None:
        self.attachment = attachment
        self.tag = tag
        self.key = key
        self.identity = identity
        self.delivery = delivery
        self.redelivered = False
        self.sequence: int | None = None
        self.epoch: str | None = None
        self.ends_session = False
        self.lane: Hashable = None
        self.is_asked = False
        self.is_taken = False
        self.calls = 0
        self.earlier = 0
        self.number = 0
        self.published_at_us = 0
        self.received_at = 0.0
        self.started_at = 0.0
        self.first_started_at: float | None = None
        self.finished_at: float | None = None
        self.abort_reason: str | None = None
        self.outcome: Outcome | None = None
        self.reason = ""

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
    def is_over(self) -> bool:
        """Nothing that becomes of it here counts any more: its channel is gone, or it is another consumer's."""
        return self.is_taken or self.attachment.closed

    def __repr__(self) -> str:
        return f"Held(q{self.queue} tag {self.tag} key {self.key!r} attempts {self.attempts})"


class Attachment:
    """One consumer on one queue, as long as its channel lives: everything in it goes when the channel goes.

    `lanes` maps a lane to those that wait behind its head (None while nobody does); the head itself is ready,
    running, delayed or parked. `running` is in order of start.
    """

    __slots__ = (
        "ack_window",
        "acked",
        "acked_at",
        "closed",
        "delivered",
        "epoch",
        "frozen",
        "highest",
        "lanes",
        "limit",
        "listed",
        "parked",
        "partitions",
        "poisoned",
        "prefetch",
        "queue",
        "ready",
        "running",
        "session",
        "shelved",
        "unacked_listed",
        "unconfirmed",
        "unproven",
    )

    def __init__(
        self, queue: int, epoch: int, *, prefetch: int = 0, partitions: int = 1, session: str | None = None
    ) -> None:
        self.queue = queue
        self.partitions = partitions
        self.session = session
        self.epoch = epoch
        self.prefetch = prefetch
        self.ack_window = AckWindow(in_order=session is not None)
        self.lanes: dict[Hashable, deque[InFlight] | None] = {}
        self.ready: deque[InFlight] = deque()
        self.running: dict[InFlight, None] = {}
        self.parked: dict[
            InFlight, None
        ] = {}  # refused, waiting for the dead letter's confirm; the lane waits with them
        self.poisoned: dict[
            InFlight, float
        ] = {}  # since when their attempts are used up, and they are tried on
        self.unconfirmed: dict[
            InFlight, None
        ] = {}  # acked by the app and republished, waiting for that confirm
        self.delivered = 0
        self.highest = 0  # the highest tag that was handed to the application
        self.frozen = False
        self.limit = 0  # while frozen, only what was delivered before this tag may start
        self.shelved: deque[InFlight] = deque()  # ready, but not allowed to start while frozen
        self.closed = False
        self.listed = False  # in the rota of attachments that have something ready
        self.acked = 0
        self.acked_at = float("-inf")
        self.unproven: deque[tuple[int, float]] = deque()
        """Acks that the queue may not have applied: all that was acknowledged with them, and when they count as
        applied."""
        self.unacked_listed = False  # among the attachments that have something to acknowledge

    @property
    def is_at_work(self) -> bool:
        """Something is inside the application, on its way to a confirm, or may start now. Retries that wait for
        their time do not count."""
        return bool(self.running or self.ready or self.parked or self.unconfirmed)

    @property
    def drained(self) -> bool:
        """Frozen, and not at work."""
        return not self.is_at_work


StreamRuns = tuple[str, int, tuple[tuple[int, int], ...]]  # publisher, hash, runs of sequence numbers


@dataclass(frozen=True, slots=True)
class Positions:
    """A queue's recent positions in a form that can be sent: what was processed, and failed attempts so far."""

    streams: tuple[StreamRuns, ...] = ()
    attempts: tuple[tuple[str, int, int, int], ...] = ()  # publisher, hash, sequence, attempts


class Processed:
    """Sequence numbers per (publisher, hash), bounded.

    At most `streams_max` streams of at most `runs_max` sparse runs each: 65,536 streams without holes take
    about 30 MB. The stream that was idle for longest is forgotten first: each start of a publisher may open streams
    of its own, and they must not displace those of a publisher that lives.
    """

    def __init__(self, *, queue_count: int, streams_max: int = 65_536, runs_max: int = 64) -> None:
        self.keep: Callable[[str, int, SequenceSet], None] | None = None
        """Told of a stream each time that a message of it was processed here, before anybody can be acked."""
        self._queue_count = queue_count
        self._streams_max = streams_max
        self._runs_max = runs_max
        self._streams: OrderedDict[tuple[str, int], SequenceSet] = OrderedDict()
        """The one used last is the last."""
        self._attempts: dict[Identity, int] = {}
        self._told: dict[Identity, int] = {}  # by the former consumer, and not looked at yet

    def recount(self, queue_count: int) -> None:
        """The group has another number of queues: what was processed stays processed, in whatever queue it is."""
        self._queue_count = queue_count

    def __contains__(self, identity: Identity) -> bool:
        stream = self._streams.get(identity[:2])
        return stream is not None and identity[2] in stream

    def add(self, identity: Identity) -> None:
        name = identity[:2]
        stream = self._streams.get(name)
        if stream is None:
            stream = self._open(name)
        else:
            self._streams.move_to_end(name)
        stream.add(identity[2])
        if stream.sparse_count > self._runs_max:
            stream.forget(self._runs_max)
        if self.keep is not None:
            self.keep(*name, stream)
        if self._attempts or self._told:
            self._attempts.pop(identity, None)
            self._told.pop(identity, None)

    def failed(self, identity: Identity, attempts: int) -> None:
        """Keep the count of attempts over a handoff, in either direction."""
        _put(self._attempts, identity, attempts, self._streams_max)

    def attempts(self, identity: Identity) -> int:
        """Number of known attempts, here and elsewhere."""
        if not self._attempts and not self._told:
            return 0
        return max(self._attempts.get(identity, 0), self.told_late(identity))

    def told_late(self, identity: Identity) -> int:
        """Attempts that a former consumer reported since the last request, else 0."""
        return self._told.pop(identity, 0) if self._told else 0

    def of_queue(self, queue: int, *, streams_max: int = 512, runs_max: int = 4096) -> Positions:
        """The latest positions of one queue, for its next consumer: at most about 100 kB as JSON.

        The streams share `runs_max` evenly. A queue has few of them where publishers are few, and each has a run for
        every message that is done behind a key that waits: what is left out here is processed again.
        """
        latest = (name for name in reversed(self._streams) if name[1] % self._queue_count == queue)
        names = list(itertools.islice(latest, streams_max))
        share = max(1, runs_max // len(names)) if names else 0
        streams = tuple((*name, tuple(self._streams[name].runs()[-share:])) for name in names)
        attempts = (
            (*identity, count)
            for identity, count in reversed(self._attempts.items())
            if identity[1] % self._queue_count == queue
        )
        return Positions(streams, tuple(itertools.islice(attempts, streams_max)))

    def merge(self, positions: Positions) -> None:
        """Take over what the former consumer of a queue processed."""
        for publisher, hash_, runs in positions.streams:
            name = (publisher, hash_)
            stream = self._streams.get(name)
            if stream is None:
                stream = self._open(name)
            else:
                self._streams.move_to_end(name)
            for first, last in runs:
                stream.add_run(first, last)
            stream.forget(self._runs_max)
        for publisher, hash_, seq, count in positions.attempts:
            _put(self._told, (publisher, hash_, seq), count, self._streams_max)

    def _open(self, name: tuple[str, int]) -> SequenceSet:
        if len(self._streams) >= self._streams_max:
            self._streams.popitem(last=False)
        stream = self._streams[name] = SequenceSet()
        return stream

    @property
    def streams(self) -> Iterable[tuple[str, int]]:
        return self._streams.keys()


def _put(counts: dict[Identity, int], identity: Identity, count: int, limit: int) -> None:
    if identity not in counts and len(counts) >= limit:
        del counts[next(iter(counts))]
    counts[identity] = count


class Keep(Protocol):
    """Writes how far a session is. `epoch`: the life of the broker in which that number was given, None where it does
    not say. `is_over`: the number is its End-of-Session's."""

    def __call__(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None: ...


class SessionPosition:
    """`name` is the session's. `keep` is told each number before anything of it can be acknowledged, unless the
    application keeps the position itself, in its own transactions.

    A session ends in two steps, with any number of lost connections and deaths between them: it is over here, and then
    the broker is known to have forgotten it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: int | None = None
        """None while nobody knows: then the broker goes on after what was acknowledged to it."""
        self.epoch: str | None = None
        """Of `committed`: a broker that was restored from a backup gives its numbers to other messages, in another
        epoch. None where nobody says."""
        self.keep: Keep | None = None
        self.is_over = False
        """Its End-of-Session has come, and all before it is processed."""
        self.is_gone = False
        """The broker has forgotten it as well: its name is free."""
        self._is_the_applications = False

    @property
    def is_the_applications(self) -> bool:
        """The application has said how far it is: its word counts."""
        return self._is_the_applications

    def told(self, committed: int, epoch: str | None = None) -> None:
        """By the application: in place of what a file says, and again whenever it comes back. What it acknowledged
        meanwhile it has committed, unless it speaks of another epoch: then somebody else went on with the session."""
        if not self._is_the_applications:
            self._is_the_applications = True
            self.committed, self.epoch, self.is_over = None, None, False
        if self.committed is None or not self._is_of(epoch) or committed > self.committed:
            self.committed, self.epoch = committed, epoch

    def _is_of(self, epoch: str | None) -> bool:
        """True if a number of this epoch can be compared with ours. Who says nothing of epochs means one alone."""
        return epoch is None or self.epoch is None or epoch == self.epoch

    def covers(self, held: InFlight) -> bool:
        return (
            held.sequence is not None
            and not held.ends_session
            and self.committed is not None
            and self._is_of(held.epoch)
            and held.sequence <= self.committed
        )

    def done(self, held: InFlight) -> None:
        """This one and all before it are processed."""
        sequence = held.sequence
        if sequence is None or (self._is_of(held.epoch) and sequence <= (self.committed or 0)):
            return
        self.committed, self.epoch = sequence, held.epoch
        self.is_over = held.ends_session
        if self.keep is not None and not self._is_the_applications:
            self.keep(sequence, epoch=self.epoch, is_over=self.is_over)

    def describe(self) -> dict[str, object]:
        kept_by = (
            "application" if self._is_the_applications else "file" if self.keep is not None else "broker"
        )
        return {"name": self.name, "committed": self.committed, "kept_by": kept_by, "ended": self.is_over}

    def gone(self) -> None:
        """The broker has forgotten it, for good. The next session of this name begins at 1."""
        self.is_gone = True
        if self.keep is not None and not self._is_the_applications:
            self.keep(0)

    def forget(self) -> None:
        """The broker knows it otherwise, and nobody else can: what it says counts from here on."""
        self.committed = self.epoch = None
