"""One queue as this member is bound to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..consuming.held import Attachment
from ..membership.messages import Status


class Phase(enum.Enum):
    """A channel's life. A delivery may come while ATTACHING: the broker does not wait for us to read its answer."""

    UNBOUND = enum.auto()
    ATTACHING = enum.auto()
    ATTACHED = enum.auto()
    DETACHING = enum.auto()


@dataclass(slots=True, eq=False)
class Binding:
    """`active` is known from deliveries only: AMQP does not tell a consumer that its turn has come."""

    queue: int
    phase: Phase = Phase.UNBOUND
    attachment: Attachment | None = None
    epoch: int = 0
    active: bool = False
    activated_at: float = 0.0
    attached_at: float = (
        0.0  # when the attachment was asked for: so it is not in front of what was there before
    )
    attach_due: float = 0.0
    failures: int = 0
    move_due: float = 0.0  # no handoff before this: an earlier one was put off
    put_off: int = 0  # handoffs in a row that were put off, because the queue did not drain in time
    answers: list[tuple[int, str]] = field(
        default_factory=list
    )  # movers that wait for us to be out of the way
    quiet: bool = False  # re-attached only to be behind somebody: not worth telling everybody
    release_due: float | None = None  # when to get behind the primary
    delivered: int = 0  # through earlier attachments

    @property
    def delivered_in_all(self) -> int:
        """Messages that ever came to this member from the queue."""
        return self.delivered + (self.attachment.delivered if self.attachment is not None else 0)

    @property
    def waiting(self) -> bool:
        """Attached, and nothing was ever delivered to it: idle, or behind another consumer."""
        return self.phase in (Phase.ATTACHING, Phase.ATTACHED) and not self.active

    @property
    def status(self) -> Status:
        if self.attachment is None or (self.phase is Phase.ATTACHING and not self.active):
            return Status.UNBOUND
        if self.active:
            return Status.PAUSED if self.attachment.frozen or self.phase is Phase.DETACHING else Status.READY
        return Status.UNASSIGNED if self.phase is Phase.ATTACHED else Status.UNBOUND
