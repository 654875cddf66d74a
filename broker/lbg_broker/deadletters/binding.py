"""That a queue takes what is replayed, made sure of before.

`mandatory` does not tell: the group's alternate exchange takes what no queue takes, and the broker confirms it.
"""

from __future__ import annotations

from lbg_broker.client import AccessRefused, ChannelClosed, ClientConnection
from lbg_broker.group import Engine, GroupSpec, binding_of

from .errors import ReplayStopped
from .letter import DeadLetter, hash_in


class Binding:
    """Binds the queue of each hash that is replayed to the group's exchange: nothing happens where it is bound."""

    def __init__(self, connection: ClientConnection, spec: GroupSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._bound: set[int] = set()

    async def ensure(self, letter: DeadLetter) -> None:
        """Raises ReplayStopped, and ClientError when the connection is lost. A hash that is not of the group is left
        to `Restamping`."""
        hash_ = hash_in(letter.routing_key)
        if hash_ is None or hash_ >= self._spec.hash_count or hash_ in self._bound:
            return
        binding = binding_of(self._spec, Engine.announced(self._connection.server_properties), hash_)
        queue = binding.queue
        channel = await self._connection.open_channel()
        try:
            await channel.queue_bind(queue, binding.exchange, binding.routing_key)
        except AccessRefused as error:
            why = f"this user may not make sure that queue {queue} is bound ({error.reply_text})"
            raise ReplayStopped(str(letter), why) from None
        except ChannelClosed as error:
            why = f"queue {queue} cannot be bound ({error.reply_text}): `lbg group create` repairs a group"
            raise ReplayStopped(str(letter), why) from None
        await channel.close()
        self._bound.add(hash_)
