"""Which flow each partition should have: loads that differ by at most one, with as few moves as possible."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["balanced", "fair_loads"]

Flow = TypeVar("Flow")


def fair_loads(partitions: int, flows: int) -> list[int]:
    """The loads of so many flows, largest first. Flows beyond the number of partitions have none."""
    if not flows:
        return []
    base, rest = divmod(partitions, flows)
    return [base + 1] * rest + [base] * (flows - rest)


def balanced(owners: Sequence[Flow | None], flows: Sequence[Flow]) -> list[Flow]:
    """For each partition the flow it should have, given the one it has (None: none of `flows`).

    The larger shares go to those that have most, so no more moves than any other fair choice needs; among equals to
    those that came first. A flow gives up its highest partitions.
    """
    loads = Counter(owner for owner in owners if owner is not None)
    by_load = sorted(flows, key=lambda flow: -loads[flow])
    room = dict(zip(by_load, fair_loads(len(owners), len(flows)), strict=True))
    result: list[Flow | None] = []
    for owner in owners:
        if owner is not None and room[owner]:
            room[owner] -= 1
            result.append(owner)
        else:
            result.append(None)
    takers = iter([flow for flow in flows for _ in range(room[flow])])
    return [next(takers) if owner is None else owner for owner in result]
