"""Parked keys of a history: poisoned keys, the stream as the broker has it, and `lbg park` as an administrator runs it.

The commands are the product's procedures (`lbg_core.admin.parked_messages`), which may be killed at any step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, cast

from lbg_core.admin.dead_letters import Selection
from lbg_core.admin.dead_letters.letter import DeadLetterError
from lbg_core.admin.errors import ProvisioningError
from lbg_core.admin.parked_messages import ParkedStream, Released, discard_parked, release_parked
from lbg_core.admin.parked_messages.release import release_first
from lbg_core.admin.progress import Progress, line_of
from lbg_core.client import ClientConnection, ClientError, ConfirmingPublisher
from lbg_core.group.members_protocol import Beat
from lbg_core.group.parked_keys import (
    PARKED_ENTRIES,
    Entry,
    KeyState,
    ParkedKeys,
    ParkEntry,
    ReleaseEntry,
    SettleEntry,
)
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core.dispatcher import ParkingBounds
from lbg_sidecar.core.parked_keys import Parking
from testing.simulation.clock import Process
from testing.simulation.embedded import ADMINISTRATOR
from testing.simulation.event_loop import SimConnection, VirtualLoop
from testing.simulation.judge import Judged
from testing.simulation.member import SimMember
from testing.simulation.repartition import Repartitions

TIMEOUT_S = 60.0
AGAIN_S = 2.0
STRAGGLER_S = 1.0
ALL_ROWS = -1
CALLS_AT_ONCE = 4
"""Calls that a member makes at a time."""

BOUNDS = ((1000, 100_000), (3, 25))
"""Keys and messages, by the seed."""


class Parked(Judged, Protocol):
    """The part of a history that parked keys have."""

    members: list[SimMember]
    repartitions: Repartitions


class WatchedStream(ParkedStream):
    """Reports what its administrator settles, and has the causes that it released."""

    def __init__(self, parkings: Parkings, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.causes: set[str] = set()
        self._parkings = parkings

    async def write(self, entries: Iterable[Entry]) -> None:
        entries = list(entries)
        for entry in entries:
            if isinstance(entry, SettleEntry):
                self._parkings.discarding.add(entry.identity)
            elif isinstance(entry, ReleaseEntry):
                self.causes.update(entry.causes)
        await super().write(entries)

    async def reports(self) -> Sequence[Beat]:
        """None: releases go by the queues, and not by members' mailboxes."""
        return ()


