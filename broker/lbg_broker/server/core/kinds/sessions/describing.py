"""A sessions queue in the management API."""

from collections.abc import Mapping
from typing import Any

from lbg_broker.server.core.kinds.sessions.book import Book
from lbg_broker.server.core.kinds.sessions.session import Session
from lbg_broker.server.core.spool import Spool

__all__ = ["described"]


def described(book: Book, *, closed: bool, pool: int) -> Mapping[str, Any]:
    """The fields beyond a plain queue's. `pool`: how many messages are nobody's yet."""
    lowest = _lowest_given_out(book)
    return {"closed": closed, "pool": pool, "sessions": [_session(session, lowest) for session in book]}


def _session(session: Session, lowest: Mapping[Spool, int]) -> dict[str, Any]:
    line = session.line
    return {
        "session": session.name,
        "state": session.state,
        "consumer_tag": session.consumer.tag if session.consumer is not None else None,
        "last_sequence": line.next_position,
        "acknowledged": min(line.acknowledged, lowest.get(line, line.next_position)),
        "messages": line.ready + line.outstanding,
        "away_since": session.away_since,
    }


def _lowest_given_out(book: Book) -> dict[Spool, int]:
    """For each line the lowest position that somebody holds: one look at each channel, whatever it serves."""
    channels = {session.channel for session in book if session.line.outstanding}
    lowest: dict[Spool, int] = {}
    for channel in channels:
        assert channel is not None
        for line, message, _ in channel.unsettled.values():
            position = message.position
            if lowest.setdefault(line, position) > position:
                lowest[line] = position
    return lowest
