"""An administrator who releases parked keys, and may be killed at any step."""

from __future__ import annotations

from collections.abc import Collection

from lbg_core.group import queue_of
from lbg_core.group.parked_keys import MarkEntry, ParkedKeys, RecordedCopies, ReleaseEntry, VoidEntry
from lbg_core.group.parked_snapshot import SnapshotPlace, SnapshotReader, parts_of
from testing.member.world.history import Item
from testing.member.world.world import World


def parked_keys(world: World) -> ParkedKeys:
    """The set to which the entries of the stream add up."""
    return _read(world, None)[0]


def _read(world: World, place: SnapshotPlace | None) -> tuple[ParkedKeys, RecordedCopies]:
    """As a reader from this place has it."""
    parked, recorded = ParkedKeys(), RecordedCopies()
    entries = world.broker.parked_log[0 if place is None else place.offset :]
    for entry in SnapshotReader(place).read(entries):
        parked.apply(entry)
        recorded.applied(entry, parked)
    return parked, recorded


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
            broker.publish_again(item)
    if not dies_before_deleting:
        kept: list[Item] = [
            item
            for item in broker.parking
            if item.identity not in published and not parked.is_settled(item.identity)
        ]
        broker.parking = kept
    return len(published)


def release_past_backlogs(
    world: World, *, lasts_s: float, to_others: float = 0.0, keys: Collection[str] | None = None
) -> int:
    """One round over the mailboxes of the members that serve the queues, or of others at random. Returns how many
    messages are settled after it."""
    broker, parked = world.broker, parked_keys(world)
    released = [one for one in parked.parked() if keys is None or one.key in keys]
    for one in released:
        if not one.is_released:
            broker.record(ReleaseEntry(one.key, one.causes))
    world.run(0.1)
    names = {one.key for one in released}
    for item in sorted((item for item in broker.parking if item.key in names), key=lambda item: item.seq):
        consumers = world.queues[queue_of(item.hash_, world.queue_count)].consumers
        serving = [one.link for one in consumers[:1]]
        others = [link for link in broker.links if link not in serving]
        links = others if world.random.random() < to_others else serving
        if links:
            broker.release(world.random.choice(links), item)
    world.run(lasts_s)
    parked = parked_keys(world)
    settled = [item for item in broker.parking if parked.is_settled(item.identity)]
    broker.parking = [item for item in broker.parking if item not in settled]
    return len(settled)


def delete_leftovers(world: World, *, waits_s: float = 0.0) -> int:
    """Deletes the copies that are of no parked message; returns how many."""
    broker, parked = world.broker, parked_keys(world)
    copies = [item for item in broker.parking if item.key and not parked.is_parked(item.key, item.identity)]
    world.run(waits_s)
    broker.record(VoidEntry(tuple(item.copy for item in copies)))
    _, recorded = _read(world, broker.parked_from)
    left = [item for item in copies if not recorded.has(item.identity, item.copy)]
    broker.parking = [item for item in broker.parking if item not in left]
    return len(left)


def compact(world: World, *, dies_before_the_record: bool = False) -> None:
    """Writes the set as a snapshot, while members go on, and has readers begin there."""
    broker = world.broker
    place = SnapshotPlace(len(broker.parked_log), world.random.randbytes(8).hex())
    broker.record(MarkEntry(place.mark))
    parked, recorded = _read(world, broker.parked_from)
    for part in parts_of(place.mark, parked.snapshot(recorded)):
        world.run(world.random.random() * 0.1)
        broker.record(part)
    if not dies_before_the_record:
        broker.parked_from = place
        assert messages_of(_read(world, place)[0]) == messages_of(parked_keys(world))


def messages_of(parked: ParkedKeys) -> dict[str, list[tuple[str, int, int]]]:
    return {one.key: list(parked.numbers(one.key)) for one in parked.parked()}
