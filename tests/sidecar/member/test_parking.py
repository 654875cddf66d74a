"""Parked keys: nothing of them is delivered, whatever crashes, and a release gives them back in order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lbg_core.client.backoff import Backoff
from lbg_core.group.parked_keys import BarrierEntry, KeyState, ParkEntry, ReleaseEntry, SettleEntry
from lbg_sidecar.core.dispatcher import ParkingBounds, Rules, WhenExhausted
from lbg_sidecar.core.effects import CallFailed, Failure, ParkedKeysUnread
from lbg_sidecar.core.parked_keys import Parking
from testing.exploration import over_seeds
from testing.member.world import Chances, Item, SimMember, World
from testing.member.world.key_moves import KeyMover
from testing.member.world.parking import (
    compact,
    delete_leftovers,
    parked_keys,
    release,
    release_past_backlogs,
)

BACKOFF = Backoff(first_s=0.05, max_s=0.2, jitter=0.0)


def rules(**options: Any) -> Rules:
    settings: dict[str, Any] = {"concurrency": 4, "max_attempts": 2, "backoff": BACKOFF}
    parking = options.pop("bounds", ParkingBounds())
    return Rules(**settings, when_exhausted=WhenExhausted.PARK, parking=parking, **options)


def alone(**options: Any) -> tuple[World, SimMember]:
    world = World(3, queue_count=2, hash_count=2, rules=rules(**options))
    member = world.join()
    world.run(1)
    world.failing = {"bad"}
    return world, member


def finish(world: World) -> None:
    """All keys are released until none is parked, and everything is processed in order."""
    world.failing = set()
    world.calm = True
    for _ in range(20):
        if not world.up():
            world.join()
        world.run(6)
        if not release(world) and not len(parked_keys(world)) and not world.unfinished():
            break
    assert not world.violations, world.violations[:5]
    assert not world.unfinished()
    assert not len(parked_keys(world))
    delete_leftovers(world)
    assert not world.broker.parking


def announce_release(world: World) -> None:
    """Of the one key that is parked; no copy goes anywhere."""
    (parked,) = parked_keys(world).parked()
    world.broker.record(ReleaseEntry(parked.key, parked.causes))


def failures(world: World, kind: Failure) -> list[CallFailed]:
    return [one for _, _, one in world.events if isinstance(one, CallFailed) and one.kind is kind]


def are_done(world: World, items: list[Item]) -> bool:
    return all(world.finished[item.identity] == 1 for item in items)


def test_a_poisoned_key_is_parked_in_order_and_all_others_flow() -> None:
    world, member = alone()
    bad = [world.publish("bad", hash_=0) for _ in range(50)]
    good = [world.publish(f"good{number % 9}", hash_=0) for number in range(200)]
    world.run(5)
    assert are_done(world, good)
    assert [item.identity for item in world.broker.parking] == [item.identity for item in bad]
    assert list(parked_keys(world).numbers("bad")) == [item.identity for item in bad]
    assert not world.queues[0].ready
    assert not world.queues[0].consumers[0].unacked
    assert [call.key for call in failures(world, Failure.PARKED)] == ["bad"]
    assert member.machine.dispatcher.counts.parked == 50
    finish(world)


def test_a_message_is_acknowledged_after_its_copy_and_then_its_entry_are_confirmed() -> None:
    world, member = alone()
    world.publish("bad", hash_=0)
    seen: list[tuple[int, int, int]] = []
    for _ in range(1000):
        world.run(0.001)
        unacked = len(world.queues[0].consumers[0].unacked) + len(world.queues[0].ready)
        entries = [one for one in world.broker.parked_log if isinstance(one, ParkEntry)]
        state = (len(world.broker.parking), len(entries), unacked)
        if not seen or seen[-1] != state:
            seen.append(state)
    assert seen == [(0, 0, 1), (1, 0, 1), (1, 1, 1), (1, 1, 0)]
    assert member.machine.dispatcher.counts.parked == 1


def test_a_successor_starts_nothing_before_it_has_read_the_parked_keys() -> None:
    world, member = alone()
    world.publish("bad", hash_=0)
    world.run(3)
    assert parked_keys(world).state("bad") is KeyState.PARKED
    world.kill(member)
    successor = world.join()
    world.publish("bad", hash_=0)
    good = world.publish("good", hash_=0)
    barriers = sum(isinstance(one, BarrierEntry) for one in world.broker.parked_log)
    while not world.finished[good.identity]:
        world.run(0.001)
    assert sum(isinstance(one, BarrierEntry) for one in world.broker.parked_log) > barriers
    assert successor.machine.part(Parking) is not None
    assert successor.machine.part(Parking).is_read
    world.run(1)
    assert len(world.broker.parking) == 2
    finish(world)


def test_a_stream_that_does_not_answer_is_logged_and_nothing_is_delivered_until_it_does() -> None:
    world, _ = alone()
    world.run(1)
    world.chances.parked_lag_s = 1000.0  # for what is read from now on
    member = world.join()
    world.kill(world.members[0])
    items = [world.publish(f"good{number % 2}", hash_=number % 2) for number in range(4)]
    world.run(20)
    assert not any(world.finished[item.identity] for item in items)
    unread = [event for _, name, event in world.events if isinstance(event, ParkedKeysUnread)]
    assert unread[0].waited_s == pytest.approx(2.0, abs=0.7)
    assert {queue for event in unread for queue in event.queues} == {0, 1}
    assert member.machine.part(Parking) is not None
    world.chances.parked_lag_s = 0.0
    world.drop_connection(member)
    finish(world)


def test_a_released_key_is_delivered_in_order_and_before_what_was_published_since() -> None:
    world, _ = alone()
    for _ in range(20):
        world.publish("bad", hash_=0)
    world.run(3)
    world.failing = set()
    world.broker.parking.reverse()  # however they came there
    assert release(world) == 20
    for _ in range(20):
        world.publish("bad", hash_=0)
    finish(world)


def test_a_released_message_that_fails_again_is_parked_again_with_those_behind_it() -> None:
    world, member = alone()
    items = [world.publish("bad", hash_=0) for _ in range(5)]
    world.run(3)
    assert release(world) == 5
    world.run(3)
    assert parked_keys(world).state("bad") is KeyState.PARKED
    assert [item.identity for item in world.broker.parking] == [item.identity for item in items]
    assert member.machine.dispatcher.counts.parked == 10
    finish(world)


def test_a_release_that_is_killed_before_it_deletes_repeats_nothing() -> None:
    world, _ = alone()
    items = [world.publish("bad", hash_=0) for _ in range(5)]
    world.run(3)
    world.failing = set()
    release(world, dies_before_deleting=True)
    world.run(3)
    release(world)
    finish(world)
    assert are_done(world, items)


def hot_key_behind_a_backlog() -> tuple[World, SimMember]:
    """Ten messages of the key are parked, and its queue has a backlog, a third of which is of the key."""
    world, member = alone()
    for _ in range(10):
        world.publish("bad", hash_=0)
    world.run(3)
    world.failing = set()
    assert parked_keys(world).messages == 10
    load(world, 600)
    return world, member


def load(world: World, count: int) -> None:
    for number in range(count):
        world.publish("bad" if number % 3 == 0 else f"good{number % 16}", hash_=0)


def test_a_release_past_the_backlog_of_a_key_with_a_steady_load_ends() -> None:
    world, _ = hot_key_behind_a_backlog()
    rounds = 0
    while len(parked_keys(world)):
        rounds += 1
        assert rounds < 5
        load(world, 100)
        release_past_backlogs(world, lasts_s=0.5)
    assert len(world.queues[0].ready) > 100, "the backlog is still there"
    finish(world)


@pytest.mark.slow
def test_a_release_behind_the_backlog_does_not_end_under_a_steady_load() -> None:
    """So the test above can fail."""
    world, _ = hot_key_behind_a_backlog()
    for _ in range(10):
        load(world, 100)
        release(world)
        world.run(0.5)
    assert len(parked_keys(world))
    finish(world)


def test_copies_for_a_member_that_does_not_serve_the_queue_are_dropped() -> None:
    world, _ = alone()
    other = world.join()
    world.run(10)
    world.failing = {"bad", "worse"}
    for hash_, key in enumerate(("bad", "worse")):
        world.publish(key, hash_=hash_)
        world.publish(key, hash_=hash_)
    world.run(3)
    world.failing = set()
    assert release_past_backlogs(world, lasts_s=1, to_others=1.0) == 0
    assert not world.violations
    assert other.link is not None
    finish(world)


def test_a_message_that_comes_from_its_queue_and_to_the_mailbox_is_called_by_one_at_a_time() -> None:
    world, member = alone()
    item = world.publish("bad", hash_=0)
    world.run(3)
    world.failing = set()
    world.chances.call_s = 5.0
    announce_release(world)
    world.run(0.1)
    assert member.link is not None
    world.publish_again(item)
    world.run(0.05)
    assert member.calls
    world.broker.release(member.link, item)
    finish(world)
    assert are_done(world, [item])


def test_a_key_whose_released_copy_is_discarded_at_work_waits_for_its_call() -> None:
    world, member = alone()
    item = world.publish("bad", hash_=0)
    world.run(3)
    world.failing = set()
    world.chances.call_s = 5.0
    announce_release(world)
    world.run(0.1)
    assert member.link is not None
    world.broker.release(member.link, item)
    world.run(0.05)
    assert member.calls
    world.publish("bad", hash_=0)
    world.broker.record(SettleEntry("bad", item.identity))
    world.dead[item.identity] += 1
    world.run(0.3)
    finish(world)


def test_a_copy_of_a_message_that_is_not_parked_is_dropped() -> None:
    world, member = alone()
    world.chances.call_s = 0.1
    items = [world.publish("good", hash_=0) for _ in range(5)]
    world.run(0.01)
    assert member.link is not None
    world.broker.release(member.link, items[3])
    world.run(0.05)
    assert len(member.calls) == 1
    finish(world)
    assert are_done(world, items)


def test_a_copy_that_comes_before_a_successor_has_read_the_parked_keys_is_dropped() -> None:
    world, member = alone()
    item = world.publish("bad", hash_=0)
    world.run(3)
    world.failing = set()
    successor = world.join()
    announce_release(world)
    world.run(10)
    world.chances.parked_lag_s = 1000.0  # for its barrier
    world.kill(member)
    world.publish("good", hash_=0)
    world.run(1)
    assert successor.link is not None
    world.broker.release(successor.link, item)
    world.run(1)
    assert not successor.calls
    assert not world.finished[item.identity]
    world.chances.parked_lag_s = 0.0
    world.drop_connection(successor)
    finish(world)


def test_a_queue_is_handed_over_when_the_copy_at_work_is_done_and_before_the_others() -> None:
    world, member = hot_key_behind_a_backlog()
    world.join()
    world.run(1)
    world.chances.call_s = 0.3
    release_past_backlogs(world, lasts_s=0.5)
    at_work = [
        call.item for call in member.calls.values() if call.message.in_flight.attachment.beside_of is not None
    ]
    before = parked_keys(world).messages
    assert len(at_work) == 1
    member.stop()
    world.run(5)
    assert member.exited
    assert are_done(world, at_work)
    assert member.machine.dispatcher.counts.aborted == 0
    assert parked_keys(world).messages >= before - 1
    finish(world)


def test_a_copy_that_fails_again_is_parked_again_and_those_behind_it_stay() -> None:
    world, member = hot_key_behind_a_backlog()
    world.failing = {"bad"}
    assert release_past_backlogs(world, lasts_s=2) == 0
    assert parked_keys(world).state("bad") is KeyState.PARKED
    assert member.machine.part(Parking) is not None
    finish(world)


def test_a_copy_that_fails_again_is_parked_again_though_there_is_no_room_for_another_message() -> None:
    world, member = alone(bounds=ParkingBounds(messages=1))
    item = world.publish("bad", hash_=0)
    world.run(3)
    for _ in range(2):
        assert release_past_backlogs(world, lasts_s=2) == 0
        assert parked_keys(world).is_parked("bad", item.identity)
        assert parked_keys(world).state("bad") is KeyState.PARKED
    assert member.machine.dispatcher.counts.poisoned == 0
    finish(world)


def test_a_late_entry_of_a_message_that_was_processed_is_settled_by_who_serves_its_queue() -> None:
    world, member = alone()
    _, good = (world.publish("good", hash_=0) for _ in range(2))
    world.run(1)
    assert are_done(world, [good])
    world.broker.record(ParkEntry("good", good.identity, 1, "cause of a dead member", "copy"))
    world.run(1)
    assert not len(parked_keys(world))
    assert SettleEntry("good", good.identity) in world.broker.parked_log
    assert member.machine.part(Parking) is not None
    assert member.machine.part(Parking).state("good") is KeyState.FREE


def until_copied(world: World) -> Item:
    """One copy is in the parking queue, and its entry is not written."""
    while not world.broker.parking:
        world.run(0.0005)
    assert not any(isinstance(one, ParkEntry) for one in world.broker.parked_log)
    return world.broker.parking[0]


def test_a_copy_of_a_member_that_died_before_its_entry_is_deleted_and_a_late_entry_has_no_effect() -> None:
    world, member = alone()
    item = world.publish("bad", hash_=0)
    copy = until_copied(world)
    for link in world.broker.links:
        link.writes_late = False
    world.kill(member)
    world.failing = set()
    world.join()
    world.run(3)
    assert are_done(world, [item])
    assert delete_leftovers(world) == 1
    world.broker.record(ParkEntry("bad", item.identity, 1, "cause", copy.copy))
    world.run(1)
    assert not len(parked_keys(world))
    finish(world)


def test_a_copy_that_is_deleted_before_its_entry_is_made_again_by_a_member_that_lives() -> None:
    world, member = alone()
    item = world.publish("bad", hash_=0)
    copy = until_copied(world)
    assert delete_leftovers(world) == 1
    world.run(1)
    (again,) = world.broker.parking
    assert again.identity == item.identity
    assert again.copy != copy.copy
    assert list(parked_keys(world).numbers("bad")) == [item.identity]
    assert member.machine.dispatcher.counts.parked == 1
    assert not world.queues[0].consumers[0].unacked
    finish(world)


def test_a_copy_whose_entry_comes_before_it_is_void_is_kept() -> None:
    world, _ = alone()
    world.publish("bad", hash_=0)
    until_copied(world)
    assert delete_leftovers(world, waits_s=1) == 0
    assert len(world.broker.parking) == 1
    finish(world)


@pytest.mark.parametrize("bounds", [ParkingBounds(messages=3), ParkingBounds(keys=1)])
def test_beyond_the_bounds_keys_block_and_a_release_gets_through(bounds: ParkingBounds) -> None:
    world, _ = alone(bounds=bounds)
    world.failing = {"bad", "worse"}
    for _ in range(3):
        world.publish("bad", hash_=0)
    world.run(2)
    assert len(world.broker.parking) == 3
    world.publish("worse", hash_=0)
    world.publish("bad", hash_=0)
    good = [world.publish(f"good{number}", hash_=0) for number in range(20)]
    world.run(5)
    assert are_done(world, good)
    assert parked_keys(world).state("worse") is KeyState.FREE
    assert "worse" in [call.key for call in failures(world, Failure.POISONED)]
    finish(world)


def test_a_member_that_reads_from_a_snapshot_knows_what_was_parked_before_it_and_while_it_was_made() -> None:
    world, member = alone()
    world.failing = {"bad", "worse"}
    world.publish("bad", hash_=0)
    world.run(2)
    world.publish("worse", hash_=0)
    world.publish("bad", hash_=0)
    compact(world)
    world.run(2)
    assert world.broker.parked_from is not None
    world.kill(member)
    successor = world.join()
    items = [world.publish(key, hash_=hash_) for key, hash_ in (("bad", 0), ("worse", 0), ("bad", 0))]
    world.run(3)
    assert successor.machine.dispatcher.counts.parked == len(items)
    finish(world)


def test_messages_without_a_key_block_as_before() -> None:
    world, _ = alone()
    world.failing = {None}
    world.publish(None, hash_=0)
    good = world.publish("good", hash_=0)
    world.run(3)
    assert are_done(world, [good])
    assert not world.broker.parking
    assert failures(world, Failure.POISONED)
    finish(world)


def fault(world: World, chance: random.Random) -> None:
    up = world.up()
    match chance.randrange(10):
        case 0 | 1 if len(up) > 1:
            world.kill(chance.choice(up))
        case 2 if len(up) > 1:
            chance.choice(up).stop()
        case 3 if up:
            world.drop_connection(chance.choice(up))
        case 4:
            release(world, dies_before_deleting=chance.random() < 0.3)
        case 5:
            world.failing = set(chance.sample([f"k{number}" for number in range(12)], 3))
        case 6 if len(up) > 1:
            world.stall(chance.choice(up), chance.uniform(1, 15))
        case 7:
            delete_leftovers(world, waits_s=chance.choice((0.0, 1.0)))
        case 8:
            compact(world, dies_before_the_record=chance.random() < 0.3)
        case 9:
            release_past_backlogs(world, lasts_s=chance.uniform(0, 1), to_others=0.2)
        case _:
            pass
    while len([one for one in world.up() if not one.stalled]) < 2:
        world.join()
    if chance.random() < 0.3 and len(world.up()) < 5:
        world.join()


@pytest.mark.long
@over_seeds(6)
def test_random_histories_lose_nothing_and_keep_the_order_of_each_key(seed: int) -> None:
    chance = random.Random(seed)
    world = World(
        seed,
        rules=rules(bounds=ParkingBounds(messages=chance.choice((20, 10_000)))),
        chances=Chances(
            hint_lost=0.05,
            retry=0.02,
            call_s=0.02,
            delay_s=chance.choice((0.002, 0.05)),
            parked_lag_s=chance.choice((0.0, 2.0)),
        ),
    )
    for _ in range(3):
        world.join()
    world.run(2)
    world.failing = {"k1", "k5"}
    for _ in range(60):
        for _ in range(chance.randrange(30)):
            item = world.publish(f"k{chance.randrange(12)}")
            if chance.random() < 0.02:
                world.publish_again(item)
        world.run(chance.uniform(0.05, 1.0))
        if chance.random() < 0.5:
            fault(world, chance)
    finish(world)


def test_a_released_copy_at_work_holds_up_the_fence_of_its_hash() -> None:
    """Seed 529 of histories with all features: another member called the same message from the queue to which its hash
    had gone."""
    world = World(3, queue_count=2, hash_count=8, rules=rules())
    member = world.join()
    world.run(1)
    world.failing = {"bad"}
    item = world.publish("bad", hash_=2)  # 2 leaves queue 0 for queue 2 of three
    world.run(3)
    world.failing = set()
    announce_release(world)
    world.run(0.1)
    world.chances.slow, world.chances.slow_s = 1.0, 10.0
    assert member.link is not None
    world.broker.release(member.link, item)
    world.run(0.1)
    assert member.calls
    mover = KeyMover(world)
    mover.start(3)
    world.run(3)
    assert member.calls
    assert 1 in mover.state.passed
    assert 0 not in mover.state.passed
    world.chances.slow = 0.0
    world.run(30)
    assert not mover.is_running
    finish(world)
    assert are_done(world, [item])


def test_a_released_copy_is_delivered_when_the_queues_changed_with_the_ingress_open_and_then_closed() -> None:
    world = World(3, queue_count=2, hash_count=8, rules=rules())
    member = world.join()
    world.run(1)
    mover = KeyMover(world)
    mover.start(3)
    world.run(3)
    assert not mover.is_running
    world.queue_count = 4
    world.broker.add_queues(4)
    world.broker.routes = {hash_: [hash_ % 4] for hash_ in world.broker.routes}
    member.driver.reshape(4)
    world.run(1)
    world.failing = {"bad"}
    item = world.publish("bad", hash_=5)
    world.run(3)
    assert world.broker.parking
    world.failing = set()
    assert release_past_backlogs(world, lasts_s=1.0) == 1
    assert are_done(world, [item])
