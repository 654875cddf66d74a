"""Refusals of the broker, with the reply code that a client reads.

::

    BrokerError
    ├── Refusal               carries reply code and text, "NOT_FOUND - no queue 'x' in vhost '/'"
    │   ├── ChannelRefusal    closes the channel
    │   └── ConnectionRefusal closes the connection
    └── RestoreError          what the store holds makes no broker

Texts follow RabbitMQ's word for word where it has one: clients and their users search for them.
"""

from __future__ import annotations

from lbg_core.amqp import ReplyCode, is_channel_error


class BrokerError(Exception):
    """Base of every error of the broker's core."""


class RestoreError(BrokerError):
    """Rows of the store that contradict each other or cannot be read."""


class Refusal(BrokerError):
    """A command that is not carried out; `text` is the reply text without the code's name in front."""

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code

    @property
    def reply_text(self) -> str:
        """The text on the wire, cut to what a short string holds (255 bytes)."""
        return str(self).encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


class ChannelRefusal(Refusal):
    """Closes the channel of the method; the connection and its other channels live on."""


class ConnectionRefusal(Refusal):
    """Closes the whole connection."""


def refusal(code: ReplyCode, text: str) -> Refusal:
    """The refusal of the kind the code belongs to (AMQP 0-9-1 section 4.8.1)."""
    return ChannelRefusal(code, text) if is_channel_error(code) else ConnectionRefusal(code, text)
