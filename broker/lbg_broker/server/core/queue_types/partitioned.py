"""Partitioned queue: each partition goes to the consumer whose slot has it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from lbg_broker.amqp import ReplyCode
from lbg_broker.group.hashing import HASH_FUNCTIONS, murmur2_of_bytes
from lbg_broker.server.core.arguments import COUNT, PARTITIONS_MAX, ArgumentReader, PartitionedArguments
from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.effects import SpoolRecord
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.message import Message, Origin, text_reader
from lbg_broker.server.core.queue import DispatchPolicy, Share
from lbg_broker.server.core.queue_types.partition_assignment import PartitionAssignment as FlowMapping
from lbg_broker.server.core.queue_types.partition_assignment import Slot
from lbg_broker.server.core.settle import is_recalled, reassign, recall_from, tags_of
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State


KEY_HEADERS: Final = (
    "lbg-key",
    "x-group-id",
    "group-id",
    "JMSXGroupID",
    "QUEUE_PARTITION_KEY",
    "partitionkey",
    "ce-partitionkey",
    "cloudEvents:partitionkey",
    "cloudEvents_partitionkey",
)
"""Headers in which a partition key may be; the first that is there counts. The names are those of our publishers, of
AMQP 1.0 and JMS, of Solace ("Message Distribution With Partitioned Queues"), and of CloudEvents over HTTP and
AMQP."""

REMEMBERED_KEYS: Final = 16_384
"""Keys repeat: this many with their partitions cost 2 MB at most where they are short."""
REMEMBERED_BYTES: Final = 64
"""Longer ones are hashed each time."""


def placing(rules: PartitionedArguments) -> Callable[[bytes], int]:
    """A function from a message's encoded properties to its partition. Without a key it is a random one."""
    key_of = text_reader(KEY_HEADERS)
    hash_of, hash_count, count = _HASHES[rules.hash], rules.hash_count, rules.count
    remembered: dict[bytes, int] = {}
    random = Random(count).random  # it spreads, and need not be secret

    def place(header: bytes) -> int:
        key = key_of(header)
        if key is None:
            return int(random() * count)
        partition = remembered.get(key)
        if partition is None:
            hashed = hash_of(key)
            partition = (hashed if hash_count is None else hashed % hash_count) % count
            if len(key) <= REMEMBERED_BYTES:
                if len(remembered) >= REMEMBERED_KEYS:
                    remembered.clear()
                remembered[key] = partition
        return partition

    return place


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


def _modulo(key: bytes) -> int:
    """A key that is no number has to go somewhere too, and always to the same partition."""
    try:
        return HASH_FUNCTIONS["modulo"](_text(key))
    except ValueError:
        return zlib.crc32(key)


_HASHES: Final[dict[str, Callable[[bytes], int]]] = {
    "crc32": zlib.crc32,
    "java": lambda key: HASH_FUNCTIONS["java"](_text(key)),
    "murmur2": lambda key: murmur2_of_bytes(key) & 0x7FFFFFFF,
    "modulo": _modulo,
}


class PartitionSpool(Spool):
    """One consumer, `holder`, has all its unsettled messages. `on_drained` is called when they are settled; None:
    nothing waits for that. `paused_at`: since when it waits for that, and `handoff_s`: how long the last handoff
    took; None before the first one, and after a restart of the broker."""

    __slots__ = ("handoff_s", "holder", "on_drained", "paused_at")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.holder: Consumer | None = None
        self.on_drained: Callable[[], None] | None = None
        self.paused_at: float | None = None
        self.handoff_s: float | None = None

    def settle(self, message: Message) -> None:
        Spool.settle(self, message)  # for every acknowledgement: a third faster than super()
        if self.on_drained is not None and not self.outstanding:
            self.on_drained()


