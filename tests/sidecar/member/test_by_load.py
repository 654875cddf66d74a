"""Assignment by load: queues leave the member that has most to do, and stay where they are else."""

from __future__ import annotations

import pytest

from lbg_core.group import BALANCED, BY_LOAD, NOWHERE_ELSE, Assignment
from lbg_core.group.load_plan import MOVES_FROM
from lbg_core.group.member_state import Placement, QueueLoad
from lbg_core.group.members_protocol import Load, LoadRequest, Message, Place, Placed, Takeover
from lbg_core.group.message_codec import decode
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Moved
from testing.member.world import World
from testing.member.world.member import SimMember
from testing.member.world.situations import fine
from testing.member.world.traffic import Traffic, zipf
from testing.needs import repeated

CALL_S = 0.05
SETTLED_S = 60.0
"""For queues to be where they stay."""


def group(
    members: int, queues: int, *, assignment: Assignment = BY_LOAD, seed: int = 1
) -> tuple[World, list[SimMember]]:
    """Members of one call at a time, each as fast as the others."""
    world = World(
        *(seed, queues, 8 * queues, Rules(concurrency=1)),
        balancing={"assignment": assignment, "client_count": members, "prefetch": 64},
    )
    started = []
    for _ in range(members):
        started.append(world.join())
        world.run(0.5)
        world.service_s[started[-1].name] = CALL_S
    world.run(6)
    world.events.clear()
    return world, started


def traffic(world: World, share: float, *, exponent: float = 0.0, members: float) -> Traffic:
    """Messages for this share of what so many members can do."""
    return Traffic(world, zipf(400, exponent), rate_hz=share * members / CALL_S)


def moves(world: World) -> list[Moved]:
    return [effect for _, _, effect in world.events if isinstance(effect, Moved)]


@pytest.mark.long
def test_frequent_keys_delay_nobody_else() -> None:
    p99_s = {}
    for assignment, exponent in ((BALANCED, 0.0), (BALANCED, 1.0), (BY_LOAD, 1.0)):
        world, _ = group(4, 16, assignment=assignment, seed=3)
        messages = traffic(world, 0.8, exponent=exponent, members=4)
        world.run(SETTLED_S)
        settled = world.now
        world.run(30)
        p99_s[assignment, exponent] = messages.p99_s(since=settled)
        assert any(one.why == "load" for one in moves(world)) == (assignment == BY_LOAD)
        world.service_s.clear()
        fine(world)
        assert world.repeats == 0
    assert p99_s[BALANCED, 1.0] > 10 * p99_s[BALANCED, 0.0]
    assert p99_s[BY_LOAD, 1.0] < 3 * p99_s[BALANCED, 0.0]


@pytest.mark.long
@pytest.mark.parametrize("slow", repeated([0, 2]))
def test_queues_leave_a_member_that_has_become_slow_also_the_coordinator(slow: int) -> None:
    world, members = group(3, 24, seed=3)
    messages = traffic(world, 0.8, members=2.25)
    world.run(20)
    assert moves(world) == []
    world.service_s[members[slow].name] = 4 * CALL_S
    world.run(30)
    for _ in range(30):
        world.run(1)
        assert messages.oldest_s < 5.0
    assert {one.why for one in moves(world)} == {"load"}
    fine(world, after_s=20)
    assert world.repeats == 0


def test_a_queue_that_moves_by_load_goes_to_its_new_member_at_once() -> None:
    """However long the broker needs for each of its consumers."""
    world, members = group(4, 32, seed=5)
    world.chances.delay_s = 0.04
    traffic(world, 0.8, members=3.25)
    world.run(20)
    world.events.clear()
    world.service_s[members[2].name] = 4 * CALL_S
    world.run(40)
    moved = [one.queue for one in moves(world)]
    taken = [one for _, _, one in world.events if isinstance(one, Takeover)]
    assert len(moved) > 4
    assert sorted(one.queue for one in taken) == sorted(moved)
    assert all(one.planned and one.why == "load" for one in taken)
    fine(world, after_s=20)


