"""The channels of one connection, and what comes in for them."""

from collections.abc import Callable

from lbg_broker.amqp import AckEvent, ChannelFault, ContentEvent, DeliverEvent, Event, MethodEvent
from lbg_broker.client.channel import Channel
from lbg_broker.client.errors import ClientError

__all__ = ["Channels"]


class Channels:
    """`on_other` gets what is of the connection itself. What comes for a channel that is gone is dropped."""

    def __init__(self, on_other: Callable[[Event], None]) -> None:
        self._on_other = on_other
        self._channels: dict[int, Channel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def free_number(self, channel_max: int) -> int | None:
        """None: all are in use."""
        return next((number for number in range(1, channel_max + 1) if number not in self._channels), None)

    def add(self, channel: Channel) -> None:
        self._channels[channel.number] = channel

    def remove(self, number: int) -> None:
        self._channels.pop(number, None)

    def lose(self, reason: ClientError) -> None:
        """The connection is gone, and all of them with it."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_connection_lost(reason)

    def dispatch(self, events: list[Event]) -> None:
        """Deliveries of one consumer that came together are handed over together."""
        batch: list[DeliverEvent] = []
        number = 0
        tag = ""
        for event in events:
            if type(event) is DeliverEvent:
                if event.consumer_tag is tag and event.channel == number:
                    batch.append(event)
                    continue
                if batch:
                    self._hand_over(number, tag, batch)
                batch = [event]
                number, tag = event.channel, event.consumer_tag
            elif type(event) is AckEvent:
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.on_ack_event(event)
            else:
                if batch:
                    self._hand_over(number, tag, batch)
                    batch, number = [], 0
                self.on_event(event)
        if batch:
            self._hand_over(number, tag, batch)

    def on_event(self, event: Event) -> None:
        """One alone."""
        match event:
            case DeliverEvent():
                self._hand_over(event.channel, event.consumer_tag, [event])
            case ContentEvent() if event.channel in self._channels:
                self._channels[event.channel].on_content(event)
            case MethodEvent() if event.channel in self._channels:
                self._channels[event.channel].on_method(event.method)
            case ChannelFault() if event.channel in self._channels:
                self._channels[event.channel].on_fault(event)
            case _:
                self._on_other(event)

    def _hand_over(self, number: int, consumer_tag: str, batch: list[DeliverEvent]) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.on_batch(consumer_tag, batch)
