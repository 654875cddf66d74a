"""`BrokerAssignedMember`: a member to which the broker assigns messages: Partitioned, MessageGroups, Sessions.

It consumes one queue, `lbg.G.q`, over one channel, and balances nothing: there are no handoffs and no takeovers, and no
watchdog, because the broker itself decides what it delivers. The members report to each other only
that they live. Events go in with the time, effects come out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from lbg_core.group.member_state import REPORTED_STREAMS_MAX, Positions, Role
from lbg_core.group.members_protocol import GivenBack, Message, Repartition
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Done, Limit, Post, Reassigned, Recalled, Requeue, Withdraw
from lbg_sidecar.core.limits import CallLimit, CallLimits
from lbg_sidecar.core.member_core import MemberCore, Setup
from lbg_sidecar.core.message_states import IS_UNDERWAY, NEXT, Event, Hold, State
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.queue_bindings import BrokerAssignedAttachments
from lbg_sidecar.core.session import Session, SessionPosition
from lbg_sidecar.message import Verdict

SESSION = "x-session"
SESSION_COMMITTED = "x-session-committed"
SESSION_EPOCH = "x-session-epoch"
GROUP_CONCURRENCY = "x-group-concurrency"


class SharedQueue(Part):
    """The queue that the broker shares out among its consumers. `moves_keys`: it moves keys from member to member, and
    not partitions. `moves`: partitions go from one live member to another."""

    def __init__(self, context: Context, *, moves: bool, moves_keys: bool) -> None:
        super().__init__(context)
        self._moves = moves
        self._moves_keys = moves_keys
        self._binding = self._bindings.all[0]
        self._bindings.want((0,))

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {Repartition: self._repartition, GivenBack: self._given_back}

    def _given_back(self, message: GivenBack, now: float) -> None:
        if message.sender != self._roster.me:
            self._dispatcher.processed.merge(Positions(attempts=message.attempts))

    def _report_attempts(self, returned: Iterable[InFlight]) -> None:
        """The next member has no other source of them."""
        me = self._roster.me
        failed = ((*one.identity, one.attempts) for one in returned if one.identity and one.attempts)
        if me is not None and (attempts := tuple(islice(failed, REPORTED_STREAMS_MAX))):
            self._effects.append(Post(GivenBack(me, attempts)))

    def ended(self, in_flight: InFlight, verdict: Verdict, now: float) -> None:
        """A message that failed while the broker wanted it back has gone back."""
        if in_flight.is_recalled and in_flight.state is State.GONE:
            self._report_attempts((in_flight,))

    def leaving(self, now: float) -> None:
        """No new call from here on: what waits in a lane is the broker's again when the channel closes."""
        attachment = self._binding.attachment
        if attachment is not None and not attachment.closed:
            self._lanes.hold(attachment, Hold.HALT)

    def attached(self, binding: Binding, now: float) -> None:
        binding.active = True

    def revoked(self, attachment: Attachment, tags: Collection[int], now: float, *, reassigned: bool) -> None:
        tag_set = frozenset(tags)
        deliveries = [one for one in attachment.ack_window.all_unacked() if one.tag in tag_set]
        if reassigned:
            self._reassigned(attachment, deliveries)
        else:
            self._recalled(attachment, deliveries, now)

    def _recalled(self, attachment: Attachment, deliveries: list[InFlight], now: float) -> None:
        """Those that had not begun are forgotten here, and those at work or done settled as soon as possible."""
        idle = [one for one in deliveries if NEXT[one.state][Event.RECALL] is not None]
        others = [one for one in deliveries if one not in idle]
        self._dispatcher.unacked.forget(attachment, frozenset(idle))
        for in_flight in idle:
            self._lanes.move(in_flight, Event.RECALL)
        for in_flight in others:
            in_flight.is_recalled = True
        self._dispatcher.counts.given_back += len(idle)
        self._report_attempts(idle)
        if idle:
            self._effects.append(Requeue(attachment, tuple(in_flight.tag for in_flight in idle)))
            self._effects.append(Done(tuple(idle), settled=False))
        self._acks.settle_now(attachment, others, now)
        at_work = [in_flight for in_flight in others if in_flight.outcome is None]
        queues = () if self._moves_keys else _queues_of(deliveries)
        self._effects.append(Recalled(queues, len(idle), len(at_work)))
        if running := tuple(in_flight for in_flight in at_work if in_flight.is_called):
            self._effects.append(Withdraw(running, reassigned=False))

    def _reassigned(self, attachment: Attachment, lost: list[InFlight]) -> None:
        at_work = [one for one in lost if one.is_called or IS_UNDERWAY[one.state]]
        self._dispatcher.unacked.forget(attachment, frozenset(lost))
        for in_flight in lost:
            self._lanes.move(in_flight, Event.REASSIGN)
        self._dispatcher.counts.taken += len(at_work)
        running = tuple(in_flight for in_flight in at_work if in_flight.is_called)
        if running:
            self._effects.append(Withdraw(running, reassigned=True))
        # A call that still runs is journalled when it has ended.
        if over := tuple(in_flight for in_flight in lost if in_flight not in running):
            self._effects.append(Done(over, settled=False))
        if lost:
            self._effects.append(Reassigned(_queues_of(lost), len(at_work)))

    def progressed(self, attachment: Attachment, now: float) -> None:
        self.after(now)

    def after(self, now: float) -> None:
        binding, attachment = self._binding, self._binding.attachment
        if not self._presence.is_handing_over or attachment is None or binding.phase is Phase.DETACHING:
            return
        if attachment.drained or now >= self._presence.empty_by:
            self._report_attempts(attachment.unacked)
            self._bindings.detach(binding)

    def tick(self, now: float) -> None:
        """Fits the window, only where it is far off: one that follows each measurement would never rest."""
        binding, attachment = self._binding, self._binding.attachment
        if (
            not self._moves
            or not self.takes_part
            or attachment is None
            or binding.phase is not Phase.ATTACHED
        ):
            return
        fitting = self._bindings.prefetch()
        if fitting * 2 <= attachment.prefetch or fitting >= attachment.prefetch * 2:
            attachment.prefetch = fitting
            self._effects.append(Limit(attachment, fitting))

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        """The lowest index is its primary, only to count the messages that wait in it; deliveries do not depend on
        it."""
        me = self._roster.me
        is_primary = me is not None and me.index == min(self._roster.live, default=me.index)
        return {"role": Role.PRIMARY if is_primary else Role.SECONDARY}

    def _repartition(self, message: Repartition, now: float) -> None:
        if message.done:
            self._bindings.repartition(message.queues)


