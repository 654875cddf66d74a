"""Random lives of a group: whatever happens, nothing is lost and no key is out of order."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from lbg_core.group import BY_LOAD, NOWHERE_ELSE, STATIC, owners_with
from lbg_sidecar.core.dispatcher import Order, Rules
from testing.exploration import example_count
from testing.member.world import Chances, World
from testing.member.world.situations import act, publishing

KEYS = [f"k{n}" for n in range(9)] + [None]

# A failure is told by its seed and script; explaining which lines it ran takes minutes and says little.
lives = partial(
    settings,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)

Step = tuple[float, str, int]

seeds = st.integers(0, 2**32)
gaps = st.sampled_from([0.001, 0.01, 0.1, 1.0, 3.0, 5.2, 12.0])


def steps(*kinds: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(gaps, st.sampled_from(kinds), st.integers(0, 9)), max_size=12)


chances = st.builds(
    Chances,
    hint_lost=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    retry=st.sampled_from([0.0, 0.0, 0.1]),
    drop=st.sampled_from([0.0, 0.05]),
    slow=st.sampled_from([0.0, 0.0, 0.02]),
    call_s=st.sampled_from([0.0, 0.005, 0.05]),
    delay_s=st.sampled_from([0.0005, 0.002, 0.02]),
    look_fails=st.sampled_from([0.0, 0.0, 0.3]),
)


def live_through(world: World, script: list[Step]) -> None:
    """Two members, messages all the while, and the script; then calm, and long enough to settle."""
    world.join()
    world.join()
    published = publishing(world, KEYS, rate_hz=60.0)
    for gap, kind, who in script:
        world.run(gap)
        act(world, kind, who, published)
    world.run(1)
    world.calm = True
    for _ in range(50):
        world.run(1)
        for hash_ in range(world.queue_count):
            world.publish(f"calm{hash_}", hash_=hash_)
    world.run(8)


def check(world: World) -> None:
    note(str(world.events[-40:]))
    assert not world.violations
    up = world.up()
    if not up:
        return
    assert not world.unfinished()
    assert all(not queue.ready for queue in world.queues)
    live = {member.index for member in up}
    for member in up:
        assert member.machine.roster.live == live
        assert not member.calls
        assert not member.machine.dispatcher.lanes.running
    assert None not in world.served_by().values()
    assert world.repeats <= world.disturbed + world.forced + world.resent
    expect_assigned(world)


def expect_assigned(world: World) -> None:
    """Each queue is served by whom the assignment of the group names."""
    served, up = world.served_by(), [member.index for member in world.up()]
    if world.balancing["assignment"] == STATIC:
        assert all(served[queue] == queue % 3 for queue in served if queue % 3 in up)
    elif up:
        (exceptions,) = {member.machine.rules.exceptions for member in world.up()}
        assert exceptions == NOWHERE_ELSE or world.balancing["assignment"] == BY_LOAD
        assert served == dict(enumerate(owners_with(exceptions, 4, frozenset(up))))


@pytest.mark.long
@lives(max_examples=example_count(25, of_few=0.5))
@given(seed=seeds, script=steps("join", "leave", "assign"), chances=chances, order=st.sampled_from(Order))
def test_planned_moves_lose_nothing_reorder_nothing_and_repeat_nothing_unless_forced(
    seed: int, script: list[Step], chances: Chances, order: Order
) -> None:
    world = World(seed, chances=chances, rules=Rules(concurrency=4, order=order))
    live_through(world, script)
    check(world)
    assert world.disturbed == 0
    if not world.forced:
        assert world.repeats == 0


@pytest.mark.long
@lives(max_examples=example_count(25, of_few=0.5))
@given(
    seed=seeds,
    script=steps("join", "leave", "kill", "drop", "stall", "swallow", "suspect", "again"),
    chances=chances,
    republish=st.booleans(),
)
def test_no_fault_loses_or_reorders_a_message_and_balance_comes_back(
    seed: int, script: list[Step], chances: Chances, republish: bool
) -> None:
    world = World(seed, chances=chances, rules=Rules(concurrency=4, republish=republish))
    live_through(world, script)
    check(world)


@pytest.mark.long
@lives(max_examples=example_count(25, of_few=0.5))
@given(seed=seeds, script=steps("join", "leave", "propose", "propose", "assign"), chances=chances)
def test_moves_by_load_lose_nothing_reorder_nothing_and_repeat_nothing_unless_forced(
    seed: int, script: list[Step], chances: Chances
) -> None:
    world = World(seed, chances=chances, balancing={"assignment": BY_LOAD})
    live_through(world, script)
    check(world)
    assert world.disturbed == 0
    if not world.forced:
        assert world.repeats == 0


@pytest.mark.long
@lives(max_examples=example_count(25, of_few=0.5))
@given(
    seed=seeds,
    script=steps("join", "leave", "kill", "drop", "stall", "suspect", "propose", "propose"),
    chances=chances,
)
def test_members_agree_on_moves_by_load_whatever_goes_wrong(
    seed: int, script: list[Step], chances: Chances
) -> None:
    world = World(seed, chances=chances, balancing={"assignment": BY_LOAD})
    live_through(world, script)
    check(world)


@pytest.mark.long
@lives(max_examples=example_count(25, of_few=0.5))
@given(seed=seeds, script=steps("join", "leave", "kill", "drop", "assign"), chances=chances)
def test_static_members_release_their_secondaries_without_loss_and_primaries_rise_to_the_top(
    seed: int, script: list[Step], chances: Chances
) -> None:
    world = World(seed, chances=chances, balancing={"assignment": STATIC})
    live_through(world, script)
    check(world)
