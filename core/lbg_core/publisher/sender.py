"""Sends what the send window releases, and reports confirms and queue alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lbg_core.client import Channel, ClientConnection, ClientError, Returned
from lbg_core.group import NATIVE_MODES, Engine, GroupSpec, Names, PublishedRecord, is_native
from lbg_core.journal import JournalingError, JournalWriter
from lbg_core.publisher import events
from lbg_core.publisher.send_window import SendWindow
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage
from lbg_core.publisher.state_file import StateFile


class ConfirmLog:
    def __init__(self, journal: JournalWriter) -> None:
        self.journal = journal

    def record(self, messages: Iterable[StampedMessage], *, publisher: str, group: str) -> None:
        """Records that they were confirmed now. Raises WriteFailed, if the journal's settings require it."""
        now_us = time.time_ns() // 1000
        append = self.journal.append
        for message in messages:
            append(
                PublishedRecord(
                    publisher,
                    message.key,
                    message.hash,
                    message.queue,
                    message.seq,
                    message.sent_at_us,
                    now_us,
                    message.sends - 1,
                    group,
                    message.body_bytes,
                )
            )


SILENT_AFTER_S = 5.0
"""An election of a quorum queue's leader takes a second or two; what lasts longer is worth a line."""


class QueueAlerts:
    """`named`: the names on the broker of queues, by their numbers."""

    def __init__(
        self, named: Callable[[Iterable[int]], list[str]], on_event: Callable[[events.PublisherEvent], None]
    ) -> None:
        self._named = named
        self._on_event = on_event
        self._full: set[int] = set()
        self._silent: set[int] = set()

    def full(self, queues: set[int]) -> None:
        if queues != self._full:
            self._changed(self._full, queues, events.QueueFull)
            self._full = set(queues)

    def silent(self, queues: set[int]) -> None:
        if queues != self._silent:
            self._changed(self._silent, queues, lambda name: events.QueueSilent(name, SILENT_AFTER_S))
            self._silent = set(queues)

    def _changed(
        self, before: set[int], now: set[int], begun: Callable[[str], events.PublisherEvent]
    ) -> None:
        names_before, names_now = self._named(before), self._named(now)
        for name in names_now:
            if name not in names_before:
                self._on_event(begun(name))
        for name in names_before:
            if name not in names_now:
                self._on_event(events.QueueTaking(name))


SILENCE_CHECK_S = 1.0


def refuses_in_order(connection: ClientConnection) -> bool:
    """True if the broker accepts nothing behind a refused message, as the embedded one does."""
    capabilities = connection.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get("lbg.ordered_refusal") is True


@dataclass(frozen=True, slots=True)
class Hooks:
    """`progress`: room, settled or failed; wakes waiting callers. `fail`: publishing is over."""

    progress: Callable[[], None]
    fail: Callable[[Exception], None]
    on_event: Callable[[events.PublisherEvent], None]


