"""Exchanges, queues and bindings."""

from lbg_broker.amqp import Table
from lbg_broker.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from lbg_broker.client.requests import RequestingChannel

__all__ = ["DeclaringChannel"]


class DeclaringChannel(RequestingChannel):
    """Declares and deletes. Each call raises `ChannelClosed` (a subclass tells 403 to 406) or `ConnectionLost`.

    `passive` only asks whether it exists: 404 closes the channel when it does not.
    """

    async def exchange_declare(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        passive: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> None:
        flags = {"passive": passive, "durable": durable, "auto_delete": auto_delete, "internal": internal}
        await self.call(ExchangeDeclare(name, type, **flags, arguments=arguments or {}), ExchangeDeclareOk)

    async def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        await self.call(ExchangeDelete(name, if_unused), ExchangeDeleteOk)

    async def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        request = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self.call(request, ExchangeBindOk)

    async def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        request = ExchangeUnbind(destination, source, routing_key, arguments=arguments or {})
        await self.call(request, ExchangeUnbindOk)

    async def queue_declare(
        self,
        name: str = "",
        *,
        durable: bool = False,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> QueueDeclareOk:
        """The answer holds the queue's name (the broker makes one for ``""``), messages and consumers."""
        flags = {"passive": passive, "durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
        return await self.call(QueueDeclare(name, **flags, arguments=arguments or {}), QueueDeclareOk)

    async def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        await self.call(QueueBind(queue, exchange, routing_key, arguments=arguments or {}), QueueBindOk)

    async def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        await self.call(QueueUnbind(queue, exchange, routing_key, arguments or {}), QueueUnbindOk)

    async def queue_purge(self, name: str) -> int:
        """Returns how many messages are gone."""
        return (await self.call(QueuePurge(name), QueuePurgeOk)).message_count

    async def queue_delete(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Returns how many messages went with it."""
        return (await self.call(QueueDelete(name, if_unused, if_empty), QueueDeleteOk)).message_count
