"""End of channels and connections: unsettled deliveries return to their place, the next consumer is served."""

from __future__ import annotations

from lbg_broker.core.basic_methods import remove_consumer
from lbg_broker.core.effects import Send
from lbg_broker.core.entities import Channel, Connection
from lbg_broker.core.errors import ChannelRefusal, Refusal
from lbg_broker.core.queue_methods import remove_queue
from lbg_broker.core.settle import requeue_all
from lbg_broker.core.state import State
from lbg_core.amqp.methods import ChannelClose, ConnectionClose


def end_channel(state: State, channel: Channel) -> None:
    """Undo what a channel had: first its deliveries return, then its consumers go, so that the next one
    starts at the right message."""
    channel.closing = True
    channel.backlog.clear()
    requeue_all(state, channel)
    for consumer in list(channel.consumers.values()):
        remove_consumer(state, consumer)


def end_connection(state: State, connection: Connection) -> None:
    """Undo what a connection had; its exclusive queues go with it."""
    if state.connections.pop(connection.id, None) is None:
        return
    connection.closing = True
    connection.paused = True  # nothing more is delivered to it meanwhile
    for channel in connection.channels.values():
        channel.closing = True
    requeue_all(state, *connection.channels.values())
    for channel in connection.channels.values():
        end_channel(state, channel)
    for queue in list(connection.owned):
        remove_queue(state, queue)


def close_connection(state: State, connection: Connection, close: ConnectionClose) -> None:
    """Closes a connection, with the reason."""
    state.emit(connection, Send(0, close))
    end_connection(state, connection)


def refuse(state: State, channel: Channel, refusal: Refusal, *, class_id: int, method_id: int) -> None:
    """Closes the channel, or its connection, of a refused method."""
    if isinstance(refusal, ChannelRefusal):
        state.send(channel, ChannelClose(refusal.code, refusal.reply_text, class_id, method_id))
        end_channel(state, channel)
    else:
        close_connection(
            state,
            channel.connection,
            ConnectionClose(refusal.code, refusal.reply_text, class_id, method_id),
        )
