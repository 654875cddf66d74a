"""Assignment of queues to members: a hint that every member computes for itself.

Two laws bind `Balanced`: the same live indexes give the same primaries, and loads differ by at most one. Within
them it moves few queues when a member joins or leaves. docs/internals/assignment.md has the measured movement, beside
what an assignment with a memory would need, and the rules that were tried and moved more.

The standbys of a queue, which consume it behind its primary, follow from the same live indexes: the first members in
the queue's rank. Ranks are by rendezvous hashing, so a join changes only the standbys of queues where it is in front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from heapq import nlargest
from typing import TypeAlias

from lbg_core.group.hashing import murmur2_of_bytes

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


Exceptions: TypeAlias = frozenset[tuple[int, int]]
"""Queues that are at another member than the balanced assignment has them, each with the index of this one."""

NOWHERE_ELSE: Exceptions = frozenset()


@lru_cache(maxsize=64)
def owners_with(exceptions: Exceptions, queue_count: int, live: frozenset[int]) -> tuple[int, ...]:
    """Balanced owners but for these exceptions, as far as their members are live; cached."""
    owners = balanced_owners(queue_count, live)
    if not exceptions:
        return owners
    changed = list(owners)
    for queue, index in exceptions:
        if index in live and queue < queue_count:
            changed[queue] = index
    return tuple(changed)


def standbys(queue_count: int, live: Collection[int], count: int) -> tuple[tuple[int, ...], ...]:
    """The standbys of every queue: the first `count` live indexes of its rank that are not its primary; all others
    where there are no more."""
    indexes = frozenset(live)
    return tuple(standbys_of(queue_count, indexes, queue, count) for queue in range(queue_count))


def weight(queue: int, index: int) -> int:
    """The highest is the first in rank. Fixed for ever: members of two versions have to agree on the ranks."""
    return (_point(b"q", queue) ^ _point(b"m", index)) * _GOLDEN & 0xFFFFFFFF


def backed_up(
    queue_count: int, live: frozenset[int], index: int, count: int, exceptions: Exceptions = NOWHERE_ELSE
) -> tuple[int, ...]:
    """The queues that have member `index` among their `count` standbys.

    A member needs no more, and it costs less than the standbys of all queues: with 1,000 members and 4,000 queues 33 ms
    in place of 1 s, and 5 ms after a change.
    """
    if index not in live:
        return ()
    ahead = _ahead(queue_count, index, count)
    ahead.follow(live)
    owners = owners_with(exceptions, queue_count, live)
    return tuple(
        queue
        for queue, members in sorted(ahead.all_of.items())
        if owners[queue] != index and len(members) - (owners[queue] in members) < count
    )


@lru_cache(maxsize=1024)
def standbys_of(
    queue_count: int, live: frozenset[int], queue: int, count: int, exceptions: Exceptions = NOWHERE_ELSE
) -> tuple[int, ...]:
    """The standbys of one queue; cached."""
    if not live:
        return ()
    point, primary = _point(b"q", queue), owners_with(exceptions, queue_count, live)[queue]
    weights = [((point ^ _point(b"m", index)) * _GOLDEN & 0xFFFFFFFF, index) for index in live]
    return tuple([index for _, index in nlargest(count + 1, weights) if index != primary][:count])


class _Ahead:
    """Members that are ahead of member `index` in the rank of each queue.

    With more than `count` ahead, it is not among the standbys whoever is the primary: `count + 1` of them are
    evidence, as long as all are live. Of 1,000 members and 4,000 queues they are found after about 20 weights each,
    and for 16 queues there are fewer: `all_of` has those with all that are ahead.
    """

    def __init__(self, queue_count: int, index: int, count: int) -> None:
        self.all_of: dict[int, tuple[int, ...]] = {}
        self._index = index
        self._enough = count + 1
        self._points = _queue_points(queue_count)
        self._own = _point(b"m", index)
        self._live: frozenset[int] = frozenset()
        self._some_of: dict[int, tuple[int, ...]] = {}
        """Evidence by queue, as it was found first: the rest of the queues are in `all_of`."""

    def follow(self, live: frozenset[int]) -> None:
        if live == self._live:
            return
        gone, came = self._live - live, live - self._live
        if self._live:
            newcomers = self._with_points(came)
            for queue, ahead in self.all_of.items():
                stay = [index for index in ahead if index not in gone]
                self.all_of[queue] = (*stay, *self._members_ahead(self._points[queue], newcomers))
            anew: Iterable[int] = [
                queue for queue, some in self._some_of.items() if not gone.isdisjoint(some)
            ]
        else:
            anew = range(len(self._points))
        self._live = live
        others = self._with_points(live) if anew else []
        for queue in anew:
            self.all_of[queue] = self._members_ahead(self._points[queue], others)
            self._some_of.pop(queue, None)
        for queue in [queue for queue, ahead in self.all_of.items() if len(ahead) >= self._enough]:
            self._some_of[queue] = self.all_of.pop(queue)[: self._enough]

    def _with_points(self, indexes: Collection[int]) -> list[tuple[int, int]]:
        return [(_point(b"m", index), index) for index in sorted(indexes) if index != self._index]

    def _members_ahead(self, queue_point: int, others: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """`count + 1` of them, or all."""
        own = (queue_point ^ self._own) * _GOLDEN & 0xFFFFFFFF
        found: list[int] = []
        for point, index in others:
            weighed = (queue_point ^ point) * _GOLDEN & 0xFFFFFFFF
            if weighed > own or (weighed == own and index > self._index):
                found.append(index)
                if len(found) == self._enough:
                    break
        return tuple(found)


@lru_cache(maxsize=64)
def _ahead(queue_count: int, index: int, count: int) -> _Ahead:
    return _Ahead(queue_count, index, count)


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
        share: list[int] = []
        ranked: dict[int, list[tuple[int, int]]] = {}
        while len(share) < target:
            needed = target - len(share)
            givers = [member for member, load in enumerate(loads) if load == most]
            taken = []
            if len(givers) > needed:
                for x in rounds:
                    queue = newcomer ^ x
                    if queue < queue_count and (owner := owners[queue]) != newcomer and loads[owner] == most:
                        loads[owner] -= 1
                        owners[queue] = newcomer
                        taken.append(queue)
                        if len(taken) == needed:
                            break
            else:  # each gives the first of its queues
                for owner in givers:
                    if owner not in ranked:
                        theirs = (queue for queue in shares[owner] if owners[queue] == owner)
                        ranked[owner] = sorted(
                            [(_rank(newcomer ^ queue), queue) for queue in theirs], reverse=True
                        )
                taken = [queue for _, queue in sorted(ranked[owner].pop() for owner in givers)]
                for queue in taken:
                    loads[owners[queue]] -= 1
                    owners[queue] = newcomer
            share += taken
            most -= 1
        loads.append(len(share))
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
