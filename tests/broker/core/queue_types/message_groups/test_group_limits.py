"""Consumers that say how many groups they can work on: one that comes gets its share, and nothing moves that was begun.

Members are played as LBG's work: the messages of a group one after another, as many groups at a time as they said, and
asked for messages they give back at once what they have not begun.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_broker.core import spool
from lbg_broker.core.queue_types import group_backlog
from lbg_broker.core.queue_types.group_index import Holder
from lbg_broker.core.queue_types.message_groups import Party, moves
from lbg_core.amqp.methods import BasicCapacity, BasicRevoke, BasicRevokeOk
from testing.broker_core.grouped_queue import declare, properties
from testing.broker_core.world import Client, World
from testing.exploration import example_count, over_seeds

PREFETCH = 256


@dataclass(eq=False)
class Work:
    """One delivery at a member."""

    tag: int
    group: str
    number: int


@dataclass(eq=False)
class Member:
    """`concurrency` is what it said when it came, `capacity` how many keys it works on at a time. `asks` are those that
    it has received and not answered."""

    client: Client
    concurrency: int
    capacity: int
    lanes: dict[str, deque[Work]] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)
    running: dict[str, Work] = field(default_factory=dict)
    asks: deque[BasicRevoke] = field(default_factory=deque)
    heard: int = 0

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.capacity


class Group:
    """A queue of message groups with members at it. `begun` has the numbers of each key in the order of their first
    starts, `finished` all that were done."""

    def __init__(self) -> None:
        self.world = World()
        self.publisher = self.world.client()
        declare(self.publisher)
        self.published: dict[str, int] = {}
        self.members: list[Member] = []
        self.begun: dict[str, list[int]] = {}
        self.finished: set[tuple[str, int]] = set()
        self.repeats_are_due = False

    def publish(self, key: str, count: int = 1) -> None:
        for _ in range(count):
            number = self.published[key] = self.published.get(key, 0) + 1
            self.publisher.publish(b"%d" % number, header=properties(key))
        self.settle()

    def join(
        self, *, concurrency: int | None = 16, prefetch: int = PREFETCH, revocable: bool = True
    ) -> Member:
        can = concurrency or 1 << 30
        member = Member(self.world.client(lbg__revoke=revocable), can, can)
        arguments = {} if concurrency is None else {"x-group-concurrency": concurrency}
        member.client.consume(prefetch=prefetch, arguments=arguments)
        self.members.append(member)
        self.settle()
        return member

    def resize(self, member: Member, capacity: int) -> None:
        """It works on so many keys at a time from now on, and says so. What runs is finished."""
        member.capacity = capacity
        member.client.say(BasicCapacity("c", capacity))
        self.settle()

    def crash(self, member: Member) -> None:
        self.members.remove(member)
        self.repeats_are_due = True
        member.client.lose()
        self.settle()

    def finish(self, member: Member, key: str) -> None:
        """A call ends."""
        work = member.running.pop(key)
        assert (work.group, work.number) not in self.finished
        self.finished.add((work.group, work.number))
        waiting = member.lanes[key]
        if waiting:
            member.ready.append(key)
        else:
            del member.lanes[key]
        member.client.ack(work.tag)
        self.settle()

    def finish_all(self) -> int:
        """Every call that runs now ends; how many did."""
        running = [(member, key) for member in self.members for key in member.running]
        for member, key in running:
            self.finish(member, key)
        return len(running)

    def answer(self, member: Member) -> None:
        """A member gives back what it has not begun of what it was asked for first."""
        ask = member.asks.popleft()
        assert not ask.taken, "nothing is taken by force"
        for key, waiting in list(member.lanes.items()):
            back = [work for work in waiting if work.tag in ask.delivery_tags]
            member.lanes[key] = deque(work for work in waiting if work not in back)
            for work in back:
                member.client.nack(work.tag)
            if not member.lanes[key] and key not in member.running:
                del member.lanes[key]
                member.ready.remove(key)
        member.client.say(BasicRevokeOk(False, ask.delivery_tags))
        self.settle()

    def settle(self) -> None:
        """The disk follows, and members begin what they can."""
        self.world.commit()
        for member in self.members:
            self.receive(member)

    def receive(self, member: Member) -> None:
        for delivery in member.client.take():
            key = delivery.headers["cart"]
            self.require_alone(member, key)
            if key not in member.lanes:
                member.lanes[key] = deque()
                member.ready.append(key)
            member.lanes[key].append(Work(delivery.delivery_tag, key, int(delivery.body)))
        asks = member.client.said(BasicRevoke)
        member.asks += asks[member.heard :]
        member.heard = len(asks)
        while member.ready and member.has_room:
            key = member.ready.popleft()
            self.start(member, member.lanes[key].popleft())

    def require_alone(self, member: Member, key: str) -> None:
        assert not [other for other in self.members if other is not member and key in other.lanes], (
            f"{key} is at two members"
        )

    def start(self, member: Member, work: Work) -> None:
        begun = self.begun.setdefault(work.group, [])
        if work.number in begun:
            assert self.repeats_are_due, f"{work.group} {work.number} is processed twice"
        else:
            assert work.number == len(begun) + 1, f"{work.group} {work.number} overtakes"
            begun.append(work.number)
        member.running[work.group] = work

    def answer_all(self) -> None:
        for _ in range(1000):
            asked = [member for member in self.members if member.asks]
            if not asked:
                return
            self.answer(asked[0])
        raise AssertionError("asked for ever")


def keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def test_a_member_that_comes_gets_half_of_the_keys_as_soon_as_their_calls_have_ended() -> None:
    group = Group()
    for key in keys(12):
        group.publish(key, 100)
    first = group.join()
    assert len(first.running) == 12
    second = group.join()
    assert len(second.running) == 0
    group.answer_all()
    group.finish_all()
    assert (len(first.running), len(second.running)) == (6, 6)
    while group.finish_all():
        group.answer_all()
    assert len(group.finished) == 1200


def test_keys_that_were_not_begun_move_at_once() -> None:
    group = Group()
    for key in keys(12):
        group.publish(key, 2)
    first = group.join(concurrency=4)
    assert (len(first.lanes), len(first.running)) == (12, 4)
    second = group.join(concurrency=4)
    group.answer_all()
    assert (len(first.running), len(second.running)) == (4, 4)


def test_more_members_share_what_the_others_cannot_work_on() -> None:
    group = Group()
    for key in keys(40):
        group.publish(key, 3)
    group.join(concurrency=4)
    for _ in range(4):
        group.join(concurrency=4)
        group.answer_all()
    assert [len(member.running) for member in group.members] == [4] * 5


def test_shares_are_in_proportion_to_what_each_can_work_on() -> None:
    group = Group()
    first, second = group.join(concurrency=6), group.join(concurrency=2)
    for key in keys(8):
        group.publish(key)
    assert (len(first.running), len(second.running)) == (6, 2)


def test_a_key_that_a_member_does_not_work_on_is_not_kept_from_an_idle_one() -> None:
    """The first is a command that works on one line at a time, and said sixteen: its keys of one message look begun."""
    group = Group()
    first = group.join()
    group.resize(first, 1)
    for key in keys(2):
        group.publish(key)
    assert (len(first.lanes), len(first.running)) == (2, 1)
    second = group.join()
    group.resize(second, 1)
    group.answer_all()
    assert (len(first.running), len(second.running)) == (1, 1)


def test_a_key_that_is_finished_at_its_holder_keeps_no_other_key_from_an_idle_member() -> None:
    group = Group()
    first = group.join()
    group.resize(first, 1)
    for key in keys(2):
        group.publish(key, 2)
    group.finish(first, "k0")
    assert set(first.running) == {"k1"}, "the newest one, which is asked for first"
    second = group.join()
    group.resize(second, 1)
    group.answer_all()
    assert (set(first.running), set(second.running)) == ({"k1"}, {"k0"})


def test_members_that_work_on_one_key_share_all_of_them() -> None:
    group = Group()
    for key in keys(12):
        group.publish(key, 100)
    for _ in range(2):
        group.resize(group.join(), 1)
        group.answer_all()
    group.finish_all()
    assert [len(member.lanes) for member in group.members] == [6, 6]


def test_a_member_gets_more_keys_as_it_shows_that_it_works_on_more() -> None:
    """One that has just come works on one key; the other one works on all that it has."""
    group = Group()
    for key in keys(12):
        group.publish(key, 100)
    group.join()
    second = group.join()
    shares = []
    for capacity in (1, 2, 4, 8):
        group.resize(second, capacity)
        for _ in range(3):
            group.answer_all()
            group.finish_all()
        shares.append(len(second.lanes))
    assert shares == [1, 2, 4, 6]


def test_a_capacity_is_never_more_than_the_concurrency() -> None:
    group = Group()
    first = group.join(concurrency=2)
    group.resize(first, 16)
    first.capacity = 2
    for key in keys(4):
        group.publish(key)
    group.join(concurrency=2)
    group.answer_all()
    assert [len(member.running) for member in group.members] == [2, 2]


def test_the_capacity_of_a_consumer_that_is_gone_means_nothing() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.say(BasicCapacity("gone", 1))
    assert client.refusal is None


def test_a_capacity_of_nothing_is_refused() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.consume(arguments={"x-group-concurrency": 2})
    client.say(BasicCapacity("c", 0))
    assert client.refusal is not None
    assert client.refusal[0] == 406


def test_what_a_member_has_begun_is_not_asked_back() -> None:
    group = Group()
    group.join(concurrency=4)
    for key in keys(4):
        group.publish(key)
    group.join(concurrency=4)
    assert group.members[0].client.said(BasicRevoke) == []


def test_a_busy_key_leaves_room_in_the_window_for_the_others() -> None:
    group = Group()
    group.publish("busy", 2 * PREFETCH)
    for key in keys(3):
        group.publish(key)
    member = group.join()
    assert set(member.running) == {"busy", *keys(3)}


def test_one_key_alone_has_the_window_but_for_a_message_of_each_that_may_come() -> None:
    """Or its member would wait for a round trip after each small part of its window."""
    group = Group()
    group.publish("only", 400)
    member = group.join()
    assert len(member.lanes["only"]) + 1 == PREFETCH - 15
    for _ in range(100):
        group.finish(member, "only")
        assert len(member.lanes["only"]) + 1 == PREFETCH - 15
    for key in keys(15):
        group.publish(key)
    assert len(member.running) == 16


def test_a_key_that_comes_has_one_message_of_what_is_left_for_those_that_may_come() -> None:
    group = Group()
    group.publish("only", 400)
    member = group.join()
    group.publish("second", 2)
    for key in keys(14):
        group.publish(key)
    assert len(member.running) == 16


def test_a_key_that_waits_is_not_kept_waiting_by_busy_ones() -> None:
    """With strict members, which have no more keys than they can work on: the busy ones take turns."""
    group = Group()
    for _ in range(60):
        for key in keys(4):
            group.publish(key)
    group.join(concurrency=2, prefetch=8, revocable=False)
    for _ in range(20):
        group.finish_all()
    assert set(group.begun) == set(keys(4))


def test_who_cannot_be_asked_has_no_more_keys_than_it_said() -> None:
    group = Group()
    for key in keys(12):
        group.publish(key, 2)
    first = group.join(concurrency=4, revocable=False)
    assert len(first.lanes) == 4
    second = group.join(concurrency=4, revocable=False)
    assert len(second.lanes) == 4


def test_who_does_not_say_how_many_it_can_work_on_has_as_many_as_its_prefetch_admits() -> None:
    group = Group()
    for key in keys(12):
        group.publish(key, 2)
    first = group.join(concurrency=None)
    second = group.join(concurrency=None)
    assert (len(first.lanes), len(second.lanes)) == (12, 0)
    assert first.client.said(BasicRevoke) == []


@pytest.mark.parametrize("other", [{"concurrency": 8, "prefetch": 1}, {"concurrency": None}])
def test_a_less_loaded_consumer_without_room_or_without_a_concurrency_keeps_no_key_from_the_others(
    other: dict[str, Any],
) -> None:
    group = Group()
    group.join(concurrency=2)
    group.publish("a")
    group.join(**other)
    group.publish("b")
    group.publish("c")
    assert set(group.begun) == {"a", "b", "c"}


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_a_concurrency_that_is_none_is_refused(value: Any) -> None:
    world = World()
    client = world.client()
    declare(client)
    client.consume(arguments={"x-group-concurrency": value})
    assert client.refusal is not None
    assert client.refusal[0] == 406


class Sharing(RuleBasedStateMachine):
    """Members come, go and die while keys of all kinds are worked on, and answers come late."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()

    @rule(key=st.sampled_from(keys(7)), count=st.integers(1, 12))
    def publish(self, key: str, count: int) -> None:
        self.group.publish(key, count)

    @precondition(lambda self: len(self.group.members) < 4)
    @rule(
        concurrency=st.integers(1, 4),
        prefetch=st.sampled_from([1, 4, 8, 64]),
        revocable=st.sampled_from([True] * 3 + [False]),
    )
    def join(self, concurrency: int, prefetch: int, revocable: bool) -> None:
        self.group.join(concurrency=concurrency, prefetch=prefetch, revocable=revocable)

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.group.members), label="member")
        self.group.resize(member, data.draw(st.integers(1, member.concurrency), label="capacity"))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.group.crash(data.draw(st.sampled_from(self.group.members), label="member"))

    @precondition(lambda self: any(member.running for member in self.group.members))
    @rule(data=st.data(), calls=st.integers(1, 5))
    def finish(self, data: st.DataObject, calls: int) -> None:
        for _ in range(calls):
            running = [(member, key) for member in self.group.members for key in member.running]
            if running:
                self.group.finish(*data.draw(st.sampled_from(running), label="call"))

    @precondition(lambda self: any(member.asks for member in self.group.members))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        asked = [member for member in self.group.members if member.asks]
        self.group.answer(data.draw(st.sampled_from(asked), label="member"))

    @rule()
    def answer_all(self) -> None:
        group = self.group
        group.answer_all()
        line: Any = group.world.queue().spool
        idle = [
            consumer
            for consumer, member in self.consumers()
            if consumer.credit() and member.has_room and len(member.lanes) < member.capacity
        ]
        if not idle:
            return
        free = line.groups.choose(Holder(), own=False)
        assert not line.ready or free is None, "a key waits for nobody, and a member is idle"
        for member in group.members:
            if member.client.number in {consumer.channel.connection.id for consumer in idle}:
                continue
            revocable = group.world.broker.state.connections[member.client.number].revocable
            unstarted = set(member.lanes) - set(member.running)
            assert not unstarted or not revocable, "a member is idle, and another one has keys in store"

    def consumers(self) -> list[tuple[Any, Member]]:
        by_number = {member.client.number: member for member in self.group.members}
        policy = self.group.world.queue().policy
        return [
            (consumer, by_number[consumer.channel.connection.id])
            for consumer in policy.consumers
            if consumer.channel.connection.id in by_number
        ]

    @invariant()
    def the_queue_knows_who_has_what(self) -> None:
        held = {key for member in self.group.members for key in member.lanes}
        assert self.group.world.queue().policy.describe()["message_groups"]["busy"] == len(held)

    def teardown(self) -> None:
        """All that was published is processed in the end."""
        group = self.group
        group.join()
        group.answer_all()
        while group.finish_all():
            group.answer_all()
        assert group.finished == {
            (key, number) for key, count in group.published.items() for number in range(1, count + 1)
        }
        assert all(begun == sorted(begun) for begun in group.begun.values())


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=example_count(100),
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes longer than a test may
)


