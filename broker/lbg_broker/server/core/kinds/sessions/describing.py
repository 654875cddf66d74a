"""A sessions queue in the management API."""

from collections.abc import Mapping
from typing import Any

from lbg_broker.server.core.channel import Channel
from lbg_broker.server.core.kinds.sessions.book import Book
from lbg_broker.server.core.kinds.sessions.line import SessionLine
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
    """For each line of which something is given out, the lowest position: the first that its channel holds, unless some
    were given back and out again. So a look at a channel ends soon, however much it holds."""
    wanted: dict[Channel, set[SessionLine]] = {}
    for session in book:
        if session.line.outstanding:
            assert session.channel is not None
            wanted.setdefault(session.channel, set()).add(session.line)
    lowest: dict[Spool, int] = {}
    for channel, lines in wanted.items():
        in_order = not any(line.shuffled for line in lines)
        missing: set[Spool] = set(lines)
        for line, message, _ in channel.unsettled.values():
            if lowest.setdefault(line, message.position) > message.position:
                lowest[line] = message.position
            missing.discard(line)
            if in_order and not missing:
                break
    return lowest
