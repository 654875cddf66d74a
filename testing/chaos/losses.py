"""Losses of members, with their times: the only reasons for a repeat or an overlap."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Loss:
    """Between `begin_ns` and `end_ns` (CLOCK_MONOTONIC) these lives of members could lose what they held.

    `lives` None: all of them. `limit`: at most so many messages of each life, where it said how many it cut off;
    None: its prefetch window, of each queue. `thaw_ns`: until then their processes did not run at all.
    """

    why: str
    begin_ns: int
    end_ns: int
    lives: tuple[int, ...] | None = None
    limit: int | None = None
    thaw_ns: int | None = None

    def takes(self, life: int, since_ns: int, until_ns: int) -> bool:
        """True if messages that `life` held at `since_ns` may be redelivered by `until_ns`."""
        return (
            (self.lives is None or life in self.lives)
            and self.begin_ns <= until_ns
            and self.end_ns >= since_ns
        )


class Losses:
    """All of a run, to be asked."""

    def __init__(self, losses: Collection[Loss]) -> None:
        self._all = sorted(losses, key=lambda loss: loss.begin_ns)

    def of(self, life: int, since_ns: int, until_ns: int) -> Loss | None:
        """The first that explains why what this life had came again; one with a limit of its own only where no
        other does."""
        limited = None
        for loss in self._all:
            if loss.begin_ns > until_ns:
                break
            if loss.takes(life, since_ns, until_ns):
                if loss.limit is None:
                    return loss
                limited = limited or loss
        return limited

    def any(self, since_ns: int, until_ns: int) -> bool:
        """True if any member lost something at that time."""
        return any(loss.begin_ns <= until_ns and loss.end_ns >= since_ns for loss in self._all)

    def frozen_ns(self, life: int, begin_ns: int, end_ns: int) -> int:
        """Time within the span in which the life's process was stopped."""
        return sum(
            max(0, min(end_ns, loss.thaw_ns) - max(begin_ns, loss.begin_ns))
            for loss in self._all
            if loss.thaw_ns is not None and loss.lives is not None and life in loss.lives
        )


def write(path: Path, losses: Collection[Loss]) -> None:
    path.write_text("".join(json.dumps(asdict(loss)) + "\n" for loss in losses))


def read(path: Path) -> Iterator[Loss]:
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        lives = fields.pop("lives")
        yield Loss(**fields, lives=None if lives is None else tuple(lives))
