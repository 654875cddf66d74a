"""Limit of an application that takes batches: no more messages than let a batch take much longer than one message.

A batch is one call: all of it has begun, and none of it can be taken out again. An application that works on its
messages one after the other has most of them waiting in it. What a batch takes is what one message takes and, for each
further one, a little more: nothing where all are worked on at once, as much again where they wait for each other. Both
are measured, and as many messages are given as make it longer by half of the handoff time, on average. So a batch ends
within a handoff, unless a single message takes about half of one or longer.

What is given at once counts as one batch, with all that is out already: two requests under way may wait for each other,
too. No I/O and no clock in here.
"""

from __future__ import annotations

from dataclasses import dataclass

from .held import Held

SLACK_SHARE = 1 / 2
"""Of the handoff time, by which further messages may make a batch longer: 1.5 s by default."""

WEIGHT = 1 / 4
"""Of a new measurement in an average."""

LONGER = 1.1
"""A later part of what was given at once counts as another measurement if it took so many times as long."""

FIRST_SAMPLES = 2
"""Single messages before the first batch: one of them may have come with a cold start."""

SAMPLES = 4
"""Batches of more than one until it is given up: what one takes says little where calls differ."""

PATIENCE_FIRST = 16
PATIENCE_MAX = 256
"""Single messages until two are tried again; twice as many after each trial that changed nothing."""


@dataclass(eq=False, slots=True)
class _Batch:
    """What was given at once. `count`: with all that was out then."""

    count: int = 0
    took_s: float = 0.0


class BatchLimit:
    """`most` is the concurrency of the settings. `handoff_s`: how long a move waits for what the application has."""

    def __init__(self, most: int, handoff_s: float) -> None:
        self.expects_move = False
        """Messages may be wanted back soon: no trial whose end might not be awaited."""
        self._most = most
        self._handoff_s = handoff_s
        self._slack_s = handoff_s * SLACK_SHARE
        self._single_s: float | None = None  # what a batch of one takes; None before the first
        self._further_s: float | None = (
            None  # by how much each further message makes it longer; None: not known
        )
        self._samples = 0
        self._grown = 1
        self._patience = PATIENCE_FIRST
        self._singles = 0
        self._given: _Batch | None = None
        self._out: dict[Held, _Batch] = {}

    @property
    def size(self) -> int:
        single_s = self._single_s
        if single_s is None:
            return 1
        is_trial = self._further_s is None or self._samples < SAMPLES
        if is_trial and self.expects_move and 2 * single_s > self._handoff_s:
            return 1
        return max(1, min(self._most, self._grown, self._fitting))

    def began(self, held: Held) -> None:
        if self._given is None:
            self._given = _Batch()
        self._out[held] = self._given
        self._given.count = len(self._out)

    def dropped(self, held: Held) -> None:
        """The call ended without an answer of the application."""
        self._out.pop(held, None)

    def ended(self, held: Held, took_s: float, now: float) -> None:
        """The application answered, so long after it was given the message."""
        batch = self._out.pop(held, None)
        if batch is None:
            return
        self._given = None
        if took_s > batch.took_s * LONGER:
            batch.took_s = took_s
            self._learn(batch.count, took_s)

    @property
    def _fitting(self) -> int:
        further_s = self._further_s
        if further_s is None or further_s * self._most <= self._slack_s:
            return self._most
        least = 2 if self._samples < SAMPLES and further_s <= self._handoff_s else 1
        return max(least, 1 + int(self._slack_s / further_s))

    def _learn(self, count: int, took_s: float) -> None:
        single_s = self._single_s
        if count == 1 or single_s is None:
            self._learn_single(took_s)
            return
        is_all = count >= self.size
        if took_s < single_s:
            self._single_s = _mean(single_s, took_s)
        longer_s = max(0.0, took_s - single_s)
        further_s = longer_s / (count - 1)
        is_far_too_long = longer_s > self._handoff_s
        self._further_s = further_s if is_far_too_long else _mean(self._further_s, further_s)
        self._samples += 1
        if is_all:
            self._grown = min(self._most, max(self._grown, 2 * count))
        if self._samples >= SAMPLES and self._fitting > 1:
            self._patience = PATIENCE_FIRST

    def _learn_single(self, took_s: float) -> None:
        """With two as the next step, and again after a while: single messages say nothing of two, and the application
        may have changed."""
        self._singles += 1
        if self._grown == 1:
            self._single_s = took_s if self._single_s is None else min(self._single_s, took_s)
            if self._singles == FIRST_SAMPLES:
                self._singles, self._grown = 0, 2
            return
        self._single_s = _mean(self._single_s, took_s)
        if self._fitting > 1:
            self._singles = 0
        if self._singles >= self._patience:
            self._singles = 0
            self._patience = min(PATIENCE_MAX, self._patience * 2)
            self._further_s, self._samples, self._grown = None, 0, 2


def _mean(known_s: float | None, new_s: float) -> float:
    return new_s if known_s is None else known_s + (new_s - known_s) * WEIGHT
