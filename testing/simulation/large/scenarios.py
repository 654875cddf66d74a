"""Scenarios of a large group, and what is measured in each."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from testing.simulation.large.group import BURST_S, LargeGroup
from testing.simulation.large.member import LargeMember

STARTED_WITHIN_S = 0.05
HELD_S = 1.0
"""A group is settled when it has been for so long."""

REST_S = 30.0
QUIET_S = 3.0
"""Between the end of the traffic and the measurement at rest."""

LIMIT_S = 60.0
"""For each thing that is waited for."""

WRONG_SHARE = 0.1
"""Share of the members that are gone, while others have wrong views."""

DEAF_MEMBERS = 3
"""One in so many members drops messages to all."""

DEAF_S = 10.0
"""Time for which members drop messages."""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the members; None: not within the limit."""

    claimed_s: float | None
    agreed_s: float | None
    settled_s: float | None
    attachments: int
    refused_claims: int
    mail: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Membership messages to a member a second; shares of a core."""

    mail_mean: float
    mail_most: float
    posts: float
    broker_mail: float
    broker_busy: float
    member_busy_mean: float
    member_busy_most: float


@dataclass(frozen=True, slots=True)
class Crash:
    """Seconds from the crash; `longest_wait_s` of a message from its publish to its first call."""

    victims: int
    agreed_s: float | None
    served_s: float | None
    settled_s: float | None
    longest_wait_s: float
    mail: int
    lost: int
    inverted: int
    repeated: int

    @property
    def served_after_agreement_s(self) -> float | None:
        if self.agreed_s is None or self.served_s is None:
            return None
        return max(0.0, self.served_s - self.agreed_s)


@dataclass(frozen=True, slots=True)
class Join:
    agreed_s: float | None
    settled_s: float | None
    attached: int
    detached: int
    moves: int
    due_moves: int
    """Queues whose primary is another one."""
    lost: int
    inverted: int


def start(group: LargeGroup, *, limit_s: float = LIMIT_S) -> Start:
    """All members at once; a message waits in each queue, and more come."""
    group.publish(True)
    began_at = group.clock.now
    for _ in range(group.size):
        group.clock.after(group.random.random() * STARTED_WITHIN_S, group.process, group.add)
    claimed = group.wait(lambda: len(group.expected) == group.size, limit_s=limit_s)
    claimed_s = group.clock.now - began_at if claimed else None
    agreed_s = _agreed_s(group, began_at, limit_s)
    settled_s = _settled_s(group, began_at, limit_s) if agreed_s is not None else None
    return Start(
        claimed_s,
        agreed_s,
        settled_s,
        group.counts["attached"],
        group.counts["refused claims"],
        group.counts["mail"],
    )


def rest(group: LargeGroup, *, seconds: float = REST_S, quiet_s: float = QUIET_S) -> Rest:
    group.publish(False)
    group.run(quiet_s)
    members, before, broker = group.up, group.counts.copy(), group.broker.process
    received = [member.received for member in members]
    busy = [member.process.busy_s for member in members]
    broker_busy = broker.busy_s
    group.run(seconds)
    received = [member.received - former for member, former in zip(members, received, strict=True)]
    busy = [member.process.busy_s - former for member, former in zip(members, busy, strict=True)]
    return Rest(
        mail_mean=sum(received) / len(members) / seconds,
        mail_most=max(received) / seconds,
        posts=(group.counts["posts"] - before["posts"]) / seconds,
        broker_mail=(group.counts["mail"] - before["mail"]) / seconds,
        broker_busy=(broker.busy_s - broker_busy) / seconds,
        member_busy_mean=sum(busy) / len(members) / seconds,
        member_busy_most=max(busy) / seconds,
    )


def crash(group: LargeGroup, victims: Collection[LargeMember], *, limit_s: float = LIMIT_S) -> Crash:
    """SIGKILL of all victims; every queue gets a message at that moment."""
    _warm_up(group)
    return _crash(group, victims, limit_s)


def random_members(group: LargeGroup, count: int) -> list[LargeMember]:
    return group.random.sample(group.up, count)


def neighbours(group: LargeGroup, count: int) -> list[LargeMember]:
    """Members of contiguous indexes."""
    ring = sorted(group.up, key=lambda member: member.index or 0)
    first = group.random.randrange(len(ring))
    return [ring[(first + number) % len(ring)] for number in range(count)]


def join(group: LargeGroup, *, limit_s: float = LIMIT_S) -> Join:
    """One more member."""
    _warm_up(group)
    counts, primaries = group.counts.copy(), group.primaries
    began_at = group.clock.now
    group.add()
    agreed_s = _agreed_s(group, began_at, limit_s)
    settled_s = _settled_s(group, began_at, limit_s) if agreed_s is not None else None
    attached, detached = (group.counts[name] - counts[name] for name in ("attached", "detached"))
    _drain(group, limit_s)
    return Join(
        agreed_s,
        settled_s,
        attached,
        detached,
        group.counts["moves"] - counts["moves"],
        sum(map(operator.ne, primaries, group.primaries)),
        group.judge.lost,
        group.judge.inverted,
    )


def stale_views(group: LargeGroup, *, limit_s: float = LIMIT_S) -> Crash:
    """A crash of which one member in three gets no notice for a time, neither by messages to all nor by returns: it
    believes that the dead live."""
    return _crash_of_share(group, deaf=1.0, is_blind=True, limit_s=limit_s)


def deafness(group: LargeGroup, share: float, *, limit_s: float = LIMIT_S) -> Crash:
    """A crash, while one member in three drops this share of the messages to all."""
    return _crash_of_share(group, deaf=share, is_blind=False, limit_s=limit_s)


def _crash_of_share(group: LargeGroup, *, deaf: float, is_blind: bool, limit_s: float) -> Crash:
    members = random_members(group, len(group.up) // DEAF_MEMBERS)
    hearing = [member for member in group.up if member not in members]
    victims = group.random.sample(hearing, max(1, round(len(group.up) * WRONG_SHARE)))
    _warm_up(group)
    _make_deaf(members, deaf, is_blind)
    group.clock.after(DEAF_S, group.process, _make_deaf, members, 0.0, False)
    return _crash(group, victims, limit_s)


def _make_deaf(members: Sequence[LargeMember], share: float, is_blind: bool) -> None:
    for member in members:
        member.deaf, member.is_blind = share, is_blind


def _warm_up(group: LargeGroup) -> None:
    group.publish(True)
    group.run(2.0)


def _crash(group: LargeGroup, victims: Collection[LargeMember], limit_s: float) -> Crash:
    judge, mail = group.judge, group.counts["mail"]
    crashed_at = group.clock.now
    group.kill(victims)
    judge.mark()
    group.publish_round(within_s=BURST_S)
    agreed_s = _agreed_s(group, crashed_at, limit_s)
    mail = group.counts["mail"] - mail
    is_served = group.wait(lambda: judge.are_all_served, limit_s=limit_s)
    settled_s = _settled_s(group, crashed_at, limit_s) if agreed_s is not None else None
    _drain(group, limit_s)
    return Crash(
        len(victims),
        agreed_s,
        judge.served_at - crashed_at if is_served else None,
        settled_s,
        judge.longest_wait_s,
        mail,
        judge.lost,
        judge.inverted,
        judge.repeated,
    )


def _agreed_s(group: LargeGroup, since: float, limit_s: float) -> float | None:
    if not group.wait(lambda: group.agreed_at is not None, limit_s=limit_s):
        return None
    assert group.agreed_at is not None
    return max(group.agreed_at - since, 0.0)


def _settled_s(group: LargeGroup, since: float, limit_s: float) -> float | None:
    """By samples, of which the first of an unbroken second counts."""
    until = group.clock.now + limit_s
    settled_at: float | None = None
    while settled_at is None or group.clock.now < settled_at + HELD_S:
        if not group.is_settled:
            settled_at = None
            if group.clock.now >= until:
                return None
        elif settled_at is None:
            settled_at = group.clock.now
        group.run(0.1)
    return settled_at - since


def _drain(group: LargeGroup, limit_s: float) -> None:
    """Publishes no more, and waits until all that was published is called."""
    group.publish(False)
    group.run(1.5)
    group.wait(lambda: group.judge.lost == 0, limit_s=limit_s)
