"""The world itself: what happens to members and in publishers."""

from __future__ import annotations

from lbg_core.group import Assignment
from lbg_core.group.member_state import Placement
from lbg_core.group.members_protocol import Place
from lbg_sidecar.core.sequence_audit import SequenceAudit
from testing.member.world.application import Application
from testing.member.world.broker import Broker
from testing.member.world.history import History, Item
from testing.member.world.member import HEARTBEAT_S, Connection, SimMember
from testing.simulation.clock import Process


class World(History):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.broker = Broker(self)
        self.application = Application(self.broker)
        self.members: list[SimMember] = []
        self.queues, self.publish = self.broker.queues, self.broker.publish
        self.claims: dict[str, tuple[int, int]] = {}
        """By member, messages that it ever claimed to be missing, and out of order: a violation, unless something was
        planted (`is_planted`)."""
        self.is_planted = False

    def run(self, seconds: float) -> None:
        super().run(seconds)
        for member in self.members:
            audit = member.machine.part(SequenceAudit)
            assert audit is not None
            claim = audit.missed, audit.order.out_of_order
            if claim != self.claims.get(member.name, (0, 0)):
                self.claims[member.name] = claim
                if not self.is_planted:
                    text = f"{claim[0]} are missing, and {claim[1]} out of order"
                    self.violations.append(f"{self.now:.3f} {member.name} claims that {text}")

    # What happens to members

    def join(self, name: str | None = None, *, fixed: int | None = None) -> SimMember:
        name = name or f"m{len(self.members)}"
        member = SimMember(self.broker, self.application, name, fixed=fixed)
        self.members.append(member)
        member.connect()
        return member

    def kill(self, member: SimMember) -> None:
        """SIGKILL: what it had written may still arrive, then the broker sees the connection close."""
        member.process.alive = False
        for call in list(member.calls.values()):
            self.application.leave(call)
        if member.link is not None:
            self.at(self.now + self.delay(), self.broker.drops, member.link)

    def stall(self, member: SimMember, seconds: float) -> None:
        """SIGSTOP: the broker gives up on it after 10 s without a heartbeat; its calls hang from then on."""
        for call in member.calls.values():
            call.hangs = not call.is_deaf
        process = member.process
        process.frozen_until = until = max(process.frozen_until, self.now + seconds)
        if member.link is not None and seconds >= HEARTBEAT_S:
            self.at(self.now + HEARTBEAT_S, self._gives_up, member.link, process, until)

    def _gives_up(self, link: Connection, process: Process, until: float) -> None:
        link.is_given_up = process.frozen_until == until
        if link.is_given_up:
            self.broker.drops(link)

    def drop_connection(self, member: SimMember) -> None:
        """The broker closes it; the member hears of it a little later."""
        if member.link is not None:
            self.broker.drops(member.link)

    def assign(self, assignment: Assignment, *, client_count: int | None = None) -> None:
        """The group's record has this rule now; members read it within a second."""
        self.balancing["assignment"] = assignment
        if client_count is not None:
            self.balancing["client_count"] = client_count
        for member in self.up():
            self.clock.after(self.random.random(), member.process, member.reread)

    def propose(self, queue: int, to: SimMember) -> None:
        """A proposal to the members that believe to serve the queue: it is to be this member's."""
        if (there := to.machine.roster.me) is None:
            return
        for member in self.up():
            roster, bound = member.machine.roster, member.machine.bindings.bound
            if roster.me is not None and queue in bound and bound[queue].active:
                register = Placement(queue, there.incarnation, roster.placements.number(queue))
                member.receives(Place(there, roster.me.incarnation, (register,)))

    def suspect(self, queue: int) -> None:
        """See `BrokerQueue.suspect`."""
        self.disturbed += self.queues[queue].suspect()

    # What publishers do

    def publish_again(self, item: Item) -> None:
        self.resent += 1
        self.broker.publish_again(item)

    # The score

    @property
    def forced(self) -> int:
        """Calls that members cut off in shutdowns which could not wait."""
        return sum(member.machine.dispatcher.counts.forced for member in self.members)

    def served_by(self) -> dict[int, int | None]:
        """The index whose consumer is the active one, per queue; None for a queue without consumers."""
        return {
            number: queue.consumers[0].link.index if queue.consumers else None
            for number, queue in enumerate(self.queues)
        }

    def up(self) -> list[SimMember]:
        return [m for m in self.members if m.process.alive and not m.exited]
