"""Errors of the wire, and the reply codes of AMQP 0-9-1.

::

    AmqpError
    ├── LocalProtocolError    we misused the protocol: nothing was written
    │   └── EncodeError       a value does not fit its type on the wire
    └── PeerError             the peer broke the protocol; carries the AMQP reply code
        └── DecodeError       bytes that are no method, table or property list (502)

`PeerError` never leaves `Connection.batches`: there it becomes an event and a close in the output.
`DecodeError` is also raised by the stand-alone decoders (`decode_table`, `BasicProperties.decode`, …).
"Need more bytes" is no error: the connection keeps what it has and returns no event for it.
"""

from __future__ import annotations

from enum import IntEnum


class ReplyCode(IntEnum):
    """Reply code of a close, a return or a cancel. 3xx and 4xx close a channel, unless noted; 5xx the connection."""

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
    """True if a code closes the channel only."""
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


class AmqpError(Exception):
    """Base of every error of this package."""


class LocalProtocolError(AmqpError):
    """Misuse by our own code: not allowed in this state or by this role. The connection is unchanged."""


class EncodeError(LocalProtocolError):
    """A value does not fit its type on the wire (a short string over 255 bytes, a number out of range)."""


class PeerError(AmqpError):
    """The peer broke the protocol.

    `channel` is None for an error of the whole connection, else the channel to close. `in_step` is False when
    the bytes that follow cannot be divided into frames any more, so not even a close-ok can be awaited.
    """

    def __init__(
        self, reply_code: ReplyCode, reply_text: str, *, channel: int | None = None, in_step: bool = True
    ) -> None:
        super().__init__(f"{reply_code.value} {reply_code.name}: {reply_text}")
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.channel = channel
        self.in_step = in_step


class DecodeError(PeerError):
    """Bytes that are invalid at their place in the protocol."""

    def __init__(self, reply_text: str) -> None:
        super().__init__(ReplyCode.SYNTAX_ERROR, reply_text)