@pytest.mark.slow
def test_members_that_keep_up_move_nothing_once_it_has_settled() -> None:
    world, _ = group(3, 12)
    messages = traffic(world, 0.8, exponent=0.8, members=3)
    world.run(SETTLED_S)
    world.events.clear()
    world.run(600)
    assert moves(world) == []
    assert messages.oldest_s < 5.0


def test_a_group_without_much_to_do_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = group(2, 4)
    sent: list[Message | None] = []
    monkeypatch.setattr(world.broker, "post", lambda link, body, to: sent.append(decode(body)))
    traffic(world, MOVES_FROM / 2, members=2)
    world.run(20)
    assert sent
    assert not any(isinstance(one, Load | LoadRequest | Place | Placed) for one in sent)


def moved_to(world: World, member: SimMember) -> int:
    """A queue of index 0 that this member serves by a proposal."""
    queue = next(queue for queue, index in world.served_by().items() if index == 0)
    traffic(world, 0.2, members=2)
    world.run(1)
    world.propose(queue, member)
    world.run(8)
    return queue


def test_an_exception_ends_with_its_holder() -> None:
    world, (first, second) = group(2, 4)
    queue = moved_to(world, second)
    assert world.served_by()[queue] == 1
    assert first.machine.rules.exceptions == second.machine.rules.exceptions == {(queue, 1)}
    world.kill(second)
    world.run(30)
    assert first.machine.rules.exceptions == NOWHERE_ELSE
    assert world.served_by()[queue] == 0


def test_a_member_that_joins_knows_the_exceptions() -> None:
    world, (_, second) = group(2, 4)
    queue = moved_to(world, second)
    third = world.join()
    world.run(10)
    assert third.machine.rules.exceptions == {(queue, 1)}
    assert world.served_by()[queue] == 1


def test_a_proposal_that_does_not_know_the_last_register_changes_nothing() -> None:
    world, (first, second) = group(2, 4)
    queue = next(queue for queue, index in world.served_by().items() if index == 0)
    traffic(world, 0.2, members=2)
    world.run(1)
    me, other = first.machine.roster.me, second.machine.roster.me
    assert me is not None
    assert other is not None
    for number, target in ((1, me.incarnation), (0, "another")):
        first.receives(Place(other, target, (Placement(queue, other.incarnation, number),)))
    world.run(8)
    assert first.machine.rules.exceptions == NOWHERE_ELSE
    assert world.served_by()[queue] == 0


def test_a_queue_that_is_too_many_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members serve it until it is deleted, and the coordinator may have the new number before them."""
    world, (first, second) = group(2, 4)
    sent: list[Message | None] = []
    monkeypatch.setattr(world.broker, "post", lambda link, body, to: sent.append(decode(body)))
    other = second.machine.roster.me
    assert other is not None
    demands = {1: 0.4, 3: 0.4, 5: 0.45}
    first.receives(Load(other, 1, tuple(QueueLoad(*one, CALL_S) for one in demands.items())))
    world.run(1)
    (place,) = (one for one in sent if isinstance(one, Place))
    assert [one.queue for one in place.moves] == [1]


def test_another_assignment_ends_all_exceptions() -> None:
    world, (first, second) = group(2, 4)
    queue = moved_to(world, second)
    assert world.served_by()[queue] == 1
    world.assign(BALANCED)
    world.run(15)
    assert first.machine.rules.exceptions == NOWHERE_ELSE
    assert world.served_by()[queue] == 0


def test_a_proposal_after_another_assignment_changes_nothing() -> None:
    world, (first, second) = group(2, 4)
    queue = moved_to(world, second)
    world.assign(BALANCED)
    world.run(15)
    number = second.machine.roster.placements.number(queue)
    world.propose(queue, second)
    world.run(1)
    assert first.machine.roster.placements.number(queue) == number
