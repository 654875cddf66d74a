"""How far a member is in its session: one number, so its messages are processed one after another.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": the consumer keeps the sequence number of
the last message that it is sure to have processed, and tells the broker when it connects.
"""

from __future__ import annotations

from typing import Protocol

from .held import Held


class Keep(Protocol):
    """Writes how far a session is. `epoch`: the life of the broker in which that number was given, None where it does
    not say. `is_over`: the number is its End-of-Session's."""

    def __call__(self, committed: int, *, epoch: str | None = None, is_over: bool = False) -> None: ...


class SessionPosition:
    """`name` is the session's. `keep` is told each number before anything of it can be acknowledged, unless the
    application keeps the position itself, in its own transactions.

    A session ends in two steps, with any number of lost connections and deaths between them: it is over here, and then
    the broker is known to have forgotten it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: int | None = None
        """None while nobody knows: then the broker goes on after what was acknowledged to it."""
        self.epoch: str | None = None
        """Of `committed`: a broker that was restored from a backup gives its numbers to other messages, in another
        epoch. None where nobody says."""
        self.keep: Keep | None = None
        self.is_over = False
        """Its End-of-Session has come, and all before it is processed."""
        self.is_gone = False
        """The broker has forgotten it as well: its name is free."""
        self._is_the_applications = False

    @property
    def is_the_applications(self) -> bool:
        """The application has said how far it is: its word counts."""
        return self._is_the_applications

    def told(self, committed: int, epoch: str | None = None) -> None:
        """By the application: in place of what a file says, and again whenever it comes back. What it acknowledged
        meanwhile it has committed, unless it speaks of another epoch: then somebody else went on with the session."""
        if not self._is_the_applications:
            self._is_the_applications = True
            self.committed, self.epoch, self.is_over = None, None, False
        if self.committed is None or not self._is_of(epoch) or committed > self.committed:
            self.committed, self.epoch = committed, epoch

    def _is_of(self, epoch: str | None) -> bool:
        """Whether a number of this epoch can be compared with ours. Who says nothing of epochs means one alone."""
        return epoch is None or self.epoch is None or epoch == self.epoch

    def covers(self, held: Held) -> bool:
        return (
            held.sequence is not None
            and not held.ends_session
            and self.committed is not None
            and self._is_of(held.epoch)
            and held.sequence <= self.committed
        )

    def done(self, held: Held) -> None:
        """This one and all before it are processed."""
        sequence = held.sequence
        if sequence is None or (self._is_of(held.epoch) and sequence <= (self.committed or 0)):
            return
        self.committed, self.epoch = sequence, held.epoch
        self.is_over = held.ends_session
        if self.keep is not None and not self._is_the_applications:
            self.keep(sequence, epoch=self.epoch, is_over=self.is_over)

    def describe(self) -> dict[str, object]:
        kept_by = (
            "application" if self._is_the_applications else "file" if self.keep is not None else "broker"
        )
        return {"name": self.name, "committed": self.committed, "kept_by": kept_by, "ended": self.is_over}

    def gone(self) -> None:
        """The broker has forgotten it, for good. The next session of this name begins at 1."""
        self.is_gone = True
        if self.keep is not None and not self._is_the_applications:
            self.keep(0)

    def forget(self) -> None:
        """The broker knows it otherwise, and nobody else can: what it says counts from here on."""
        self.committed = self.epoch = None