class LateDisk(Group):
    """The disk follows when chance has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.is_late = True

    def settle(self) -> None:
        steps = (self.world.commit, self.world.seal, self.world.finish, bool)
        step = self.chance.choices(steps, (2, 1, 1, 1))[0] if self.is_late else self.world.commit
        step()
        for member in self.members:
            self.receive(member)


@over_seeds(20)
def test_a_key_goes_on_whatever_of_it_is_in_memory(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for module in (spool, group_backlog):
        monkeypatch.setattr(module, "WINDOW_MESSAGES", 6)
    monkeypatch.setattr(group_backlog, "HEADERS_READ", 12)
    chance = random.Random(seed)
    group = LateDisk(chance)
    for key in keys(10):
        group.publish(key, chance.choice([0, 1, 5, 60]))
    for _ in range(100):
        running = [(member, key) for member in group.members for key in member.running]
        asked = [member for member in group.members if member.asks]
        match chance.choices(("publish", "join", "crash", "finish", "answer"), (3, 2, 1, 9, 3))[0]:
            case "publish":
                group.publish(chance.choice(keys(10)), chance.randint(1, 8))
            case "join" if len(group.members) < 4:
                group.join(concurrency=chance.randint(1, 6), prefetch=chance.choice([2, 4, 8, 16]))
            case "crash" if group.members:
                group.crash(chance.choice(group.members))
            case "finish" if running:
                group.finish(*chance.choice(running))
            case "answer" if asked:
                group.answer(chance.choice(asked))
            case _:
                group.settle()
    group.is_late = False
    group.join()
    group.answer_all()
    while group.finish_all():
        group.answer_all()
    assert len(group.finished) == sum(group.published.values())


@pytest.mark.parametrize(("staying", "count"), [(2, 0), (3, 1), (4, 1), (8, 3)])
def test_a_consumer_with_more_than_twice_the_share_of_a_hungry_one_gives_up_to_an_even_share(
    staying: int, count: int
) -> None:
    keys = [f"k{number}" for number in range(staying)]
    donor = Party("donor", 8, 8, staying, staying, False, list(keys))
    taker = Party("taker", 8, 8, 1, 1, True, [])
    assert moves([donor, taker], unanswered=0, leaving=0) == [("donor", key) for key in keys[::-1][:count]]
