"""What the core wants sent. Each connection's effects are carried out in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from lbg_broker.amqp.methods import Method
from lbg_broker.server.core.message import Message

__all__ = ["Deliver", "Effect", "Hold", "Revoke", "Send", "SendContent"]


@dataclass(slots=True, frozen=True)
class Send:
    """A method without content. A ChannelClose or ConnectionClose starts the closing of either."""

    channel: int
    method: Method


@dataclass(slots=True, frozen=True)
class SendContent:
    """A method with content: basic.return, basic.get-ok."""

    channel: int
    method: Method
    header: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Deliver:
    """A run of basic.deliver to one consumer, with delivery tags from `first_tag` on.

    The first `redelivered` messages carry the redelivered flag.
    """

    channel: int
    consumer_tag: str
    first_tag: int
    redelivered: int
    messages: list[Message]


@dataclass(slots=True, frozen=True)
class Revoke:
    """basic.revoke for deliveries of a queue, in as many frames as the tags need, which are in ascending order.

    `is_told` False: the client does not know the word, so this is for the log only.
    """

    channel: int
    consumer_tag: str
    taken: bool
    delivery_tags: Sequence[int]
    queue: str
    is_told: bool


@dataclass(slots=True, frozen=True)
class Hold:
    """Read nothing more from the client until `held` is False."""

    held: bool


Effect = Revoke | Send | SendContent | Deliver | Hold
