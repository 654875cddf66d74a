"""Assignment of queues to members: a hint that every member computes for itself.

Two laws bind `Balanced`: the same live indexes give the same primaries, and loads differ by at most one. Within
them it moves few queues when a member joins or leaves. docs/assignment.md has the measured movement, beside what
an assignment with a memory would need, and the rules that were tried and moved more.

The standbys of a queue, which consume it behind its primary, follow from the same live indexes: the first members in
the queue's rank. Ranks are by rendezvous hashing, so a join changes only the standbys of queues where it is in front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from heapq import nlargest

from lbg_broker.group.hashing import murmur2_of_bytes

_GOLDEN = 2_654_435_769
"""2**32 divided by the golden ratio, odd: multiplying by it scatters neighbours evenly and lets no two collide."""

INDEX_MAX = 65_535
"""Highest client index. The rounds in which members meet queues are as many as there may be indexes."""


def static_primaries(queue_count: int, client_count: int, live: Collection[int]) -> dict[int, int | None]:
    """Primaries by the rule of "Sticky Load Balancing": queue q belongs to index q mod client_count.

    None while that index is not live.
    """
    return dict(enumerate(static_owners(queue_count, client_count, frozenset(live))))


@lru_cache(maxsize=64)
def static_owners(queue_count: int, client_count: int, live: frozenset[int]) -> tuple[int | None, ...]:
    """The same by the number of the queue; cached."""
    homes = (queue % client_count for queue in range(queue_count))
    return tuple(home if home in live else None for home in homes)


def balanced_primaries(queue_count: int, live: Collection[int]) -> dict[int, int]:
    """A primary for every queue, from the live indexes alone, in any order; empty when none is live.

    With more members than queues, some have none. Caches its last results.
    """
    return dict(enumerate(balanced_owners(queue_count, frozenset(live))))


@lru_cache(maxsize=64)
def balanced_owners(queue_count: int, live: frozenset[int]) -> tuple[int, ...]:
    """The same by the number of the queue; cached, because members need it at every event."""
    return _balanced(queue_count, tuple(sorted(live)))


def standbys(queue_count: int, live: Collection[int], count: int) -> tuple[tuple[int, ...], ...]:
    """The standbys of every queue: the first `count` live indexes of its rank that are not its primary; all others
    where there are no more. Caches its last results."""
    return _standbys(queue_count, frozenset(live), count)


def weight(queue: int, index: int) -> int:
    """The highest is the first in rank. Fixed for ever: members of two versions have to agree on the ranks."""
    return (_point(b"q", queue) ^ _point(b"m", index)) * _GOLDEN & 0xFFFFFFFF


@lru_cache(maxsize=64)
def _standbys(queue_count: int, live: frozenset[int], count: int) -> tuple[tuple[int, ...], ...]:
    if not live:
        return ((),) * queue_count
    firsts = _first_in_rank(queue_count, live, count + 1)
    owners = balanced_owners(queue_count, live)
    return tuple(
        tuple([index for _, index in first if index != primary][:count])
        for first, primary in zip(firsts, owners, strict=True)
    )


Firsts = list[tuple[tuple[int, int], ...]]
"""For each queue the first in rank: (weight, index)."""

_latest_firsts: dict[tuple[int, int], dict[frozenset[int], Firsts]] = {}
"""The last results of `_first_in_rank` by number of queues and count: the next live set is similar to one of them."""

_LATEST_FIRSTS_MAX = 4


def _first_in_rank(queue_count: int, live: frozenset[int], count: int) -> Firsts:
    """The first `count` indexes in the rank of each queue, computed from the most similar of the last results.

    A member that joins is compared with those in front, and the loss of one that is in front ranks its queue anew: for
    Q queues, N members and R standbys that is O(Q) and O(Q R) instead of O(Q N log N).
    """
    latest = _latest_firsts.setdefault((queue_count, count), {})
    former = min(latest, key=lambda one: len(one ^ live), default=frozenset[int]())
    firsts = latest.get(former, [()] * queue_count)
    gone, come = former - live, live - former
    if len(gone) + len(come) > len(live):
        firsts, gone, come = [()] * queue_count, frozenset(), live
    points = _queue_points(queue_count)
    firsts = firsts.copy()
    if gone:
        stay = [(index, _point(b"m", index)) for index in former - gone]
        for queue, first in enumerate(firsts):
            if any(index in gone for _, index in first):
                point = points[queue]
                weights = [((point ^ other) * _GOLDEN & 0xFFFFFFFF, index) for index, other in stay]
                firsts[queue] = tuple(nlargest(count, weights))
    for index in sorted(come):
        own = _point(b"m", index)
        for queue, point in enumerate(points):
            first = firsts[queue]
            weighed = (point ^ own) * _GOLDEN & 0xFFFFFFFF
            if len(first) < count or weighed > first[-1][0]:
                firsts[queue] = tuple(sorted((*first, (weighed, index)), reverse=True)[:count])
    latest[live] = firsts
    if len(latest) > _LATEST_FIRSTS_MAX:
        del latest[next(iter(latest))]
    return firsts


@lru_cache(maxsize=16)
def _queue_points(queue_count: int) -> tuple[int, ...]:
    return tuple(_point(b"q", queue) for queue in range(queue_count))


@lru_cache(maxsize=65_536)
def _point(kind: bytes, number: int) -> int:
    return murmur2_of_bytes(kind + number.to_bytes(8, "little"))


@lru_cache(maxsize=64)
def _balanced(queue_count: int, live: tuple[int, ...]) -> tuple[int, ...]:
    """Every queue stays at home if its home is live; the orphans of those who are not go to the least loaded."""
    if len(live) < 2:
        return live * queue_count
    owners = _homes(queue_count, min(live[-1] + 1, queue_count))
    loads = dict.fromkeys(live, 0)
    orphans = set()
    for queue, home in enumerate(owners):
        if home in loads:
            loads[home] += 1
        else:
            orphans.add(queue)
    rounds = _rounds((max(queue_count, live[-1] + 1) - 1).bit_length())
    passed: dict[int, int] = {}
    for load in range(min(loads.values()), queue_count // len(live) + 1):
        hungry = {member for member in live if loads[member] == load}
        for member, queue in _meetings(hungry, orphans, rounds, passed):
            owners[queue] = member
            loads[member] += 1
    return tuple(owners)


def _homes(queue_count: int, member_count: int) -> list[int]:
    """The primaries while exactly indexes 0 to member_count - 1 are live."""
    owners = [0] * queue_count
    for newcomer, queues in enumerate(_shares(queue_count, member_count)[1:member_count], start=1):
        for queue in queues:
            owners[queue] = newcomer
    return owners


_known_shares: dict[int, tuple[list[int], list[int], list[tuple[int, ...]]]] = {}
"""By number of queues, for the members 0 to n: owners, loads, and the queues that each member took when it came."""

_QUEUE_COUNTS_MAX = 16


def _shares(queue_count: int, member_count: int) -> list[tuple[int, ...]]:
    """The queues that each member takes when it comes, for at least `member_count` members.

    They come one by one, and each takes its share, rounded down, from the member with most: no less can move. It
    chooses queues in the order in which it would meet them as orphans, so that both rules pull the same way.
    """
    if queue_count not in _known_shares:
        while len(_known_shares) >= _QUEUE_COUNTS_MAX:
            del _known_shares[next(iter(_known_shares))]
        _known_shares[queue_count] = [0] * queue_count, [queue_count], [tuple(range(queue_count))]
    owners, loads, shares = _known_shares[queue_count]
    rounds = _rounds((queue_count - 1).bit_length())
    for newcomer in range(len(shares), member_count):
        target = queue_count // (newcomer + 1)
        most = max(loads)
        loads.append(0)
        share = []
        while loads[newcomer] < target:
            for x in rounds:
                queue = newcomer ^ x
                if queue < queue_count and loads[owners[queue]] == most and owners[queue] != newcomer:
                    loads[owners[queue]] -= 1
                    owners[queue] = newcomer
                    loads[newcomer] += 1
                    share.append(queue)
                    if loads[newcomer] == target:
                        break
            most -= 1
        shares.append(tuple(share))
    return shares


def _meetings(
    hungry: set[int], orphans: set[int], rounds: Sequence[int], passed: dict[int, int]
) -> Iterable[tuple[int, int]]:
    """Give each hungry member one orphan while there are any: (member, queue); both sets are used up.

    In round x, member m meets queue m xor x. So in a round no member meets two, and over all rounds every member meets
    every queue: for any live set, a round spreads its offers evenly (the rounds are the rows of a Latin square).
    Rounds come in an order that only depends on x, so that most meetings do not change with the live set.

    `passed` has the number of rounds in which a member has met its queues: none of those is an orphan any more.
    """
    if not hungry or not orphans:
        return
    for number in range(min(passed.get(member, 0) for member in hungry), len(rounds)):
        x = rounds[number]
        if len(hungry) <= len(orphans):
            met = [(member, member ^ x) for member in hungry if member ^ x in orphans]
        else:
            met = [(queue ^ x, queue) for queue in orphans if queue ^ x in hungry]
        for member, queue in met:
            hungry.remove(member)
            orphans.remove(queue)
            passed[member] = number + 1
        yield from met
        if not hungry or not orphans:
            return


@lru_cache(maxsize=16)
def _rounds(bits: int) -> tuple[int, ...]:
    return tuple(sorted(range(1 << bits), key=_rank))


def _rank(x: int) -> int:
    return x * _GOLDEN & 0xFFFFFFFF
