"""Messages that a member was done with lately, whatever their key, for administrators who ask for one key.

A ring of batches, as they were acknowledged or given back, each with one row for a message. A row is made by one call
for all its fields, and shares their values with the delivery: nothing is copied, computed or looked up until somebody
asks. docs/adr/0095-members-remember-finished-messages.md has what it costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.delivery import InFlight, Outcome

MESSAGES_MAX = 10_000
KEY_CHARS_MAX = 1_000_000
"""Of all keys together: 100 a message. Longer ones let fewer messages be remembered."""


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
_key = itemgetter(0)


class _Batch(NamedTuple):
    done_at: float
    queue: int
    partitions: int
    settled: bool
    chars: int
    rows: Sequence[tuple[object, ...]]


class FinishedMessages:
    """Most of the last `messages_max` messages: whole batches are forgotten, the oldest first, once there are more, or
    their keys have more than `chars_max` characters. `since`: from then on all are remembered, on the machine's
    clock; None: since the member started."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, chars_max: int = KEY_CHARS_MAX) -> None:
        self.since: float | None = None
        self._messages_max = messages_max
        self._chars_max = chars_max
        self._batches: deque[_Batch] = deque()
        self._count = 0
        self._chars = 0

    def __len__(self) -> int:
        return self._count

    def add(self, deliveries: Collection[InFlight], now: float, *, settled: bool) -> None:
        """These are over, all of one queue. What was given back and never called is not remembered: a move gives all of
        a window back."""
        if not settled:
            deliveries = [one for one in deliveries if one.calls or one.outcome is not Outcome.RELEASED]
        attachment = next((one.attachment for one in deliveries), None)
        if attachment is None:
            return
        rows = tuple(map(_row, deliveries))
        try:
            chars = sum(map(len, map(_key, rows)))
        except TypeError:  # one has no key
            chars = sum(len(row[0]) for row in rows if row[0] is not None)
        self._batches.append(_Batch(now, attachment.queue, attachment.partitions, settled, chars, rows))
        self._count += len(rows)
        self._chars += chars
        while self._count > self._messages_max or self._chars > self._chars_max:
            self._forget()

    def _forget(self) -> None:
        oldest = self._batches.popleft()
        self._count -= len(oldest.rows)
        self._chars -= oldest.chars
        self.since = oldest.done_at

    def of_key(self, key: str) -> Iterator[Found]:
        """In the order in which they were done."""
        for done_at, queue, partitions, settled, _, rows in self._batches:
            for row in rows:
                if row[0] == key:
                    message = Finished._make(row)
                    is_split = partitions > 1 and message.identity is not None
                    number = message.identity[1] % partitions if is_split and message.identity else queue
                    yield Found(message, number, done_at, settled)
