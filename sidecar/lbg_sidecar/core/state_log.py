"""Log lines about states that last: of many queues at once, and of attempts that fail one after the other.

A group of 128 queues on a broker that is away would otherwise be 128 lines for each attempt of each member. Here a
state is one line when it begins, for all queues that enter it within a moment; further lines while it lasts, at
intervals that grow; and one line when it is over. A state that begins again soon continues with its intervals, so
that one which comes and goes is no flood either.

No I/O: time is an argument, and lines are returned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from lbg_core.counted_nouns import counted

Queue = TypeVar("Queue", int, str)
"""A queue of a member has a number, a queue of a publisher a name."""

GATHER_S: Final = 1.0
"""Time from a state's first queue to its first line: a broker that fails does so for all queues within a moment."""

REPEAT_FIRST_S: Final = 10.0
REPEAT_MAX_S: Final = 300.0
"""Interval of the lines while a state lasts, which doubles from one to the other."""

RANGES_SHOWN: Final = 8
TEXTS_MAX: Final = 16
"""Different errors of attempts that are counted at a time; a group has few brokers, and each fails in few ways."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A state that queues can be in. `event` names it in records; `what` they have, as «no answer to basic.consume»;
    `over` is what one of them does, and what several do, when that is over. `hint`: a clause about the reason.
    `waited_s`: how long a queue has been in it when that is found out."""

    event: str
    what: str
    over: tuple[str, str]
    hint: str = ""
    waited_s: float = 0.0


FULL: Final = Cause(
    "queue_full",
    "no room",
    ("takes messages", "take messages"),
    hint="a full queue refuses messages, which wait in order until members have acknowledged others",
)
"""A queue of a publisher is full."""


@dataclass(frozen=True, slots=True)
class StateLine(Generic[Queue]):
    """One line of the log. `queues` are those that it is about; `is_over`: none is in the state any more."""

    event: str
    text: str
    queues: tuple[Queue, ...]
    for_s: float
    is_over: bool


class Interval:
    """Times of the lines of one state: after a line the next one comes no sooner than the interval, which doubles. It
    is as at first again when the state begins later than that."""

    def __init__(self) -> None:
        self._line_at: float | None = None
        self._interval_s = REPEAT_FIRST_S
        self._is_first = True

    def first_due(self, now: float) -> float:
        """Time of the first line of a state that begins now."""
        if self._line_at is None or now - self._line_at >= self._interval_s:
            self._interval_s, self._is_first = REPEAT_FIRST_S, True
            return now
        return self._line_at + self._interval_s

    def next_due(self, now: float) -> float:
        """There is a line now: the time of the next one."""
        if not self._is_first:
            self._interval_s = min(2 * self._interval_s, REPEAT_MAX_S)
        self._line_at, self._is_first = now, False
        return now + self._interval_s


@dataclass(slots=True)
class _State(Generic[Queue]):
    """`queues` are in the state; `unknown` were, on a connection that was lost. `ever`: all since it began."""

    cause: Cause
    interval: Interval = field(default_factory=Interval)
    queues: set[Queue] = field(default_factory=set)
    unknown: set[Queue] = field(default_factory=set)
    ever: set[Queue] = field(default_factory=set)
    detail: str = ""
    began_at: float = 0.0
    ended_at: float | None = 0.0
    due: float | None = None
    is_reported: bool = False