class Sender:
    """One machine on one channel at a time. Everything here runs in the loop and never waits."""

    def __init__(
        self,
        machine: SendWindow,
        names: Names,
        heading: HeaderEncoder,
        *,
        hooks: Hooks,
        next_epoch: str = "",
        state: StateFile | None = None,
        journal: JournalWriter | None = None,
    ) -> None:
        self.machine = machine
        self._names = names
        self._header_encoder = heading
        self._next_epoch = next_epoch
        self._hooks = hooks
        self._state = state
        self._confirms = None if journal is None else ConfirmLog(journal)
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._step_handle: asyncio.Handle | None = None
        self._wake_timer: asyncio.TimerHandle | None = None
        self._is_unsaved = True  # that this run began
        self.awaited: dict[int, Callable[[], None]] = {}
        """Callbacks for the confirm of a message, by the message's position."""
        self._saved_maybe_twice = 0
        self._is_one_queue = False
        self._notices = QueueAlerts(self.named, hooks.on_event)
        self._silence_timer: asyncio.TimerHandle | None = None

    @property
    def publisher(self) -> str:
        """The value of header `lbg-publisher` in the epoch of what was accepted last."""
        return self._header_encoder.publisher if self.machine.ended_epoch is None else self._next_epoch

    def attach(self, connection: ClientConnection, channel: Channel) -> None:
        """Go on with a channel in confirm mode."""
        spec = self.machine.stamper.spec
        self._is_one_queue = spec.mode in NATIVE_MODES and is_native(
            spec, Engine.announced(connection.server_properties)
        )
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return
        connection.on_blocked = self._on_blocked
        connection.on_unblocked = self._on_unblocked
        self._channel = channel
        self.machine.connected(fenced=refuses_in_order(connection))
        if connection.is_blocked:
            self._on_blocked("")
        self.step_soon()
        if self._silence_timer is None:
            self._check_silence()

    async def pause(self, *, up_to_s: float) -> None:
        """Send nothing any more on this channel, and wait for the answers to what was sent."""
        self.machine.blocked(True, self._loop.time())
        deadline = self._loop.time() + up_to_s
        while self.machine.in_flight and self._loop.time() < deadline:  # noqa: ASYNC110 (an answer wakes nobody)
            await asyncio.sleep(0.01)

    def detach(self) -> int:
        """The channel is gone; returns how many messages were in flight."""
        in_flight = self.machine.in_flight
        self._channel = None
        self.machine.disconnected(self._loop.time())
        return in_flight

    def repartition(self, spec: GroupSpec) -> None:
        """While there is no channel: the group has another number of queues."""
        self.machine.repartition(spec)
        self._notices = QueueAlerts(self.named, self._hooks.on_event)

    def step_soon(self) -> None:
        """Step at the end of this loop turn, once."""
        if self._step_handle is None:
            self._step_handle = self._loop.call_soon(self.step)

    def step(self) -> None:
        """Save what is new, then send what may be sent."""
        if self._step_handle is not None:
            self._step_handle.cancel()
            self._step_handle = None
        machine, channel = self.machine, self._channel
        if self._is_unsaved:
            self._save()
        if machine.failure is not None:
            self._hooks.fail(machine.failure)
        if channel is None or not channel.is_open:
            return
        step = machine.step(self._loop.time())
        try:
            if step.barrier:
                channel.renew_confirms()
            if step.sends:
                self._send(channel, step.sends)
        except ClientError:
            return  # the channel is gone; its watcher detaches, and everything is sent again
        except Exception as error:
            self._hooks.fail(error)
        self._notices.full(machine.full_queues)
        self._wake_at(step.wake_at)

    def close(self) -> None:
        """Write out the journal and the state for the last time. Raises JournalingError, OSError."""
        for handle in (self._step_handle, self._wake_timer, self._silence_timer):
            if handle is not None:
                handle.cancel()
        try:
            if self._confirms is not None:
                self._confirms.journal.close()
            if self._state is not None:
                self._state.save(self.machine, at_once=True)
        finally:
            if self._state is not None:
                self._state.close()

    def _send(self, channel: Channel, messages: list[StampedMessage]) -> None:
        if self.publisher != self._header_encoder.publisher:
            self._header_encoder = self._header_encoder.of_epoch(self.publisher)
            if self._state is not None:
                self._state.save(self.machine, at_once=True)
        if self._state is not None:
            if self.machine.counts.maybe_twice != self._saved_maybe_twice:
                # What is sent again is counted before it is sent, or a death in between would forget the count.
                self._saved_maybe_twice = self.machine.counts.maybe_twice
                self._state.save(self.machine, at_once=True)
            last = max(messages, key=_position)
            if last.position >= self._state.sent_position:
                self._state.note_sent(last.position + 1, last.digest)
        exchange, publish, header_of = self._names.exchange, channel.publish, self._header_encoder.of
        now_us = time.time_ns() // 1000
        for message in messages:
            if not message.sent_at_us:
                message.sent_at_us = now_us
            publish(exchange, message.routing_key, message.body, header=header_of(message), mandatory=True)

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        accepted = self.machine.answered(tag, multiple=multiple, ok=ok, now=self._loop.time())
        self._is_unsaved = True
        if self._confirms is not None and accepted:
            self._record(accepted)
        if self.awaited:
            for message in accepted:
                if (on_confirmed := self.awaited.pop(message.position, None)) is not None:
                    on_confirmed()
        self.step_soon()
        self._hooks.progress()

    def _record(self, messages: list[StampedMessage]) -> None:
        assert self._confirms is not None
        try:
            self._confirms.record(messages, publisher=self.publisher, group=self.machine.stamper.spec.name)
            if self.awaited:
                # A confirm is in the journal, through a kill -9 too, before its caller is notified.
                self._confirms.journal.flush()
        except JournalingError as error:
            self._hooks.fail(error)

    def _save(self) -> None:
        self._is_unsaved = False
        if self._state is None:
            return
        try:
            if self._confirms is not None:
                # What the state calls confirmed is not sent again, so the journal must have it first.
                self._confirms.journal.flush()
            self._state.save(self.machine)
        except (JournalingError, OSError) as error:
            self._hooks.fail(error)

    def _on_return(self, returned: Returned) -> None:
        self.machine.returned(returned.routing_key, f"{returned.reply_code} {returned.reply_text}")
        self.step_soon()

    def _on_blocked(self, reason: str) -> None:
        self.machine.blocked(True, self._loop.time())
        self._hooks.on_event(events.Blocked(reason))

    def _on_unblocked(self) -> None:
        self.machine.blocked(False, self._loop.time())
        self._hooks.on_event(events.Unblocked())
        self.step_soon()

    def named(self, queues: Iterable[int]) -> list[str]:
        """The names on the broker of these queues; one where the group is one queue."""
        names = [self._names.queue(queue) for queue in sorted(queues)]
        return [self._names.parent] if names and self._is_one_queue else names

    def _check_silence(self) -> None:
        self._notices.silent(self.machine.silent_queues(self._loop.time(), for_s=SILENT_AFTER_S))
        self._silence_timer = self._loop.call_later(SILENCE_CHECK_S, self._check_silence)

    def _wake_at(self, at: float | None) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        if at is not None:
            self._wake_timer = self._loop.call_at(at, self.step)


def _position(message: StampedMessage) -> int:
    return message.position
