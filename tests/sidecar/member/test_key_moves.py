"""The number of queues changes while messages come in: nothing is lost, and no key is out of order."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lbg_core.group import balanced_primaries
from lbg_core.group.key_moves import BarrierEntry, Entry, PassEntry
from lbg_core.group.members_protocol import QueueReport
from lbg_sidecar.core.barriers import AGAIN_S
from lbg_sidecar.core.dispatcher import Order, Rules
from lbg_sidecar.core.effects import Reconnect
from testing.exploration import example_count
from testing.member.world import Chances, SimMember, World
from testing.member.world.key_moves import KeyMover
from testing.member.world.situations import act, publishing
from testing.needs import repeated

KEYS = [f"k{number}" for number in range(23)] + [None]

lives = partial(settings, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink])

Step = tuple[float, str, int]


def two_queues(*, members: int = 1, seed: int = 3, for_s: float = 3) -> tuple[World, KeyMover, SimMember]:
    """Of eight hashes, served by so many members for so long; the first one of them is returned."""
    world = World(seed, queue_count=2, hash_count=8)
    mover = KeyMover(world)
    first, *_ = [world.join() for _ in range(members)]
    world.run(for_s)
    return world, mover, first


def finish(world: World, mover: KeyMover) -> None:
    """The change is run to its end, without faults."""
    world.calm = True
    for _ in range(120):
        if not world.up():
            world.join()
        if world.broker.key_move is not None or len(world.queues) > world.queue_count:
            mover.start(world.queue_count)
        world.run(1)
        for number in range(world.hash_count):
            world.publish(f"calm{number}", hash_=number)
        if not mover.is_running and len(world.queues) == world.queue_count and not world.unfinished():
            break
    world.run(10)


def check(world: World) -> None:
    assert not world.violations, world.violations[:5]
    assert not world.unfinished()
    assert all(not queue.ready for queue in world.queues)
    assert len(world.queues) == world.queue_count
    assert world.broker.routes == {hash_: [hash_ % world.queue_count] for hash_ in world.broker.routes}
    live = [member.index for member in world.up()]
    assert world.served_by() == balanced_primaries(world.queue_count, live)
    for member in world.up():
        assert not member.calls
        assert member.machine.rules.queue_count == world.queue_count
        assert not member.machine.dispatcher.lanes.running


@pytest.mark.long
@pytest.mark.parametrize("counts", [(2, 3, 1, 4), (4, 8, 5)])
def test_changes_over_the_same_connections_lose_reorder_and_repeat_nothing(counts: tuple[int, ...]) -> None:
    world = World(len(counts), queue_count=counts[0], hash_count=16)
    mover = KeyMover(world)
    members = [world.join() for _ in range(3)]
    world.run(12)
    publishing(world, KEYS, rate_hz=100.0)
    world.run(2)
    connected = [member.link for member in members]
    for count in counts[1:]:
        mover.start(count)
        world.run(10)
        assert not mover.is_running
    finish(world, mover)
    check(world)
    assert world.repeats == 0
    assert [member.link for member in members] == connected


def test_a_hash_waits_for_what_its_old_queue_had_and_for_nothing_else() -> None:
    world = World(5, queue_count=2, hash_count=8, rules=Rules(concurrency=4))
    mover = KeyMover(world)
    member = world.join()
    world.run(3)
    world.failing = {"bad"}
    world.publish("bad", hash_=2)  # 2 leaves queue 0 for queue 2 of three
    world.run(1)
    mover.start(3)
    world.run(2)
    behind = world.publish("moved", hash_=2)
    others = [world.publish(f"k{hash_}", hash_=hash_) for hash_ in (0, 1, 3, 6, 7)]
    world.run(5)
    assert all(world.finished[item.identity] == 1 for item in others)
    assert not world.finished[behind.identity]
    world.failing = set()
    world.run(60)
    assert world.finished[behind.identity] == 1
    finish(world, mover)
    check(world)
    assert not any(isinstance(effect, Reconnect) for _, _, effect in world.events)
    assert member.machine.rules.queue_count == 3


def test_a_member_that_knows_of_a_change_and_has_not_read_its_stream_starts_nothing() -> None:
    """Seed 492246766 of the simulation: its network was cut one way, and the change went on without it."""
    world, mover, member = two_queues(seed=7)
    world.publish("k", hash_=2)  # so that it serves the queue before the change
    world.run(1)
    world.chances.parked_lag_s = 10_000.0
    mover.start(3)
    world.run(1)
    item = world.publish("k", hash_=2)
    world.run(5)
    assert not world.finished[item.identity]
    world.chances.parked_lag_s = 0.0
    world.drop_connection(member)
    world.run(5)
    assert world.finished[item.identity] == 1
    finish(world, mover)
    check(world)
    assert world.repeats == 0


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), repeated([(4, 2), (2, 3)]))
def test_a_queue_that_another_member_takes_over_before_its_fence_repeats_nothing(old: int, new: int) -> None:
    world = World(old, queue_count=old, hash_count=16)

    def release(queue: int) -> None:
        for member in world.up():
            binding = member.machine.bindings.all[queue]
            if binding.active:
                member.machine.handoffs.start(binding, None, "held for too long", world.now)
                member.run()
                released.append(queue)

    released: list[int] = []
    mover = KeyMover(world, both_s=0.1, unbound=release)
    for _ in range(3):
        world.join()
    world.run(12)
    publishing(world, KEYS, rate_hz=100.0)
    mover.start(new)
    world.run(30)
    assert not mover.is_running
    finish(world, mover)
    check(world)
    assert len(set(released)) == 4
    assert world.repeats == 0


@pytest.mark.long
@lives(max_examples=example_count(20, of_few=0.5))
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    script=st.lists(
        st.tuples(
            st.sampled_from([0.001, 0.01, 0.05, 0.2, 0.5, 1.0, 3.0]),
            st.sampled_from(
                (
                    "change",
                    "die",
                    "join",
                    "leave",
                    "kill",
                    "drop",
                    "stall",
                    "suspect",
                    "again",
                    "assign",
                    "propose",
                )
            ),
            st.integers(0, 9),
        ),
        max_size=14,
    ),
    chances=st.builds(
        Chances,
        hint_lost=st.sampled_from([0.0, 0.0, 0.3]),
        retry=st.sampled_from([0.0, 0.1]),
        slow=st.sampled_from([0.0, 0.02]),
        call_s=st.sampled_from([0.0, 0.005, 0.05]),
        delay_s=st.sampled_from([0.0005, 0.002, 0.02]),
        routing_lag_s=st.sampled_from([0.0, 0.15]),
        parked_lag_s=st.sampled_from([0.0, 0.5]),
    ),
    order=st.sampled_from(Order),
)
def test_no_fault_at_any_step_loses_or_reorders_a_message(
    seed: int, counts: list[int], script: list[Step], chances: Chances, order: Order
) -> None:
    world = World(
        seed, queue_count=counts[0], hash_count=12, chances=chances, rules=Rules(concurrency=4, order=order)
    )
    mover = KeyMover(world)
    world.join()
    world.join()
    published = publishing(world, KEYS, rate_hz=100.0)
    world.run(1)
    changes = list(counts[1:])
    mover.start(changes[0])
    for gap, kind, who in script:
        world.run(gap)
        if kind == "change":
            mover.start(changes[who % len(changes)])
        elif kind == "die":
            mover.kill()
        else:
            act(world, kind, who, published)
    world.run(1)
    finish(world, mover)
    check(world)


def test_a_barrier_is_written_before_a_new_consumer_starts_anything() -> None:
    world, mover, first = two_queues()
    world.failing = {"bad"}
    world.publish("bad", hash_=2)
    world.run(1)
    mover.start(3)
    world.run(3)
    world.kill(first)
    world.join()
    barriers = sum(isinstance(one, BarrierEntry) for one in world.broker.moves_log)
    item = world.publish("good", hash_=0)
    while not world.finished[item.identity]:
        world.run(0.001)
    assert sum(isinstance(one, BarrierEntry) for one in world.broker.moves_log) > barriers
    assert not any(isinstance(one, PassEntry) and one.queue == 0 for one in world.broker.moves_log)
    world.failing = set()
    finish(world, mover)
    check(world)


def test_a_fence_that_comes_while_a_barrier_of_its_queue_is_on_its_way_is_passed() -> None:
    world, mover, _ = two_queues()
    mover.start(3)
    world.run(0.1)
    mover.kill()
    world.publish("k", hash_=0)
    world.run(1)
    move, log = world.broker.key_move, world.broker.moves_log
    assert move is not None
    world.chances.parked_lag_s = 1.0
    world.broker.record_move(BarrierEntry("of a former consumer", (0,)))
    while log[-1].id == "of a former consumer":
        world.run(0.001)
    world.broker.fence(0, move.id)
    world.run(2)
    finish(world, mover)
    check(world)


def test_an_entry_of_a_closed_attachment_holds_nothing_of_the_next_one() -> None:
    """A newcomer found it in the code: a message that came behind the fence was held before the next tick."""
    world = World(3, queue_count=1, hash_count=2)
    broker, record, lost = world.broker, world.broker.record_move, []

    def recorded(entry: Entry) -> None:
        if isinstance(entry, PassEntry) and not lost:
            lost.append(entry)
        else:
            record(entry)

    broker.record_move = recorded
    mover = KeyMover(world)
    member = world.join()
    world.run(3)
    world.publish("k", hash_=0)
    mover.start(2)
    while not lost:
        world.run(0.001)
    routes, broker.routes[1] = broker.routes[1], [0]
    world.publish("late", hash_=1)
    broker.routes[1] = routes
    world.run(0.01)
    member.machine.handoffs.cut_off(member.machine.bindings.all[0], "test", world.now)
    member.run()
    world.run(10)
    assert not mover.is_running
    finish(world, mover)
    check(world)


def test_a_barrier_of_a_former_consumer_is_written_over_for_its_queue_only() -> None:
    world, mover, _ = two_queues()
    mover.start(3)
    world.run(0.1)
    mover.kill()
    for hash_ in range(2):
        world.publish(f"k{hash_}", hash_=hash_)
    world.run(1)
    before = len(world.broker.moves_log)
    world.broker.record_move(BarrierEntry("of a former consumer", (0,)))
    world.run(3 * AGAIN_S)
    barriers = [one for one in world.broker.moves_log[before:] if isinstance(one, BarrierEntry)]
    assert [one.queues for one in barriers] == [(0,), (0,)]
    finish(world, mover)
    check(world)


def test_a_fence_of_an_earlier_change_does_not_hide_a_later_one() -> None:
    """Found in histories with all features: the member read the stream for the change of the fence, and never joined
    the one that was on its way."""
    world, mover, _ = two_queues(seed=9)
    items = [world.publish(f"k{hash_}", hash_=hash_) for hash_ in range(8)]
    world.run(1)
    mover.start(3)
    world.run(0.015)
    assert world.broker.key_move is None, (
        "the stream has the beginning of the change, and the record does not yet"
    )
    world.broker.fence(0, "4-2-abc")
    world.run(10)
    items += [world.publish(f"k{hash_}", hash_=hash_) for hash_ in range(8)]
    world.run(20)
    assert not mover.is_running
    assert all(world.finished[item.identity] == 1 for item in items)
    finish(world, mover)
    check(world)


def test_a_call_of_before_a_change_that_goes_on_behind_it_is_no_second_call_of_its_key() -> None:
    """A newcomer found it in the tables: once the change had ended, nobody looked for such calls any more."""
    world, mover, first = two_queues(members=2)
    world.chances.deaf, world.chances.slow, world.chances.slow_s = 1.0, 1.0, 30.0
    world.publish("k", hash_=2)
    world.run(0.1)
    assert first.calls
    world.chances.deaf = world.chances.slow = 0.0
    world.drop_connection(first)
    world.run(1)
    mover.start(3)
    world.run(8)
    assert not mover.is_running
    assert first.calls
    assert world.served_by()[2] == first.index
    world.publish("k", hash_=2)
    finish(world, mover)
    check(world)


def test_a_call_of_a_consumer_that_was_replaced_is_no_second_call_behind_a_change() -> None:
    """A newcomer found it in the code: the member did not hear that another one served the queue."""
    world, mover, first = two_queues(members=2, for_s=10)
    world.chances.slow, world.chances.slow_s = 1.0, 25.0
    for hash_ in (2, 4):  # they go to queues 2 and 1
        world.publish(f"k{hash_}", hash_=hash_)
    world.run(0.1)
    assert len(first.calls) == 2
    world.chances.slow = 0.0
    world.broker.loses = (QueueReport,)
    world.suspect(0)
    world.run(0.2)
    mover.start(3)
    world.run(8)
    assert not mover.is_running
    assert first.index in (world.served_by()[1], world.served_by()[2])
    assert len(first.calls) == 2
    for hash_ in (2, 4):
        world.publish(f"k{hash_}", hash_=hash_)
    finish(world, mover)
    check(world)


def test_a_late_consumer_of_a_staging_queue_that_is_not_open_starts_nothing() -> None:
    """Seed 348 of histories with all features: a member that stood still consumed the queue that had this number in an
    earlier change, and called a message before those of its key in the old queue."""
    world, mover, member = two_queues(seed=11)
    world.chances.call_s = 1.0
    for hash_ in range(8):
        for _ in range(2):
            world.publish(f"k{hash_}", hash_=hash_)
    mover.start(3)
    world.run(0.3)
    staging = min(world.broker.queues.index(queue) for queue in world.queues if not queue.consumers)
    member.machine.bindings.attach(member.machine.bindings.all[staging], world.now)
    member.run()
    for hash_ in range(8):
        world.publish(f"k{hash_}", hash_=hash_)
    world.run(30)
    finish(world, mover)
    check(world)


def test_during_a_change_a_queue_is_handed_over_once_the_stream_has_its_numbers() -> None:
    world, mover, first = two_queues(members=2, for_s=12)
    for hash_ in range(8):
        world.publish(f"k{hash_}", hash_=hash_)
    mover.start(3)
    world.run(0.1)
    mover.kill()
    first.stop()
    world.run(1.0)
    assert first.exited
    finish(world, mover)
    check(world)
