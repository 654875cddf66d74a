"""What only a partitioned queue can be asked to do: close and open its ingress, and change its number of partitions
(«Configuring Partitioned Queues», Adding and Removing Partitions in a Queue)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.kinds.partitioned.line import Partition
from lbg_broker.server.core.kinds.partitioned.rules import COUNT, PARTITIONS_MAX, PartitionedRules

if TYPE_CHECKING:
    from lbg_broker.server.core.kinds.partitioned.policy import Partitioned

__all__ = ["perform"]


def perform(policy: "Partitioned", action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Carry out `ingress` or `repartition`. Raises `ChannelRefusal`."""
    if action == "ingress":
        return _set_ingress(policy, _flag(policy, arguments, "open", None))
    if action == "repartition":
        count = arguments.get("count")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
            raise _refused(policy, f"count is to be a number from 1 to {PARTITIONS_MAX}, not {count!r}")
        limit = arguments.get("max_length_bytes")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise _refused(policy, f"max_length_bytes is to be a number from 0 up, not {limit!r}")
        if limit is not None and policy.queue.rules.overflow == "drop-head":
            raise _refused(
                policy, "max_length_bytes is for a queue that was declared with x-overflow reject-publish"
            )
        discard = _flag(policy, arguments, "discard", False)
        return _repartition(policy, count, discard=discard, max_length_bytes=limit)
    raise _refused(
        policy, f"there is no action '{action}' for a partitioned queue: it has ingress and repartition"
    )


def _set_ingress(policy: "Partitioned", is_open: bool) -> Mapping[str, Any]:
    policy.queue.shut = not is_open
    policy.state.redefine(policy.queue)
    return {"ingress": is_open}


def _repartition(
    policy: "Partitioned", count: int, *, discard: bool, max_length_bytes: int | None
) -> Mapping[str, Any]:
    """`max_length_bytes`: the limit over all partitions together from now on; None: as it was.

    Keys change their partitions with this, so what is still there would be overtaken: hence the closed ingress."""
    queue, state, lines = policy.queue, policy.state, policy.lines
    if not queue.shut:
        raise _refused(
            policy, "its ingress is open: close it, and let its messages drain, before it is repartitioned"
        )
    removed = lines[count:]
    held = sum([line.ready + line.outstanding for line in removed])
    if held and not discard:
        raise _refused(
            policy,
            f"partitions {count} to {len(lines) - 1} hold {held} messages: let them drain, or discard them",
        )
    for line in reversed(removed):
        policy.take_back(line)
        state.drop_line(queue, line)
    for _ in range(count - len(lines)):
        state.add_line(queue, state.new_line(Partition, durable=queue.durable))
    queue.attend()
    assert isinstance(queue.rules.kind, PartitionedRules)
    rules = replace(queue.rules.kind, count=count)
    queue.rules = replace(queue.rules, kind=rules)
    queue.arguments[COUNT] = count
    if max_length_bytes is not None:
        queue.rules = replace(queue.rules, max_length_bytes=max_length_bytes)
        queue.arguments["x-max-length-bytes"] = max_length_bytes
    queue.forget_room()
    state.redefine(queue)
    policy.place(rules)
    policy.mapping.resize(count, state.now)
    policy.changed()
    return {"partitions": count, "discarded": held}


def _flag(policy: "Partitioned", arguments: Mapping[str, Any], name: str, default: bool | None) -> bool:
    value = arguments.get(name, default)
    if isinstance(value, bool):
        return value
    raise _refused(policy, f"{name} is to be true or false, not {value!r}")


def _refused(policy: "Partitioned", reason: str) -> ChannelRefusal:
    return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{policy.queue.where}: {reason}")
