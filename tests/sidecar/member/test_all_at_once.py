"""All features at once: keys are parked and released, skipped and suspected, while queues and members change."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from lbg_core.client.backoff import Backoff
from lbg_core.group.member_state import Identity, Suspected
from lbg_core.group.members_protocol import Pause, Skip
from lbg_sidecar.core.dispatcher import ParkingBounds, Rules, WhenExhausted
from testing.exploration import over_seeds
from testing.member.world import Chances, SimMember, World
from testing.member.world.key_moves import KeyMover
from testing.member.world.parking import parked_keys, release, release_past_backlogs

KEYS = [f"k{number}" for number in range(16)]
COMMAND = Identity(0, "", "")
SECONDS = 60

RULES = Rules(
    concurrency=4,
    max_attempts=2,
    backoff=Backoff(first_s=0.05, max_s=0.5, jitter=0.0),
    when_exhausted=WhenExhausted.PARK,
    parking=ParkingBounds(keys=2, messages=40),
)
"""Of a third failing key nothing is parked: it blocks, and may be skipped."""

CHANCES = Chances(hint_lost=0.02, retry=0.05, drop=0.01, slow=0.01, parked_lag_s=0.2, routing_lag_s=0.05)


class Life:
    """A group to which something happens a few times a second."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed, queue_count=3, hash_count=16, rules=RULES, chances=CHANCES)
        self.mover = KeyMover(self.world)
        self.counts: dict[str, int] = {}
        for _ in range(3):
            self.world.join()
        self.world.run(3)

    def step(self) -> None:
        for _ in range(self.chance.randrange(12)):
            self.world.publish(self.chance.choice(KEYS))
        what = self.chance.choice(list(self.WAYS))
        up = [member for member in self.world.up() if member.link is not None and not member.stalled]
        if up or what == "join":
            self.WAYS[what](self, self.chance.choice(up) if up else None)
        self.world.run(self.chance.random() * 0.6)

    def fail(self, _: SimMember) -> None:
        self.world.failing = set(self.chance.sample(KEYS, self.chance.randrange(5)))

    def skip(self, member: SimMember) -> None:
        held = [
            one
            for binding in member.machine.bindings.own()
            if binding.attachment is not None
            for one in binding.attachment.poisoned
        ]
        if held:
            self.counts["skipped"] = self.counts.get("skipped", 0) + 1
            member.receives(Skip(COMMAND, "a", self.chance.choice(held).id))

    def suspect(self, member: SimMember) -> None:
        called = [one.identity for one in member.machine.dispatcher.running if one.identity is not None]
        if called:
            self.world.kill(member)
            self.join(None)
            suspected = Suspected(called[0], attempts=1, calls=2, parked=0, member=member.name)
            for other in self.world.up():
                if other.link is not None and not other.stalled:
                    other.machine.suspects.merge([suspected], self.world.now)

    def pause(self, member: SimMember) -> None:
        member.receives(Pause(COMMAND, True))
        self.world.run(0.5)
        if member.process.alive and not member.exited:
            member.receives(Pause(COMMAND, False))

    def move_keys(self, _: SimMember) -> None:
        self.counts["moved"] = self.counts.get("moved", 0) + (not self.mover.is_running)
        self.mover.start(self.chance.randrange(1, 7))

    def stop_moving(self, _: SimMember) -> None:
        self.mover.kill()

    def release(self, _: SimMember) -> None:
        self.counts["released"] = self.counts.get("released", 0) + release(self.world)

    def release_past(self, _: SimMember) -> None:
        release_past_backlogs(self.world, lasts_s=0.3, to_others=0.2)

    def join(self, _: SimMember | None) -> None:
        if len(self.world.up()) < 5:
            self.world.join()

    def kill(self, member: SimMember) -> None:
        self.world.kill(member)
        self.join(None)

    def stop(self, member: SimMember) -> None:
        member.stop()
        self.join(None)

    def stall(self, member: SimMember) -> None:
        self.world.stall(member, self.chance.random() * 15)

    def drop_connection(self, member: SimMember) -> None:
        self.world.drop_connection(member)

    WAYS: ClassVar = {
        "fail": fail,
        "skip": skip,
        "skip more": skip,
        "suspect": suspect,
        "pause": pause,
        "move keys": move_keys,
        "stop moving": stop_moving,
        "release": release,
        "release past backlogs": release_past,
        "join": join,
        "kill": kill,
        "stop": stop,
        "stall": stall,
        "drop connection": drop_connection,
    }

    def finish(self) -> None:
        world = self.world
        world.failing, world.calm = set(), True
        for _ in range(60):
            if not world.up():
                world.join()
            if world.broker.key_move is not None or len(world.queues) > world.queue_count:
                self.mover.start(world.queue_count)
            elif not len(parked_keys(world)) and not world.unfinished():
                break
            release(world)
            world.run(3)
        world.run(20)  # a member that stood still goes on


@pytest.mark.long
@over_seeds(8)
def test_nothing_is_lost_or_out_of_order_and_no_two_calls_of_a_key_are_at_once(seed: int) -> None:
    life = Life(seed)
    world = life.world
    while world.now < SECONDS:
        life.step()
    assert not world.violations, world.violations[:5]
    life.finish()
    assert not world.violations, world.violations[:5]
    assert not world.unfinished()
    assert not len(parked_keys(world))
    for member in world.up():
        assert not member.calls
        assert not member.machine.dispatcher.running
        assert not member.machine.dispatcher.lanes.awaiting


@pytest.mark.slow
def test_the_features_meet() -> None:
    """Else the test above shows nothing."""
    counts = {"skipped": 0, "moved": 0, "released": 0}
    for seed in range(8):
        life = Life(seed)
        while life.world.now < SECONDS:
            life.step()
        for name in counts:
            counts[name] += life.counts.get(name, 0)
    assert all(counts.values()), counts
