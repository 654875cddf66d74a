"""A large group: its clock, its broker, its members, what is published, and what is seen from outside."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Self

from lbg_core.admin.record import Record, headers_of
from lbg_core.client import BasicProperties
from lbg_core.group import (
    HEADER_KEY,
    HEADER_PUBLISHER,
    HEADER_SEQ,
    RABBITMQ,
    Engine,
    GroupSpec,
    Names,
    balanced_owners,
    routing_key,
)
from testing.simulation.client import Client
from testing.simulation.clock import Process
from testing.simulation.context import Setting
from testing.simulation.large.assignments import Assignments
from testing.simulation.large.broker import LargeBroker
from testing.simulation.large.costs import Costs
from testing.simulation.large.member import LargeMember
from testing.simulation.large.processor import ProcessorClock
from testing.simulation.network import frame_s

QUEUES_PER_MEMBER = 4
ROUND_S = 1.0
"""Time in which each queue gets one message."""

BURST_S = 0.05
"""Time in which each queue gets the message that shows whether it is served."""


class BudgetExceeded(Exception):
    """The simulation used more CPU time than it was given."""


class Judge:
    """Calls of the applications, for each queue, which is one key."""

    def __init__(self, clock: ProcessorClock, queue_count: int) -> None:
        self._clock = clock
        self.published = [0] * queue_count
        self.first_calls = self.inverted = self.repeated = 0
        self.longest_wait_s = 0.0
        self._called: list[set[int]] = [set() for _ in range(queue_count)]
        self._highest = [-1] * queue_count
        self._served_at: list[float | None] = [None] * queue_count
        self._unserved: set[int] = set()

    def body(self, queue: int) -> bytes:
        """Of the next message of a queue, which is published now."""
        number = self.published[queue]
        self.published[queue] += 1
        return b"%d %d %.9f" % (queue, number, self._clock.now)

    def started(self, body: bytes) -> None:
        queue, number = map(int, body.split()[:2])
        now = self._clock.now
        if queue in self._unserved:
            self._unserved.discard(queue)
            self._served_at[queue] = now
        if number in self._called[queue]:
            self.repeated += 1
            return
        self._called[queue].add(number)
        self.first_calls += 1
        self.inverted += number < self._highest[queue]
        self._highest[queue] = max(number, self._highest[queue])
        self.longest_wait_s = max(self.longest_wait_s, now - float(body.split()[2]))

    def violation(self, text: str) -> None:
        """Of a loop: a task failed."""
        raise AssertionError(text)

    def mark(self) -> None:
        """From now on every queue is to be served again."""
        self._unserved = set(range(len(self.published)))
        self._served_at = [None] * len(self.published)
        self.longest_wait_s = 0.0

    @property
    def are_all_served(self) -> bool:
        return not self._unserved

    @property
    def served_at(self) -> float:
        """Time of the first call of the queue that was served last."""
        return max(at for at in self._served_at if at is not None)

    @property
    def lost(self) -> int:
        """Messages without a call: as long as some are on the way, those too."""
        return sum(self.published) - self.first_calls


class LargeGroup:
    """`size`: members that start at first. `expected`: the indexes of those that are up and have joined. `counts`:
    messages that members posted, and mailboxes got (`mail`); refused claims; consumers that members attached and
    detached, and moves.

    It has what the connections, loops and broker of a history use of that.
    """

    def __init__(
        self,
        size: int,
        costs: Costs,
        *,
        seed: int = 1,
        on_rabbitmq: bool = False,
        cpu_budget_s: float | None = None,
    ) -> None:
        self.size = size
        self.costs = costs
        self.random = random.Random(seed)
        self.clock = ProcessorClock()
        self.process = Process("outside")
        self.on_end: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()
        queue_count = QUEUES_PER_MEMBER * size
        self.spec = GroupSpec("g", "h", hash_count=queue_count, queue_count=queue_count)
        self.names = Names("g")
        self.setting = Setting()
        self.repartitions = GroupRecord(self.spec)
        self.assignments = Assignments(self.clock, costs.member)
        self.judge = Judge(self.clock, queue_count)
        self.members: list[LargeMember] = []
        self._member_of: dict[Process, LargeMember] = {}
        self.broker = LargeBroker(self, Engine(RABBITMQ, (3, 10, 8)) if on_rabbitmq else LargeBroker.engine)
        publisher = Client.connected(self, self.process, "publisher", self.judge.violation)
        assert publisher is not None
        self._channel = publisher.open_channel()
        self.expected: frozenset[int] = frozenset()
        self.agreed_at: float | None = None
        """Time at which the last of the members that are up had the live set of all; None while one has not."""
        self._agreeing: set[LargeMember] = set()
        self._indexes: dict[LargeMember, int | None] = {}
        self._is_publishing = False
        self._cpu_budget_s = cpu_budget_s

    def __enter__(self) -> Self:
        logging.disable()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the members' tasks."""
        for callback in self.on_end:
            callback()
        logging.disable(logging.NOTSET)

    def delay_s(self) -> float:
        return frame_s(self.random)

    # Members

    @property
    def up(self) -> list[LargeMember]:
        return [member for member in self.members if member.is_up]

    def member_of(self, end: Any) -> LargeMember | None:
        """The member to whose process a client or a loop belongs."""
        return self._member_of.get(end.process)

    def add(self) -> None:
        """A member starts."""
        member = LargeMember(self, f"m{len(self.members)}")
        self.members.append(member)
        self._member_of[member.process] = member
        self._judge_views()

    def kill(self, victims: Collection[LargeMember]) -> None:
        for member in victims:
            member.kill()
        self._judge_views()

    def live_changed(self, member: LargeMember) -> None:
        live = member.live
        if self._indexes.get(member) != member.index:
            self._indexes[member] = member.index
            self._judge_views()
        elif len(live) == len(self.expected) and live == self.expected:
            self._agreeing.add(member)
            self._note_agreement()
        else:
            self._agreeing.discard(member)
            self.agreed_at = None

    def _judge_views(self) -> None:
        up = self.up
        self.expected = frozenset(member.index for member in up if member.index is not None)
        self._agreeing = {member for member in up if member.live == self.expected}
        self.agreed_at = None
        self._note_agreement()

    def _note_agreement(self) -> None:
        if self.agreed_at is None and len(self._agreeing) == len(self.expected) == len(self.up):
            self.agreed_at = self.clock.now

    @property
    def is_settled(self) -> bool:
        """True if all agree, the first consumer of each queue is that of its primary, and nothing moves."""
        if self.agreed_at is None:
            return False
        up = self.up
        if any(member.is_moving for member in up):
            return False
        processes = {member.index: member.process for member in up}
        return self.broker.first_consumers() == [processes[index] for index in self.primaries]

    @property
    def primaries(self) -> tuple[int, ...]:
        """By all members that are up."""
        return balanced_owners(self.spec.queue_count, self.expected)

    # What is published

    def publish_round(self, *, within_s: float) -> None:
        """A message to each queue, evenly spaced."""
        count = len(self.judge.published)
        for queue in range(count):
            self.clock.after(within_s * queue / count, self.process, self._publish, queue)

    def publish(self, is_publishing: bool) -> None:
        """One round after another, or no more."""
        was_publishing, self._is_publishing = self._is_publishing, is_publishing
        if is_publishing and not was_publishing:
            self._next_round()

    def _next_round(self) -> None:
        if self._is_publishing:
            self.publish_round(within_s=ROUND_S)
            self.clock.after(ROUND_S, self.process, self._next_round)

    def _publish(self, queue: int) -> None:
        headers = {HEADER_KEY: f"k{queue}", HEADER_PUBLISHER: "p", HEADER_SEQ: self.judge.published[queue]}
        self._channel.publish(
            self.names.exchange,
            routing_key(self.spec.hash_prefix, queue, ""),
            self.judge.body(queue),
            header=BasicProperties(headers=headers, delivery_mode=2).encode(),
        )

    # Time

    def run(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self._run(min(until, self.clock.now + 0.25))

    def wait(self, condition: Callable[[], bool], *, limit_s: float, every_s: float = 0.05) -> bool:
        """False if it does not hold within the limit."""
        until = self.clock.now + limit_s
        while not condition():
            if self.clock.now >= until:
                return False
            self._run(self.clock.now + every_s)
        return True

    def _run(self, until: float) -> None:
        with self.assignments.in_place():
            self.clock.run(until)
        if self._cpu_budget_s is not None and time.process_time() > self._cpu_budget_s:
            raise BudgetExceeded


class GroupRecord:
    """As members read it."""

    def __init__(self, spec: GroupSpec) -> None:
        record = Record(spec.to_record())
        self._message = BasicProperties(headers=dict(headers_of(record))).encode(), record.text.encode()

    def record_message(self) -> tuple[bytes, bytes]:
        return self._message
