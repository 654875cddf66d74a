"""Reply codes of AMQP 0-9-1 (section 1.2 of the protocol's class and method reference)."""

from enum import IntEnum

__all__ = ["ReplyCode", "is_channel_error"]


class ReplyCode(IntEnum):
    """What a close, a return or a cancel says. 3xx and 4xx close a channel, unless noted; 5xx the connection."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320  # closes the connection
    INVALID_PATH = 402  # closes the connection
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


def is_channel_error(code: int) -> bool:
    """Whether a code closes the channel only."""
    return code in _CHANNEL_CODES


_CHANNEL_CODES = frozenset(
    (
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    )
)
