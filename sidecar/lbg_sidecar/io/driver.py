"""Drives one core in the event loop: events and time in, effects to the executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Concatenate

from lbg_core.admin.errors import plain_reason
from lbg_core.client import ClientError, Delivery
from lbg_core.client.republication import is_copyable
from lbg_core.counted_nouns import counted
from lbg_core.group import HEADER_ROUTING_KEY, Assignment, Names, hash_in
from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.member_state import Positions
from lbg_core.group.members_protocol import Assign, KeysMove, Pause, Request
from lbg_core.group.message_codec import decode
from lbg_core.group.sequences import StreamRuns
from lbg_core.tracing import Tracing
from lbg_sidecar.app.channel import REQUESTED_AGAIN, AppChannel
from lbg_sidecar.call_notes import CallNotes
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.core.sequence_audit import SequenceAudit
from lbg_sidecar.core.session import Session
from lbg_sidecar.core.state_log import AttemptLog
from lbg_sidecar.io.body_memory import COUNTED_MIN_BYTES, BodyMemory
from lbg_sidecar.io.connection import MemberConnection
from lbg_sidecar.io.delivery_journal import DeliveryJournal, WallClock
from lbg_sidecar.io.executor import EffectExecutor
from lbg_sidecar.io.key_move_channels import KeyMoveChannels
from lbg_sidecar.io.outbox import Outbox
from lbg_sidecar.io.parking_channels import ParkingChannels
from lbg_sidecar.message import Kind, Message, Verdict, forwarded, in_flight_of, original_of

LARGE_HEADER_BYTES = 512
"""Up to here they leave room in any frame."""


log = logging.getLogger("lbg.member")


PING_WILLED_S = (0.02, 0.1, 0.5)
"""Further pings of a member after its last will came; none is sent to one that is known to be gone."""

NEWER_NAMED_MAX = 32
"""Members of a newer version that the log names."""

NEVER = float("inf")
TICK_MIN_S = 0.001


class Driver:
    """`on_lost` is called once for each link that is lost, `on_exit` when the machine has left, `on_stood_down` when
    it holds nothing because the application is not ready, `on_reread` with the reason to read the group's
    record again; `app_ready` is set while the application is ready.

    It is the `Calls` of the application's channel.
    """

    def __init__(
        self,
        machine: MemberCore,
        app: AppChannel,
        *,
        group: str,
        prefix: str,
        clock: WallClock,
        journal: DeliveryJournal | None,
        bodies: BodyMemory,
        on_lost: Callable[[], None],
        on_exit: Callable[[], None],
        on_stood_down: Callable[[], None],
        on_reread: Callable[[str], None],
        observer: Callable[[fx.Effect], None] | None,
        traced: Tracing | None = None,
        notes: CallNotes | None = None,
    ) -> None:
        self.machine = machine
        self._notes = notes
        self._tracing = traced
        self.app_ready = asyncio.Event()
        self.app_ready.set()
        self.app_unready_why = ""
        self._unready = AttemptLog()
        self._is_started = False
        self._is_position_due = False
        self.failure: Exception | None = None
        """The error that ends the member: one that cannot be repaired, or a bug. It does not continue in an unknown
        state."""
        self.lost_why = ""
        """Reason for which the last link was lost; empty while there is one, and after leaving it in order."""
        self._announced_move = ""
        self._newer: set[str] = set()
        self.requests = 0
        """Number of requests to pause or to assign that have come: each is newer than what was read of the record."""
        self._app = app
        self._group = group
        self._prefix = prefix
        self._members_exchange = Names(group).members
        self._clock = clock
        if (audit := machine.part(SequenceAudit)) is not None:
            audit.wall_us = clock.us
        machine.breaker.wall_us = clock.us
        self._bodies = bodies
        self._on_lost = on_lost
        self.on_exit = on_exit
        self.on_stood_down = on_stood_down
        self.on_reread = on_reread
        self._executor = EffectExecutor(
            app, self, group=group, wall_us=clock.us, journal=journal, observer=observer
        )
        self._loop = asyncio.get_running_loop()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.Handle | None = None
        self._flushes_soon = False
        self._turned_at = 0.0
        self._fence_after_s = NEVER
        self._closed = False
        self._extender = self.extend  # bound once, not for each message

    def ready(self, is_ready: bool, why: str = "") -> None:
        now, was_ready = self._loop.time(), self.app_ready.is_set()
        self.app_unready_why = "" if is_ready else why
        if not is_ready and self._is_started:  # before that, `startup.app_ready` logs it
            line = self._unready.failed(why, now)
            if line is not None:
                log.warning("%s: the application is not ready: %s", self.machine.name, line)
        elif is_ready and not was_ready:
            self._unready.succeeded(now)
            log.info("%s: the application is ready", self.machine.name)
        if is_ready:
            self.app_ready.set()
        elif was_ready:
            self.app_ready.clear()
            if self.link is not None:
                self._stand_down()
                self._run_effects()

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        self.machine.dispatcher.processed.merge(Positions(tuple(streams)))

    @property
    def session(self) -> str | None:
        session = self.machine.part(Session)
        return session.position.name if session is not None else None

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        session = self.machine.part(Session)
        if session is not None:
            session.position.report(sequence, epoch)

    def on_request_position(self) -> None:
        """The application counts as not ready until it has answered: it is asked when no call runs."""
        self._is_position_due = True
        self.ready(False, REQUESTED_AGAIN)
        self._request_position_if_due()

    def _request_position_if_due(self) -> None:
        if self._is_position_due and not self.machine.dispatcher.running:
            self._is_position_due = False
            if not self._app.request_position():
                self.ready(True)

    @property
    def link(self) -> MemberConnection | None:
        return self._executor.link

    def drive(self, machine: MemberCore) -> None:
        """While there is no link: go on with this machine, made with the one before as its `former`."""
        assert self.link is None
        self.machine = machine

    def reshape(self, queue_count: int) -> None:
        """The group has so many queues now, which members share out."""
        assert isinstance(self.machine, ExclusiveMember)
        self.machine.reshape(queue_count, self._loop.time())
        self._run_effects()

    def connect(
        self,
        link: MemberConnection,
        outgoing: Outbox,
        key_moves: KeyMoveChannels,
        parking: ParkingChannels | None = None,
        *,
        key_move: str = "",
    ) -> None:
        """There is a link, and an index is claimed with it: join. `key_move`: as in the group's record."""
        self._executor.use(link, outgoing, parking, key_moves)
        # An announcement that came while the record was read may be newer.
        key_move, self._announced_move = key_move or self._announced_move, ""
        if key_move and (part := self.machine.part(KeyMoves)) is not None:
            part.follow(key_move)
        self.lost_why = ""
        self._turned_at = self._loop.time()
        self._fence_after_s = link.publish_connection.heartbeat_s or NEVER
        self.machine.connected(link.index, self._turned_at)
        link.when_lost(self._link_lost)
        if not self.app_ready.is_set():
            self._stand_down()
        self._run_effects()

    def disconnect(self, why: str) -> None:
        """Ends the use of the connection: nothing is dispatched or acknowledged from here on."""
        link = self._executor.release_link()
        if link is None:
            return
        self.lost_why = why
        running = len(self.machine.dispatcher.running)
        log.warning(
            "%s: %s; %s aborted",
            self.machine.name,
            why,
            counted(running, "running call is", "running calls are"),
        )
        self.machine.disconnected(self._loop.time())
        self._executor.run()
        link.abort()
        self._on_lost()

    def part(self) -> None:
        """The machine has left: the opener of the link closes it."""
        if self._executor.release_link() is not None:
            self.machine.disconnected(self._loop.time())
            self._executor.run()

    def describe(self) -> dict[str, Any]:
        return {**self.machine.describe(self._loop.time()), "bodies": asdict(self._bodies.use)}

    def stop(self, why: str) -> None:
        if self.machine.leaving is None:
            log.info("%s leaves %s: %s", self.machine.name, self._group, why)
        self.machine.stop(why, self._loop.time())
        self._run_effects()

    def start(self) -> None:
        self._is_started = True
        self._tick()

    def close(self) -> None:
        """Nothing is driven any more."""
        self._closed = True
        for timer in (self._tick_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()

    # What comes in from the link

    def feed(self, event: Callable[Concatenate[MemberCore, ...], object], *arguments: object) -> None:
        """An event of the core, which has no meaning without a link."""
        if self.link is not None:
            event(self.machine, *arguments, self._loop.time())
            self._run_effects()

    def on_mail(self, mail: Delivery) -> None:
        """A message of another member, or a released copy of a parked message."""
        if HEADER_ROUTING_KEY.encode() in mail.header:
            self._on_released(mail)
            return
        try:
            message = decode(bytes(mail.body))
        except NewerMessage as error:
            self._newer_received(error)
            return
        except MessageError as error:
            log.warning("%s: %s", self.machine.name, error)
            return
        if isinstance(message, Pause):
            self.requests += 1
            self.pause(message.consumption)
            return
        if isinstance(message, Assign):
            self.requests += 1
            self.assign(message.assignment, message.max_clients, message.rebalance_threshold_percent)
            return
        if isinstance(message, KeysMove) and self.link is None:
            self._announced_move = message.move
        if isinstance(message, Request):
            if self.link is not None:
                self.machine.requests.receive(message, self._group, self._loop.time())
                self._run_effects()
        elif message is not None:
            self.feed(MemberCore.message, message)

    def _newer_received(self, error: NewerMessage) -> None:
        """A member that joins stays out. One that has joined goes on: order does not depend on what members send."""
        is_joining = self.link is not None and self.machine.membership.is_joining(self._loop.time())
        if error.is_member and is_joining:
            self.failure = error
            self.stop("a member is of a newer version")
        elif error.name not in self._newer and len(self._newer) < NEWER_NAMED_MAX:
            self._newer.add(error.name)
            log.warning("%s: %s; until then it ignores them", self.machine.name, error)

    def _on_released(self, mail: Delivery) -> None:
        """A copy that this member cannot take is in the parking queue, and comes again."""
        parking = self.machine.part(Parking)
        hash_ = hash_in(str(mail.headers[HEADER_ROUTING_KEY]))
        if parking is None or hash_ is None or self.link is None or not (beside := parking.beside(hash_)):
            return
        in_flight = in_flight_of(beside, original_of(mail, tag=beside.delivered + 1), self._prefix)
        self._has_large_header(in_flight)
        parking.deliver(in_flight, self._loop.time())
        self._app.wake()

    def _has_large_header(self, in_flight: InFlight) -> bool:
        """The member's memory of finished messages counts characters from the first one on."""
        is_large = len(in_flight.delivery.header) > LARGE_HEADER_BYTES
        self.machine.finished.counts_chars |= is_large
        return is_large

    def pause(self, is_paused: bool) -> None:
        """Also before there is a link: what the record states, and requests that came since it was read."""
        self.machine.pause(is_paused, self._loop.time())
        self._run_effects()

    def assign(self, assignment: Assignment, client_count: int, rebalance_threshold_percent: int) -> None:
        """As `pause`. A group whose queues the broker shares out has one assignment."""
        if isinstance(self.machine, ExclusiveMember):
            self.machine.assign(assignment, client_count, rebalance_threshold_percent, self._loop.time())
            self._run_effects()

    def on_returned(self, body: bytes, to: int) -> None:
        if (message := decode(body)) is not None:
            self.feed(MemberCore.returned, message, to)

    def on_will(self, index: int) -> None:
        """The last will of a member came. RabbitMQ deletes the mailbox after it has requeued the will: a ping at once
        may still find it."""
        self.feed(MemberCore.willed, index)
        for seconds in PING_WILLED_S:
            self._loop.call_later(seconds, self.feed, MemberCore.willed, index)

    def on_deliveries(self, attachment: Attachment, deliveries: list[Delivery]) -> None:
        prefix, members = self._prefix, self._members_exchange
        arrivals = [
            in_flight_of(
                attachment, delivery if delivery.exchange != members else forwarded(delivery), prefix
            )
            for delivery in deliveries
        ]
        for in_flight in arrivals:
            if in_flight.size >= COUNTED_MIN_BYTES:
                self._bodies.admit(in_flight)
            if self._has_large_header(in_flight) and self.link is not None:
                frame_max_bytes = self.link.publish_connection.frame_max_bytes
                in_flight.is_copyable = is_copyable(in_flight.delivery, frame_max_bytes)
        self.machine.deliver(attachment, arrivals, self._loop.time())
        if self.machine.effects:
            self._run_effects()
        else:
            self._app.wake()

    def on_revoked(self, attachment: Attachment, tags: Sequence[int], reassigned: bool) -> None:
        """Recalls deliveries: they are returned when this returns, and the answer follows."""
        self.machine.revoked(attachment, tags, self._loop.time(), reassigned=reassigned)
        self._run_effects()

    def on_confirmed(self, in_flight: InFlight) -> None:
        self.feed(MemberCore.confirmed, in_flight)

    def on_staging_found(self, move: str, is_found: bool) -> None:
        key_moves = self.machine.part(KeyMoves)
        if self.link is not None and key_moves is not None:
            key_moves.staging_found(move, is_found)
            self._run_effects()

    def _link_lost(self, link: MemberConnection, error: ClientError) -> None:
        if link is self.link:
            self.disconnect(plain_reason(error))

    # Calls, for the application's channel

    def take(self) -> Message | None:
        now = self._loop.time()
        if now - self._turned_at > self._fence_after_s:
            self._fence(now)
            return None
        in_flight = self.machine.take(now)
        if in_flight is None or self.machine.effects:
            self._ran_without_calls()
        if in_flight is None:
            return None
        if in_flight.suspect is not None and in_flight.suspect.last.is_called_alone:
            self._alone(in_flight)
        if self._notes is not None:
            self._notes.write(in_flight)
        message = Message(in_flight, self._group)
        message.extender = self._extender
        if self._tracing is not None:
            self._begin_span(self._tracing, message, now)
        return message

    def extend(self, in_flight: InFlight, seconds: float, progress: str | None = None) -> float:
        now = self._loop.time()
        left_s = self.machine.extend(in_flight, seconds, now, progress)
        if left_s and (extended := in_flight.extended) is not None:
            extended.since_us, extended.until_us = (
                self._clock.us(in_flight.started_at),
                self._clock.us(now + left_s),
            )
        return left_s

    def running(self, message_id: str) -> Message | None:
        """The message with this id (`Message.id`) whose call runs."""
        for in_flight in self.machine.dispatcher.running:
            message = Message(in_flight, self._group)
            if message.id == message_id:
                message.extender = self._extender
                return message
        return None

    def _ran_without_calls(self) -> None:
        """Messages that were taken may be done, on their way, or wait, without a call."""
        if self.machine.effects or self.machine.dispatcher.unacked.attachments:
            self._executor.run()
            self._flush_soon()
        if self.machine.part(Parking) is not None or self.machine.suspects.known is not None:
            self._schedule()

    def _alone(self, suspect: InFlight) -> None:
        """Its call may end this process: what others are told of it leaves now."""
        if self.link is not None:
            self.link.publish_connection.flush()
        if self._notes is not None:
            self._notes.clear_others(suspect)

    def _begin_span(self, traced: Tracing, message: Message, now: float) -> None:
        in_flight, headers = message.in_flight, message.trace
        known = {"queue": message.queue, "id": message.id, "key": message.key, "size": in_flight.size}
        if in_flight.calls == 1:
            traced.deliver(self._group, headers, waited_s=now - in_flight.received_at, **known)
        message.span = traced.process(
            self._group, headers, attempt=message.attempt, redelivered=message.redelivered, **known
        )

    def end(self, message: Message, verdict: Verdict) -> None:
        if self._notes is not None:
            self._notes.clear(message.in_flight)
        if message.span is not None:
            message.span.end(verdict.kind, verdict.reason, is_done=verdict.kind is Kind.ACK)
        self.machine.end(message.in_flight, verdict, self._loop.time())
        if retry := message.in_flight.attachment.retries.get(message.in_flight):
            retry.at_us = self._clock.us(retry.at)
        if self.machine.effects:
            self._run_effects()
        else:
            self._flush_soon()
        if verdict.kind is not Kind.ACK:
            self._schedule()
        self._request_position_if_due()

    def more(self) -> bool:
        dispatcher = self.machine.dispatcher
        return dispatcher.lanes.available and not dispatcher.paused

    def _stand_down(self) -> None:
        self.machine.stand_down(f"the application is not ready: {self.app_unready_why}", self._loop.time())

    # Running

    def _run_effects(self) -> None:
        self._executor.run()
        if self._closed:
            return
        self._app.wake()
        self._flush_soon()
        self._schedule()

    def _flush_soon(self) -> None:
        """At the end of this loop turn, unless nothing is due before its timer."""
        if self._flush_timer is not None:
            if self._flushes_soon or not self.machine.dispatcher.unacked.is_due:
                return
            self._flush_timer.cancel()
        self._flushes_soon = True
        self._flush_timer = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        self._flushes_soon = False
        due = self.machine.flush(self._loop.time())
        self._executor.run()
        if due != NEVER and self._flush_timer is None:
            self._flush_timer = self._loop.call_at(due, self._flush)

    def _tick(self) -> None:
        self._tick_timer = None
        now = self._loop.time()
        if now - self._turned_at > self._fence_after_s:
            self._fence(now)
        self._turned_at = now
        self._clock.adjust(now)
        try:
            self.machine.tick(now)
            self._run_effects()
        except Exception as error:
            self.failure = error
            self.disconnect(f"an internal error: {error!r}")

    def on_failed(self, error: Exception) -> None:
        self.failure = error
        self.disconnect(str(error))

    def _schedule(self) -> None:
        now = self._loop.time()
        due = max(self.machine.next_due(now), now + TICK_MIN_S)
        if self._tick_timer is not None:
            if self._tick_timer.when() <= due:
                return
            self._tick_timer.cancel()
        self._tick_timer = self._loop.call_at(due, self._tick)

    def _fence(self, now: float) -> None:
        """This process stood still (stopped, starved, swapped) for longer than the broker waits for a heartbeat, so
        others may have its queues by now: nothing more may start."""
        if self.link is not None:
            self.machine.dispatcher.counts.during_standstill += len(self.machine.dispatcher.running)
        self.disconnect(
            f"this process was stopped for {now - self._turned_at:.1f} s, longer than a heartbeat"
        )
        self._turned_at = now
