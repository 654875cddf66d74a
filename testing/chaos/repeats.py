"""Checks that a loss explains each repeat, and none explains more than were in flight."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from testing.chaos.losses import Loss, Losses
from testing.chaos.verdict import Name, Rules, Verdict

TWICE = "published twice"
TOLD_LATE = "published twice, moved in between"
"""Nobody lost anything: the queue moved, and what the former member tells of what it processed came too late."""


@dataclass
class _Window:
    """Messages of one life that one loss redelivered.
    Of one of its queues, if the loss has a limit of its own."""

    count: int = 0
    by_publisher: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    example: Name = (0, 0)


class Repeats:
    def __init__(self, losses: Losses, rules: Rules, verdict: Verdict, *, publishers: int) -> None:
        self._losses = losses
        self._rules = rules
        self._verdict = verdict
        self._told_twice = [*rules.told_twice, *[0] * (publishers - len(rules.told_twice))]
        self._windows: dict[tuple[Loss, int, int | None], _Window] = defaultdict(_Window)
        self._copies: dict[tuple[int, str], list[tuple[Name, str]]] = defaultdict(list)

    def note(self, name: Name, *, queue: int, had: tuple[int, int], has: tuple[int, int]) -> None:
        """A message came again. `had`: the life that had it before and since when; `has`: the one that has it now."""
        loss, life = self._losses.of(*had, has[1]), had[0]
        if loss is None:  # or it is this one that lost it, and has not noticed yet
            loss, life = self._losses.of(*has, has[1]), has[0]
        if loss is not None:
            window = self._windows[loss, life, queue if loss.limit is None else None]
            window.count += 1
            window.by_publisher[name[0]] += 1
            window.example = name
            return
        text = f"life {had[0]} had it, unharmed, and life {has[0]} again"
        why = TWICE if self._losses.any(had[1], has[1]) else TOLD_LATE
        self._copies[name[0], why].append((name, text))

    def judge(self) -> None:
        """Checks the repeats without a member's loss as second copies.
        Members drop those that they remember."""
        for (loss, life, queue), window in self._windows.items():
            limit = self._rules.window if loss.limit is None else loss.limit
            explained = min(window.count, limit)
            over = window.count - explained
            self._verdict.repeats[loss.why] += explained
            if queue is not None:
                self._verdict.most_repeated = max(self._verdict.most_repeated, explained)
            for publisher, count in window.by_publisher.items():
                over -= self._published_twice(publisher, min(over, count), TWICE)
            if over:
                of_queue = "" if queue is None else f"of queue {queue} "
                text = f"{loss.why}: {window.count} messages {of_queue}of life {life} came again, of at most {limit}"
                self._verdict.add("repeats", window.example, text)
        for (publisher, why), copies in self._copies.items():
            for name, text in copies[self._published_twice(publisher, len(copies), why) :]:
                self._verdict.add("repeats", name, text)

    def _published_twice(self, publisher: int, count: int, why: str) -> int:
        """Number of them that the publisher may have published twice, by its reports until then."""
        taken = min(count, self._told_twice[publisher])
        self._told_twice[publisher] -= taken
        if taken:
            self._verdict.repeats[why] += taken
        return taken
