"""The core's effects as bytes: deliveries and methods in the output of one connection."""

from typing import Final

from lbg_broker.amqp import Connection as Wire
from lbg_broker.amqp import LocalProtocolError
from lbg_broker.amqp.fields import TAG_BYTES
from lbg_broker.amqp.methods import BasicRevoke, ChannelClose
from lbg_broker.server.core.effects import Deliver, Revoke, Send, SendContent

__all__ = ["deliver", "revoke", "send", "send_content"]

REVOKE_OVERHEAD_BYTES: Final = 512
"""More than a basic.revoke takes beside its tags: the frame, the method, the longest consumer tag."""


def send(wire: Wire, effect: Send) -> None:
    """Put a method in the output. Raises `EncodeError`, and `LocalProtocolError` unless the client closed the channel
    itself right behind the command that is refused: its close is answered."""
    try:
        wire.send(effect.channel, effect.method)
    except LocalProtocolError:
        if type(effect.method) is not ChannelClose:
            raise


def send_content(wire: Wire, effect: SendContent) -> None:
    """Put a method with content in the output. Raises `EncodeError`, `LocalProtocolError`."""
    wire.send_content(effect.channel, effect.method, effect.header, effect.body)


def deliver(wire: Wire, effect: Deliver) -> None:
    """Put a run of deliveries in the output. Raises `LocalProtocolError`."""
    put = wire.deliver
    channel, consumer_tag, tag = effect.channel, effect.consumer_tag, effect.first_tag
    fresh_from = tag + effect.redelivered
    for message in effect.messages:
        origin = message.origin
        put(
            channel,
            consumer_tag,
            tag,
            tag < fresh_from,
            origin.exchange,
            origin.routing_key,
            message.header,
            message.body,
        )
        tag += 1


def revoke(wire: Wire, effect: Revoke) -> None:
    """Put basic.revoke in the output, in frames of what the peer takes. Raises `LocalProtocolError`."""
    tags = effect.delivery_tags
    count = (wire.frame_max_bytes - REVOKE_OVERHEAD_BYTES) // TAG_BYTES
    for start in range(0, len(tags), count):
        part = tags[start : start + count]
        wire.send(effect.channel, BasicRevoke(effect.consumer_tag, effect.taken, part))
