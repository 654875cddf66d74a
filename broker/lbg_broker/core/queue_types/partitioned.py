"""Partitioned queue: each partition goes to the consumer whose slot has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lbg_broker.core.arguments import COUNT, PARTITIONS_MAX, ArgumentReader, PartitionedArguments
from lbg_broker.core.effects import SpoolRecord
from lbg_broker.core.entities import Consumer, DispatchPolicy, Share
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.queue_types.partition_assignment import PartitionAssignment as FlowMapping
from lbg_broker.core.queue_types.partition_assignment import Slot
from lbg_broker.core.queue_types.partition_routes import PartitionSpool, Routes
from lbg_broker.core.settle import is_recalled, reassign, recall_from, tags_of
from lbg_broker.core.spool import Spool
from lbg_core.amqp import INTEGER_MAX, ReplyCode

if TYPE_CHECKING:
    from lbg_broker.core.arguments import QueueArguments
    from lbg_broker.core.entities import Queue
    from lbg_broker.core.state import State


def described(policy: PartitionedDispatch) -> Mapping[str, Any]:
    """The fields that a queue's JSON has beside RabbitMQ's. `consumer_tag` is that of the flow which has the partition,
    or had it until its consumer went: see the status.

    `moving_keys` is null, or the state of a change of the number of partitions: the number there is to be, hashes on
    their way, messages that wait for earlier ones in their key's former partition, and messages in partitions that are
    to go."""
    mapping, routes = policy.mapping, policy.routes
    lines = [routes.lines_of(number) for number in range(len(routes.own))]
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
                "messages_ready": sum([line.ready for line in of_partition]),
                "messages_unacknowledged": sum([line.outstanding for line in of_partition]),
                "messages_settled": sum([line.settled for line in of_partition]),
                "last_handoff_seconds": None if own.handoff_s is None else round(own.handoff_s, 6),
            }
            for number, (owner, own, of_partition) in enumerate(
                zip(mapping.owners, routes.own, lines, strict=True)
            )
        ],
        "moving_keys": {
            "partitions": routes.rules.count,
            "hashes": sum([len(one.slots) for one in routes.staged]),
            "messages_held": sum([one.line.ready for one in routes.staged if not one.is_open]),
            "messages_surplus": sum(
                [line.ready + line.outstanding for of_one in lines[routes.rules.count :] for line in of_one]
            ),
        }
        if routes.is_moving
        else None,
    }


def perform(policy: PartitionedDispatch, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Carry out `ingress` or `repartition`. Raises `ChannelRefusal`."""
    if action == "ingress":
        return _set_ingress(policy, _flag(policy, arguments, "open", None))
    if action == "repartition":
        count = arguments.get("count")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
            raise _refused(policy, f"count must be a number from 1 to {PARTITIONS_MAX}, not {count!r}")
        limit = arguments.get("max_length_bytes")
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= INTEGER_MAX
        ):
            raise _refused(
                policy, f"max_length_bytes must be a number from 0 to {INTEGER_MAX}, not {limit!r}"
            )
        if limit is not None and policy.queue.rules.overflow == "drop-head":
            raise _refused(policy, "max_length_bytes needs a queue declared with x-overflow reject-publish")
        discard = _flag(policy, arguments, "discard", False)
        return _repartition(policy, count, discard=discard, max_length_bytes=limit)
    raise _refused(policy, f"a partitioned queue has no action '{action}', only ingress and repartition")


def _set_ingress(policy: PartitionedDispatch, is_open: bool) -> Mapping[str, Any]:
    policy.queue.shut = not is_open
    policy.state.redefine(policy.queue)
    return {"ingress": is_open}


def _repartition(
    policy: PartitionedDispatch, count: int, *, discard: bool, max_length_bytes: int | None
) -> Mapping[str, Any]:
    """`max_length_bytes`: the limit over all partitions together from now on; None: as it was. A lower one counts as
    soon as the messages that wait are within it.

    The ingress may be open. With `discard` messages in partitions that go are deleted, and otherwise delivered.
    """
    queue, state, routes = policy.queue, policy.state, policy.routes
    rules = replace(routes.rules, count=count)
    try:
        routes.change(rules)
    except ValueError as error:
        raise _refused(policy, str(error)) from None
    held = 0
    if discard:
        for partition in range(count, len(routes.own)):
            policy.reassign(partition)
        held = routes.discard(count)
    queue.attend()
    queue.rules = replace(queue.rules, kind=rules)
    queue.arguments[COUNT] = count
    if max_length_bytes is not None:
        queue.arguments["x-max-length-bytes"] = max_length_bytes
        policy.limit_bytes(max_length_bytes)
    state.redefine(queue)
    policy.routed()
    return {"partitions": count, "discarded": held}


def _flag(policy: PartitionedDispatch, arguments: Mapping[str, Any], name: str, default: bool | None) -> bool:
    value = arguments.get(name, default)
    if isinstance(value, bool):
        return value
    raise _refused(policy, f"{name} must be true or false, not {value!r}")


