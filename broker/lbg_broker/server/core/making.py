"""Making a queue with the policy of its kind."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lbg_broker.amqp import Table
from lbg_broker.server.core.arguments import QueueArguments
from lbg_broker.server.core.expiry import TimeToLive
from lbg_broker.server.core.kinds.choosing import kind_of
from lbg_broker.server.core.queue import Queue
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.state import State
from lbg_broker.server.core.vhost import Vhost

if TYPE_CHECKING:
    from lbg_broker.server.core.connection import Connection

__all__ = ["make_queue"]


def make_queue(
    state: State,
    vhost: Vhost,
    name: str,
    *,
    durable: bool,
    auto_delete: bool,
    owner: "Connection | None",
    arguments: Table,
    rules: QueueArguments,
    lines: list[Spool],
    kept: Mapping[str, Any],
) -> Queue:
    """A queue in its virtual host. `kept`: what its policy kept before a restart; empty for a new one."""
    queue = Queue(
        vhost,
        name,
        durable=durable,
        auto_delete=auto_delete,
        owner=owner,
        arguments=arguments,
        rules=rules,
        lines=lines,
    )
    queue.policy = kind_of(rules).policy(state, queue, kept)
    vhost.queues[name] = queue
    if rules.message_ttl_s is not None:
        queue.append = TimeToLive(state, queue, rules.message_ttl_s).append
    if rules.message_ttl_s is not None or rules.expires_s is not None:
        queue.alarm_at = state.now  # what came back after a restart may have expired meanwhile
        state.wake_at(queue, queue.alarm_at)
    return queue
