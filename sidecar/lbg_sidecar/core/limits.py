"""Limits of the messages at an application: concurrency limit and batch limit.

A command that works on one line at a time, and receives sixteen, has fifteen that cannot be recalled. A process does
not report what it does inside, so the limit is learned:

- *Swift*: as many as it answers in `swift_s`. What waits inside is processed before a recall.
- *Slow*: the level, if that is more, which begins at 1. A trial with twice as many shows whether calls take longer: by
  little, and all are worked on at once; twice as long, and the rest waited. A call that overtakes earlier ones
  shows the same without arithmetic, because calls begin in the order in which they are sent.

A level that stands is tried again, downwards too, since an application may change. No I/O and no clock in here.

A batch is one call: all of it has begun, and none of it can be recalled. An application that works on its
messages one after the other has most of them waiting in it. A batch takes the time of one message and, for each further
one, a little more: nothing where all are processed at once, as much again where they wait for each other. Both are
measured, and a batch has as many messages as make it longer by half of the handoff time, on average. So a batch ends
within a handoff, unless a single message takes about half of one or longer.

Messages sent at once count as one batch, with all that are unanswered already: two requests under way may wait for each
other, too. No I/O and no clock in here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, Self

from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import Capacity
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.message import Kind, Verdict

SWIFT_SHARE = 1 / 30
"""Of the handoff time. 0.1 s by default: a move hardly waits for it, and it outlasts the turn of another process."""

GAPS = 32
"""The time from answer to answer is an average over so many: they come in bunches."""

GAP_MIN_S = 1e-6

FIRST_SAMPLES = 2
"""Calls, or batches of one message, before the first trial: one of them may include a cold start."""

SAMPLES = 4
"""Calls, or batches of several messages, by which a trial is judged; at least as many calls as it has at a time."""

PATIENCE_FIRST = 16
PATIENCE_MAX = 256
"""Slow calls for each of the level, or batches of one message, until the next trial; twice as many after each trial
that changed nothing."""


class CallLimit(Protocol):
    """A limit of the messages at an application, by how it answers: `ConcurrencyLimit`, `BatchLimit`."""

    expects_move: bool

    @property
    def size(self) -> int: ...
    def began(self, in_flight: InFlight) -> None: ...
    def dropped(self, in_flight: InFlight) -> None: ...
    def ended(self, in_flight: InFlight, call_s: float, now: float) -> None: ...


class ConcurrencyLimit:
    """`most` is the concurrency of the settings. `handoff_s`: how long a move waits for what the application has."""

    def __init__(self, most: int, handoff_s: float) -> None:
        self.expects_move = False
        """A recall of messages may be near: no trial that could outlast it."""
        self._most = most
        self._handoff_s = handoff_s
        self._swift_s = handoff_s * SWIFT_SHARE
        self._gap_s = self._swift_s  # from answer to answer, on average
        self._answered_at = float("-inf")
        self._level = 1
        self._call_s: float | None = None  # calls at the level, on average; None before the first
        self._trial = 1  # another level, while it is compared with this one
        self._latencies: deque[float] = deque(maxlen=max(most, SAMPLES))
        self._proofs: deque[int] = deque(maxlen=PATIENCE_FIRST)
        self._patience = PATIENCE_FIRST
        self._calls = 0  # slow ones since the last trial
        self._downwards = True
        self._out: dict[InFlight, int] = {}  # in the order sent, with the number unanswered then

    @property
    def size(self) -> int:
        if self._gap_s * self._most <= self._swift_s:
            return self._most
        slow = self._trial
        if slow > self._level and self.expects_move and not self._is_harmless(slow):
            slow = self._level
        swift = int(self._swift_s / self._gap_s)
        return min(self._most, max(swift, slow, 1))

    def began(self, in_flight: InFlight) -> None:
        self._out[in_flight] = len(self._out) + 1

    def dropped(self, in_flight: InFlight) -> None:
        """The call ended without an answer of the application."""
        self._out.pop(in_flight, None)

    def ended(self, in_flight: InFlight, call_s: float, now: float) -> None:
        """Records the application's answer, `call_s` after the message was sent to it."""
        out = self._out
        at_once = out.get(in_flight)
        if at_once is None:
            return
        gap_s = now - self._answered_at
        if gap_s > call_s:
            gap_s = call_s
        if gap_s < GAP_MIN_S:
            gap_s = GAP_MIN_S
        self._gap_s += (gap_s - self._gap_s) / GAPS
        self._answered_at = now
        trial = self._trial
        if trial // 2 < at_once <= trial:
            # Swift ones, too: a mean of slow calls alone does not describe a mixture.
            self._latencies.append(call_s)
        together = 1 if next(iter(out)) is in_flight else self._together(in_flight)
        del out[in_flight]
        is_slow = call_s > self._swift_s
        if together > 1 or is_slow:
            self._proofs.append(together)
        if is_slow:
            self._calls += 1
            self._judge()

    def _together(self, in_flight: InFlight) -> int:
        """It and the calls that began before it and are not answered, as far as that matters."""
        count, matters = 1, max(self._level, self._trial)
        for other in self._out:
            if other is in_flight or count == matters:
                break
            count += 1
        return count

    def _judge(self) -> None:
        level, trial = self._level, self._trial
        is_enough = len(self._latencies) >= max(SAMPLES, trial)
        if self._call_s is None:
            if len(self._latencies) >= FIRST_SAMPLES:
                self._call_s = min(self._latencies)  # one of them may have come with a cold start
                self._try(2)
        elif trial > level:
            if self._is_proved(level):
                self._decide(trial, is_better=True)
            elif is_enough:
                self._decide(trial, is_better=self._mean() <= self._call_s * _between(level, trial))
        elif trial < level:
            if self._is_proved(trial):
                self._stand()
            elif is_enough:
                self._decide(trial, is_better=self._mean() * _between(trial, level) < self._call_s)
        elif is_enough:
            call_s = self._mean()
            self._latencies.clear()
            is_slower = call_s > self._call_s * _between(1, 2)
            self._call_s = call_s
            if is_slower and level > 1 and not self._is_proved(level // 2):
                self._try(level // 2)
            elif self._calls >= self._patience * level:
                self._try_anew()

    def _is_proved(self, lower: int) -> bool:
        """True if more calls than this were worked on at the same time."""
        return max(self._proofs, default=0) > lower

    def _try_anew(self) -> None:
        """Upwards and downwards in turn, as far as there is anything to be found out."""
        is_least = self._level == 1 or self._is_proved(self._level // 2)
        is_most = self._level == self._most
        if is_least and is_most:
            self._calls = 0
            return
        self._downwards = not is_least and (is_most or not self._downwards)
        self._try(self._level // 2 if self._downwards else self._level * 2)

    def _decide(self, trial: int, *, is_better: bool) -> None:
        """The trial is over: go on with the better of the two levels."""
        if not is_better:
            self._stand()
            return
        is_up = trial > self._level
        self._call_s = self._mean() if self._latencies else self._call_s
        self._level = trial
        self._patience = PATIENCE_FIRST
        if is_up or trial > 1:
            self._try(trial * 2 if is_up else trial // 2)
        else:
            self._settle()

    def _stand(self) -> None:
        self._patience = min(PATIENCE_MAX, self._patience * 2)
        self._settle()

    def _settle(self) -> None:
        self._trial, self._calls = self._level, 0
        self._latencies.clear()

    def _try(self, trial: int) -> None:
        self._settle()
        self._trial = max(1, min(self._most, trial))

    def _is_harmless(self, trial: int) -> bool:
        """True if all is answered within a handoff even if nothing of it is worked on at the same time as before."""
        return self._call_s is not None and self._call_s * trial / self._level <= self._handoff_s

    def _mean(self) -> float:
        return sum(self._latencies) / len(self._latencies)


def _between(lower: int, upper: int) -> float:
    """A call takes 1 times as long with `upper` at a time if all are worked on, and upper / lower times if the others
    wait: the geometric mean of both."""
    return float((upper / lower) ** 0.5)


SLACK_SHARE = 1 / 2
"""Of the handoff time, by which further messages may make a batch longer: 1.5 s by default."""

WEIGHT = 1 / 4
"""Of a new measurement in an average."""

LONGER = 1.1
"""A later part of messages sent at once counts as another measurement if it took so many times as long."""


@dataclass(eq=False, slots=True)
class _Batch:
    """Messages sent at once. `count`: with all that were unanswered then."""

    count: int = 0
    call_s: float = 0.0


class BatchLimit:
    """`most` is the concurrency of the settings. `handoff_s`: how long a move waits for what the application has."""

    def __init__(self, most: int, handoff_s: float) -> None:
        self.expects_move = False
        """A recall of messages may be near: no trial that could outlast it."""
        self._most = most
        self._handoff_s = handoff_s
        self._slack_s = handoff_s * SLACK_SHARE
        self._single_s: float | None = None  # what a batch of one takes; None before the first
        self._further_s: float | None = None  # by how much each further message makes it longer
        self._samples = 0
        self._grown = 1
        self._patience = PATIENCE_FIRST
        self._singles = 0
        self._last_batch: _Batch | None = None
        self._out: dict[InFlight, _Batch] = {}

    @property
    def size(self) -> int:
        single_s = self._single_s
        if single_s is None:
            return 1
        if self._samples < SAMPLES and self.expects_move and 2 * single_s > self._handoff_s:
            return 1
        return max(1, min(self._most, self._grown, self._fitting))

    def began(self, in_flight: InFlight) -> None:
        if self._last_batch is None:
            self._last_batch = _Batch()
        self._out[in_flight] = self._last_batch
        self._last_batch.count = len(self._out)

    def dropped(self, in_flight: InFlight) -> None:
        """The call ended without an answer of the application."""
        self._out.pop(in_flight, None)

    def ended(self, in_flight: InFlight, call_s: float, now: float) -> None:
        """Records the application's answer, `call_s` after the message was sent to it."""
        batch = self._out.pop(in_flight, None)
        if batch is None:
            return
        self._last_batch = None
        if call_s > batch.call_s * LONGER:
            batch.call_s = call_s
            self._learn(batch.count, call_s)

    @property
    def _fitting(self) -> int:
        further_s = self._further_s
        if further_s is None or further_s * self._most <= self._slack_s:
            return self._most
        least = 2 if self._samples < SAMPLES and further_s <= self._handoff_s else 1
        return max(least, 1 + int(self._slack_s / further_s))

    def _learn(self, count: int, call_s: float) -> None:
        single_s = self._single_s
        if count == 1 or single_s is None:
            self._learn_single(call_s)
            return
        is_all = count >= self.size
        if call_s < single_s:
            self._single_s = _mean(single_s, call_s)
        longer_s = max(0.0, call_s - single_s)
        further_s = longer_s / (count - 1)
        is_far_too_long = longer_s > self._handoff_s
        self._further_s = further_s if is_far_too_long else _mean(self._further_s, further_s)
        self._samples += 1
        if is_all:
            self._grown = min(self._most, max(self._grown, 2 * count))
        if self._samples >= SAMPLES and self._fitting > 1:
            self._patience = PATIENCE_FIRST

    def _learn_single(self, call_s: float) -> None:
        """With two as the next step, and again after a while: single messages give no estimate for two, and the
        application may have changed."""
        self._singles += 1
        if self._grown == 1:
            self._single_s = call_s if self._single_s is None else min(self._single_s, call_s)
            if self._singles == FIRST_SAMPLES:
                self._singles, self._grown = 0, 2
            return
        self._single_s = _mean(self._single_s, call_s)
        if self._fitting > 1:
            self._singles = 0
        if self._singles >= self._patience:
            self._singles = 0
            self._patience = min(PATIENCE_MAX, self._patience * 2)
            self._further_s, self._samples, self._grown = None, 0, 2


def _mean(average_s: float | None, new_s: float) -> float:
    return new_s if average_s is None else average_s + (new_s - average_s) * WEIGHT


class CallLimits(Part):
    """The application gets no more messages at a time than `limit`. `moves`: the broker reassigns partitions from a
    member that works on them; for keys it waits. `keys_at_once`: how many keys the member can work on as the broker
    knows it, where it shares out by keys: the number that its application is seen to work on is reported later."""

    def __init__(
        self, context: Context, limit: CallLimit, *, moves: bool = False, keys_at_once: int | None = None
    ) -> None:
        super().__init__(context)
        self.limit = limit
        self._moves = moves
        self._keys_at_once = self._reported = keys_at_once
        self._live_since = float("-inf")
        self._expect_move(True)

    def resume(self, former: Self) -> None:
        self.limit = former.limit

    def called(self, in_flight: InFlight) -> None:
        self.limit.began(in_flight)

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        if verdict.kind is Kind.INTERRUPTED:
            self.limit.dropped(in_flight)
        else:
            self.limit.ended(in_flight, now - in_flight.started_at, now)
        self._lanes.concurrency = self.limit.size

    def attached(self, binding: Binding, now: float) -> None:
        self._reported = self._keys_at_once
        self._fit_capacity(binding)

    def live_changed(self, now: float) -> None:
        self._live_since = now
        self._expect_move(True)

    def tick(self, now: float) -> None:
        """The broker begins to move partitions a delay after the consumers changed, and is done a handoff later."""
        for binding in self._bindings.bound.values() if self.takes_part else ():
            self._fit_capacity(binding)
        self._expect_move(now < self._live_since + self._rules.rebalance_delay_s + self._rules.max_handoff_s)

    def _expect_move(self, is_expected: bool) -> None:
        self.limit.expects_move = is_expected and self._moves
        self._lanes.concurrency = self.limit.size

    def _fit_capacity(self, binding: Binding) -> None:
        """Reports the capacity for keys: messages that wait longer than an idle member needs should go to it."""
        size, reported = self.limit.size, self._reported
        if reported is None or binding.attachment is None or binding.phase is not Phase.ATTACHED:
            return
        if size * 2 <= reported or size >= reported * 2:
            self._reported = size
            self._effects.append(Capacity(binding.attachment, size))