class BrokerAssignedMember(MemberCore):
    """`partitions`: how many the queue has, 1 where it has none. `moves`: they go from one live member to another.
    `session`: how far the member is in its own; None where there are no sessions. `keys_at_once`: how many keys it can
    work on at a time, which is reported to a broker that shares out by keys; None where it does not. `limit`: of the
    messages at its application; None: the concurrency."""

    def __init__(
        self,
        setup: Setup,
        *,
        partitions: int = 1,
        moves: bool = False,
        session: SessionPosition | None = None,
        keys_at_once: int | None = None,
        limit: CallLimit | None = None,
    ) -> None:
        super().__init__(
            setup,
            native=BrokerAssignedAttachments(
                partitions,
                partial(_arguments, session, keys_at_once),
                session=session.name if session is not None else None,
                moves=moves,
                moves_keys=keys_at_once is not None,
            ),
        )
        if session is not None:
            Session(self.context, session)
        SharedQueue(self.context, moves=moves, moves_keys=keys_at_once is not None)
        if limit is not None:
            CallLimits(self.context, limit, moves=moves, keys_at_once=keys_at_once)
        self.resume(setup.former)


def _arguments(session: SessionPosition | None, keys_at_once: int | None) -> Mapping[str, str | int]:
    if session is None:
        return {} if keys_at_once is None else {GROUP_CONCURRENCY: keys_at_once}
    arguments: dict[str, str | int] = {SESSION: session.name}
    if session.committed is not None:
        arguments[SESSION_COMMITTED] = session.committed
        if session.epoch is not None:
            arguments[SESSION_EPOCH] = session.epoch
    return arguments


def _queues_of(deliveries: Iterable[InFlight]) -> tuple[int, ...]:
    return tuple(sorted({in_flight.queue for in_flight in deliveries}))
