"""A partitioned queue in the management API, in the document's words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbg_broker.server.core.kinds.partitioned.policy import Partitioned

__all__ = ["described"]


def described(policy: "Partitioned") -> Mapping[str, Any]:
    """The fields that a queue's JSON has beside RabbitMQ's. `consumer_tag` is that of the flow which has the partition,
    or had it until its consumer went: the status tells which."""
    mapping = policy.mapping
    return {
        "rebalance_status": mapping.status.value,
        "ingress": not policy.queue.shut,
        "handoffs": {
            "total": mapping.total,
            "forced": mapping.forced,
            "messages_forced": policy.messages_forced,
        },
        "partitions": [
            {
                "partition": number,
                "status": mapping.status_of(number).value,
                "consumer_tag": None if owner is None else owner.tag,
                "messages_ready": line.ready,
                "messages_unacknowledged": line.outstanding,
            }
            for number, (owner, line) in enumerate(zip(mapping.owners, policy.lines, strict=True))
        ],
    }
