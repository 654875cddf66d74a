"""`BrokerAssignedMember`: a member to which the broker assigns messages: Partitioned, MessageGroups, Sessions.

It consumes one queue, `lbg.G.q`, over one channel, and balances nothing: there are no handoffs and no takeovers, and no
watchdog, because the broker itself decides what it delivers. The members report to each other only
that they live. Events go in with the time, effects come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lbg_core.group.members_protocol import Beat, Message, Repartition
from lbg_sidecar.core.delivery import Attachment, InFlight, SessionPosition
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import (
    Capacity,
    Fail,
    Limit,
    LiveSet,
    Reconnect,
    RequestPosition,
    SessionEnded,
    SessionForgotten,
    SessionInUse,
)
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.message_states import Hold
from lbg_sidecar.core.queue_bindings import BalancingRules, Binding, BrokerAssignedAttachments, Phase
from lbg_sidecar.core.status_report import described, queue_state, report_of
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.errors import SessionRefused


def broker_assigned_report(machine: BrokerAssignedMember) -> Beat:
    """The one queue, as this member has it. The lowest index is its primary, only to count the messages that wait in
    it; deliveries do not depend on it."""
    me, binding = machine.roster.me, machine.binding
    is_primary = me is not None and me.index == min(machine.roster.live, default=me.index)
    return report_of(machine, [queue_state(machine, binding, is_primary=is_primary)], [binding])


def broker_assigned_description(machine: BrokerAssignedMember, now: float) -> dict[str, Any]:
    binding, me, session = machine.binding, machine.roster.me, machine.session
    server = me.index if me is not None and binding.active else None
    fields = described(machine, [(binding, server)], now)
    fields["queues"][0]["shared"] = True
    if session is not None:
        fields["session"] = {**session.describe(), "taken": machine.is_session_in_use}
    return fields


RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
"""AMQP 0-9-1, section 1.2: that a session has another consumer, or does not continue after the position."""

REQUEST_AGAIN_AFTER_S = 1.0
"""Between two attempts to get a session in use whose position the application has, which is requested before each."""

SESSION = "x-session"
SESSION_COMMITTED = "x-session-committed"
SESSION_EPOCH = "x-session-epoch"
GROUP_CONCURRENCY = "x-group-concurrency"


class BrokerAssignedMember(MemberCore):
    """`partitions`: how many the queue has, 1 where it has none. `moves`: they go from one live member to another.
    `session`: how far the member is in its own; None where there are no sessions. `keys_at_once`: how many keys it can
    work on at a time, which is reported to a broker that shares out by keys; None where it does not. Where the calls
    are limited, the number of keys that its application is seen to work on is reported later."""

    def __init__(
        self,
        name: str,
        *,
        balancing: BalancingRules,
        rules: Rules,
        timings: Timings,
        uniform: Callable[[], float],
        incarnation: Callable[[], str],
        partitions: int = 1,
        moves: bool = False,
        session: SessionPosition | None = None,
        keys_at_once: int | None = None,
        former: MemberCore | None = None,
    ) -> None:
        super().__init__(
            name,
            balancing=balancing,
            rules=rules,
            timings=timings,
            uniform=uniform,
            incarnation=incarnation,
            native=BrokerAssignedAttachments(
                partitions,
                self._arguments,
                session=session.name if session is not None else None,
                moves=moves,
            ),
            former=former,
        )
        self.bindings.want((0,))
        self.session = self.dispatcher.session = session
        self._moves = moves
        self._keys_at_once = keys_at_once
        self._capacity = keys_at_once  # as reported to the broker
        self.moves_keys = keys_at_once is not None
        self._live: frozenset[int] = frozenset()
        self._live_since = float("-inf")
        self.is_session_in_use = False
        """Another live consumer has the session, as of the last attempt."""
        self._must_request_position = False
        self._request_due = float("inf")

    @property
    def binding(self) -> Binding:
        return self.bindings.all[0]

    # The connection

    def connected(self, index: int, now: float) -> None:
        self._join(index, now)
        self._leave_with_the_session(now)
        if self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def disconnected(self, now: float) -> None:
        self._disconnect()
        self._request_due = float("inf")
        if self._app_has_position and self.leaving is None:
            self.effects.append(
                RequestPosition()
            )  # until it is back, another consumer may go on with its session
        self._after(now)

    # The members exchange

    def message(self, message: Message, now: float) -> None:
        self._suspects_received(message, now)
        if isinstance(message, Repartition) and message.done and self.session is None:
            self.bindings.repartition(message.queues)
        self._post(self.roster.receive(message, now))
        if self.roster.conflict:
            self.roster.conflict = False
            self.effects.append(Reconnect("another member claimed the same index"))
        self._observe(now)

    # The queue

    def attached(self, attachment: Attachment, now: float) -> None:
        binding = self.bindings.attached(attachment)
        if binding is not None:
            binding.active = True
            self.is_session_in_use = False
            self.roster.changed(now)
            self._capacity = self._keys_at_once
            self._fit_capacity()

    def closed(self, attachment: Attachment, now: float) -> None:
        if self.bindings.closed(attachment, now) is None:
            return
        self.roster.changed(now)
        if self._must_request_position:
            # The position that the application reported is out of date as soon as another consumer has its session.
            self._must_request_position = False
            self._request_due = now + REQUEST_AGAIN_AFTER_S
            self.binding.attach_due = float("inf")
        elif self.leaving is None:
            self.bindings.attach_due(now)
        self._after(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        session = self.session
        if session is None:
            return False
        if code == RESOURCE_LOCKED:
            if not self.is_session_in_use:
                self.is_session_in_use = True
                self.effects.append(SessionInUse(session.name, why))
            self._must_request_position = self._app_has_position
            return True
        if code != PRECONDITION_FAILED or session.committed is None:
            return False
        if session.is_over:
            session.deleted()  # the ack of its end was the last that came through before the connection went
        elif session.is_set_by_app:
            self.effects.append(Fail(SessionRefused(session.name, session.committed, why)))
        else:
            self.effects.append(SessionForgotten(session.name, session.committed, why))
            session.forget()
        return True

    def cancelled(self, attachment: Attachment) -> bool:
        session = self.session
        if session is None or not session.is_over:
            return False
        session.deleted()
        return True

    def deliver(self, attachment: Attachment, arrivals: list[InFlight], now: float) -> None:
        self.dispatcher.deliver(attachment, arrivals, now)

    def ready_counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        pass

    def _call_ended(self, attachment: Attachment, now: float) -> None:
        self._after(now)

    # Time

    def _tick(self, now: float) -> None:
        if now >= self._request_due:
            self._request_due = float("inf")
            self.effects.append(RequestPosition())
        if self.roster.me is not None and self.leaving is None:
            self.bindings.attach_due(now)
            if self._moves:
                self._fit_window()
            self._fit_capacity()
        self._expect_move(now < self._live_since + self._moved_after_s)

    def _fit_window(self) -> None:
        """Only where it is far off: a window that follows each measurement would never rest."""
        binding, attachment = self.binding, self.binding.attachment
        if attachment is None or binding.phase is not Phase.ATTACHED:
            return
        fitting = self.bindings.prefetch()
        if fitting * 2 <= attachment.prefetch or fitting >= attachment.prefetch * 2:
            attachment.prefetch = fitting
            self.effects.append(Limit(attachment, fitting))

    def limit_calls(self, limit: CallLimit) -> None:
        """The application is to get no more at a time than this."""
        self.dispatcher.limit = limit
        self._expect_move(True)

    def _fit_capacity(self) -> None:
        """Reports the capacity for keys: messages that wait longer than an idle member needs should go to it."""
        limit, reported, attachment = self.dispatcher.limit, self._capacity, self.binding.attachment
        if (
            limit is None
            or reported is None
            or attachment is None
            or self.binding.phase is not Phase.ATTACHED
        ):
            return
        if limit.size * 2 <= reported or limit.size >= reported * 2:
            self._capacity = limit.size
            self.effects.append(Capacity(attachment, limit.size))

    def _expect_move(self, is_expected: bool) -> None:
        """The broker reassigns only partitions from a member that works on them; for keys it waits."""
        self.dispatcher.expect_move(is_expected and self._moves)

    # For a view, and for the others

    def content(self) -> Beat:
        return broker_assigned_report(self)

    def describe(self, now: float) -> dict[str, Any]:
        return broker_assigned_description(self, now)

    # Inside

    def _arguments(self) -> Mapping[str, str | int]:
        session = self.session
        if session is None:
            return {} if self._keys_at_once is None else {GROUP_CONCURRENCY: self._keys_at_once}
        arguments: dict[str, str | int] = {SESSION: session.name}
        if session.committed is not None:
            arguments[SESSION_COMMITTED] = session.committed
            if session.epoch is not None:
                arguments[SESSION_EPOCH] = session.epoch
        return arguments

    @property
    def _app_has_position(self) -> bool:
        """True if the application has the session's position, and the session has not ended."""
        session = self.session
        return session is not None and session.is_set_by_app and not session.is_over

    def _leave_with_the_session(self, now: float) -> None:
        """Leaves when the broker has deleted the session: a member that left earlier, and lost an ack, would leave a
        session behind without an end. A member that returns reports its end, and the broker answers that the session
        does not exist."""
        session = self.session
        if session is not None and session.is_deleted and not self._presence.is_for_good:
            self.effects.append(SessionEnded(session.name, (session.committed or 1) - 1))
            self.stop("its session has ended", now)

    def _leave(self, now: float) -> None:
        """No new call from here on: what waits in a lane is the broker's again when the channel closes."""
        super()._leave(now)
        attachment = self.binding.attachment
        if attachment is not None and not attachment.closed:
            self.dispatcher.lanes.hold(attachment, Hold.HALT)

    def _observe(self, now: float) -> None:
        if self.roster.live != self._live:
            self._live, self._live_since = self.roster.live, now
            self._expect_move(True)
            self.effects.append(LiveSet(self._live))

    @property
    def _moved_after_s(self) -> float:
        """The broker begins to move partitions a delay after the consumers changed, and is done a handoff later."""
        return self.rules.rebalance_delay_s + self.rules.max_handoff_s

    def _after(self, now: float) -> None:
        self._observe(now)
        self._leave_with_the_session(now)
        if not self._presence.is_handing_over:
            return
        binding, attachment = self.binding, self.binding.attachment
        if attachment is None or self._presence.is_overdue(now):
            self._report_empty()
        elif binding.phase is not Phase.DETACHING and (attachment.drained or now >= self._presence.empty_by):
            self.bindings.detach(binding)
