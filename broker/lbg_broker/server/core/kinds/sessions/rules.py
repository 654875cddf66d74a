"""What declares a sessions queue, and what asks for a session."""

from dataclasses import dataclass
from typing import Final

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.kinds.sessions.numbering import EPOCH
from lbg_broker.server.core.reading_arguments import ArgumentReader

__all__ = ["COMMITTED", "NAME_MAX", "SESSION", "Asked", "SessionsRules", "read_asked", "read_sessions"]

SESSION: Final = "x-session"
COMMITTED: Final = "x-session-committed"
NAME_MAX: Final = 128


@dataclass(slots=True, frozen=True)
class SessionsRules:
    """There is nothing to choose."""

    kind: str = "sessions"


@dataclass(slots=True, frozen=True)
class Asked:
    """What a consumer says of its session. `committed`: the last sequence number that it has processed; None when it
    leaves that to its acknowledgements. `epoch`: in which that was given; None when it does not say."""

    name: str
    committed: int | None
    epoch: str | None = None


def read_sessions(reader: ArgumentReader, queue_type: str) -> SessionsRules | None:
    """The rules of a sessions queue; None for any other."""
    return SessionsRules() if queue_type == "sessions" else None


def read_asked(reader: ArgumentReader, *, where: str) -> Asked:
    """A consumer's arguments. Raises `ChannelRefusal` 406."""
    name = reader.text(SESSION)
    if name is None:
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED, f"a consumer of {where} needs the argument {SESSION}: its name"
        )
    if not 1 <= len(name) <= NAME_MAX:
        raise reader.invalid(SESSION, f"a name has 1 to {NAME_MAX} characters, this one {len(name)}")
    epoch = reader.text(EPOCH)
    if epoch is not None and len(epoch) > NAME_MAX:
        raise reader.invalid(EPOCH, f"an epoch has at most {NAME_MAX} characters, this one {len(epoch)}")
    return Asked(name, reader.number(COMMITTED), epoch)
