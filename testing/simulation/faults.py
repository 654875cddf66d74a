"""Faults and operations. Each is a number of a plan, so that a history can be run again without some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from lbg_core.group import BY_LOAD
from lbg_core.group.topology import EMBEDDED
from testing.simulation.application import Application
from testing.simulation.context import Setting
from testing.simulation.member import SimMember
from testing.simulation.network import Connection
from testing.simulation.parking import Parkings
from testing.simulation.publisher import SimPublisher
from testing.simulation.repartition import Administered

MEMBERS_MAX = 12
MEMBERS_ADDED_MAX = 4
"""A group grows to `MEMBERS_MAX`, or by so many where it begins with more than 8."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`choice` and `size`, from 0 to 1, decide what it hits and how long it lasts."""

    at_s: float
    kind: str
    choice: float
    size: float

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.kind} {self.choice:.4f} {self.size:.4f}"


class Installation(Administered, Protocol):
    """The part of a history that faults and operations have."""

    application: Application
    members: list[SimMember]
    parkings: Parkings

    def join(self) -> SimMember: ...
    def replace(self, member: SimMember, *, after_s: float) -> None: ...
    def pause(self, is_paused: bool) -> None: ...
    def ingress(self, is_open: bool) -> None: ...
    def restart_broker(self, stop: Callable[[], None], *, after_s: float) -> None: ...
    def free_disk(self) -> None: ...
    def speed_disk(self) -> None: ...
    def put_back_store(self, *, after_s: float) -> None: ...
    def put_back_state(self, publisher: SimPublisher, *, after_s: float) -> None: ...


Action = Callable[[Installation, Fault], None]
KINDS: dict[str, tuple[float, Action]] = {}
"""Name -> weight, action."""

OFFLINE_SHARE = 0.3
"""Of repartitions where both ways are there."""

_ENGINES: dict[str, str] = {}
"""Engines of those that one engine has only."""

_OF_PARKING: set[str] = set()
"""Those that only groups with a parking queue have."""

_OF_LOAD: set[str] = set()
"""Those that only groups which are assigned by load have."""


def fault(
    weight: float, *, engine: str | None = None, of_parking: bool = False, of_load: bool = False
) -> Callable[[Action], Action]:
    def register(action: Action) -> Action:
        KINDS[action.__name__] = (weight, action)
        if of_parking:
            _OF_PARKING.add(action.__name__)
        if of_load:
            _OF_LOAD.add(action.__name__)
        if engine is not None:
            _ENGINES[action.__name__] = engine
        return action

    return register


def kinds_of(setting: Setting) -> tuple[str, ...]:
    return tuple(
        name
        for name in KINDS
        if _ENGINES.get(name, setting.engine) == setting.engine
        and (setting.has_parking or name not in _OF_PARKING)
        and (setting.assignment == BY_LOAD or name not in _OF_LOAD)
    )


def plan(seed: int, kinds: Iterable[str], *, seconds: float, per_hour: float) -> list[Fault]:
    """Faults of a history, in the order of time."""
    chance = random.Random(seed)
    names = list(kinds)
    weights = [KINDS[one][0] for one in names]
    count = round(seconds * per_hour / 3600)
    times = sorted(chance.uniform(5.0, seconds) for _ in range(count))
    return [Fault(at, chance.choices(names, weights)[0], chance.random(), chance.random()) for at in times]


def chosen_member(history: Installation, choice: float) -> SimMember | None:
    up = [one for one in history.members if one.is_up]
    return up[int(choice * len(up))] if up else None


def _connection(history: Installation, choice: float) -> Connection | None:
    found = [wire for member in history.members if member.is_up for wire in member.wires]
    found += [one.wire for one in history.publishers if one.process.alive and one.wire is not None]
    if history.parkings.is_running and history.parkings.connection is not None:
        found.append(history.parkings.connection.wire)
    return found[int(choice * len(found))] if found else None


