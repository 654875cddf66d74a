"""Which deliveries of one channel can be acknowledged, with how few frames.

Calls finish in any order, but RabbitMQ is kept cheapest, and a closing channel safest, by few cumulative acks:
a quorum queue's channel that closes with more than about 32 commands behind it can discard acks (DESIGN.md,
"RabbitMQ facts"). So the contiguous prefix of what was delivered is acknowledged with one frame, and what is done
behind a delivery that is not is acknowledged singly only when it has waited for long, or before a close. Of a session
nothing is: how far it is, is one number, and what was acknowledged beyond it would be neither done nor to come.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .held import Held


class Settling:
    """The deliveries of one channel: outstanding, done behind one that is not, and done without such a gap.

    `in_order`: none is acknowledged before all that were delivered before it."""

    __slots__ = ("_in_order", "_outstanding", "_singly", "prefix", "scattered")

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._outstanding: deque[Held] = deque()
        self._singly: set[Held] = set()  # acknowledged alone, and not the oldest yet
        self.prefix: list[Held] = []
        """Done, in the order they were delivered, with nothing undone before them, and not acked yet."""
        self.scattered: dict[Held, None] = {}
        """Done, in the order they were done, with something undone before them, and not acked yet."""

    def delivered(self, arrivals: Iterable[Held]) -> None:
        self._outstanding.extend(arrivals)

    def done(self, held: Held) -> None:
        outstanding = self._outstanding
        if outstanding[0] is not held:
            self.scattered[held] = None
            return
        self.prefix.append(outstanding.popleft())
        if self.scattered or self._singly:
            self._advance()

    def of_tags(self, tags: Collection[int]) -> list[Held]:
        """Those of these deliveries that are not acknowledged yet, in the order they were delivered."""
        unacked = itertools.chain(self.prefix, self._outstanding)
        return [held for held in unacked if held.tag in tags and held not in self._singly]

    def forget(self, gone: Collection[Held]) -> None:
        """These unacknowledged deliveries are the broker's again, and never acknowledged here."""
        self.prefix = [held for held in self.prefix if held not in gone]
        for held in gone:
            self.scattered.pop(held, None)
        self._singly.update(held for held in self._outstanding if held in gone)
        self._advance()

    def take_these(self, wanted: Iterable[Held]) -> list[Held]:
        """Of these what is done, to acknowledge singly; it counts as acked from now on."""
        taken = [] if self._in_order else [held for held in wanted if held in self.scattered]
        self._acked_singly(taken)
        return taken

    def _acked_singly(self, taken: Iterable[Held]) -> None:
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

    def take(self) -> list[Held]:
        """What the next cumulative ack covers: ack the tag of the last. It counts as acked from now on."""
        prefix, self.prefix = self.prefix, []
        return prefix

    @property
    def next_single(self) -> Held | None:
        """The delivery to acknowledge singly before others."""
        return None if self._in_order else next(iter(self.scattered), None)

    def take_scattered(self, limit: int, *, done_before: float = float("inf")) -> list[Held]:
        """Up to `limit` deliveries to acknowledge singly, those done first; they count as acked from now on."""
        taken: list[Held] = []
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
    def oldest(self) -> Held | None:
        """The delivery that has waited for its verdict longest."""
        return self._outstanding[0] if self._outstanding else None

    def leave(self) -> list[Held]:
        """Everything that was never acked, in order of delivery: the broker delivers it again."""
        rest = self.prefix + [held for held in self._outstanding if held not in self._singly]
        self.prefix = []
        self._outstanding.clear()
        self._singly.clear()
        self.scattered.clear()
        return rest
