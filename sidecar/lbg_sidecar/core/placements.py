"""Registers of the queues of a group that is assigned by load, as one member has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from lbg_core.group.assignment import Exceptions
from lbg_core.group.member_state import Placement


class Placements:
    """Of each queue the latest register. They are never forgotten: numbers only grow, and a holder that is gone holds
    nothing."""

    def __init__(self) -> None:
        self.digest = 0
        """48 bits: the exclusive or over the registers."""
        self._of: dict[int, Placement] = {}

    @property
    def all(self) -> tuple[Placement, ...]:
        return tuple(self._of.values())

    def number(self, queue: int) -> int:
        """0 without a register."""
        register = self._of.get(queue)
        return 0 if register is None else register.number

    def take(self, registers: Iterable[Placement]) -> bool:
        """True if one of them is later than that of its queue."""
        latest = [one for one in registers if self._is_later(one)]
        for one in latest:
            self.digest ^= _digest(one) ^ _digest(self._of.get(one.queue))
            self._of[one.queue] = one
        return bool(latest)

    def has_later_than(self, registers: Iterable[Placement]) -> bool:
        theirs = Placements()
        theirs.take(registers)
        return any(theirs._is_later(one) for one in self._of.values())

    def exceptions(self, indexes: Mapping[str, int]) -> Exceptions:
        """Those of members that are live. `indexes`: theirs, by incarnation."""
        return frozenset(
            (one.queue, indexes[one.holder]) for one in self._of.values() if one.holder in indexes
        )

    def _is_later(self, register: Placement) -> bool:
        former = self._of.get(register.queue)
        return former is None or (register.number, register.holder) > (former.number, former.holder)


def _digest(register: Placement | None) -> int:
    if register is None:
        return 0
    text = f"{register.queue}:{register.holder}:{register.number}".encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")