class QueueStates(Generic[Queue]):
    """States of the queues of one member or publisher, and the lines about them."""

    def __init__(self) -> None:
        self._states: dict[str, _State[Queue]] = {}

    def enter(self, cause: Cause, queue: Queue, now: float, detail: str = "") -> None:
        """The queue is in the state from now on, or still. `detail` is an example, the first one counts."""
        state = self._states.setdefault(cause.event, _State(cause))
        state.cause = cause
        if state.ended_at is not None:
            if state.due is None:
                state.began_at = now - cause.waited_s
                state.is_reported, state.detail = False, ""
                state.ever.clear()
            elif state.is_reported:  # the line about its end is not due any more
                state.due = None
            state.ended_at = None
        if state.due is None:
            state.due = max(now + GATHER_S, state.interval.first_due(now))
        state.queues.add(queue)
        state.unknown.discard(queue)
        state.ever.add(queue)
        state.detail = state.detail or detail

    def leave(self, queue: Queue, now: float, *, event: str | None = None) -> None:
        """The queue is no longer in the state named `event`; None: in none at all."""
        for name, state in self._states.items():
            if event in (None, name) and state.ended_at is None and queue in state.queues | state.unknown:
                state.queues.discard(queue)
                state.unknown.discard(queue)
                self._end_if_empty(state, now)

    def interrupt(self) -> None:
        """The connection is lost, which has a line of its own: nothing is known of the queues."""
        for state in self._states.values():
            if state.ended_at is not None:
                continue
            state.due = None
            if state.is_reported:
                state.unknown |= state.queues
            else:
                state.ended_at = state.began_at
            state.queues.clear()

    def retain(self, queues: Collection[Queue], now: float) -> None:
        """There are only these queues from now on."""
        for state in self._states.values():
            for queue in (state.queues | state.unknown).difference(queues):
                self.leave(queue, now, event=state.cause.event)

    def next_due(self) -> float | None:
        """Time of the next line; None: there is none as things are."""
        return min((state.due for state in self._states.values() if state.due is not None), default=None)

    def lines(self, now: float) -> list[StateLine[Queue]]:
        """The lines that are due."""
        due = [state for state in self._states.values() if state.due is not None and state.due <= now]
        return [self._line(state, now) for state in due]

    def _end_if_empty(self, state: _State[Queue], now: float) -> None:
        if state.queues:
            return
        if state.unknown:  # since a connection was lost: no queue is known to be in the state
            state.due = None
            return
        state.ended_at = now
        if state.is_reported:
            state.due = now

    def _line(self, state: _State[Queue], now: float) -> StateLine[Queue]:
        cause, was_reported, ended_at = state.cause, state.is_reported, state.ended_at
        queues = tuple(sorted(state.queues if ended_at is None else state.ever))
        is_one = len(queues) == 1
        subject = f"queue {queues[0]}" if is_one else counted(len(queues), "queue")
        for_s = (now if ended_at is None else ended_at) - state.began_at
        if ended_at is not None and was_reported:
            over = cause.over[0] if is_one else cause.over[1]
            state.due = None
            text = f"{subject if is_one else f'all {subject}'} {over} again after {for_s:.1f} s"
            return StateLine(cause.event, text, queues, for_s, is_over=True)
        if ended_at is not None:
            verb, lasting = "had", f" for {for_s:.1f} s"
        elif was_reported:
            verb, lasting = "still has" if is_one else "still have", f" after {for_s:.0f} s"
        else:
            verb, lasting = "has" if is_one else "have", ""
        due = state.interval.next_due(now)
        state.due, state.is_reported = (due, True) if ended_at is None else (None, was_reported)
        which = "" if is_one else f" (queues {ranges(queues)})"
        hint = f"; {cause.hint}" if cause.hint and not was_reported else ""
        detail = f": {state.detail}" if state.detail else ""
        text = f"{subject} {verb} {cause.what}{lasting}{which}{detail}{hint}"
        return StateLine(cause.event, text, queues, for_s, is_over=ended_at is not None)


def ranges(queues: Collection[int] | Collection[str]) -> str:
    """Numbers in order as «0-63, 70, 72-75», or names, at most `RANGES_SHOWN` of them."""
    runs: list[tuple[int | str, int | str]] = []
    for queue in queues:
        last = runs[-1][1] if runs else None
        if isinstance(queue, int) and isinstance(last, int) and queue == last + 1:
            runs[-1] = (runs[-1][0], queue)
        else:
            runs.append((queue, queue))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:RANGES_SHOWN]]
    return ", ".join((*shown, "…") if len(runs) > RANGES_SHOWN else shown)


@dataclass(slots=True)
class _Attempts:
    """Attempts that failed in one way. `count` is since the last line."""

    interval: Interval = field(default_factory=Interval)
    count: int = 0
    due: float = 0.0
    failed_at: float = 0.0


class AttemptLog:
    """Lines about attempts that fail one after the other: one when an error is new, and while it lasts at growing
    intervals."""

    def __init__(self) -> None:
        self._by_error: dict[str, _Attempts] = {}
        self._failed = 0
        self._began_at = 0.0

    def failed(self, error: str, now: float, *, text: str = "") -> str | None:
        """The attempt failed with this error: the line about it, if there is one. `text`: the line, where errors differ
        from attempt to attempt, and `error` names their kind."""
        if not self._failed:
            self._began_at = now
        self._failed += 1
        attempts = self._by_error.get(error)
        if attempts is None:
            if len(self._by_error) >= TEXTS_MAX:
                self._by_error.clear()
            attempts = self._by_error[error] = _Attempts()
        if now - attempts.failed_at >= REPEAT_MAX_S:
            attempts.interval = Interval()
        attempts.failed_at = now
        attempts.count += 1
        if now < attempts.due:
            return None
        count, attempts.count = attempts.count, 0
        attempts.due = attempts.interval.next_due(now)
        line = text or error
        return line if count == 1 else f"{line} ({counted(count, 'attempt')} since the last such line)"

    def succeeded(self, now: float) -> str | None:
        """An attempt succeeded: the line about it, if others failed before."""
        failed, self._failed = self._failed, 0
        self._by_error.clear()
        if not failed:
            return None
        return f"after {now - self._began_at:.1f} s and {counted(failed, 'failed attempt')}"
