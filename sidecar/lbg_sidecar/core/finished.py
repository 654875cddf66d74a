"""Messages that a member was done with lately, whatever their key: for administrators who ask for one key, and for its
pace.

A ring of batches, as they were acknowledged or given back, each with one row for a message. A row is made by one call
for all its fields, and shares their values with the delivery: nothing is copied, computed or looked up until somebody
asks. docs/adr/0095-members-remember-finished-messages.md has what it costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from lbg_core.group.pace import Call
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.delivery import InFlight, Outcome

MESSAGES_MAX = 10_000
CHARS_MAX = 1_000_000
"""Of keys and names of publishers in long headers."""


class Finished(NamedTuple):
    """A message as `InFlight` has it. Times are of the machine's clock, in seconds."""

    key: str | None
    identity: MessageIdentity | None
    published_at_us: int
    received_at: float
    first_started_at: float | None
    started_at: float
    finished_at: float | None
    calls: int
    earlier: int
    outcome: Outcome | None
    redelivered: bool


class Found(NamedTuple):
    """A message, with what all of its batch share. `done_at`: when that was acknowledged (`settled`) or given back."""

    message: Finished
    queue: int
    done_at: float
    settled: bool


_row = attrgetter(*Finished._fields)
_KEY, _STARTED, _FINISHED, _CALLS = map(Finished._fields.index, ("key", "started_at", "finished_at", "calls"))


_Batch = tuple[float, int, int, bool, int, tuple[tuple[Any, ...], ...]]
"""Fields of `Found` but the message, with the number of partitions of the queue and of the characters that were
counted; the row of each message."""


class FinishedMessages:
    """Most of the last `messages_max` messages: whole batches are forgotten, the oldest first, once there are more, or
    their texts have more than `chars_max` characters. `counts_chars`: a message with a long header has come; before
    that, the header bounds the texts of each. `since`: from then on all are remembered, on the machine's clock; None:
    since the member started."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, chars_max: int = CHARS_MAX) -> None:
        self.since: float | None = None
        self.counts_chars = False
        self._messages_max = messages_max
        self._chars_max = chars_max
        self._batches: deque[_Batch] = deque()
        self._count = 0
        self._chars = 0

    def __len__(self) -> int:
        return self._count

    def add(self, deliveries: Sequence[InFlight], now: float, *, settled: bool) -> None:
        """These are over, all of one queue. What was given back and never called is not remembered: a move gives all of
        a window back."""
        if not settled:
            deliveries = [one for one in deliveries if one.calls or one.outcome is not Outcome.RELEASED]
        if not deliveries:
            return
        rows = tuple(map(_row, deliveries))
        chars = sum(map(_chars_of, deliveries)) if self.counts_chars else 0
        attachment = deliveries[0].attachment
        self._batches.append((now, attachment.queue, attachment.partitions, settled, chars, rows))
        self._count += len(rows)
        self._chars += chars
        while self._count > self._messages_max or self._chars > self._chars_max:
            self.since, _, _, _, former_chars, former_rows = self._batches.popleft()
            self._count -= len(former_rows)
            self._chars -= former_chars

    def of_key(self, key: str) -> Iterator[Found]:
        """In the order in which they were done."""
        for done_at, queue, partitions, settled, _, rows in self._batches:
            for row in rows:
                if row[_KEY] == key:
                    message = Finished._make(row)
                    number = queue
                    if partitions > 1 and message.identity is not None:
                        number = message.identity[1] % partitions
                    yield Found(message, number, done_at, settled)

    def calls_since(self, since: float, calls_max: int) -> tuple[list[Call], float]:
        """The last call of each message that was done after this time, the latest batch first, and the time after which
        these are all: a later one if there are more calls, or earlier messages are forgotten."""
        calls: list[Call] = []
        for done_at, *_, rows in reversed(self._batches):
            if done_at < since or len(calls) >= calls_max:
                return calls, max(done_at, since)
            calls += [
                (row[_KEY], row[_STARTED], row[_FINISHED])
                for row in rows
                if row[_CALLS] and row[_FINISHED] is not None
            ]
        return calls, since if self.since is None else max(self.since, since)


def _chars_of(one: InFlight) -> int:
    name = "" if one.identity is None else one.identity[0]
    return len(name) if one.key is None else len(name) + len(one.key)
