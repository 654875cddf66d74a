"""Errors of the wire.

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

from lbg_broker.amqp.replies import ReplyCode

__all__ = ["AmqpError", "DecodeError", "EncodeError", "LocalProtocolError", "PeerError"]


class AmqpError(Exception):
    """Base of every error of this package."""


class LocalProtocolError(AmqpError):
    """What was asked for is not allowed in this state or by this role. The connection is unchanged."""


class EncodeError(LocalProtocolError):
    """A value does not fit its type on the wire (a short string over 255 bytes, a number out of range)."""


class PeerError(AmqpError):
    """The peer broke the protocol.

    `channel` is None for an error of the whole connection, else the channel to close. `in_step` is False when
    the bytes that follow cannot be told into frames any more, so not even a close-ok can be awaited.
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
    """Bytes that are not what their place in the protocol asks for."""

    def __init__(self, reply_text: str) -> None:
        super().__init__(ReplyCode.SYNTAX_ERROR, reply_text)
