"""How far a member is in its session: one number, so its messages are processed one after another.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": the consumer keeps the sequence number of
the last message that it is sure to have processed, and tells the broker when it connects.
"""

from __future__ import annotations

from collections.abc import Callable

from .held import Held


class SessionPosition:
    """`name` is the session's. `keep` is told each number before anything of it can be acknowledged, unless the
    application keeps the position itself, in its own transactions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: int | None = None
        """None while nobody knows: then the broker goes on after what was acknowledged to it."""
        self.keep: Callable[[int], None] | None = None
        self.is_over = False
        """Its End-of-Session has come, and all before it is processed."""
        self._is_the_applications = False

    @property
    def is_the_applications(self) -> bool:
        """The application has said how far it is: its word counts."""
        return self._is_the_applications

    def told(self, committed: int) -> None:
        """By the application: in place of what a file says, and again whenever it comes back. What it acknowledged
        meanwhile it has committed."""
        known = self.committed or 0 if self._is_the_applications else 0
        self._is_the_applications = True
        self.committed = max(committed, known)

    def covers(self, held: Held) -> bool:
        return (
            held.sequence is not None
            and not held.ends_session
            and self.committed is not None
            and held.sequence <= self.committed
        )

    def done(self, held: Held) -> None:
        """This one and all before it are processed."""
        sequence = held.sequence
        if sequence is None or sequence <= (self.committed or 0):
            return
        self.committed = sequence
        self.is_over = held.ends_session
        if self.keep is not None and not self._is_the_applications:
            # When a session has ended, its name is free, and the next one begins at 1.
            self.keep(0 if self.is_over else sequence)

    def describe(self) -> dict[str, object]:
        kept_by = (
            "application" if self._is_the_applications else "file" if self.keep is not None else "broker"
        )
        return {"name": self.name, "committed": self.committed, "kept_by": kept_by, "ended": self.is_over}

    def forget(self) -> None:
        """The broker knows it otherwise, and nobody else can: what it says counts from here on."""
        self.committed = None