class Parkings:
    """`keys`: the set to which the entries of the stream add up, as of now. `poisoned`: keys whose messages fail, and
    which of them: the number of one, or `ALL_ROWS`; None until the next one comes. `discarding`: messages that an
    administrator discards, or has."""

    def __init__(self, history: Parked) -> None:
        self._history = history
        self.keys_max, self.messages_max = BOUNDS[history.seed % len(BOUNDS)]
        self.keys = ParkedKeys()
        self.poisoned: dict[str, int | None] = {}
        self.discarding: set[MessageIdentity] = set()
        self.is_running = False
        self.connection: SimConnection | None = None
        self._windows = 0
        """Messages that members held when the limit was reached, or more since."""
        self._released_causes: set[str] = set()
        self._beyond: set[str] = set()
        """Keys that were released while they had parked messages: they may exceed the bounds."""
        self._process = Process(ADMINISTRATOR)

    # Poison

    def poison(self, key: str, *, is_one: bool, seconds: float) -> None:
        """The application fails all messages of a key, or the next one, for so long."""
        self.poisoned[key] = None if is_one else ALL_ROWS
        self._history.clock.after(seconds, self._history.process, self.repair, key)

    def repair(self, key: str) -> None:
        self.poisoned.pop(key, None)

    def fails(self, key: str, row: int) -> bool:
        if key not in self.poisoned:
            return False
        poisoned = self.poisoned[key]
        if poisoned is None:
            poisoned = self.poisoned[key] = row
        return poisoned in (row, ALL_ROWS)

    # The stream

    def appended(self, body: bytes) -> None:
        """The broker has an entry for good."""
        entry, judge = PARKED_ENTRIES.decode(body), self._history.judge
        match entry:
            case ParkEntry(key):
                if entry.cause in self._released_causes:
                    self._beyond.add(key)
                count, is_new_key = self.keys.messages, self.keys.state(key) is KeyState.FREE
                self.keys.apply(entry)
                if self.keys.messages > count and key not in self._beyond:
                    self._judge_bounds(is_new_key=is_new_key)
            case SettleEntry(key, identity):
                self.keys.apply(entry)
                if identity in self.discarding:
                    judge.discarded(identity)
                if self.keys.state(key) is KeyState.FREE:
                    self._beyond.discard(key)
            case ReleaseEntry(key, causes):
                self._released_causes.update(causes)
                self.keys.apply(entry)
                if self.keys.state(key) is not KeyState.FREE:
                    self._beyond.add(key)
            case _:
                self.keys.apply(entry)

    def restored(self, bodies: Iterable[bytes]) -> None:
        """A broker starts with these entries."""
        self.keys = ParkedKeys()
        for body in bodies:
            self.keys.apply(PARKED_ENTRIES.decode(body))
        self._beyond = {one.key for one in self.keys.parked()}
        judge = self._history.judge
        judge.discarded_bodies.clear()
        for identity in self.discarding:
            if self.keys.is_settled(identity):
                judge.discarded(identity)

    def _judge_bounds(self, *, is_new_key: bool) -> None:
        """Beyond a bound there is at most what members, which decide by themselves, had on the way."""
        keys = [one for one in self.keys.parked() if one.key not in self._beyond]
        messages = sum(one.messages for one in keys)
        slack = len(self._history.members) * CALLS_AT_ONCE
        if is_new_key and len(keys) > self.keys_max + slack:
            self._history.judge.violation(f"{len(keys)} keys are parked, and the limit is {self.keys_max}")
        members = [one for one in self._history.members if one.is_up]
        windows = sum(one.ack_window.unacked for member in members for one in member.attachments)
        self._windows = max(self._windows, windows) if messages > self.messages_max else windows
        if messages > self.messages_max + slack + self._windows:
            self._history.judge.violation(
                f"{messages} messages are parked, and the limit is {self.messages_max}"
            )

    def _judge_released(self, released: Collection[str], causes: Collection[str]) -> None:
        for one in self.keys.parked():
            if one.key in released and not one.is_released and set(one.causes) <= set(causes):
                self._history.judge.violation(f"{one.key} was released, and is parked though nothing failed")

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= self.keys_max or self.keys.messages >= self.messages_max

    def parked_bodies(self) -> set[bytes]:
        judge = self._history.judge
        return {
            body
            for one in self.keys.parked()
            for identity in self.keys.numbers(one.key)
            if (body := judge.body_of(identity)) is not None
        }

    # The administrator

    @property
    def is_over(self) -> bool:
        return not self.is_running and not len(self.keys)

    def release(self, key: str | None, *, killed_after_s: float | None = None) -> None:
        keys = None if key is None else {key}
        self._start(
            f"lbg park release {key or '--all'}",
            lambda stream: release_parked(stream, keys, timeout_s=TIMEOUT_S, report=self._report),
            killed_after_s,
        )

    def replay_one(self, key: str, *, killed_after_s: float | None = None) -> None:
        self._start(f"lbg park replay-one {key}", lambda stream: release_first(stream, key), killed_after_s)

    def discard(self, selection: Selection, *, killed_after_s: float | None = None) -> None:
        self._start(
            f"lbg park discard of {selection.key or ', '.join(selection.ids)}",
            lambda stream: discard_parked(stream, selection),
            killed_after_s,
        )

    def kill(self) -> None:
        """kill -9: the lock is free."""
        if not self.is_running:
            return
        self._history.note("kill -9 lbg park")
        self._process.alive = False
        self.is_running = False
        if self.connection is not None:
            self.connection.abort()

    def finish(self) -> None:
        """Repairs everything, and releases until no key is parked."""
        self.poisoned.clear()
        repartitions = self._history.repartitions
        if repartitions.record.key_move:
            self._raise_bounds()
        if self.is_running or not repartitions.is_over:
            self._history.clock.after(AGAIN_S, self._history.process, self.finish)
            return
        if len(self.keys):
            self.release(None)
        self._history.clock.after(AGAIN_S, self._history.process, self.finish)

    def _raise_bounds(self) -> None:
        """Members get the default bounds: messages that are beyond theirs would hold up a change of queues, and that
        the release."""
        for member in self._history.members:
            parking = member.machine.part(Parking) if member.driver is not None else None
            if parking is not None:
                parking.bounds = ParkingBounds()

    def _start(
        self,
        title: str,
        work: Callable[[ParkedStream], Awaitable[object]],
        killed_after_s: float | None,
    ) -> None:
        history = self._history
        if self.is_running or history.repartitions.is_running or history.repartitions.record.key_move:
            return  # the group's lock, and what is refused while keys move
        self.is_running = True
        self._process = process = Process(ADMINISTRATOR)
        history.note(title if killed_after_s is None else f"{title}, killed after {killed_after_s:.3f} s")
        loop = VirtualLoop(history, process)
        loop.create_task(self._command(loop, title, work)).add_done_callback(_ended)
        if killed_after_s is not None:
            history.clock.after(killed_after_s, process, self.kill)

    async def _command(
        self,
        loop: VirtualLoop,
        title: str,
        work: Callable[[ParkedStream], Awaitable[object]],
    ) -> None:
        history = self._history
        outcome: object = None
        opened = self.connection = SimConnection.connected(history, loop, ADMINISTRATOR)
        if opened is not None:
            connection = cast(ClientConnection, opened)
            try:
                publisher = await ConfirmingPublisher.open(connection)
                stream = WatchedStream(self, connection, history.spec, publisher, history.repartitions.record)
                await stream.follow()
                await stream.catch_up()
                outcome = await work(stream)
                if isinstance(outcome, Released) and history.is_undisturbed:
                    history.clock.after(
                        STRAGGLER_S, history.process, self._judge_released, outcome.done, stream.causes
                    )
            except (ClientError, DeadLetterError, ProvisioningError) as error:
                outcome = error
            finally:
                opened.abort()
        if history.is_verbose:
            # Sets have the order of their hashes, which PYTHONHASHSEED changes.
            text = f"released {sorted(outcome.done)}" if isinstance(outcome, Released) else str(outcome)
            history.note(f"{title} ends: {text[:200]}")
        self.is_running = False

    def _report(self, progress: Progress) -> None:
        if self._history.is_verbose:
            self._history.note(f"lbg park release: {line_of(progress)}")


def _ended(command: asyncio.Task[None]) -> None:
    command.result()
