"""What this member has processed, so that a message delivered again is dropped instead of processed again.

A hint in the sense of DESIGN.md section 1: whatever is forgotten here can only let a repeat through. Nothing in
here is ever marked as processed that was not.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lbg_broker.group import SequenceSet

from .held import Identity

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
        """How many attempts are known of, here and elsewhere."""
        if not self._attempts and not self._told:
            return 0
        return max(self._attempts.get(identity, 0), self.told_late(identity))

    def told_late(self, identity: Identity) -> int:
        """What a former consumer told of a message since it was last asked for, else 0."""
        return self._told.pop(identity, 0) if self._told else 0

    def of_queue(self, queue: int, *, streams_max: int = 512, runs_max: int = 8) -> Positions:
        """The latest positions of one queue, for its next consumer: at most about 100 kB as JSON."""
        streams = (
            (publisher, hash_, tuple(stream.runs()[-runs_max:]))
            for (publisher, hash_), stream in reversed(self._streams.items())
            if hash_ % self._queue_count == queue
        )
        attempts = (
            (*identity, count)
            for identity, count in reversed(self._attempts.items())
            if identity[1] % self._queue_count == queue
        )
        return Positions(
            tuple(itertools.islice(streams, streams_max)), tuple(itertools.islice(attempts, streams_max))
        )

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
