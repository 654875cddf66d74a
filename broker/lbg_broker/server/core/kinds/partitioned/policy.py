"""Sharing a partitioned queue out: each partition to the consumer whose flow has it."""

from collections.abc import Iterator, Mapping
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
from lbg_broker.server.core.revocation import ask_back, is_asked, tags_of, take_back
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["Partitioned"]

CLAIM = "x-partitions"


@dataclass(slots=True)
class _Turn:
    """A consumer with the partitions it gets messages of now."""

    consumer: Consumer
    lines: list[Partition]
    served: int = 0

    def next_of(self, waiting: list[Partition], count: int) -> list[Partition]:
        """Fewer than wait, as there is no room for all: each when it is its turn."""
        start = self.served % len(waiting)
        self.served += count
        return (waiting[start:] + waiting[:start])[:count]


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
            is_asked=self._is_asked,
        )
        self._flows: dict[Consumer, Flow] = {}
        self._turns: list[_Turn] = []
        self._hands_off = False
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
            self.messages_forced += self.take_back(self.lines[partition])
        self.changed()

    def deal(self) -> Iterator[Share]:
        if self._hands_off and self._complete_handoffs():
            self.changed()
        for turn in self._turns:
            consumer = turn.consumer
            waiting = [line for line in turn.lines if line.ready]
            while waiting and (credit := consumer.credit()):
                if credit < len(waiting):
                    waiting = turn.next_of(waiting, credit)
                portion = credit // len(waiting)
                left = []
                for line in waiting:
                    messages, redelivered = line.take(portion)
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

    def kept(self) -> Mapping[str, Any]:
        return {"ingress": not self.queue.shut, "flows": self.mapping.assigned()}

    def take_back(self, line: Partition) -> int:
        """Return to a partition what its former consumer holds of it, and say how many messages that is."""
        return 0 if line.holder is None else take_back(self.state, line, line.holder.channel)

    # --- inside ------------------------------------------------------------------------------------------------

    def _complete_handoffs(self) -> bool:
        """Hand over the partitions of which nothing is held any more."""
        done = [partition for partition in self.mapping.waiting_for if not self.lines[partition].outstanding]
        for partition in done:
            self.mapping.drained(partition)
        return bool(done)

    def changed(self) -> None:
        """Take up what became of the mapping. Who holds messages of a partition that is paused is asked for them."""
        state, queue, mapping = self.state, self.queue, self.mapping
        waiting_for = frozenset(mapping.waiting_for)
        self._hands_off = bool(waiting_for)
        paused: dict[Consumer, set[Spool]] = {}
        for number, line in enumerate(self.lines):
            if number not in waiting_for:
                line.on_drained = None
            elif line.on_drained is None:
                line.on_drained = self._make_due
                if line.holder is not None:
                    paused.setdefault(line.holder, set()).add(line)
        for holder, lines in paused.items():
            ask_back(state, holder, tags_of(holder.channel, lines))
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

    def _is_asked(self, partition: int) -> bool:
        line = self.lines[partition]
        return line.holder is not None and is_asked(line.holder.channel, line)

    def _make_due(self) -> None:
        self.state.make_due(self.queue)
