"""Shares: which groups are to move from one consumer to another that has nothing to do. Consumers that do not say how
many groups they can work on have no part in it.

Two reasons move a group. A consumer has more groups than it works on while another one has room: every group beyond
that moves, first those that came last. Or it has more than twice as many as another, in proportion to what each can
work on: then groups move until both have the same. Below that nothing moves, as groups come and go by themselves. Nor
does a group that is worked on move to a consumer that has all that it works on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lbg_broker.server.core.kinds.grouped.group import Group

__all__ = ["Party", "moves"]

S = TypeVar("S")


@dataclass(slots=True, eq=False)
class Party(Generic[S]):
    """A consumer. `concurrency`: groups that it can work on, `capacity`: groups that it works on, which may be less.
    `present`: groups that it has, without those that it may just be giving back. `staying`: groups
    that it has, without all that were asked back. `movable`: those that may be asked back, which are more than the
    message that is worked on, in the order in which they came; none where the consumer cannot be asked."""

    server: S
    concurrency: int
    capacity: int
    present: int
    staying: int
    is_hungry: bool
    movable: list[Group]


def moves(parties: Sequence[Party[S]], *, unanswered: int, leaving: int) -> list[tuple[S, Group]]:
    """The groups to ask for, and whom. On their way already are `leaving`, and of `unanswered` of these their consumers
    have not said whether they had begun."""
    hungry = [party for party in parties if party.is_hungry]
    found: list[tuple[S, Group]] = []
    if not hungry:
        return found
    for _ in range(unanswered):
        min(hungry, key=_presence).present += 1
    for _ in range(leaving):
        min(hungry, key=_share).staying += 1
    _move(parties, hungry, found, by=_presence, if_=_is_beyond)
    _move(parties, hungry, found, by=_share, if_=lambda donor, taker: _is_uneven(donor, taker, by=2))
    if found:
        _move(parties, hungry, found, by=_share, if_=lambda donor, taker: _is_uneven(donor, taker, by=1))
    return found


def _move(
    parties: Sequence[Party[S]],
    hungry: Sequence[Party[S]],
    found: list[tuple[S, Group]],
    *,
    by: Callable[[Party[S]], float],
    if_: Callable[[Party[S], Party[S]], bool],
) -> None:
    donors = [party for party in parties if party.movable]
    while donors:
        donor, taker = max(donors, key=by), min(hungry, key=by)
        if not if_(donor, taker):
            return
        found.append((donor.server, donor.movable.pop()))
        donor.present -= 1
        donor.staying -= 1
        taker.present += 1
        taker.staying += 1
        if not donor.movable:
            donors.remove(donor)


def _presence(party: Party[S]) -> float:
    return party.present / party.capacity


def _share(party: Party[S]) -> float:
    return party.staying / party.concurrency


def _is_beyond(donor: Party[S], taker: Party[S]) -> bool:
    return donor.present > donor.capacity and taker.present < taker.capacity


def _is_uneven(donor: Party[S], taker: Party[S], *, by: int) -> bool:
    """Whether the donor has more than the taker also after a move, and now more than `by` times as many."""
    has_room = taker.staying < taker.concurrency and (
        taker.present < taker.capacity or donor.present > donor.capacity
    )
    evens = (donor.staying - 1) * taker.concurrency >= (taker.staying + 1) * donor.concurrency
    return has_room and evens and _share(donor) > by * _share(taker)
