"""Rosters of many members that exchange messages in virtual time: agreement, repair, and what it costs."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import (
    Changes,
    Directory,
    Hello,
    IndexOffer,
    IndexRequest,
    Message,
    Ping,
    QueueReport,
)
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.hello_schedule import PROBED, HelloSchedule
from lbg_sidecar.core.index_claim import REFUSALS_MAX, IndexClaim
from lbg_sidecar.core.queue_bindings import JOINS_COUNT_WITHIN_S, HoldDown, LiveView
from lbg_sidecar.core.timings import Timings
from testing.member.membership import Posting
from testing.needs import repeated


class Net:
    """Mailboxes by index. `loses`: the part of messages that never arrives."""

    def __init__(self, seed: int, *, loses: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.loses = loses
        self.rosters: dict[int, Posting] = {}
        self.received: Counter[int] = Counter()
        self.partners: dict[int, set[int]] = defaultdict(set)
        """Of each sender."""
        self.frozen: set[int] = set()
        self.ticks: dict[int, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, action))

    def join(self, index: int) -> Posting:
        roster = Posting(
            Timings(),
            uniform=self.random.random,
            incarnation=lambda: f"{self.random.getrandbits(64):x}",
        )
        self.rosters[index] = roster
        self.send(index, roster.join(index, f"m{index}", self.now))
        self._tick(index, roster)
        return roster

    def kill(self, index: int) -> None:
        del self.rosters[index]
        self.ticks.pop(index, None)
        for other, roster in self.rosters.items():
            if roster.awaited_will(self.now) == index:
                self.at(self.now + self._delay(), partial(self._willed, other, index))

    def _willed(self, other: int, index: int) -> None:
        roster = self.rosters.get(other)
        if roster is not None and other not in self.frozen:
            self.send(other, roster.willed(index, self.now))

    def send(self, sender: int, posts: list[Post]) -> None:
        for post in posts:
            match post.to:
                case None:
                    for index in list(self.rosters):
                        self._deliver(index, post.message)
                case int() as index:
                    self._direct(sender, index, post.message)
                case tuple() as indexes:
                    for index in indexes:
                        self._direct(sender, index, post.message)
                case _:
                    pass

    def _direct(self, sender: int, index: int, message: Message) -> None:
        self.partners[sender].add(index)
        if index in self.rosters:
            self._deliver(index, message)
            return

        def returned() -> None:
            if (roster := self.rosters.get(sender)) is not None:
                self.send(sender, roster.returned(message, index, self.now))
                self._tick(sender, roster)

        self.at(self.now + self._delay(), returned)

    def _deliver(self, index: int, message: Message) -> None:
        if self.random.random() < self.loses:
            return
        target = self.rosters[index]

        def arrive() -> None:
            if self.rosters.get(index) is target and index not in self.frozen:
                self.received[index] += 1
                self.send(index, target.receive(message, self.now))
                self._tick(index, target)

        self.at(self.now + self._delay(), arrive)

    def _tick(self, index: int, roster: Posting) -> None:
        due = max(roster.next_due, self.now + 0.001)
        if due >= self.ticks.get(index, float("inf")):
            return
        self.ticks[index] = due

        def tick() -> None:
            self.ticks.pop(index, None)
            if self.rosters.get(index) is roster and index not in self.frozen:
                if self.now >= roster.next_due:
                    self.send(index, roster.tick(self.now))
                    roster.will_watched(roster.awaited_will(self.now), self.now)
                self._tick(index, roster)

        self.at(due, tick)

    def _delay(self) -> float:
        return self.random.expovariate(1 / 0.002)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end

    @property
    def agreed(self) -> bool:
        there = frozenset(self.rosters)
        return all(roster.live == there for index, roster in self.rosters.items() if index not in self.frozen)


def settled(count: int, *, seed: int = 1) -> Net:
    net = Net(seed)
    for index in range(count):
        net.join(index)
        net.run(0.01)
    net.run(5)
    assert net.agreed
    return net


@pytest.mark.parametrize("count", [2, 5, 40])
def test_members_that_start_together_agree_within_a_second(count: int) -> None:
    net = Net(count)
    for index in range(count):
        net.join(index)
    net.run(1.0)
    assert net.agreed


@pytest.mark.long
@pytest.mark.parametrize("seed", repeated(range(5)))
def test_members_that_joined_before_the_coordinator_did_agree_as_soon(seed: int) -> None:
    net = Net(seed)
    for index in range(2, 12):
        net.join(index)
        net.run(0.01)
    for index in (0, 1, *range(12, 64)):
        net.join(index)
        net.run(0.01)
    net.run(1.0)
    assert net.agreed


def test_members_that_start_together_receive_few_messages_each() -> None:
    net = Net(3)
    for index in range(100):
        net.join(index)
        net.run(0.01)
    net.run(1)
    assert net.agreed
    assert sum(net.received.values()) / 100 < 40


@pytest.mark.parametrize("count", [4, 16, 100])
def test_at_rest_a_member_receives_five_messages_a_second_at_most(count: int) -> None:
    net = settled(count)
    net.received.clear()
    net.run(20)
    assert sum(net.received.values()) / count / 20 <= 5
    assert max(net.received.values()) / 20 <= 5


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 4, 64])
def test_at_rest_a_member_sends_to_few_others_in_the_long_run(count: int) -> None:
    """RabbitMQ keeps statistics of each channel and each queue to which it published."""
    net = settled(count)
    net.partners.clear()
    net.run(1800)
    assert all(len(partners) == int(math.log2(count - 1)) + 1 for partners in net.partners.values())


def test_a_crash_is_agreed_on_within_a_second() -> None:
    for index in (0, 7, 19):
        net = settled(20)
        net.kill(index)
        net.run(1.0)
        assert net.agreed


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 30, 60])
def test_the_crash_of_a_third_is_agreed_on_within_five_seconds_and_without_many_messages(first: int) -> None:
    net = settled(90)
    net.received.clear()
    for index in range(first, first + 30):
        net.kill(index)
    net.run(5.0)
    assert net.agreed
    assert sum(net.received.values()) / 60 < 60


def test_a_coordinator_that_hangs_delays_a_change_by_less_than_two_seconds() -> None:
    net = settled(12)
    net.frozen.add(0)
    net.kill(5)
    net.run(2.5)
    assert net.agreed
    net.join(5)
    net.run(2.5)
    assert net.agreed


def test_a_member_that_leaves_is_live_for_nobody() -> None:
    net = settled(6)
    for index in (0, 3):
        net.send(index, net.rosters[index].leave())
        net.run(0.3)
        for other, roster in net.rosters.items():
            assert other == index or index not in roster.live
        net.kill(index)
        net.run(1)
        assert net.agreed


@given(st.integers(0, 2**32), st.data())
def test_after_losses_and_crashes_everybody_agrees_again(seed: int, data: st.DataObject) -> None:
    net = Net(seed, loses=data.draw(st.sampled_from([0.0, 0.1, 0.5])))
    for _ in range(data.draw(st.integers(2, 12))):
        free = [index for index in range(14) if index not in net.rosters]
        if data.draw(st.booleans()) or len(net.rosters) < 2:
            net.join(data.draw(st.sampled_from(free)))
        else:
            net.kill(data.draw(st.sampled_from(sorted(net.rosters))))
        net.run(data.draw(st.sampled_from([0.0, 0.05, 0.7, 3.0])))
    net.loses = 0.0
    net.run(25)
    assert net.agreed


@pytest.mark.long
def test_a_coordinator_that_hangs_while_many_start_costs_no_hellos_to_all() -> None:
    net = settled(30)
    net.frozen.add(0)
    net.received.clear()
    for index in range(30, 150):
        net.join(index)
        net.run(0.01)
    net.run(12)
    assert net.agreed
    assert sum(net.received.values()) / 150 < 150


def test_members_that_met_nobody_while_nothing_arrived_find_each_other() -> None:
    net = Net(9, loses=1.0)
    for index in range(5):
        net.join(index)
    net.run(20)
    assert all(roster.live == {index} for index, roster in net.rosters.items())
    net.loses = 0.0
    net.run(10)
    assert net.agreed


# Messages

A, B, C, D = (Identity(index, f"m{index}", f"life-{index}") for index in range(4))


def roster(index: int, *known: Identity) -> Posting:
    made = Posting(
        Timings(ping_s=0.65, digest_s=1e9),
        uniform=lambda: 0.5,
        incarnation=lambda: f"mine-{index}",
    )
    made.join(index, f"m{index}", 0.0)
    if known:
        made.receive(Directory(known[0], known), 0.0)
    return made


def messages(posts: list[Post], kind: type[Message]) -> list[Post]:
    return [post for post in posts if isinstance(post.message, kind)]


def test_the_coordinator_sends_joins_of_a_moment_to_all_in_one_message_and_a_directory_to_each() -> None:
    me = roster(0)
    for joined in (B, C, D):
        assert not me.receive(Hello(joined), 1.0)
    posts = me.tick(1.05)
    (changes,) = messages(posts, Changes)
    assert (changes.to, changes.message) == (None, Changes(me.me, joined=(B, C, D)))
    (directory,) = messages(posts, Directory)
    assert directory.to == (1, 2, 3)


def test_who_detects_a_crash_reports_it_to_the_coordinator_and_no_more_when_that_has_sent_it() -> None:
    me = roster(1, A, C, D)
    ping = next(post for post in me.tick(1.0) if isinstance(post.message, Ping))
    assert ping.to == 2
    me.returned(ping.message, 2, 1.01)
    (report,) = messages(me.tick(me.next_due), Changes)
    assert report.to == 0
    assert isinstance(report.message, Changes)
    assert (report.message.lost, report.message.target) == ((C,), A.incarnation)
    me.receive(Changes(A, lost=(C,)), 1.1)
    assert not messages(me.tick(2.0), Changes)


def test_a_report_that_comes_back_proves_that_the_coordinator_is_gone_too() -> None:
    me = roster(1, A, C, D)
    ping = next(post for post in me.tick(1.0) if isinstance(post.message, Ping))
    me.returned(ping.message, 2, 1.01)
    (report,) = messages(me.tick(me.next_due), Changes)
    me.returned(report.message, 0, 1.05)
    (to_all,) = messages(me.tick(me.next_due), Changes)
    assert to_all.to is None
    assert isinstance(to_all.message, Changes)
    assert set(to_all.message.lost) == {A, C}
    assert me.live == {1, 3}


def test_live_sets_that_differ_are_repaired_by_directories() -> None:
    me, other = roster(0, B, C), roster(1, A)
    assert me.me is not None
    assert other.me is not None
    me.receive(Ping(other.me, me.me.incarnation), 0.0)
    (ping,) = messages(me.tick(5.0), Ping)
    other.receive(Hello(me.me, 1), 0.0)
    (directory,) = other.receive(ping.message, 6.0)
    assert directory.to == 0
    (answer,) = me.receive(directory.message, 6.0)
    assert isinstance(answer.message, Directory)
    assert answer.message.is_answer
    assert not other.receive(answer.message, 6.0)
    assert other.live == {0, 1, 2} == me.live


def test_a_live_set_that_has_just_changed_is_not_compared() -> None:
    me = roster(0, B, C)
    me.receive(Hello(D, 1), 10.0)
    assert me.me is not None
    assert not me.receive(Ping(B, me.me.incarnation, members=2, digest=1, quiet_s=9.0), 10.5)
    assert not me.receive(Ping(B, me.me.incarnation, members=2, digest=1, quiet_s=0.5), 20.0)
    assert me.receive(Ping(B, me.me.incarnation, members=2, digest=1, quiet_s=9.0), 20.1)


def test_who_is_pinged_by_the_name_of_an_earlier_life_says_who_it_is() -> None:
    me = roster(0, B)
    (answer,) = me.receive(Ping(B, "an-earlier-life", members=2, digest=1, quiet_s=9.0), 5.0)
    assert answer.to == 1
    assert isinstance(answer.message, Changes)
    assert answer.message.joined == (me.me,)
    assert [one.incarnation for one in answer.message.lost] == ["an-earlier-life"]


def test_a_coordinator_that_did_not_answer_is_asked_again_in_its_next_life() -> None:
    me = roster(1, A, C)
    me.receive(Hello(D), 1.0)
    asked = [post.to for now in (1.1, 3.0) for post in messages(me.tick(now), Changes)]
    assert asked == [0, None]
    me.receive(QueueReport(Identity(0, "m0", "a-new-life"), ()), 3.1)
    me.receive(Hello(Identity(4, "m4", "life-4")), 3.2)
    (changes,) = messages(me.tick(3.5), Changes)
    assert changes.to == 0


def test_an_index_is_offered_to_one_member_only() -> None:
    me = roster(0, B, C)
    offers = [me.receive(IndexRequest(Identity(0, "", ""), answer), 1.0)[0] for answer in (97, 98, 99)]
    assert [post.message for post in offers] == [IndexOffer(me.me, index) for index in (3, 4, 5)]
    assert [post.to for post in offers] == ["97", "98", "99"]
    (other,) = me.receive(IndexRequest(Identity(0, "", ""), 96, refused=(6,)), 1.0)
    assert other.message == IndexOffer(me.me, 7)
    (late,) = me.receive(IndexRequest(Identity(0, "", ""), 95), 10.0)
    assert late.message == IndexOffer(me.me, 3)


def test_who_asks_again_gets_the_same_offer_until_it_was_refused() -> None:
    me = roster(0, B, C)
    for _ in range(3):
        (offer,) = me.receive(IndexRequest(Identity(0, "", ""), 99), 1.0)
        assert offer.message == IndexOffer(me.me, 3)
    (offer,) = me.receive(IndexRequest(Identity(0, "", ""), 99, refused=(3,)), 1.0)
    assert offer.message == IndexOffer(me.me, 4)


def test_a_claim_that_is_refused_asks_and_without_an_answer_tries_some_of_the_lowest() -> None:
    claim = IndexClaim(probed=range(16), free=range(2, 16))
    assert not claim.needs_offer
    claim.refused(2)
    assert claim.needs_offer
    claim.offered(7)
    assert claim.candidate() == 7
    claim.refused(7)
    assert claim.needs_offer
    claim.offered(None)
    assert claim.candidate() == 3
    for _ in range(REFUSALS_MAX):
        assert not claim.needs_offer
        claim.refused(claim.candidate() or 0)
    assert claim.needs_offer


def test_a_claim_asks_first_where_all_probed_indexes_are_in_use() -> None:
    assert IndexClaim(probed=range(16), free=()).needs_offer
    assert not IndexClaim(probed=range(16), free={4}).needs_offer
    assert not IndexClaim(fixed=3, probed=range(16), free=()).needs_offer


# Hellos


def hello_schedule(index: int) -> HelloSchedule:
    chances = iter([0.999, 0.0] if index > PROBED else [])
    made = HelloSchedule(Timings(), lambda: next(chances, 0.5))
    made.begin(index)
    return made


def test_a_member_that_joins_says_hello_to_index_0_and_lower_indexes_and_to_all_at_last() -> None:
    hellos = hello_schedule(500)
    found = []
    now = 0.0
    for _ in range(8):
        found.append((now, *hellos.next(now)))
        now = hellos.due
    assert found == [
        *((0.0, 0, 0), (3.0, 0, 499), (6.0, 0, 1)),
        *((9.0, 1, None), (12.0, 2, None), (15.0, 3, None), (18.0, 4, None), (21.0, 4, None)),
    ]
    assert hellos.is_over


def test_among_few_the_second_hello_goes_to_index_0_and_index_0_says_hello_to_all() -> None:
    hellos = hello_schedule(10)
    assert [hellos.next(0.0)[1] for _ in range(3)] == [0, 0, None]
    assert hello_schedule(0).next(0.0) == (1, None)


def test_an_index_that_does_not_exist_gets_no_second_hello() -> None:
    hellos = hello_schedule(10)
    assert hellos.next(0.0) == (0, 0)
    assert hellos.is_for_one
    hellos.returned(0)
    assert hellos.next(0.0) == (1, None)
    assert not hellos.is_for_one


def test_any_member_answers_a_hello_with_a_directory_and_reports_the_join_to_the_coordinator() -> None:
    me = roster(1, A, C)
    assert not me.receive(Hello(D), 1.0)
    posts = me.tick(1.05)
    (changes,) = messages(posts, Changes)
    assert (changes.to, changes.message) == (0, Changes(me.me, joined=(D,), target=A.incarnation))
    (directory,) = messages(posts, Directory)
    assert directory.to == (3,)


def test_a_newcomer_awaits_a_directory_until_it_comes_or_the_hello_to_all() -> None:
    assert not roster(0).awaits_directory
    me = roster(2)
    assert me.awaits_directory
    me.returned(Hello(C), 0, 0.1)
    assert not me.awaits_directory
    assert not roster(2, A).awaits_directory


def test_a_leave_goes_to_the_coordinator() -> None:
    assert [post.to for post in roster(1, A, C).leave()] == [0]
    assert [post.to for post in roster(0, B, C).leave()] == [1]


def test_a_hello_to_all_is_answered_by_the_coordinator_and_the_next_one_by_four() -> None:
    me = roster(1, A, C)
    me.receive(Hello(D, 1), 1.0)
    assert not messages(me.tick(1.05), Directory)
    me.receive(Hello(D, 2), 2.0)
    assert messages(me.tick(2.05), Directory)


def test_joins_count_when_they_have_rested_for_a_quarter_of_the_time_that_they_took() -> None:
    view = LiveView()
    view.reset(frozenset({0}))
    for joined in range(1, 41):
        assert not view.observe(frozenset(range(joined + 1)), 0.2 * joined)
    last_s = 0.2 * 40
    assert view.due == pytest.approx(last_s + (last_s - 0.2) / 4)
    assert not view.observe(frozenset(range(41)), last_s + 1.0)
    assert view.observe(frozenset(range(41)), last_s + 2.0)
    assert view.live == frozenset(range(41))


def test_joins_that_go_on_count_after_a_while_and_a_loss_counts_at_once() -> None:
    view = LiveView()
    view.reset(frozenset({0}))
    counted = [at for at in range(1, 70) if view.observe(frozenset(range(at + 1)), 0.2 * at)]
    assert counted
    assert 0.2 * counted[0] == pytest.approx(JOINS_COUNT_WITHIN_S, abs=0.5)
    assert not view.observe(frozenset(range(80)), 14.0)
    assert view.observe(frozenset(range(1, 80)), 14.01)


def test_after_one_change_of_the_live_set_it_is_known_by_which_sets_members_consume() -> None:
    one, two, three, four = (frozenset(range(count)) for count in (1, 2, 3, 4))
    holddown = HoldDown(5.0)
    holddown.observe(one, 0.0)
    assert holddown.tick(5.0)
    assert holddown.views is None  # it has joined: what was before is not known
    holddown.observe(two, 10.0)
    assert holddown.views == [one, two]
    assert holddown.tick(15.0)
    assert holddown.views == [one, two]
    holddown.observe(three, 20.0)
    holddown.observe(four, 21.0)
    assert holddown.views is None
    assert holddown.tick(26.0)
    assert holddown.views is None
    holddown.observe(three, 30.0)
    assert holddown.views == [four, three]
    holddown.forget()
    assert holddown.views is None
