"""The replicated log of a quorum queue, and each channel's client of it: what a change of the leader delays or loses.

A command is carried out when a majority has it. RabbitMQ's client of a quorum queue (rabbit_fifo_client) sends again,
in order, what a leader lost, for as long as its channel lives. Tests of this on real nodes are in
tests/rabbitmq/test_cluster.py and tests/rabbitmq/test_facts.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from testing.simulation.clock import Process
from testing.simulation.judge import Judged
from testing.simulation.quorum_queue import Batch, ConsumerEnd, QueueConsumer, QuorumQueue, StoredMessage
from testing.simulation.stream_queue import StreamQueue

COMMANDS_MAX = 32
"""Commands of one channel on the way; acks beyond wait, and a close discards them (tests/rabbitmq/test_facts.py:
test_a_closing_quorum_channel_discards_acks_behind_32_others_and_nothing_is_a_barrier,
test_31_acks_and_a_close_at_once_are_never_discarded)."""

NOTIFIED_S = 0.0005
"""From the end of a command to its notice at the channel."""

RESEND_MAX_S = 1.0
LATE_MAX_S = 5.0
LATE_CHANCE = 0.1
MUTE_CHANCE = 0.1
"""Messages of a channel to a queue without a leader may never be answered (tests/rabbitmq/test_cluster.py:
test_without_a_majority_under_ignore_publishers_and_members_say_what_they_wait_for)."""


class NodeState(Protocol):
    """`is_seen`: the other nodes can reach it, and it runs."""

    process: Process
    is_up: bool
    is_seen: bool


class NodeChannel(ConsumerEnd, Protocol):
    node: NodeState


class Majority(Protocol):
    """The part of a cluster that the log of a queue has."""

    history: Judged
    commit_s: float
    is_calm: bool

    @property
    def now(self) -> float: ...
    @property
    def has_majority(self) -> bool: ...
    def random(self) -> float: ...
    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None: ...
    def a_seen_node(self) -> int | None: ...
    def deliver(self, log: QueueLog, consumer: QueueConsumer, batch: Batch) -> None: ...


@dataclass(slots=True, eq=False)
class LogCommand:
    """`client` is None for what the queue detects itself. `settled`: bodies of the messages that it acknowledges."""

    client: QueueClient | None
    action: Callable[[], None]
    on_applied: Callable[[], None] | None = None
    is_enqueue: bool = False
    settled: tuple[bytes, ...] = ()


class QueueClient:
    """`is_rejecting`: it refuses publishes, because the queue has notified it of being full (tests/oracle/
    test_publishing.py: test_a_full_queue_that_rejects_publishes_nacks). `held` waits for a new leader."""

    def __init__(self, log: QueueLog, channel: NodeChannel) -> None:
        self.log = log
        self.channel = channel
        self.in_flight = 0
        self.unsent: list[tuple[QueueConsumer, tuple[int, ...]]] = []
        self.held: deque[LogCommand] = deque()
        self.is_holding = self.is_mute = self.is_closed = False
        self.is_rejecting = log.is_full
        self.turn = 0

    def enqueue(self, message: StoredMessage, on_answer: Callable[[bool], None]) -> None:
        log = self.log
        if self.is_rejecting:
            log.cluster.history.judge.refused_publish(message.body)
            on_answer(False)
            return
        queue, judge = log.queue, log.cluster.history.judge
        judge.routed(message.body)

        def arrive() -> None:
            judge.routed(message.body)
            queue.enqueue(message)

        self._submit(LogCommand(self, arrive, lambda: on_answer(True), is_enqueue=True))

    def attach(self, consumer: QueueConsumer, on_applied: Callable[[], None]) -> None:
        def attach() -> None:
            if not self.is_closed:
                self.log.queue.attach(consumer)

        self._submit(LogCommand(self, attach, on_applied))

    def cancel(self, consumer: QueueConsumer) -> None:
        self._submit(LogCommand(self, lambda: self.log.queue.cancel(consumer)))

    def settle(self, consumer: QueueConsumer, tags: tuple[int, ...]) -> None:
        if isinstance(self.log.queue, StreamQueue):
            self.log.queue.settle(consumer, tags)  # no command: nobody else is concerned
            self.log.pump()
            return
        if self.in_flight >= COMMANDS_MAX:
            self.unsent.append((consumer, tags))
            return
        bodies = tuple(message.body for tag in tags if (message := consumer.unacked.get(tag)) is not None)
        self._submit(LogCommand(self, lambda: self.log.queue.settle(consumer, tags), settled=bodies))

    def _submit(self, command: LogCommand) -> None:
        self.in_flight += 1
        if self.is_holding or self.held or not self.channel.node.is_seen:
            self.held.append(command)
        elif not (self.is_mute and command.is_enqueue):
            self.log.append(command)

    def applied(self, command: LogCommand) -> None:
        self.in_flight -= 1
        if self.is_closed:
            return
        if command.on_applied is not None:
            command.on_applied()
        if self.unsent and self.in_flight < COMMANDS_MAX:
            waiting, self.unsent = self.unsent, []
            for consumer, tags in waiting:
                self.settle(consumer, tags)

    def hold(self, commands: list[LogCommand], *, until: float) -> None:
        """These, and what follows, go to the next leader, in order."""
        cluster = self.log.cluster
        if any(one.is_enqueue for one in commands) and cluster.random() < MUTE_CHANCE and not cluster.is_calm:
            self.is_mute = True
        self.held.extendleft(reversed(commands))
        self.is_holding = True
        if self.is_closed:
            self._excuse_held()
        self.turn += 1
        cluster.at(until, self.send_held, self.turn)

    def send_held(self, turn: int) -> None:
        if turn != self.turn or not self.channel.node.is_seen:
            return
        self.is_holding = False
        held, self.held = self.held, deque()
        if self.is_closed and self.log.cluster.random() < 0.5:
            return
        for command in held:
            if not (self.is_mute and command.is_enqueue):
                self.log.append(command)

    def close(self) -> None:
        """With its channel: what it has not sent is discarded, or arrives late."""
        self.is_closed = True
        history = self.log.cluster.history
        if self.unsent and history.is_verbose:
            history.note(f"a closing channel discards {len(self.unsent)} acks of {self.log.queue.name}")
        self.unsent.clear()
        self._excuse_held()

    def _excuse_held(self) -> None:
        settled = (body for command in self.held for body in command.settled)
        self.log.cluster.history.judge.unacknowledged(settled)


class QueueLog:
    """`leader` is the number of a node."""

    def __init__(self, cluster: Majority, queue: QuorumQueue | StreamQueue, leader: int) -> None:
        self.cluster = cluster
        self.queue = queue
        self.leader = leader
        self.is_full = False
        self.clients: dict[QueueClient, None] = {}
        self.pending: deque[LogCommand] = deque()
        self._due = self._free_at = 0.0
        self._term = 0

    def append(self, command: LogCommand) -> None:
        cluster = self.cluster
        at = cluster.now + cluster.commit_s * (0.5 + cluster.random())
        self._due = max(at, self._due, self._free_at)
        self.pending.append(command)
        cluster.at(self._due, self._apply, self._term)

    def _apply(self, term: int) -> None:
        if term != self._term or not self.pending or not self.cluster.has_majority:
            return
        command = self.pending.popleft()
        command.action()
        client = command.client
        if client is not None:
            self.cluster.at(self.cluster.now + NOTIFIED_S, client.applied, command)
        self.pump()

    def pump(self) -> None:
        while (found := self.queue.next_batch()) is not None:
            self.cluster.deliver(self, *found)

    def elect(self, seconds: float) -> None:
        """Has another leader after so long. Of each channel's commands that are not carried out, the first few are in
        the log of the majority; the channel sends the rest again, soon or late."""
        cluster = self.cluster
        self._term += 1
        self._free_at = cluster.now + seconds
        if (leader := cluster.a_seen_node()) is not None:
            self.leader = leader
        pending, self.pending = self.pending, deque()
        by_client: dict[QueueClient, list[LogCommand]] = {}
        for command in pending:
            if command.client is not None:
                by_client.setdefault(command.client, []).append(command)
        lost: set[LogCommand] = set()
        for client, commands in by_client.items():
            rest = commands[int(cluster.random() * (len(commands) + 1)) :]
            if rest:
                lost.update(rest)
                is_late = cluster.random() < LATE_CHANCE
                longest = LATE_MAX_S if is_late else RESEND_MAX_S
                client.hold(rest, until=self._free_at + cluster.random() * longest)
        for command in pending:
            if command not in lost:
                self.append(command)

    def crash(self) -> None:
        """All nodes are killed: the log is what a majority has, and no channel lives."""
        kept = list(self.pending)[: int(self.cluster.random() * (len(self.pending) + 1))]
        self._term += 1
        self.pending.clear()
        for command in kept:
            command.action()
        for consumer in [*self.queue.consumers, *self.queue.cancelled]:
            self.queue.detach(consumer)
        self.clients.clear()

    def fill(self, is_full: bool) -> None:
        """Each channel is notified at a time of its own."""
        self.is_full = is_full
        for client in self.clients:
            self.cluster.at(self.cluster.now + self.cluster.random() * 0.05, self._notify_full, client)

    def _notify_full(self, client: QueueClient) -> None:
        client.is_rejecting = self.is_full
