"""The sessions of a queue by name, and whether a consumer may have the one it asks for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.kinds.sessions.line import SessionLine
from lbg_broker.server.core.kinds.sessions.rules import COMMITTED, Asked
from lbg_broker.server.core.kinds.sessions.session import Session
from lbg_broker.server.core.spool import Spool

__all__ = ["Book"]


class Book:
    """The broker never forgets a session before its end: a name it knows is a consumer that comes back, or one that
    took over; a name it does not know is a new one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._sessions: dict[str, Session] = {}

    @classmethod
    def restored(cls, where: str, kept: Sequence[Mapping[str, Any]], lines: Sequence[Spool]) -> "Book":
        """From what was kept. Raises KeyError, TypeError or ValueError for what makes no book."""
        book = cls(where)
        by_id = {line.id: line for line in lines}
        if len(kept) != len(by_id):
            raise ValueError(f"{len(kept)} sessions have {len(by_id)} lines")
        for one in kept:
            line = by_id[one["line"]]
            if not isinstance(line, SessionLine):
                raise TypeError(f"line {line.id} is no session's")
            session = book.begin(one["session"], line)
            line.settled_to = one["settled_to"]
            session.ending = one["ending"]
            session.away_since = one["away_since"]
            session.epochs = [(epoch, first) for epoch, first in one.get("epochs", ())]
        return book

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, name: str) -> Session | None:
        """The session of this name."""
        return self._sessions.get(name)

    def begin(self, name: str, line: SessionLine) -> Session:
        """A session nobody asked for before."""
        session = self._sessions[name] = Session(name, line)
        return session

    def end(self, session: Session) -> None:
        """It is over: its name is free."""
        del self._sessions[session.name]

    def check(self, asked: Asked, life: str) -> None:
        """Raise `ChannelRefusal` unless a consumer may have its session, from where it wants to go on."""
        session = self._sessions.get(asked.name)
        if session is not None and session.is_held:
            holds = "is consumed by another" if session.consumer else "has unacknowledged messages elsewhere"
            raise ChannelRefusal(
                ReplyCode.RESOURCE_LOCKED, f"session '{asked.name}' of {self._where} {holds}"
            )
        committed = self.position(asked, life)
        if committed is None:
            return
        given = session.line.next_position if session is not None else 0
        done = session.line.acknowledged if session is not None else 0
        if committed > given:
            what = "has been given" if session is not None else "is not known and so has been given"
            raise self._no_position(asked, f"it {what} {given}")
        if committed < done:
            raise self._no_position(asked, f"it has acknowledged {done}, which are gone")

    def position(self, asked: Asked, life: str) -> int | None:
        """The number after which a consumer goes on that may have its session; None: after what was acknowledged.

        `life` is the epoch of now: what was given in it is known for certain, so a number beyond it is refused.
        """
        session = self._sessions.get(asked.name)
        if asked.committed is None or asked.epoch in (None, life) or session is None:
            return asked.committed
        assert asked.epoch is not None
        return session.position(asked.committed, asked.epoch)

    def _no_position(self, asked: Asked, reason: str) -> ChannelRefusal:
        return ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"{COMMITTED} {asked.committed} cannot be right for session '{asked.name}': {reason} ({self._where})",
        )
