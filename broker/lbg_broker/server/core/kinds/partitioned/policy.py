"""Sharing a partitioned queue out: each partition to the consumer whose flow has it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.dealing import Policy, Share
from lbg_broker.server.core.kinds.partitioned.actions import perform
from lbg_broker.server.core.kinds.partitioned.describing import described
from lbg_broker.server.core.kinds.partitioned.line import Partition
from lbg_broker.server.core.kinds.partitioned.mapping import Flow
from lbg_broker.server.core.kinds.partitioned.mapping import Mapping as FlowMapping
from lbg_broker.server.core.kinds.partitioned.placing import placing
from lbg_broker.server.core.kinds.partitioned.rules import PartitionedRules
from lbg_broker.server.core.message import Origin
from lbg_broker.server.core.reading_arguments import ArgumentReader
from lbg_broker.server.core.settling import revoke

if TYPE_CHECKING:
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["Partitioned"]

CLAIM = "x-partitions"


@dataclass(slots=True)
class _Turn:
    """A consumer with the partitions it gets messages of now; `first` is served first next time."""

    consumer: Consumer
    lines: list[Partition]
    first: int = 0


class Partitioned(Policy):
    """`mapping` says whose each partition is; this tells it what happens and carries out what follows."""

    takes_get = False

    def __init__(
        self, state: "State", queue: "Queue", rules: PartitionedRules, kept: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.state = state
        self.queue = queue
        self.lines: list[Partition] = queue.lines  # type: ignore[assignment]  # the kind makes no others
        self.mapping = FlowMapping(
            len(self.lines),
            delay_s=rules.rebalance_delay_ms / 1000,
            handoff_s=rules.max_handoff_ms / 1000,
            is_held=lambda partition: self.lines[partition].outstanding > 0,
        )
        self._flows: dict[Consumer, Flow] = {}
        self._turns: list[_Turn] = []
        self._alarm_at: float | None = None
        self._assigned: list[tuple[str, list[int]]] = []
        self.messages_forced = 0
        queue.shut = not kept.get("ingress", True)
        self.place(rules)
        if kept.get("flows"):
            self.mapping.recall((tag, partitions) for tag, partitions in kept["flows"])
            self._assigned = self.mapping.assigned()
            state.wake_at(queue, state.now)

    def place(self, rules: PartitionedRules) -> None:
        """Put messages where these rules say."""
        place, lines = placing(rules), self.lines

        def append(origin: Origin, header: bytes, body: bytes) -> None:
            lines[place(header)].append(origin, header, body)

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

    def ring(self) -> None:
        self._alarm_at = None
        for partition in self.mapping.ring(self.state.now):
            self.messages_forced += self.take_back(self.lines[partition])
        self.changed()

    def deal(self) -> Iterator[Share]:
        if self._complete_handoffs():
            self.changed()
        for turn in self._turns:
            consumer = turn.consumer
            if consumer.credit():
                yield from _shares(turn)

    def perform(self, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return perform(self, action, arguments)

    def describe(self) -> Mapping[str, Any]:
        return described(self)

    def kept(self) -> Mapping[str, Any]:
        return {"ingress": not self.queue.shut, "flows": self.mapping.assigned()}

    def take_back(self, line: Partition) -> int:
        """Return to a partition what its former consumer holds of it, and say how many messages that is."""
        return 0 if line.holder is None else revoke(self.state, line, line.holder.channel)

    # --- inside ------------------------------------------------------------------------------------------------

    def _complete_handoffs(self) -> bool:
        """Hand over the partitions of which nothing is held any more."""
        done = [partition for partition in self.mapping.waiting_for if not self.lines[partition].outstanding]
        for partition in done:
            self.mapping.drained(partition)
        return bool(done)

    def changed(self) -> None:
        """Take up what became of the mapping."""
        state, queue, mapping = self.state, self.queue, self.mapping
        waiting_for = frozenset(mapping.waiting_for)
        for number, line in enumerate(self.lines):
            line.on_drained = self._make_due if number in waiting_for else None
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

    def _make_due(self) -> None:
        self.state.make_due(self.queue)


def _shares(turn: _Turn) -> Iterator[Share]:
    """Fairly among a consumer's partitions, as far as its credit goes."""
    consumer, lines = turn.consumer, turn.lines
    if len(lines) > 1:
        turn.first = (turn.first + 1) % len(lines)
        lines = lines[turn.first :] + lines[: turn.first]
    waiting: Sequence[Partition] = [line for line in lines if line.ready]
    while waiting and (credit := consumer.credit()):
        portion = max(credit // len(waiting), 1)
        left = []
        for line in waiting:
            limit = min(portion, consumer.credit())
            if not limit:
                return
            messages, redelivered = line.take(limit)
            if not messages:
                continue  # they must be read first
            line.holder = consumer
            yield line, consumer, messages, redelivered
            if line.ready:
                left.append(line)
        waiting = left
