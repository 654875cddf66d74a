"""Agreeing on limits: connection.tune and its answer. 0 means no limit, and for heartbeats none."""

from typing import Final

from lbg_broker.amqp.errors import PeerError
from lbg_broker.amqp.frames import FRAME_MIN_BYTES
from lbg_broker.amqp.methods.connection import ConnectionTune, ConnectionTuneOk
from lbg_broker.amqp.replies import ReplyCode

__all__ = ["NO_LIMIT_BYTES", "answer_to", "check_answer"]

NO_LIMIT_BYTES: Final = 0x7FFFFFFF


def answer_to(
    tune: ConnectionTune, *, frame_max_bytes: int, channel_max: int, heartbeat_s: int
) -> ConnectionTuneOk:
    """A client's answer: the smaller of both wishes. A client that wants no heartbeat gets none."""
    return ConnectionTuneOk(
        _smaller(tune.channel_max, channel_max),
        _smaller(tune.frame_max, frame_max_bytes),
        _smaller(tune.heartbeat, heartbeat_s) if heartbeat_s else 0,
    )


def check_answer(answer: ConnectionTuneOk, tune: ConnectionTune) -> None:
    """Raises `PeerError` (530, as RabbitMQ does) when a client answered with more than was offered."""
    for name, asked, offered, least in (
        ("frame_max", answer.frame_max, tune.frame_max, FRAME_MIN_BYTES),
        ("channel_max", answer.channel_max, tune.channel_max, 0),
    ):
        if offered and not 0 < asked <= offered:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"negotiated {name} {asked} is higher than {offered}")
        if asked and asked < least:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"negotiated {name} {asked} is lower than {least}")


def _smaller(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other
