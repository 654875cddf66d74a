"""An administrator who releases parked keys, and may be killed at any step."""

from __future__ import annotations

from collections.abc import Collection

from lbg_broker.group.parked_keys import ParkedKeys, ReleaseEntry
from support.member.world.queues import Item
from support.member.world.world import World


def parked_keys(world: World) -> ParkedKeys:
    """The set to which the entries of the stream add up."""
    parked = ParkedKeys()
    for entry in world.broker.parked_log:
        parked.apply(entry)
    return parked


def release(world: World, keys: Collection[str] | None = None, *, dies_before_deleting: bool = False) -> int:
    """One round: all parked keys, or these. Returns how many messages were published to the group again."""
    broker, parked = world.broker, parked_keys(world)
    released = [one for one in parked.parked() if keys is None or one.key in keys]
    for one in released:
        broker.record(ReleaseEntry(one.key, one.causes))
    world.run(0.1)  # so that members have read it; else they park the copies once more
    names = {one.key for one in released}
    copies = [item for item in broker.parking if item.key in names]
    published: set[tuple[str, int, int]] = set()
    for item in sorted(copies, key=lambda item: item.seq):
        assert item.key is not None
        if item.identity not in published and parked.is_parked(item.key, item.identity):
            published.add(item.identity)
            broker.publish_parked(item)
    if not dies_before_deleting:
        kept: list[Item] = [
            item
            for item in broker.parking
            if item.identity not in published and not parked.is_settled(item.identity)
        ]
        broker.parking = kept
    return len(published)
