"""exchange.* (class 40), queue.* (class 50) and the obsolete access.* (class 30)."""

from dataclasses import field

from lbg_core.amqp.field_table import Bit, Long, Short, ShortStr, TableField
from lbg_core.amqp.methods.base import Method, Role, method

CLIENT, SERVER = Role.CLIENT, Role.SERVER


@method(30, 10, "access.request", CLIENT)
class AccessRequest(Method):
    """Gone from 0-9-1; old clients still send it and RabbitMQ still answers with ticket 1."""

    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(30, 11, "access.request-ok", SERVER)
class AccessRequestOk(Method):
    ticket: Short = 1


@method(40, 10, "exchange.declare", CLIENT, before=(Short,))
class ExchangeDeclare(Method):
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(40, 11, "exchange.declare-ok", SERVER)
class ExchangeDeclareOk(Method):
    pass


@method(40, 20, "exchange.delete", CLIENT, before=(Short,))
class ExchangeDelete(Method):
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


@method(40, 21, "exchange.delete-ok", SERVER)
class ExchangeDeleteOk(Method):
    pass


@method(40, 30, "exchange.bind", CLIENT, before=(Short,))
class ExchangeBind(Method):
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(40, 31, "exchange.bind-ok", SERVER)
class ExchangeBindOk(Method):
    pass


@method(40, 40, "exchange.unbind", CLIENT, before=(Short,))
class ExchangeUnbind(Method):
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(40, 51, "exchange.unbind-ok", SERVER)
class ExchangeUnbindOk(Method):
    """Its number is 51, not 41: an accident that the protocol kept."""


@method(50, 10, "queue.declare", CLIENT, before=(Short,))
class QueueDeclare(Method):
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(50, 11, "queue.declare-ok", SERVER)
class QueueDeclareOk(Method):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


@method(50, 20, "queue.bind", CLIENT, before=(Short,))
class QueueBind(Method):
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(50, 21, "queue.bind-ok", SERVER)
class QueueBindOk(Method):
    pass


@method(50, 30, "queue.purge", CLIENT, before=(Short,))
class QueuePurge(Method):
    queue: ShortStr = ""
    nowait: Bit = False


@method(50, 31, "queue.purge-ok", SERVER)
class QueuePurgeOk(Method):
    message_count: Long = 0


@method(50, 40, "queue.delete", CLIENT, before=(Short,))
class QueueDelete(Method):
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@method(50, 41, "queue.delete-ok", SERVER)
class QueueDeleteOk(Method):
    message_count: Long = 0


@method(50, 50, "queue.unbind", CLIENT, before=(Short,))
class QueueUnbind(Method):
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: TableField = field(default_factory=dict)


@method(50, 51, "queue.unbind-ok", SERVER)
class QueueUnbindOk(Method):
    pass
