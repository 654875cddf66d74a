"""pika's blocking connection with what is below it: methods and bytes that it does not send, calls that do not wait."""

from __future__ import annotations

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.channel import Channel
from pika.exceptions import ChannelClosedByClient, StreamLostError


class RawChannel(Channel):
    """A channel that does not wait for answers."""

    def send(self, method: Any) -> None:
        """Send a method as it is: pika refuses some."""
        self._send_method(method)

    def close_at_once(self) -> None:
        """Send Channel.Close and nothing else: pika's own close cancels the consumers first."""
        self._set_state(self.CLOSING)
        self._closing_reason = ChannelClosedByClient(0, "closed at once")
        close = pika.spec.Channel.Close(0, "closed at once", 0, 0)
        self._rpc(close, self._on_closeok, [pika.spec.Channel.CloseOk])


class RawConnection(pika.SelectConnection):
    """`opened` are its channels by number."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.opened: dict[int, RawChannel] = {}
        super().__init__(*arguments, **settings)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are, frames or not."""
        self._transport.write(data)

    def abort(self) -> None:
        """End the socket without a word of AMQP."""
        self._terminate_stream(StreamLostError("ended by the test"))

    def _create_channel(self, channel_number: int, on_open_callback: Any) -> RawChannel:
        channel = self.opened[channel_number] = RawChannel(self, channel_number, on_open_callback)
        return channel


class OpenConnection(pika.BlockingConnection):
    """A blocking connection on a `RawConnection`."""

    def __init__(self, parameters: pika.connection.Parameters) -> None:
        super().__init__(parameters, _impl_class=RawConnection)

    @property
    def raw(self) -> RawConnection:
        return self._impl


def raw(channel: BlockingChannel) -> RawChannel:
    """The channel below a blocking one."""
    connection = channel.connection
    assert isinstance(connection, OpenConnection)
    return connection.raw.opened[channel.channel_number]
