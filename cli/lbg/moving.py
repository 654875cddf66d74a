"""Queues that move from member to member, as their messages show it, and how long they stood still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lbg.republished import Republished


@dataclass(slots=True)
class QueueMoved:
    """A queue is delivered to another member than before.

    `pause_us`: last delivery there to first delivery here. `waited_us`: how long the first message was held up by
    that; less than the pause where it was published during it. Of the queue's messages since, `redelivered` were
    marked so by the broker (the member before had them, unsettled), and `repeated` had been delivered before.
    """

    queue: int
    was: int
    now: int
    was_name: str
    now_name: str
    at_us: int
    pause_us: int
    waited_us: int
    redelivered: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        pause_ms = self.pause_us / 1000
        return f"queue moved: {self.queue} was {self.was_name}, now {self.now_name}, pause {pause_ms:.1f} ms"


@dataclass(frozen=True, slots=True)
class Pauses:
    """Nearest-rank percentiles in microseconds; all None without a move."""

    count: int
    p50_us: int | None
    p90_us: int | None
    p99_us: int | None
    max_us: int | None

    @classmethod
    def of(cls, values_us: Sequence[int]) -> Pauses:
        ordered = sorted(values_us)
        if not ordered:
            return cls(0, None, None, None, None)

        def rank(percent: int) -> int:
            return ordered[-(-len(ordered) * percent // 100) - 1]

        return cls(len(ordered), rank(50), rank(90), rank(99), ordered[-1])


@dataclass(slots=True)
class _Holder:
    """Who gets a queue's messages now, and by which move."""

    member: int
    name: str
    last_at_us: int
    move: QueueMoved | None = None


@dataclass(slots=True)
class Holders:
    """Who gets the messages of each queue, and every move from one to another."""

    moves: list[QueueMoved] = field(default_factory=list)
    _now: dict[int, _Holder] = field(default_factory=dict)

    @property
    def names(self) -> dict[int, str]:
        return {queue: holder.name for queue, holder in sorted(self._now.items())}

    def observe(self, message: Republished, *, repeated: bool) -> QueueMoved | None:
        """Note who got the message; a move where that is another member than before."""
        moved = self._observe(message)
        if (latest := self._now[message.queue].move) is not None:
            latest.redelivered += message.redelivered
            latest.repeated += repeated
        return moved

    def _observe(self, message: Republished) -> QueueMoved | None:
        at_us = message.delivered_at_us
        holder = self._now.get(message.queue)
        if holder is None:
            self._now[message.queue] = _Holder(message.member, message.member_name, at_us)
            return None
        if (holder.member, holder.name) == (message.member, message.member_name):
            holder.last_at_us = max(holder.last_at_us, at_us)
            return None
        pause_us = at_us - holder.last_at_us
        held_up_us = pause_us if message.published_at_us is None else at_us - message.published_at_us
        move = QueueMoved(
            queue=message.queue,
            was=holder.member,
            now=message.member,
            was_name=holder.name,
            now_name=message.member_name,
            at_us=at_us,
            pause_us=pause_us,
            waited_us=max(0, min(pause_us, held_up_us)),
        )
        self.moves.append(move)
        self._now[message.queue] = _Holder(message.member, message.member_name, at_us, move)
        return move
