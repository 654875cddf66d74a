"""Assignment of queues to members: a hint that every member computes for itself.

Two laws bind `Balanced`: the same live indexes give the same primaries, and loads differ by at most one. Within
them it moves few queues when a member joins or leaves. docs/assignment.md has the measured movement, beside what
an assignment with a memory would need, and the rules that were tried and moved more.

The standbys of a queue, which consume it behind its primary, follow from the same live indexes: the first members in
the queue's rank. Ranks are by rendezvous hashing, so a join changes only the standbys of queues where it is in front.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from lbg_broker.group.hashing import murmur2_of_bytes

_GOLDEN = 2_654_435_769
"""2**32 divided by the golden ratio, odd: multiplying by it scatters neighbours evenly and lets no two collide."""

_SPAN_MAX = 4096
"""Up to here the ranks of all indexes are computed once; above, those of the live ones anew for each live set."""


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


def standbys(queue_count: int, live: Collection[int], count: int) -> tuple[tuple[int, ...], ...]:
    """The standbys of every queue: the first `count` live indexes of its rank that are not its primary; all others
    where there are no more. Caches its last results."""
    return _standbys(queue_count, tuple(sorted(set(live))), count)


def weight(queue: int, index: int) -> int:
    """The highest is the first in rank. Fixed for ever: members of two versions have to agree on the ranks."""
    return (_point(b"q", queue) ^ _point(b"m", index)) * _GOLDEN & 0xFFFFFFFF


@lru_cache(maxsize=64)
def _standbys(queue_count: int, live: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    if not live:
        return ((),) * queue_count
    there, span = frozenset(live), 1 << live[-1].bit_length()
    is_sparse = span > _SPAN_MAX
    chosen = []
    for queue, primary in enumerate(_balanced(queue_count, live)):
        found = []
        for index in _ranking(queue, live if is_sparse else range(span)):
            if index in there and index != primary:
                found.append(index)
                if len(found) == count:
                    break
        chosen.append(tuple(found))
    return tuple(chosen)


@lru_cache(maxsize=16_384)
def _ranking(queue: int, indexes: Sequence[int]) -> array[int]:
    """The indexes, the first in rank first."""
    point = _point(b"q", queue)
    weights = {index: (point ^ _point(b"m", index)) * _GOLDEN & 0xFFFFFFFF for index in indexes}
    return array("Q", sorted(indexes, key=weights.__getitem__, reverse=True))


@lru_cache(maxsize=65_536)
def _point(kind: bytes, number: int) -> int:
    return murmur2_of_bytes(kind + number.to_bytes(8, "little"))


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
