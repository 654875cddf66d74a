"""Which arguments make a queue one of a special kind."""

from collections.abc import Callable
from typing import Final, Protocol

from lbg_broker.server.core.kinds.grouped.rules import read_grouped
from lbg_broker.server.core.kinds.partitioned.rules import read_partitioned
from lbg_broker.server.core.kinds.sessions.rules import read_sessions
from lbg_broker.server.core.reading_arguments import ArgumentReader

__all__ = ["KindRules", "read_kind"]


class KindRules(Protocol):
    """What a special kind's arguments ask for; the class of it is the kind."""

    @property
    def kind(self) -> str:
        """Its name in messages: "partitioned"."""


READERS: Final[tuple[Callable[[ArgumentReader, str], KindRules | None], ...]] = (
    read_grouped,
    read_partitioned,
    read_sessions,
)
"""Each reads its kind's arguments, given the queue type too; None for a queue that is not of it."""


def read_kind(reader: ArgumentReader, queue_type: str) -> KindRules | None:
    """The special kind that is asked for; None for a plain queue. Raises `ChannelRefusal` 406."""
    asked = [rules for read in READERS if (rules := read(reader, queue_type)) is not None]
    if len(asked) > 1:
        names = " and ".join(rules.kind for rules in asked)
        raise reader.refused(f"a queue cannot be {names} at once")
    return asked[0] if asked else None