@fault(4)
def kill_member(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None:
        history.note(f"kill -9 {member.name}")
        history.replace(member, after_s=it.size * 5)


@fault(2)
def freeze_member(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None:
        seconds = 0.05 * 1000**it.size
        history.note(f"{member.name} stands still for {seconds:.1f} s")
        member.freeze(seconds)


@fault(4)
def cut(history: Installation, it: Fault) -> None:
    connection = _connection(history, it.choice)
    if connection is not None:
        history.note(f"connection {connection.number} of {connection.client.process.name} is cut")
        connection.cut()


@fault(1)
def half_open(history: Installation, it: Fault) -> None:
    connection = _connection(history, it.choice)
    if connection is not None:
        is_up = it.size < 0.5
        history.note(
            f"connection {connection.number} of {connection.client.process.name} is half open "
            f"({'to' if is_up else 'from'} the broker)"
        )
        connection.break_half(up=is_up)


@fault(6)
def delay(history: Installation, it: Fault) -> None:
    connection = _connection(history, it.choice)
    if connection is not None:
        seconds = 0.01 * 500**it.size
        history.note(f"connection {connection.number} carries nothing for {seconds:.2f} s")
        connection.stall(seconds)


@fault(1)
def crash_application(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None and member.is_app_ready:
        history.note(f"the application of {member.name} crashes")
        history.application.crash(member, it.size * 4)


@fault(0.4, engine=EMBEDDED)
def kill_broker(history: Installation, it: Fault) -> None:
    written = it.choice < 0.5
    history.note(f"kill -9 of the broker, with its last batch {'' if written else 'not '}written")
    history.restart_broker(lambda: history.embedded.crash(written=written), after_s=it.size * 3)


@fault(0.3, engine=EMBEDDED)
def lose_power(history: Installation, it: Fault) -> None:
    def stop() -> None:
        lost = history.embedded.lose_power()
        history.note(f"the broker's machine loses power, and {lost} batches that were not synced")

    history.restart_broker(stop, after_s=it.size * 3)


@fault(0.2, engine=EMBEDDED)
def restart_broker(history: Installation, it: Fault) -> None:
    history.note("the broker restarts in order")
    history.restart_broker(history.embedded.stop, after_s=it.size * 2)


@fault(0.3, engine=EMBEDDED)
def freeze_broker(history: Installation, it: Fault) -> None:
    seconds = 0.05 * 600**it.size
    history.note(f"the broker stands still for {seconds:.1f} s")
    history.embedded.freeze(seconds)


@fault(0.4, engine=EMBEDDED)
def fill_disk(history: Installation, it: Fault) -> None:
    seconds = it.size * 20
    history.note(f"the disk is full for {seconds:.1f} s")
    history.embedded.disk.is_full = True
    history.clock.after(seconds, history.process, history.free_disk)


@fault(0.5, engine=EMBEDDED)
def slow_disk(history: Installation, it: Fault) -> None:
    history.note(f"a commit takes {0.5 * it.size:.2f} s for 5 s")
    history.embedded.commit_s = 0.5 * it.size
    history.clock.after(5.0, history.process, history.speed_disk)


@fault(0.1, engine=EMBEDDED)
def put_back_store(history: Installation, it: Fault) -> None:
    history.put_back_store(after_s=it.size * 2)


@fault(2)
def kill_publisher(history: Installation, it: Fault) -> None:
    publisher = history.publishers[int(it.choice * len(history.publishers))]
    if publisher.process.alive:
        history.note(f"kill -9 {publisher.name}")
        publisher.kill()
        history.clock.after(it.size * 3, history.process, publisher.restart)


@fault(1)
def freeze_publisher(history: Installation, it: Fault) -> None:
    publisher = history.publishers[int(it.choice * len(history.publishers))]
    seconds = 0.05 * 1000**it.size
    history.note(f"{publisher.name} stands still for {seconds:.1f} s")
    publisher.freeze(seconds)


@fault(0.3)
def put_back_state(history: Installation, it: Fault) -> None:
    publisher = history.publishers[int(it.choice * len(history.publishers))]
    if publisher.process.alive:
        history.note(f"{publisher.name} is killed, and goes on from an old copy of its state")
        history.put_back_state(publisher, after_s=it.size * 3)


@fault(1.5)
def scale_in(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None and sum(one.is_up and one.stopped_at is None for one in history.members) > 1:
        history.note(f"SIGTERM {member.name}")
        member.stop()


@fault(1.5)
def scale_out(history: Installation, it: Fault) -> None:
    most = max(MEMBERS_MAX, history.setting.members + MEMBERS_ADDED_MAX)
    if sum(one.is_up for one in history.members) < most:
        member = history.join()
        history.note(f"{member.name} is started")


@fault(0.5)
def pause(history: Installation, it: Fault) -> None:
    history.note("the group is paused")
    history.pause(True)
    history.clock.after(it.size * 5, history.process, history.pause, False)


@fault(0.2)
def rotate(history: Installation, it: Fault) -> None:
    history.note("a new password: the broker closes all connections")
    history.broker.close_connections("new password")


@fault(0.5)
def close_ingress(history: Installation, it: Fault) -> None:
    history.note("ingress is closed")
    history.ingress(False)
    history.clock.after(it.size * 5, history.process, history.ingress, True)


@fault(0.3)
def repartition(history: Installation, it: Fault) -> None:
    queues, former = history.setting.queues, history.spec.queue_count
    count = (queues // 2, queues * 3 // 4, queues, min(queues * 2, history.spec.hash_count))[
        int(it.choice * 4)
    ]
    is_locked = history.repartitions.is_running or history.parkings.is_running
    if not is_locked and count != former:
        offline = it.size < OFFLINE_SHARE
        history.note(
            f"lbg group repartition: from {former} to {count} queues{', offline' if offline else ''}"
        )
        history.repartitions.start(count, offline=offline)


@fault(0.2)
def kill_repartition(history: Installation, it: Fault) -> None:
    if history.repartitions.is_running:
        history.note("kill -9 lbg group repartition")
        history.repartitions.kill()
        history.clock.after(it.size * 30, history.process, history.repartitions.finish)


PLANNED = ("scale_in", "scale_out", "pause", "close_ingress", "repartition")
"""Operations that repeat nothing."""
