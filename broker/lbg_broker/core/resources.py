"""Resources by name: lookup, ownership and permission checks."""

from __future__ import annotations

from typing import Final, Literal, Protocol

from lbg_broker.core.entities import Connection, Queue, Vhost
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.exchange import Exchange
from lbg_broker.core.permissions import Permission
from lbg_broker.core.state import State
from lbg_core.amqp import ReplyCode

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"

DEFAULT_EXCHANGE: Final = "amq.default"
"""Name of the default exchange in reply texts, as in RabbitMQ's; on the wire it is empty."""
"""The queue that none is: RabbitMQ sends what is published with it as reply-to straight to the channel that consumes it
(«Direct Reply-to»)."""


class Principal(Protocol):
    """Requester of an action: a channel, or an administrator without a connection."""

    last_queue: str

    @property
    def user(self) -> str: ...

    @property
    def vhost(self) -> Vhost: ...

    @property
    def owner(self) -> Connection | None: ...


def check_permission(
    state: State, actor: Principal, permission: Permission, kind: Literal["queue", "exchange"], name: str
) -> None:
    """Raise 403 unless the user has the permission."""
    if not state.authority.can(actor.user, actor.vhost.name, permission, name):
        raise ChannelRefusal(
            ReplyCode.ACCESS_REFUSED,
            f"access to {kind} '{name or DEFAULT_EXCHANGE}' in vhost '{actor.vhost.name}' refused for user "
            f"'{actor.user}'",
        )


def queue_name(actor: Principal, name: str) -> str:
    """The name, or for the empty one the queue this channel declared last. Raises 404 when there is none."""
    if name:
        return name
    if not actor.last_queue:
        raise ChannelRefusal(ReplyCode.NOT_FOUND, "no previously declared queue")
    return actor.last_queue


def find_queue(actor: Principal, name: str) -> Queue:
    """The queue of this name. Raises 404, and 406 for direct reply-to."""
    queue = actor.vhost.queues.get(name)
    if queue is None:
        if name == DIRECT_REPLY_TO:
            raise no_direct_reply_to()
        raise ChannelRefusal(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{actor.vhost.name}'")
    return queue


def find_exchange(actor: Principal, name: str) -> Exchange:
    """The exchange of this name. Raises 404."""
    exchange = actor.vhost.exchanges.get(name)
    if exchange is None:
        raise ChannelRefusal(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{actor.vhost.name}'")
    return exchange


def no_direct_reply_to() -> ChannelRefusal:
    """Refusal of direct reply-to, in place of replies that would never come."""
    return ChannelRefusal(
        ReplyCode.PRECONDITION_FAILED,
        f"direct reply-to is not supported: declare a queue for replies and name it in place of '{DIRECT_REPLY_TO}'",
    )


def check_owner(actor: Principal, queue: Queue) -> None:
    """Raise 405 for another connection's exclusive queue."""
    if queue.owner is not None and queue.owner is not actor.owner:
        raise locked(queue)


def locked(queue: Queue) -> ChannelRefusal:
    """Refusal for another connection's exclusive queue."""
    return ChannelRefusal(
        ReplyCode.RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {queue.where}. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration.",
    )


def check_not_default(name: str) -> None:
    """Raise 403 for the default exchange, which is only to publish to."""
    if not name:
        raise ChannelRefusal(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")


def check_not_reserved(kind: Literal["queue", "exchange"], name: str) -> None:
    """Raise 403 for a name that only the broker gives."""
    if name.startswith("amq."):
        raise ChannelRefusal(
            ReplyCode.ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'"
        )
