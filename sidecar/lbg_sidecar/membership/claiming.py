"""Which index a member takes. Declaring the exclusive mailbox of an index claims it: the broker lets only one."""

from __future__ import annotations

from collections.abc import Collection


class Claiming:
    """The indexes to try, one after another, until a declaration succeeds.

    Its previous index first, then the lowest that may be free. `free` are those whose mailbox was missing when
    this member looked (a mandatory message to each came back), None if it did not look; whatever lies in
    `looked` and not in `free` is taken, so it is not worth a refusal. A member with a `fixed` index tries that
    one only.
    """

    def __init__(
        self,
        *,
        previous: int | None = None,
        fixed: int | None = None,
        looked: Collection[int] = (),
        free: Collection[int] = (),
    ) -> None:
        self.fixed = fixed
        self._taken = set(looked) - set(free) if fixed is None else set()
        self._first = fixed if fixed is not None else previous
        if self._first is not None and fixed is None and self._first in self._taken:
            self._first = None

    def candidate(self) -> int | None:
        """The index to declare next; None when the fixed one is taken."""
        if self.fixed is not None:
            return None if self.fixed in self._taken else self.fixed
        if self._first is not None and self._first not in self._taken:
            return self._first
        index = 0
        while index in self._taken:
            index += 1
        return index

    def taken(self, index: int) -> None:
        """The broker refused `index` (405 RESOURCE_LOCKED)."""
        self._taken.add(index)
