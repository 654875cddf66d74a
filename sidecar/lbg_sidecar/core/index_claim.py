"""Claim of a client index: the order in which a member tries the indexes, and the offers that it gets."""

from __future__ import annotations

from collections.abc import Collection

REFUSALS_MAX = 16
"""After so many in a row without an offer a member asks again."""

OFFERED_S = 3.0
"""For so long an index is offered to one member only. A claim takes milliseconds."""


class IndexClaim:
    """The indexes to try, one after another, until a declaration succeeds.

    Its previous index first, then the lowest that may be free. `probed` are the indexes to whose mailboxes this member
    sent a mandatory message, `free` those whose message was returned, because the mailbox is missing. An index that is
    `probed` and not `free` is in use: it would only be refused. A member with a `fixed` index tries only that.

    Members that start together would all try the same: whose index is refused, or finds none free among the probed,
    asks index 0 for one, and another member if index 0 does not answer.
    """

    def __init__(
        self,
        *,
        previous: int | None = None,
        fixed: int | None = None,
        probed: Collection[int] = (),
        free: Collection[int] = (),
    ) -> None:
        self.fixed = fixed
        self._in_use = set(probed) - set(free) if fixed is None else set()
        self._first = fixed if fixed is not None else previous
        if self._first is not None and fixed is None and self._first in self._in_use:
            self._first = None
        self._offered: int | None = None
        self._is_answered = fixed is None
        self._refused_in_row = 0  # since nobody answered
        self.needs_offer = fixed is None and bool(probed) and not free and self._first is None
        """True if members should be asked before the next declaration."""

    @property
    def in_use(self) -> tuple[int, ...]:
        """Indexes that are known to be in use, the lowest first."""
        return tuple(sorted(self._in_use))

    def candidate(self) -> int | None:
        """The index to declare next; None when the fixed one is in use."""
        if self.fixed is not None:
            return None if self.fixed in self._in_use else self.fixed
        for wish in (self._offered, self._first):
            if wish is not None and wish not in self._in_use:
                return wish
        index = 0
        while index in self._in_use:
            index += 1
        return index

    def refused(self, index: int) -> None:
        """The broker refused `index` (405 RESOURCE_LOCKED)."""
        self._in_use.add(index)
        self._refused_in_row += 1
        self.needs_offer = self.fixed is None and (self._is_answered or self._refused_in_row >= REFUSALS_MAX)

    def offered(self, index: int | None) -> None:
        """A member offers this one; None: nobody answered."""
        self._offered = index
        self._refused_in_row = 0
        self._is_answered = index is not None
        self.needs_offer = False

    def vacant(self) -> None:
        """Index 0 does not exist: it is free."""
        self._in_use.discard(0)
        self.offered(0)


class IndexOffers:
    """Indexes that a member offered to others a moment ago. Who asks again gets the same one again: a late answer would
    cost an index each time."""

    def __init__(self) -> None:
        self._offered: dict[int, tuple[int, float]] = {}  # by index: to whom, and until when

    def offer(self, to: int, unavailable: Collection[int], now: float) -> int:
        """The lowest index that is not `unavailable` and not offered to another. `to` identifies who asks."""
        self._offered = {index: offered for index, offered in self._offered.items() if offered[1] > now}
        taken = {index for index, (other, _) in self._offered.items() if other != to}.union(unavailable)
        index = next(
            (one for one, (other, _) in self._offered.items() if other == to and one not in taken), 0
        )
        while index in taken:
            index += 1
        self._offered[index] = (to, now + OFFERED_S)
        return index

    def forget(self, index: int) -> None:
        """A member has it."""
        self._offered.pop(index, None)
