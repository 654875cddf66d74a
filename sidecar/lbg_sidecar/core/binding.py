"""A member's binding to a queue of its group: its channel's life."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from lbg_core.group.member_state import Status
from lbg_sidecar.core.delivery import Attachment


class Phase(enum.Enum):
    """A channel's life. A delivery may come while ATTACHING: the broker does not wait for us to read its answer."""

    UNBOUND = enum.auto()
    ATTACHING = enum.auto()
    ATTACHED = enum.auto()
    DETACHING = enum.auto()


@dataclass(slots=True, eq=False)
class Binding:
    """`active` follows from deliveries only: AMQP does not notify a consumer that it became active."""

    queue: int
    phase: Phase = Phase.UNBOUND
    attachment: Attachment | None = None
    epoch: int = 0
    active: bool = False
    activated_at: float = 0.0
    attached_at: float = 0.0
    """Time of the request for the attachment: so it is behind those that were there before."""
    attach_due: float = 0.0
    failures: int = 0
    move_due: float = 0.0  # no handoff before this: an earlier one was put off
    put_off: int = 0  # handoffs in a row that were put off, because the queue did not drain in time
    answers: list[tuple[int, str]] = field(default_factory=list)
    """Movers that wait for this member to be out of the way."""
    arrivals: list[tuple[int, str, str]] = field(default_factory=list)
    """Movers that wait for it to be attached, with the proof for their handover."""
    release_due: float | None = None  # when to get behind the primary, or to close: others back the queue up
    delivered: int = 0  # through earlier attachments

    @property
    def delivered_in_all(self) -> int:
        """Messages that ever came to this member from the queue."""
        return self.delivered + (self.attachment.delivered if self.attachment is not None else 0)

    @property
    def status(self) -> Status:
        if self.attachment is None or (self.phase is Phase.ATTACHING and not self.active):
            return Status.UNBOUND
        if self.active:
            return Status.PAUSED if self.attachment.paused or self.phase is Phase.DETACHING else Status.READY
        return Status.UNASSIGNED if self.phase is Phase.ATTACHED else Status.UNBOUND
