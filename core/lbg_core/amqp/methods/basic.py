"""basic.* (class 60), confirm.* (class 85) and tx.* (class 90)."""

from dataclasses import field

from lbg_core.amqp.field_table import Bit, Long, LongLong, Short, ShortStr, TableField, Tags
from lbg_core.amqp.methods.base import Method, Role, method

CLIENT, SERVER = Role.CLIENT, Role.SERVER


@method(60, 10, "basic.qos", CLIENT)
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@method(60, 11, "basic.qos-ok", SERVER)
class BasicQosOk(Method):
    pass


@method(60, 20, "basic.consume", CLIENT, before=(Short,))
class BasicConsume(Method):
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: TableField = field(default_factory=dict)


@method(60, 21, "basic.consume-ok", SERVER)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr = ""


@method(60, 30, "basic.cancel")
class BasicCancel(Method):
    """From the server it is RabbitMQ's consumer cancel notification."""

    consumer_tag: ShortStr = ""
    nowait: Bit = False


@method(60, 31, "basic.cancel-ok")
class BasicCancelOk(Method):
    consumer_tag: ShortStr = ""


@method(60, 40, "basic.publish", CLIENT, content=True, before=(Short,))
class BasicPublish(Method):
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50, "basic.return", SERVER, content=True)
class BasicReturn(Method):
    reply_code: Short = 0
    reply_text: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@method(60, 60, "basic.deliver", SERVER, content=True)
class BasicDeliver(Method):
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@method(60, 70, "basic.get", CLIENT, before=(Short,))
class BasicGet(Method):
    queue: ShortStr = ""
    no_ack: Bit = False


@method(60, 71, "basic.get-ok", SERVER, content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


@method(60, 72, "basic.get-empty", SERVER, after=(ShortStr,))
class BasicGetEmpty(Method):
    pass


@method(60, 80, "basic.ack")
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(60, 90, "basic.reject", CLIENT)
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@method(60, 100, "basic.recover-async", CLIENT)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, "basic.recover", CLIENT)
class BasicRecover(Method):
    requeue: Bit = False


@method(60, 111, "basic.recover-ok", SERVER)
class BasicRecoverOk(Method):
    pass


@method(60, 120, "basic.nack")
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


@method(60, 300, "basic.revoke", SERVER)
class BasicRevoke(Method):
    """LBG's extension (docs/internals/amqp-extensions.md): the broker revokes deliveries of a consumer. Not `taken`: it
    recalls those that the consumer has not begun. `taken`: another consumer has them. RabbitMQ's own methods
    of this class end at 202."""

    consumer_tag: ShortStr = ""
    taken: Bit = False
    delivery_tags: Tags = ()


@method(60, 301, "basic.revoke-ok", CLIENT)
class BasicRevokeOk(Method):
    """The consumer has applied basic.revoke to these deliveries; its verdicts for them were sent before."""

    taken: Bit = False
    delivery_tags: Tags = ()


@method(60, 302, "basic.capacity", CLIENT)
class BasicCapacity(Method):
    """LBG's extension (docs/internals/amqp-extensions.md): number of groups that the consumer works on now."""

    consumer_tag: ShortStr = ""
    groups: Long = 1


@method(85, 10, "confirm.select", CLIENT)
class ConfirmSelect(Method):
    nowait: Bit = False


@method(85, 11, "confirm.select-ok", SERVER)
class ConfirmSelectOk(Method):
    pass


@method(90, 10, "tx.select", CLIENT)
class TxSelect(Method):
    pass


@method(90, 11, "tx.select-ok", SERVER)
class TxSelectOk(Method):
    pass


@method(90, 20, "tx.commit", CLIENT)
class TxCommit(Method):
    pass


@method(90, 21, "tx.commit-ok", SERVER)
class TxCommitOk(Method):
    pass


@method(90, 30, "tx.rollback", CLIENT)
class TxRollback(Method):
    pass


@method(90, 31, "tx.rollback-ok", SERVER)
class TxRollbackOk(Method):
    pass
