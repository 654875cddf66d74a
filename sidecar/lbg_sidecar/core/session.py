"""Session of a member: its position, its end, and the broker's refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.effects import (
    Fail,
    RequestPosition,
    SessionEnded,
    SessionForgotten,
    SessionInUse,
)
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.errors import SessionRefused

RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
"""AMQP 0-9-1, section 1.2: that a session has another consumer, or does not continue after the position."""

REQUEST_AGAIN_AFTER_S = 1.0
"""Between two attempts to get a session in use whose position the application has, which is requested before each."""


class WritePosition(Protocol):
    """Writes the position of a session. `epoch`: the epoch of that number, None where the broker has
    none. `is_over`: the number is its End-of-Session's."""

    def __call__(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None: ...


class SessionPosition:
    """`name` is the session's. `write` is called with each number before it can be acknowledged, unless the application
    stores the position itself, in its own transactions.

    A session ends in two steps, with any number of lost connections and deaths between them: it is over here, and then
    the broker has deleted it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: int | None = None
        """None while it is unknown: then the broker continues after acknowledged messages."""
        self.epoch: str | None = None
        """Of `committed`: a broker that was restored from a backup assigns its numbers to other messages, in another
        epoch. None where it is unknown."""
        self.write: WritePosition | None = None
        self.is_over = False
        """Its End-of-Session was received, and all before it is processed."""
        self.is_deleted = False
        """The broker has deleted it as well: its name is free."""
        self.is_set_by_app = False
        """The application has reported its position, which is the one that counts."""

    def report(self, committed: int, epoch: str | None = None) -> None:
        """The application reports its position: it replaces that of a file, and is reported again after each restart.
        What it acknowledged meanwhile it has committed, unless the epoch is another one: then another consumer went
        on with the session."""
        if not self.is_set_by_app:
            self.is_set_by_app = True
            self.committed, self.epoch, self.is_over = None, None, False
        if self.committed is None or not self._is_of(epoch) or committed > self.committed:
            self.committed, self.epoch = committed, epoch

    def _is_of(self, epoch: str | None) -> bool:
        """True if a number of this epoch can be compared with ours. Numbers without an epoch are all of one."""
        return epoch is None or self.epoch is None or epoch == self.epoch

    def covers(self, in_flight: InFlight) -> bool:
        return (
            in_flight.sequence is not None
            and not in_flight.ends_session
            and self.committed is not None
            and self._is_of(in_flight.epoch)
            and in_flight.sequence <= self.committed
        )

    def done(self, in_flight: InFlight) -> None:
        """This one and all before it are processed."""
        sequence = in_flight.sequence
        if sequence is None or (self._is_of(in_flight.epoch) and sequence <= (self.committed or 0)):
            return
        self.committed, self.epoch = sequence, in_flight.epoch
        self.is_over = in_flight.ends_session
        if self.write is not None and not self.is_set_by_app:
            self.write(sequence, epoch=self.epoch, is_over=self.is_over)

    def describe(self) -> dict[str, object]:
        stored_by = "application" if self.is_set_by_app else "file" if self.write is not None else "broker"
        return {"name": self.name, "committed": self.committed, "kept_by": stored_by, "ended": self.is_over}

    def deleted(self) -> None:
        """The broker has forgotten it, for good. The next session of this name begins at 1."""
        self.is_deleted = True
        if self.write is not None and not self.is_set_by_app:
            self.write(0)

    def forget(self) -> None:
        """The broker has another position, and there is no other source: the broker's counts from here on."""
        self.committed = self.epoch = None


class Session(Part):
    def __init__(self, context: Context, position: SessionPosition) -> None:
        super().__init__(context)
        self.position = position
        self.is_in_use = False
        """Another live consumer has the session, as of the last attempt."""
        self._must_request_position = False
        self._request_due = NEVER

    def disconnected(self, now: float) -> None:
        self._request_due = NEVER
        if self._app_has_position and self._presence.why is None:
            # Until it is back, another consumer may go on with its session.
            self._effects.append(RequestPosition())

    def attached(self, binding: Binding, now: float) -> None:
        self.is_in_use = False

    def closed(self, binding: Binding, now: float) -> None:
        """The position that the application reported is out of date as soon as another consumer has its session."""
        if self._must_request_position:
            self._must_request_position = False
            self._request_due = now + REQUEST_AGAIN_AFTER_S
            binding.attach_due = NEVER

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        position = self.position
        if code == RESOURCE_LOCKED:
            if not self.is_in_use:
                self.is_in_use = True
                self._effects.append(SessionInUse(position.name, why))
            self._must_request_position = self._app_has_position
            return True
        if code != PRECONDITION_FAILED or position.committed is None:
            return False
        if position.is_over:
            position.deleted()  # the ack of its end was the last that came through before the connection went
        elif position.is_set_by_app:
            self._effects.append(Fail(SessionRefused(position.name, position.committed, why)))
        else:
            self._effects.append(SessionForgotten(position.name, position.committed, why))
            position.forget()
        return True

    def cancelled(self, attachment: Attachment) -> bool:
        if self.position.is_over:
            self.position.deleted()
        return self.position.is_over

    def is_done(self, in_flight: InFlight) -> bool:
        return self.position.covers(in_flight)

    def settled(self, in_flight: InFlight) -> None:
        in_flight.is_uncounted = in_flight.outcome is Outcome.DEAD or (
            in_flight.outcome is Outcome.REPEAT and not self.position.covers(in_flight)
        )
        if prefix := in_flight.attachment.ack_window.prefix:
            self.position.done(prefix[-1])

    def ended_in_vain(self, in_flight: InFlight) -> None:
        self.position.done(in_flight)

    def tick(self, now: float) -> None:
        if now >= self._request_due:
            self._request_due = NEVER
            self._effects.append(RequestPosition())

    def reason_to_leave(self) -> str:
        """A member that left before the broker has deleted the session, and lost an ack, would leave a session behind
        without an end. A member that returns reports its end, and the broker answers that the session does not
        exist."""
        position = self.position
        if not position.is_deleted or self._presence.is_for_good:
            return ""
        self._effects.append(SessionEnded(position.name, (position.committed or 1) - 1))
        return "its session has ended"

    def description(self) -> Mapping[str, Any]:
        return {"session": {**self.position.describe(), "taken": self.is_in_use}}

    @property
    def _app_has_position(self) -> bool:
        """True if the application has the session's position, and the session has not ended."""
        return self.position.is_set_by_app and not self.position.is_over