def _refused(policy: PartitionedDispatch, reason: str) -> ChannelRefusal:
    return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{policy.queue.where}: {reason}")


CLAIM = "x-partitions"


@dataclass(slots=True)
class _Turn:
    """A consumer with the lines it gets messages of now."""

    consumer: Consumer
    lines: list[PartitionSpool]
    served: int = 0

    def waiting(self) -> list[PartitionSpool]:
        """Lines with messages to deliver that are not behind others with some."""
        return [line for line in self.lines if line.ready and not (line.ahead and line.is_behind)]

    def rotated(self, waiting: list[PartitionSpool]) -> list[PartitionSpool]:
        """Another one in front than before, because large messages may leave room for few of them."""
        self.served += 1
        start = self.served % len(waiting)
        return waiting[start:] + waiting[:start]

    def next_of(self, waiting: list[PartitionSpool], count: int) -> list[PartitionSpool]:
        """Fewer than wait, as there is no room for all: each when it is its turn."""
        start = self.served % len(waiting)
        self.served += count
        return (waiting[start:] + waiting[:start])[:count]


class PartitionedDispatch(DispatchPolicy):
    """`mapping` assigns each partition; this reports events to it and applies its results. `routes` has the lines of
    the partitions."""

    supports_get = False

    def __init__(
        self, state: State, queue: Queue, rules: PartitionedArguments, stored: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.state = state
        self.queue = queue
        moving = stored.get("repartition", {"slots": 0, "staged": []})
        staged_ids = {one["line"] for one in moving["staged"]}
        lines: list[PartitionSpool] = queue.lines  # type: ignore[assignment]  # the kind makes no others
        for line in lines:
            line.settled_before = line.next_position - line.ready
        self.routes = Routes(
            rules,
            [line for line in lines if line.id not in staged_ids],
            new_line=self._new_line,
            drop_line=lambda line: state.drop_line(queue, line),
        )
        self.mapping = FlowMapping(
            len(self.routes.own),
            delay_s=rules.rebalance_delay_ms / 1000,
            handoff_s=rules.max_handoff_ms / 1000,
            has_unsettled=self._has_unsettled,
            is_awaited=self._is_awaited,
        )
        self._flows: dict[Consumer, Slot] = {}
        self._turns: list[_Turn] = []
        self._hands_off = False
        self._alarm_at: float | None = None
        self._assigned: list[tuple[str, list[int]]] = []
        self._limit_to_be: int | None = None
        self.messages_forced = 0
        queue.shut = not stored.get("ingress", True)
        self.routes.restore(moving, [line for line in lines if line.id in staged_ids])
        queue.append = self.routes.append
        if "limit_bytes" in stored:
            limit, self._limit_to_be = int(stored["limit_bytes"]), queue.rules.max_length_bytes
            queue.rules = replace(queue.rules, max_length_bytes=limit)
        if stored.get("flows"):
            self.mapping.recall((tag, partitions) for tag, partitions in stored["flows"])
            self._assigned = self.mapping.assigned()
            state.wake_at(queue, state.now)

    def _new_line(self) -> PartitionSpool:
        line = self.state.new_line(PartitionSpool, durable=self.queue.durable)
        self.state.add_line(self.queue, line)
        return line

    def routed(self) -> None:
        """Applies a change of the routes."""
        self.queue.append = self.routes.append
        self.queue.forget_room()
        self.state.redefine(self.queue)
        if len(self.mapping.owners) != len(self.routes.own):
            self.mapping.resize(len(self.routes.own), self.state.now)
        self.changed()

    def limit_bytes(self, limit: int) -> None:
        """Sets the limit of what waits; a lower one when what waits is within it."""
        queue = self.queue
        former = queue.rules.max_length_bytes
        if former is not None and limit < former and queue.bytes_ready > limit:
            self._limit_to_be = limit
            return
        self._limit_to_be = None
        queue.rules = replace(queue.rules, max_length_bytes=limit)

    # --- the broker's side -------------------------------------------------------------------------------------

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        arguments.numbers(CLAIM)

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        claimed: Any = consumer.arguments.get(CLAIM)
        self._flows[consumer] = self.mapping.bind(consumer.tag, self.state.now, claimed=claimed)
        self.changed()

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        self.mapping.unbind(self._flows.pop(consumer), self.state.now)
        self.changed()

    def is_active(self, consumer: Consumer) -> bool:
        return bool(self._flows[consumer].partitions)

    def answered(self, consumer: Consumer) -> None:
        if self.mapping.answered():
            self.changed()

    def ring(self) -> None:
        self._alarm_at = None
        for partition in self.mapping.ring(self.state.now):
            self.messages_forced += self.reassign(partition)
        self.changed()

    def dispatch(self) -> Iterator[Share]:
        if self._hands_off and self._complete_handoffs():
            self.changed()
        if self._limit_to_be is not None:
            self._limit_again(self._limit_to_be)
        yield from self._shares()
        while self.routes.is_moving and self.routes.advance():
            self.routed()
            yield from self._shares()

    def _shares(self) -> Iterator[Share]:
        for turn in self._turns:
            if self.routes.staged:
                yield from self._shares_of(turn)  # of those ahead, behind which the others are
            yield from self._shares_of(turn)

    def _shares_of(self, turn: _Turn) -> Iterator[Share]:
        consumer, waiting = turn.consumer, turn.waiting()
        if consumer.limits_bytes and waiting and consumer.credit():
            waiting = turn.rotated(waiting)
        while waiting and (credit := consumer.credit()):
            if credit < len(waiting):
                waiting = turn.next_of(waiting, credit)
            portion = credit // len(waiting)
            portion_bytes = -(-consumer.credit_bytes() // len(waiting))
            left = []
            for line in waiting:
                messages, redelivered = line.take(portion, min(portion_bytes, consumer.credit_bytes()))
                if messages:
                    line.holder = consumer
                    yield line, consumer, messages, redelivered
                    if line.ready:
                        left.append(line)
            waiting = left  # without those whose messages must be read first

    def perform(self, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return perform(self, action, arguments)

    def describe(self) -> Mapping[str, Any]:
        return described(self)

    def stored_state(self) -> Mapping[str, Any]:
        stored: dict[str, Any] = {"ingress": not self.queue.shut, "flows": self.mapping.assigned()}
        if self.routes.staged:
            stored["repartition"] = self.routes.stored()
        if self._limit_to_be is not None:
            stored["limit_bytes"] = self.queue.rules.max_length_bytes
        return stored

    def reassign(self, partition: int) -> int:
        """Reassigns the messages of a partition from its former consumer; returns how many."""
        return sum(
            [
                reassign(self.state, line, line.holder.channel)
                for line in self.routes.lines_of(partition)
                if line.holder is not None
            ]
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _complete_handoffs(self) -> bool:
        """Completes the handoffs of partitions without unsettled messages."""
        done = [partition for partition in self.mapping.waiting_for if not self._has_unsettled(partition)]
        for partition in done:
            self.mapping.drained(partition)
        return bool(done)

    def changed(self) -> None:
        """Applies changes of the mapping, and recalls messages of paused partitions from their consumers."""
        state, queue, mapping = self.state, self.queue, self.mapping
        waiting_for = frozenset(mapping.waiting_for)
        self._hands_off = bool(waiting_for)
        paused: dict[Consumer, set[Spool]] = {}
        for number, own in enumerate(self.routes.own):
            lines = self.routes.lines_of(number)
            if number not in waiting_for:
                for line in lines:
                    line.on_drained = None
                if own.paused_at is not None:
                    own.handoff_s, own.paused_at = state.now - own.paused_at, None
            elif own.on_drained is None:
                own.paused_at = state.now
                for line in lines:
                    line.on_drained = self._make_due
                    if line.holder is not None:
                        paused.setdefault(line.holder, set()).add(line)
        for holder, of_holder in paused.items():
            recall_from(state, holder, tags_of(holder.channel, of_holder))
        turns = [
            _Turn(consumer, self.routes.deliverable(mapping.deliverable(flow)))
            for consumer, flow in self._flows.items()
        ]
        self._turns = [turn for turn in turns if turn.lines]
        at = mapping.next_at
        if at is not None and at != self._alarm_at:
            self._alarm_at = at
            state.wake_at(queue, at)
        assigned = mapping.assigned()
        if assigned != self._assigned:
            self._assigned = assigned
            state.redefine(queue)
        state.make_due(queue)

    def _has_unsettled(self, partition: int) -> bool:
        return any(line.outstanding for line in self.routes.lines_of(partition))

    def _is_awaited(self, partition: int) -> bool:
        return any(
            line.holder is not None
            and (
                is_recalled(line.holder.channel, line)
                or (line.outstanding and line.holder not in self._flows)
            )
            for line in self.routes.lines_of(partition)
        )

    def _limit_again(self, limit: int) -> None:
        self.limit_bytes(limit)
        if self._limit_to_be is None:
            self.queue.forget_room()
            self.state.redefine(self.queue)

    def _make_due(self) -> None:
        self.state.make_due(self.queue)


class PartitionedType:
    """Line n is partition n."""

    def new_lines(self, state: State, rules: QueueArguments, *, durable: bool) -> list[Spool]:
        return [state.new_line(PartitionSpool, durable=durable) for _ in range(_asked(rules).count)]

    def restored_lines(
        self,
        state: State,
        rules: QueueArguments,
        records: Sequence[SpoolRecord],
        stored: Mapping[str, Any],
    ) -> list[Spool]:
        return [PartitionSpool.restored(record, touched=state.touched) for record in records]

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> PartitionedDispatch:
        return PartitionedDispatch(state, queue, _asked(queue.rules), stored)


def _asked(rules: QueueArguments) -> PartitionedArguments:
    assert isinstance(rules.kind, PartitionedArguments)
    return rules.kind
