"""Claim of a client index: the order in which a member tries the indexes."""

from __future__ import annotations

from collections.abc import Collection


class IndexClaim:
    """The indexes to try, one after another, until a declaration succeeds.

    Its previous index first, then the lowest that may be free. `probed` are the indexes to whose mailboxes this member
    sent a mandatory message, `free` those whose message was returned, because the mailbox is missing. An index that is
    `probed` and not `free` is in use: it would only be refused. A member with a `fixed` index tries only that.

    Members that start together would all try the same: whose index is refused, or finds none free among the probed,
    asks index 0 for one.
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
        self.needs_offer = fixed is None and bool(probed) and not free and self._first is None
        """True if index 0 should be asked before the next declaration."""

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
        self.needs_offer = self._is_answered

    def offered(self, index: int | None) -> None:
        """Index 0 offers this one; None: it did not answer."""
        self._offered = index
        self._is_answered = index is not None
        self.needs_offer = False

    def vacant(self) -> None:
        """Index 0 does not exist: it is free."""
        self._in_use.discard(0)
        self.offered(0)