def described(policy: PartitionedDispatch) -> Mapping[str, Any]:
    """The fields that a queue's JSON has beside RabbitMQ's. `consumer_tag` is that of the flow which has the partition,
    or had it until its consumer went: see the status."""
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
                "last_handoff_seconds": None if line.handoff_s is None else round(line.handoff_s, 6),
            }
            for number, (owner, line) in enumerate(zip(mapping.owners, policy.lines, strict=True))
        ],
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
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise _refused(policy, f"max_length_bytes must be a number of at least 0, not {limit!r}")
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
    """`max_length_bytes`: the limit over all partitions together from now on; None: as it was.

    Keys change their partitions with this, so what is still there would be overtaken: hence the closed ingress."""
    queue, state, lines = policy.queue, policy.state, policy.lines
    if not queue.shut:
        raise _refused(policy, "its ingress is open: close it and drain the messages before a repartition")
    removed = lines[count:]
    held = sum([line.ready + line.outstanding for line in removed])
    if held and not discard:
        raise _refused(
            policy,
            f"partitions {count} to {len(lines) - 1} hold {held} messages: drain or discard them",
        )
    for line in reversed(removed):
        policy.reassign(line)
        state.drop_line(queue, line)
    for _ in range(count - len(lines)):
        state.add_line(queue, state.new_line(PartitionSpool, durable=queue.durable))
    queue.attend()
    assert isinstance(queue.rules.kind, PartitionedArguments)
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
    """A consumer with the partitions it gets messages of now."""

    consumer: Consumer
    lines: list[PartitionSpool]
    served: int = 0

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
    """`mapping` assigns each partition; this reports events to it and applies its results."""

    supports_get = False

    def __init__(
        self, state: State, queue: Queue, rules: PartitionedArguments, stored: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.state = state
        self.queue = queue
        self.lines: list[PartitionSpool] = queue.lines  # type: ignore[assignment]  # the kind makes no others
        self.mapping = FlowMapping(
            len(self.lines),
            delay_s=rules.rebalance_delay_ms / 1000,
            handoff_s=rules.max_handoff_ms / 1000,
            has_unsettled=lambda partition: self.lines[partition].outstanding > 0,
            is_recalled=self._is_recalled,
        )
        self._flows: dict[Consumer, Slot] = {}
        self._turns: list[_Turn] = []
        self._hands_off = False
        self._alarm_at: float | None = None
        self._assigned: list[tuple[str, list[int]]] = []
        self.messages_forced = 0
        queue.shut = not stored.get("ingress", True)
        self.place(rules)
        if stored.get("flows"):
            self.mapping.recall((tag, partitions) for tag, partitions in stored["flows"])
            self._assigned = self.mapping.assigned()
            state.wake_at(queue, state.now)

    def place(self, rules: PartitionedArguments) -> None:
        """Sets the rules that route messages to partitions."""
        place, appends = placing(rules), [line.append for line in self.lines]

        def append(origin: Origin, header: bytes, body: bytes) -> None:
            appends[place(header)](origin, header, body)

        self.queue.append = append

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
            self.messages_forced += self.reassign(self.lines[partition])
        self.changed()

    def dispatch(self) -> Iterator[Share]:
        if self._hands_off and self._complete_handoffs():
            self.changed()
        for turn in self._turns:
            consumer = turn.consumer
            waiting = [line for line in turn.lines if line.ready]
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
        return {"ingress": not self.queue.shut, "flows": self.mapping.assigned()}

    def reassign(self, line: PartitionSpool) -> int:
        """Reassigns the messages of a partition from its former consumer; returns how many."""
        return 0 if line.holder is None else reassign(self.state, line, line.holder.channel)

    # --- inside ------------------------------------------------------------------------------------------------

    def _complete_handoffs(self) -> bool:
        """Completes the handoffs of partitions without unsettled messages."""
        done = [partition for partition in self.mapping.waiting_for if not self.lines[partition].outstanding]
        for partition in done:
            self.mapping.drained(partition)
        return bool(done)

    def changed(self) -> None:
        """Applies changes of the mapping, and recalls messages of paused partitions from their consumers."""
        state, queue, mapping = self.state, self.queue, self.mapping
        waiting_for = frozenset(mapping.waiting_for)
        self._hands_off = bool(waiting_for)
        paused: dict[Consumer, set[Spool]] = {}
        for number, line in enumerate(self.lines):
            if number not in waiting_for:
                line.on_drained = None
                if line.paused_at is not None:
                    line.handoff_s, line.paused_at = state.now - line.paused_at, None
            elif line.on_drained is None:
                line.on_drained = self._make_due
                line.paused_at = state.now
                if line.holder is not None:
                    paused.setdefault(line.holder, set()).add(line)
        for holder, lines in paused.items():
            recall_from(state, holder, tags_of(holder.channel, lines))
        turns = [
            _Turn(consumer, [self.lines[partition] for partition in mapping.deliverable(flow)])
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

    def _is_recalled(self, partition: int) -> bool:
        line = self.lines[partition]
        return line.holder is not None and is_recalled(line.holder.channel, line)

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
