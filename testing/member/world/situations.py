"""Start and end of named situations: a group in balance under load, and a recovered one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lbg_core.group import BALANCED, BY_LOAD, STATIC, balanced_primaries
from testing.member.world.history import Item
from testing.member.world.member import SimMember
from testing.member.world.world import World


def feed(world: World, seconds: float, *, every_s: float = 0.02) -> None:
    """Messages to every queue, all the while."""
    for step in range(round(seconds / every_s)):
        hash_ = step % world.queue_count
        world.at(world.now + step * every_s, lambda h=hash_: world.publish(f"key{h}", hash_=h))
    world.run(seconds)


def publishing(world: World, keys: Sequence[str | None], *, rate_hz: float) -> list[Item]:
    """Messages all the while, until the world is calm."""
    published: list[Item] = []

    def publish() -> None:
        published.append(world.publish(keys[len(published) * 7 % len(keys)]))
        if not world.calm:
            world.at(world.now + 1 / rate_hz, publish)

    publish()
    return published


def act(world: World, kind: str, who: int, published: Sequence[Item]) -> None:
    """Something happens to one of the members, of which there are five at most, or to a queue."""
    up = world.up()
    if kind == "join" or not up:
        if len(up) < 5:
            world.join()
        return
    member = up[who % len(up)]
    acts: dict[str, Callable[[], object]] = {
        "leave": member.stop,
        "kill": lambda: world.kill(member),
        "drop": lambda: world.drop_connection(member),
        "stall": lambda: world.stall(member, 4.0 + 2 * who),
        "swallow": lambda: world.queues[who % len(world.queues)].swallow(),
        "suspect": lambda: world.suspect(who % len(world.queues)),
        "assign": lambda: world.assign((BALANCED, STATIC, BY_LOAD)[who % 3]),
        "propose": lambda: world.propose(who % len(world.queues), up[who // 2 % len(up)]),
        "again": lambda: world.publish_again(published[-1 - who % len(published)]),
    }
    acts[kind]()


def settled(
    count: int, *, seed: int = 7, fed_s: float = 12.0, every_s: float = 0.02, **options: Any
) -> tuple[World, list[SimMember]]:
    """A group in balance, under load until now."""
    world = World(seed, **options)
    members = [world.join() for _ in range(count)]
    feed(world, fed_s, every_s=every_s)
    assert world.served_by() == balanced_primaries(world.queue_count, range(count))
    world.events.clear()
    return world, members


def fine(world: World, *, after_s: float = 5.0) -> None:
    """Left alone, everything is done, and nothing went wrong on the way."""
    world.calm = True
    world.run(after_s)
    assert not world.violations
    assert not world.unfinished()
