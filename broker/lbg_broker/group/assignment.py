"""Assignment of queues to members: a hint that every member computes for itself.

Two laws bind `Balanced`: the same live indexes give the same primaries, and loads differ by at most one. Within
them it moves few queues when a member joins or leaves. docs/assignment.md has the measured movement, beside what
an assignment with a memory would need, and the rules that were tried and moved more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

_GOLDEN = 2_654_435_769
"""2**32 divided by the golden ratio, odd: multiplying by it scatters neighbours evenly and lets no two collide."""


def static_primaries(queue_count: int, client_count: int, live: Collection[int]) -> dict[int, int | None]:
    """Primaries by the rule of "Sticky Load Balancing": queue q belongs to index q mod client_count.

    None while that index is not live.
    """
    there = frozenset(live)
    homes = (queue % client_count for queue in range(queue_count))
    return {queue: home if home in there else None for queue, home in enumerate(homes)}


def balanced_primaries(queue_count: int, live: Collection[int]) -> dict[int, int]:
    """A primary for every queue, from the live indexes alone, in any order; empty when none is live.

    With more members than queues, some have none. Caches its last results: members need them at every heartbeat.
    """
    return dict(enumerate(_balanced(queue_count, tuple(sorted(set(live))))))


@lru_cache(maxsize=64)
def _balanced(queue_count: int, live: tuple[int, ...]) -> tuple[int, ...]:
    """Every queue stays at home if its home is live; the orphans of those who are not go to the least loaded."""
    if not live:
        return ()
    owners = list(_homes(queue_count, min(live[-1] + 1, queue_count)))
    loads = dict.fromkeys(live, 0)
    orphans = set()
    for queue, home in enumerate(owners):
        if home in loads:
            loads[home] += 1
        else:
            orphans.add(queue)
    for load in range(min(loads.values()), queue_count // len(live) + 1):
        hungry = {member for member in live if loads[member] == load}
        for member, queue in _meetings(hungry, orphans, span=max(queue_count, live[-1] + 1)):
            owners[queue] = member
            loads[member] += 1
    return tuple(owners)


@lru_cache(maxsize=64)
def _homes(queue_count: int, member_count: int) -> tuple[int, ...]:
    """The primaries while exactly indexes 0 to member_count - 1 are live.

    They come one by one, and each takes its share, rounded down, from the member with most: no less can move. It
    chooses queues in the order in which it would meet them as orphans, so that both rules pull the same way.
    """
    owners = [0] * queue_count
    loads = [queue_count]
    rounds = _rounds((queue_count - 1).bit_length())
    for newcomer in range(1, member_count):
        target = queue_count // (newcomer + 1)
        most = max(loads)
        loads.append(0)
        while loads[newcomer] < target:
            for x in rounds:
                queue = newcomer ^ x
                if queue < queue_count and loads[owners[queue]] == most and owners[queue] != newcomer:
                    loads[owners[queue]] -= 1
                    owners[queue] = newcomer
                    loads[newcomer] += 1
                    if loads[newcomer] == target:
                        break
            most -= 1
    return tuple(owners)


def _meetings(hungry: set[int], orphans: set[int], *, span: int) -> Iterable[tuple[int, int]]:
    """Give each hungry member one orphan while there are any: (member, queue); both sets are used up.

    In round x, member m meets queue m xor x. So in a round no member meets two, and over all rounds every member meets
    every queue: for any live set, a round spreads its offers evenly (the rounds are the rows of a Latin square).
    Rounds come in an order that only depends on x, so that most meetings do not change with the live set.
    """
    for x in _rounds((span - 1).bit_length()):
        if not hungry or not orphans:
            return
        if len(hungry) <= len(orphans):
            met = [(member, member ^ x) for member in hungry if member ^ x in orphans]
        else:
            met = [(queue ^ x, queue) for queue in orphans if queue ^ x in hungry]
        for member, queue in met:
            hungry.remove(member)
            orphans.remove(queue)
        yield from met


@lru_cache(maxsize=16)
def _rounds(bits: int) -> tuple[int, ...]:
    return tuple(sorted(range(1 << bits), key=_rank))


def _rank(x: int) -> int:
    return x * _GOLDEN & 0xFFFFFFFF
