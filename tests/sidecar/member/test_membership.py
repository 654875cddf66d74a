"""The live set: claimed, agreed on, repaired."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat, Gone, Hello, Leave, Ping, QueueReport
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Post, Reconnect
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.queue_bindings import HoldDown
from lbg_sidecar.core.timings import Timings
from testing.member.bare_member import bare_member
from testing.member.membership import Posting

A, B, C = (Identity(index, f"m{index}", f"life-{index}") for index in range(3))


def roster(index: int = 0, timings: Timings | None = None) -> Posting:
    numbers = itertools.count()
    made = Posting(
        Timings(ping_s=0.65, digest_s=1e9) if timings is None else timings,
        uniform=lambda: 0.5,
        incarnation=lambda: f"mine-{index}-{next(numbers)}",
    )
    made.join(index, f"m{index}", 0.0)
    return made


def pings(posts: list[Post]) -> list[int | None]:
    return [post.to for post in posts if isinstance(post.message, Ping)]


# Claiming


def test_a_member_takes_its_previous_index_if_it_is_free() -> None:
    assert IndexClaim(previous=3).candidate() == 3


def test_a_member_takes_the_lowest_free_index_when_its_previous_one_is_taken() -> None:
    claiming = IndexClaim(previous=3)
    claiming.refused(3)
    claiming.refused(0)
    assert claiming.candidate() == 1


def test_what_was_seen_to_be_taken_is_not_tried() -> None:
    assert IndexClaim(probed=range(4), free={2, 3}).candidate() == 2
    assert IndexClaim(probed=range(4), free=()).candidate() == 4
    assert IndexClaim(previous=1, probed=range(4), free={2}).candidate() == 2


def test_a_fixed_index_is_tried_whatever_was_seen_and_is_the_only_one() -> None:
    claiming = IndexClaim(fixed=2, probed=range(4), free=())
    assert claiming.candidate() == 2
    claiming.refused(2)
    assert claiming.candidate() is None


@given(st.integers(0, 2**32), st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=8))
def test_members_that_race_end_up_with_unique_indexes_without_gaps(
    seed: int, previous: list[int | None]
) -> None:
    chance = random.Random(seed)
    mailboxes: set[int] = set()
    racers = [IndexClaim(previous=wish) for wish in previous]
    given_to: list[int] = []
    waiting = [(racer, racer.candidate()) for racer in racers]
    while waiting:
        racer, index = waiting.pop(chance.randrange(len(waiting)))
        assert index is not None
        if index in mailboxes:
            racer.refused(index)
            waiting.append((racer, racer.candidate()))
        else:
            mailboxes.add(index)
            given_to.append(index)
    assert len(given_to) == len(set(given_to)) == len(previous)
    if all(wish is None for wish in previous):
        assert sorted(given_to) == list(range(len(previous)))


# The live set


def test_a_ping_that_returns_after_the_index_has_a_new_owner_kills_nobody() -> None:
    me = roster()
    me.receive(Hello(B), 1.0)
    ping = next(p for p in me.tick(2.0) if isinstance(p.message, Ping))
    me.receive(Hello(Identity(1, "other", "a-new-life")), 2.05)
    assert me.returned(ping.message, 1, 2.1) == []
    assert me.live == {0, 1}


def test_words_of_a_life_that_is_over_bring_nobody_back() -> None:
    me = roster()
    me.receive(Hello(B), 1.0)
    me.receive(Leave(B), 2.0)
    me.receive(QueueReport(B, ()), 2.1)
    assert me.live == {0}
    me.receive(QueueReport(Identity(1, "m1", "a-new-life"), ()), 2.2)
    assert me.live == {0, 1}


def test_a_late_leave_of_an_earlier_life_does_not_remove_the_new_one() -> None:
    me = roster()
    me.receive(Hello(Identity(1, "m1", "a-new-life")), 1.0)
    me.receive(Leave(B), 1.1)
    assert me.live == {0, 1}


def test_who_speaks_though_it_was_found_gone_is_told_and_comes_back_under_a_new_incarnation() -> None:
    """A partition of the broker hides a mailbox from one side, and the word of it from the other."""
    me, other = roster(0), roster(1)
    assert other.me is not None
    before = other.me
    me.receive(Hello(before), 0.0)
    me.receive(Leave(before), 1.0)
    (post,) = me.receive(QueueReport(before, ()), 2.0)
    assert (post.message, post.to) == (Gone(me.me, before), 1)
    (hello,) = other.receive(post.message, 2.0)
    me.receive(hello.message, 2.0)
    assert me.live == {0, 1}


def test_a_new_connection_forgets_who_was_found_gone_over_the_old_one() -> None:
    me = roster()
    me.receive(Hello(B), 0.0)
    me.receive(Leave(B), 1.0)
    me.disconnected()
    me.join(0, "m0", 2.0)
    me.receive(QueueReport(B, ()), 3.0)
    assert me.live == {0, 1}


def test_each_member_pings_the_next_in_the_ring() -> None:
    for index, successor in ((0, 1), (1, 2), (2, 0)):
        me = roster(index)
        for other in (A, B, C):
            if other.index != index:
                me.receive(Hello(other), 0.1)
        assert pings(me.tick(1.0)) == [successor]


def test_when_the_next_in_the_ring_is_gone_the_one_behind_is_looked_at_at_once() -> None:
    me = roster()
    me.receive(Hello(B), 0.1)
    me.receive(Hello(C), 0.1)
    ping = next(p for p in me.tick(1.0) if isinstance(p.message, Ping))
    assert pings(me.returned(ping.message, 1, 1.1)) == [2]


def pinged_at(me: Posting, successor: int, since: float, seconds: float) -> list[float]:
    """Times at which the next one in the ring is pinged."""
    times, now = [], since
    while (now := max(me.next_due, now + 0.01)) <= since + seconds:
        times += [now] * (successor in pings(me.tick(now)))
    return times


def test_the_ring_is_pinged_seldom_where_the_end_of_the_next_one_shows_in_its_last_will() -> None:
    me = roster(0, Timings(digest_s=1e9, settled_digest_s=1e9))
    me.join(0, "me", 0.0)
    me.receive(Hello(B), 0.0)
    me.will_watched(2, 0.0)
    pinged_at(me, 1, 0.0, 20.0)
    assert len(pinged_at(me, 1, 20.0, 60.0)) in (14, 15, 16), "the will of another one is watched"
    me.will_watched(1, 80.0)
    assert len(pinged_at(me, 1, 80.0, 60.0)) in (4, 5)


def test_the_ring_is_pinged_soon_again_when_the_last_will_is_not_watched_any_more() -> None:
    me = roster(0, Timings(digest_s=1e9, settled_digest_s=1e9))
    me.join(0, "me", 0.0)
    me.receive(Hello(B), 0.0)
    me.will_watched(1, 0.0)
    last = pinged_at(me, 1, 0.0, 60.0)[-1]
    me.will_watched(None, last + 0.1)
    assert pinged_at(me, 1, last + 0.1, 4.1)


def test_a_suspicion_pings_at_once_and_not_again_and_again() -> None:
    me = roster()
    me.receive(Hello(B), 0.0)
    assert pings(me.suspect(1, 1.0)) == [1]
    assert me.suspect(1, 1.05) == []
    assert pings(me.suspect(1, 1.2)) == [1]


def test_another_speaker_with_the_same_index_is_a_conflict() -> None:
    me = roster()
    posted = me.receive(QueueReport(Identity(0, "other", "elsewhere"), ()), 1.0)
    assert posted == [Reconnect("another member claimed the same index")]


def test_a_change_is_told_soon_and_changes_close_together_once() -> None:
    machine = bare_member(Rules())
    reports = machine.context.reports
    reports.changed(0.1)
    reports.changed(0.11)
    assert reports.due < 0.125
    machine.tick(0.125)
    assert [type(one.message) for one in machine.effects if isinstance(one, Post)] == [Beat]
    assert reports.due > 0.3


# The delay


def test_a_change_counts_after_the_delay_and_a_further_one_starts_it_again() -> None:
    hold = HoldDown(5.0)
    hold.observe(frozenset({0}), 0.0)
    hold.observe(frozenset({0, 1}), 3.0)
    assert not hold.tick(5.0)
    assert hold.tick(8.0)
    assert hold.settled == {0, 1}


def test_a_membership_that_returns_to_what_it_was_moves_nothing() -> None:
    hold = HoldDown(5.0)
    hold.observe(frozenset({0, 1}), 0.0)
    assert hold.tick(5.0)
    hold.observe(frozenset({0}), 10.0)
    assert hold.due == 15.0
    hold.observe(frozenset({0, 1}), 12.0)
    assert hold.due is None
    assert not hold.tick(20.0)


def test_a_member_joins_until_it_has_met_another_for_a_few_seconds_at_most() -> None:
    assert roster().is_joining(1.0)
    assert not roster().is_joining(10.0)
    me = roster()
    me.receive(Hello(B), 1.0)
    assert not me.is_joining(1.0)
