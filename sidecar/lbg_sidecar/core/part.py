"""Parts of a member: each feature is one, and registers what it needs by overriding the hooks of `Part`.

A member makes the parts that it uses, in the order in which they are to be called, from the one `Context` that all of
them share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lbg_core.group.members_protocol import Handover, Message
from lbg_sidecar.core.acks import AckScheduler
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Dispatcher, MessageHooks
from lbg_sidecar.core.effects import Effect
from lbg_sidecar.core.hooks import Hooks
from lbg_sidecar.core.membership import Membership
from lbg_sidecar.core.presence import Presence
from lbg_sidecar.core.queue_bindings import BalancingRules, Bindings
from lbg_sidecar.core.report_schedule import ReportSchedule
from lbg_sidecar.core.roster import Roster
from lbg_sidecar.core.timings import Timings

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Context:
    """Shared objects of the parts of a member. `effects` are run in order after each event. `new_id` returns an id that
    nobody has, `uniform` a number from 0 up to 1."""

    rules: BalancingRules
    timings: Timings
    hooks: Hooks
    dispatcher: Dispatcher
    bindings: Bindings
    membership: Membership
    presence: Presence
    reports: ReportSchedule
    acks: AckScheduler
    uniform: Callable[[], float]
    new_id: Callable[[], str]

    @property
    def effects(self) -> list[Effect]:
        return self.dispatcher.effects

    @property
    def roster(self) -> Roster:
        return self.membership.roster


class Part(MessageHooks):
    """`handlers` are by the type of message of another member."""

    def __init__(self, context: Context) -> None:
        self._rules, self._hooks, self._effects = context.rules, context.hooks, context.effects
        self._dispatcher, self._lanes = context.dispatcher, context.dispatcher.lanes
        self._processed = context.dispatcher.processed
        self._bindings, self._membership = context.bindings, context.membership
        self._roster, self._presence = context.roster, context.presence
        self._reports, self._timings = context.reports, context.timings
        self._acks, self._uniform, self._new_id = context.acks, context.uniform, context.new_id
        self._hooks.add(self)

    def resume(self, former: Self) -> None:
        """Continues the same part of the member that this one was before the group changed."""

    @property
    def takes_part(self) -> bool:
        """True while the member has an index, and does not leave."""
        return self._roster.me is not None and self._presence.why is None

    # The connection

    def connected(self, now: float) -> None:
        """The member has an index, and is in the live set."""

    def disconnected(self, now: float) -> None:
        """The connection is lost, and all attachments with it."""

    def reason_to_leave(self) -> str:
        """Reason for which the member has to leave now; empty: it has none."""
        return ""

    def leaving(self, now: float) -> None:
        """The member begins to hand its queues over."""

    # The members

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {}

    def observed(self, now: float) -> None:
        """After each event: the live set may have changed, or its changes may count now."""

    def live_changed(self, now: float) -> None:
        """The live set has changed."""

    def view_changed(self, now: float) -> None:
        """The live set that assigns the queues has changed."""

    def reshaped(self, now: float) -> None:
        """The group has another number of queues."""

    # Queues

    def may_consume(self, queue: int) -> bool:
        """False for a queue that nobody is to consume yet."""
        return True

    def may_hand_over(self, attachment: Attachment, now: float) -> bool:
        """False while what the next consumer of a drained queue has to know is not recorded."""
        return True

    def attached(self, binding: Binding, now: float) -> None:
        """The broker has the consumer."""

    def activated(self, attachment: Attachment, first: InFlight, now: float) -> None:
        """The first delivery came: this member serves the queue."""

    def taken_over(
        self, attachment: Attachment, former: int | None, why: str, handover: Handover | None, now: float
    ) -> None:
        """It is known how a queue that this member serves came here: handed over, or else for this cause
        (`ServedQueues.last_server`)."""

    def handover_fields(self, attachment: Attachment) -> Mapping[str, Any]:
        """Fields of `Handover`."""
        return {}

    def closed(self, binding: Binding, now: float) -> None:
        """The channel is closed, or never came to be."""

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        """The broker refused the consumer; `closed` follows. True if that is no failure."""
        return False

    def cancelled(self, attachment: Attachment) -> bool:
        """The broker ended the consumer; `closed` follows. True if that is no failure."""
        return False

    def revoked(self, attachment: Attachment, tags: Collection[int], now: float, *, reassigned: bool) -> None:
        """The broker recalls these deliveries for another member, or, `reassigned`, has delivered them to it. None of
        them starts here from now on. The answer is sent when the effects of this have been run."""

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        """So many messages wait in the queue, which has so many consumers; None: the count failed."""

    def progressed(self, attachment: Attachment, now: float) -> None:
        """Something is over of an attachment that starts nothing new."""

    # Streams

    def read(self, entries: Sequence[Any], now: float) -> None:
        """Entries of the stream that it follows, in its order, from its first one on with each connection."""

    def absent(self, now: float) -> None:
        """There is no such stream, or none any more."""

    def recorded(self, in_flight: InFlight) -> None:
        """A stream has the entry of this message."""

    # Time

    def after(self, now: float) -> None:
        """After each event but a message of another member: does what is due for the queues."""

    def flushed(self, now: float) -> None:
        """Acks were sent, as far as they were due."""

    def tick(self, now: float) -> None: ...

    def next_due(self, now: float) -> float:
        """Time of the next tick that this part needs."""
        return NEVER

    def measured(self, now: float) -> None:
        """An interval of the load meter has ended."""

    # Views

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        """Fields of `QueueState`."""
        return {}

    def report_fields(self) -> Mapping[str, Any]:
        """Fields of `Beat`."""
        return {}

    def description(self) -> Mapping[str, Any]:
        """Further fields of a view of this member."""
        return {}
