"""Checking, before anything is sent, that an input is still the one that a state file speaks of."""

from __future__ import annotations

from .errors import InputChanged
from .rows import Row
from .stamping import chained


class Resuming:
    """Takes the input's rows from its start and gives those to publish.

    Rows below `position` are confirmed and passed over; those up to `sent_position` may have been sent, so
    they are kept back until all of them are seen to be the same: a sequence number never gets another body.
    What comes behind them may be new (a file that grows).
    """

    def __init__(self, *, position: int, digest: int, sent_position: int, sent_digest: int) -> None:
        self._checks = {position: digest, sent_position: sent_digest}
        self._position = position
        self._sent_position = sent_position
        self._seen = 0
        self._digest = 0
        self._kept_back: list[Row] = []
        self._check("the input")

    @property
    def is_over(self) -> bool:
        """Whether every row from here on is simply to be published."""
        return self._seen >= self._sent_position

    def take(self, row: Row) -> list[Row]:
        """The rows that may be published now. Raises InputChanged."""
        if self.is_over:
            return [row]
        self._digest = chained(self._digest, row.key or None, row.topic, row.body)
        if self._seen >= self._position:
            self._kept_back.append(row)
        self._seen += 1
        self._check(f"row {row.number}")
        if self._seen < self._sent_position:
            return []
        rows, self._kept_back = self._kept_back, []
        return rows

    def end(self) -> None:
        """The input is at its end. Raises InputChanged if it had more when it was published."""
        if not self.is_over:
            raise InputChanged(
                f"the input has {self._seen} rows, and {self._sent_position} were published from it before: it is "
                "not the same. Give the same input, or another state file to publish this one anew"
            )

    def _check(self, where: str) -> None:
        if self._seen in self._checks and self._checks[self._seen] != self._digest:
            raise InputChanged(
                f"the input was changed since it was published: something up to {where} differs. Give the same "
                "input, or another state file to publish this one anew"
            )
