"""A large group: its clock, its broker, its members, what is published, and what is seen from outside."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from lbg_core.group import GroupSpec, Names
from lbg_sidecar.core.message_codec import decode, encode
from lbg_sidecar.core.protocol import Message
from lbg_sidecar.settings import MemberSettings
from testing.simulation.clock import Clock, Process
from testing.simulation.large.assignments import Assignments
from testing.simulation.large.broker import Broker, QueueMessage
from testing.simulation.large.costs import Costs
from testing.simulation.large.member import LargeMember

QUEUES_PER_MEMBER = 4
STANDBYS = MemberSettings(group="g").standbys
ROUND_S = 1.0
"""Time in which each queue gets one message."""

BURST_S = 0.05
"""Time in which each queue gets the message that shows whether it is served."""


DECODED_MAX = 4096
DECODED_EVERY = 16


class Decoder:
    """Messages of members by their bytes: each is received by many, and none is ever changed."""

    def __init__(self) -> None:
        self._known: dict[bytes, Message | None] = {}
        self._count = 0

    def encode(self, message: Message) -> bytes:
        """One of `DECODED_EVERY` messages is decoded; of the others the object that was sent is received."""
        body = encode(message)
        self._count += 1
        if self._count % DECODED_EVERY:
            self._add(body, message)
        return body

    def __call__(self, body: bytes) -> Message | None:
        known = self._known
        return known[body] if body in known else self._add(body, decode(body))

    def _add(self, body: bytes, message: Message | None) -> Message | None:
        if len(self._known) > DECODED_MAX:
            self._known.clear()
        self._known[body] = message
        return message


class BudgetExceeded(Exception):
    """The simulation used more CPU time than it was given."""


class Judge:
    """Calls of the applications, for each queue, which is one key."""

    def __init__(self, clock: Clock, queue_count: int) -> None:
        self._clock = clock
        self.published = [0] * queue_count
        self.first_calls = self.inverted = self.repeated = 0
        self.longest_wait_s = 0.0
        self._called: list[set[int]] = [set() for _ in range(queue_count)]
        self._highest = [-1] * queue_count
        self._served_at: list[float | None] = [None] * queue_count
        self._unserved: set[int] = set()

    def started(self, message: QueueMessage) -> None:
        queue, number, now = message.queue, message.number, self._clock.now
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
        self.longest_wait_s = max(self.longest_wait_s, now - message.published_at)

    def mark(self) -> None:
        """From now on every queue is to be served again."""
        self._unserved = set(range(len(self.published)))
        self._served_at = [None] * len(self.published)
        self.longest_wait_s = 0.0

    @property
    def are_all_served(self) -> bool:
        return not self._unserved

    @property
    def unserved(self) -> int:
        return len(self._unserved)

    @property
    def served_at(self) -> float:
        """Time of the first call of the queue that was served last."""
        return max(at for at in self._served_at if at is not None)

    @property
    def lost(self) -> int:
        """Messages without a call: as long as some are on the way, those too."""
        return sum(self.published) - self.first_calls


class LargeGroup:
    """`expected` are the indexes of the members that are up and have joined."""

    def __init__(
        self,
        members: int,
        costs: Costs,
        *,
        seed: int = 1,
        on_rabbitmq: bool = False,
        cpu_budget_s: float | None = None,
        queues: int | None = None,
    ) -> None:
        self.costs = costs
        self.on_rabbitmq = on_rabbitmq
        self.random = random.Random(seed)
        self.clock = Clock()
        self.process = Process("outside")
        queue_count = queues or QUEUES_PER_MEMBER * members
        self.spec = GroupSpec("g", "h", hash_count=queue_count, queue_count=queue_count)
        self.names = Names("g")
        self.decoded = Decoder()
        self.assignments = Assignments(queue_count, STANDBYS)
        self.broker = Broker(
            self.clock, costs.broker, queue_count=queue_count, counts_all_consumers=not on_rabbitmq
        )
        self.judge = Judge(self.clock, queue_count)
        self.members = [LargeMember(self, number) for number in range(members)]
        self.expected: frozenset[int] = frozenset()
        self.agreed_at: float | None = None
        """Time at which the last of the members that are up had the live set of all; None while one has not."""
        self._agreeing: set[LargeMember] = set()
        self._is_publishing = False
        self._cpu_budget_s = cpu_budget_s

    @property
    def up(self) -> list[LargeMember]:
        return [member for member in self.members if member.is_up]

    # Members

    def add(self) -> LargeMember:
        member = LargeMember(self, len(self.members))
        self.members.append(member)
        self._judge_views()
        return member

    def kill(self, victims: Collection[LargeMember]) -> None:
        for member in victims:
            member.kill()
        self._judge_views()

    def joined(self, member: LargeMember) -> None:
        self._judge_views()

    def parted(self, member: LargeMember) -> None:
        self._judge_views()

    def live_changed(self, member: LargeMember) -> None:
        live = member.live
        if len(live) == len(self.expected) and live == self.expected:
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
        primaries = up[0].machine.rules.primaries(self.expected)
        for queue in self.broker.queues:
            first = queue.first
            if first is None or first.member.index != primaries[queue.number]:
                return False
        return True

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
        number = self.judge.published[queue]
        self.judge.published[queue] += 1
        message = QueueMessage(queue, number, self.clock.now)
        self.broker.processor.do(self.broker.publish, message)

    # Time

    def run(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.run(min(until, self.clock.now + 0.25))
            self._check_budget()

    def wait(self, condition: Callable[[], bool], *, limit_s: float, every_s: float = 0.05) -> bool:
        """False if it does not hold within the limit."""
        until = self.clock.now + limit_s
        while not condition():
            if self.clock.now >= until:
                return False
            self.clock.run(self.clock.now + every_s)
            self._check_budget()
        return True

    def _check_budget(self) -> None:
        if self._cpu_budget_s is not None and time.process_time() > self._cpu_budget_s:
            raise BudgetExceeded
