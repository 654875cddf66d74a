"""Sessions as a kind of queue: the pool's line first, then one line for each session."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.dealing import Policy
from lbg_broker.server.core.kinds.sessions.book import Book
from lbg_broker.server.core.kinds.sessions.distributing import Distribution
from lbg_broker.server.core.kinds.sessions.line import PoolLine, SessionLine
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["SessionsKind"]


class SessionsKind:
    """«Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers» as a queue."""

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        return [state.new_line(PoolLine, durable=durable)]

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        pool, *sessions = records
        return [
            PoolLine.restored(pool, touched=state.touched),
            *(SessionLine.restored(record, touched=state.touched) for record in sessions),
        ]

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        book = Book.restored(queue.where, kept.get("sessions", ()), queue.lines[1:])
        return Distribution(state, queue, book, closed=kept.get("closed", False))
