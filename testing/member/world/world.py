"""The world itself: its time, its chances, what happens to members, and the score."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.timings import Timings
from testing.member.world.application import Application
from testing.member.world.broker import Broker
from testing.member.world.member import SimMember
from testing.member.world.queues import BrokerQueue, Item


@dataclass
class Chances:
    """Probabilities of the world's faults."""

    hint_lost: float = 0.0
    retry: float = 0.0
    drop: float = 0.0
    slow: float = 0.0
    slow_s: float = 6.0
    look_fails: float = 0.0
    call_s: float = 0.01
    delay_s: float = 0.002
    routing_lag_s: float = (
        0.0  # by which a message may come to a queue late, less than an administrator waits
    )
    parked_lag_s: float = 0.0  # by which a member may read the stream of parked keys late


@dataclass
class World:
    seed: int
    queue_count: int = 4
    hash_count: int = 8
    rules: Rules = field(default_factory=lambda: Rules(concurrency=4))
    balancing: dict[str, Any] = field(default_factory=dict)
    chances: Chances = field(default_factory=Chances)
    failing: set[str | None] = field(default_factory=set)  # keys whose messages never succeed

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.broker = Broker(self)
        self.application = Application(self)
        self.members: list[SimMember] = []
        self.events: list[tuple[float, str, Any]] = []
        self.published: dict[tuple[str, int, int], Item] = {}
        self.finished: dict[tuple[str, int, int], int] = defaultdict(int)
        self.dead: dict[tuple[str, int, int], int] = defaultdict(int)
        self.by_key: dict[str | None, list[tuple[str, int, int]]] = defaultdict(list)
        self.violations: list[str] = []
        self.repeats = 0
        self.disturbed = 0  # deliveries that were unacknowledged when a connection died
        self.resent = 0  # messages that their publisher sent twice
        self.calm = False
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._n = 0

    # Time

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._heap, (when, self._n, action))

    def delay(self) -> float:
        return self.random.expovariate(1 / self.chances.delay_s)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end

    # What happens to members

    def join(self, name: str | None = None, *, fixed: int | None = None) -> SimMember:
        name = name or f"m{len(self.members)}"
        balancing = BalancingRules(
            **{"queue_count": self.queue_count, "prefetch": 8, "client_count": 3, "on_rabbitmq": True}
            | self.balancing
        )
        machine = ExclusiveMember(
            name,
            balancing=balancing,
            rules=self.rules,
            timings=Timings(),
            uniform=self.random.random,
            incarnation=lambda: f"{name}-{self.random.getrandbits(64):x}",
        )
        member = SimMember(self, name, machine, fixed=fixed)
        self.members.append(member)
        member.connect()
        return member

    def kill(self, member: SimMember) -> None:
        """SIGKILL: what it had written may still arrive, then the broker sees the connection close."""
        member.alive = False
        link, member.link = member.link, None
        member.cut_off()
        for call in list(member.calls.values()):
            self.application.leave(call)
        if link is not None:
            self.at(self.now + self.delay(), lambda: self.broker.drops(link))

    def stall(self, member: SimMember, seconds: float) -> None:
        """SIGSTOP: the broker gives up on it after 10 s without a heartbeat; its child goes on working."""
        link = member.link
        member.stalled = True
        member.cut_off()
        if link is not None:
            self.at(self.now + 10, lambda: self.broker.drops(link) if member.link is link else None)
        self.at(self.now + seconds, member.resume)

    def drop_connection(self, member: SimMember) -> None:
        """The broker closes it; the member hears of it a little later."""
        if member.link is not None:
            link = member.link
            member.cut_off()
            self.broker.drops(link)
            link.down("group", ("lost",))

    def suspect(self, queue: int) -> None:
        """See `BrokerQueue.suspect`."""
        self.broker.suspect(queue)
        for member in self.members:
            for call in member.calls.values():
                call.cut_off |= self.broker.has_taken_back(call.held)

    # What publishers do

    def publish(self, key: str | None, *, hash_: int | None = None) -> Item:
        return self.broker.publish(key, hash_=hash_)

    def publish_again(self, item: Item) -> None:
        self.broker.publish_again(item)

    # The score

    @property
    def queues(self) -> list[BrokerQueue]:
        return self.broker.queues

    def earlier_of_key(self, item: Item) -> list[tuple[str, int, int]]:
        """Messages of its key that were published before it."""
        return [one for one in self.by_key[item.key] if one[2] < item.seq]

    def unfinished(self) -> list[Item]:
        return [
            item for name, item in self.published.items() if not self.finished[name] and not self.dead[name]
        ]

    @property
    def forced(self) -> int:
        """Calls that members cut off in shutdowns which could not wait."""
        return sum(member.machine.dispatcher.counts.forced for member in self.members)

    def served_by(self) -> dict[int, int | None]:
        """The index whose consumer is the active one, per queue; None for a queue without consumers."""
        return {
            number: queue.consumers[0].link.member.index if queue.consumers else None
            for number, queue in enumerate(self.queues)
        }

    def up(self) -> list[SimMember]:
        return [m for m in self.members if m.alive and not m.exited]
