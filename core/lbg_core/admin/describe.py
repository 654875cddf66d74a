"""Description of a group: its queues, partitions and sessions, who serves each, and its problems.

`describe` makes it of a snapshot and the members' status reports. Who serves what is derived here and nowhere else: the
command line, the demo and the operator print its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from typing import Any

from lbg_core.admin.backlog_problems import backlog_problems, parking_problems
from lbg_core.admin.drift import problems as drift
from lbg_core.admin.errors import AdminError, GroupUnfinished, RecordUnreadable, UnderWay
from lbg_core.admin.load_problems import load_problems
from lbg_core.admin.member_problems import held_up, member_problems
from lbg_core.admin.pace_text import hot_key_json, rounded
from lbg_core.admin.problem_kinds import Kind, Severity
from lbg_core.admin.problems import Problem, Subject, worst_first
from lbg_core.admin.queue_changes import forwarding_bindings, surplus_queues
from lbg_core.admin.record import CONSUMPTION, is_of_kubernetes, spec_in
from lbg_core.admin.rows import (
    UNKNOWN_STATUS,
    Count,
    ObservedQueue,
    QueueRow,
    ServiceRow,
    member_json,
    members_of,
    plain,
)
from lbg_core.admin.sequences import GroupSequences, sequence_problems, sequences_of, unaudited_text
from lbg_core.admin.snapshot import (
    UNKNOWN,
    MovingKeys,
    MovingQueues,
    Native,
    PartitionsStatus,
    PartitionStatus,
    QueueStatus,
    SessionsStatus,
    Snapshot,
    Unknown,
    native_json,
)
from lbg_core.group import ONE_USER, PARTITIONED, UNCOUNTED_MODES, GroupSpec, Names, Publishers
from lbg_core.group.member_state import ParkingState, Progress, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat
from lbg_core.group.pace import HotKey, Slow, hottest, slow_members

_STATUSES = frozenset(Status)
_LEAST_SETTLED_FIRST = ("Rebalancing", "HoldDown", "Ready")

PAUSED = "Paused"
"""Progress of a queue whose member holds messages and starts no call, as the group is paused."""


@dataclass(frozen=True)
class Description:
    """A group as it is. `spec` is None when its record is missing or unreadable: `problems` has the cause.

    `queues` are in the order of their numbers; one without a number, which all members consume, comes first. `members`
    is UNKNOWN if status reports could not be read, and empty if none arrived.
    """

    group: str
    spec: GroupSpec | None
    queues: tuple[ObservedQueue, ...]
    dead_letters: Count | None
    unrouted: Count | None
    members: tuple[Beat, ...] | Unknown
    problems: tuple[Problem, ...]
    owner: str = ""
    """As the group's record has it (`lbg_core.admin.record`); empty where none is recorded or it was not read."""
    publishers: Publishers = ONE_USER
    is_paused: bool | None = False
    """True if the record states that consumption is paused; None where it was not read."""
    is_ingress_paused: bool | None = False
    """True if nobody may publish to the group; None where that is not known."""
    queue_count_to_be: int | None = None
    """Number of queues that it is being changed to; None while no change is known."""
    moving_keys: MovingKeys | None = None
    """Keys on their way to another number of partitions or separate queues; None without a change."""
    parked: Count | None = None
    """Messages in its parking queue; None without one."""

    # Messages

    @property
    def ready(self) -> Count:
        """Messages that wait for members."""
        return _sum(queue.count("ready") for queue in self.queues)

    @property
    def unacked(self) -> Count:
        return _sum(queue.count("unacked") for queue in self.queues)

    @property
    def lag(self) -> int | None:
        """Messages ready or not acknowledged yet; None when a single queue could not be counted.

        A sum of the other queues alone would scale in a group whose queues could not be counted.
        """
        ready, unacked = self.ready, self.unacked
        return None if ready is UNKNOWN or unacked is UNKNOWN else ready + unacked

    @property
    def oldest_us(self) -> int | None:
        """Publishing time of the oldest message that a member has not settled, in microseconds since the epoch; None
        where no member reports one. A queue that no member serves may have an older one."""
        return min((one.oldest_us for one in self._member_rows if one.oldest_us), default=None)

    @property
    def leaders(self) -> dict[str, int]:
        """Queues that each node of a cluster leads; none where their queues have one node."""
        there = [one.status for one in self.queues if isinstance(one.status, QueueStatus)]
        nodes = sorted({node for status in there for node in status.nodes})
        return {node: sum(status.leader == node for status in there) for node in nodes} if nodes[1:] else {}

    # What it is

    @property
    def pause_text(self) -> str:
        """State for people, empty where nothing is paused."""
        states = {"paused": self.is_paused, "ingress paused": self.is_ingress_paused}
        return ", ".join(text for text, holds in states.items() if holds)

    @property
    def change_held_up(self) -> tuple[Problem, ...]:
        """Causes for which keys do not move until somebody acts, as members report them."""
        moving = self.moving_keys
        if moving is None:
            return ()
        numbers = [one.number for one in self.queues if one.number is not None]
        return tuple(held_up(self.group, self._member_rows, numbers))

    @property
    def faults(self) -> tuple[Problem, ...]:
        """Its problems without notes: none of a healthy group."""
        return tuple(one for one in self.problems if one.kind.severity < Severity.NOTE)

    @property
    def severity(self) -> Severity:
        """Of the worst problem; NOTE without one."""
        return min((one.kind.severity for one in self.problems), default=Severity.NOTE)

    @cached_property
    def _severities(self) -> dict[int | str, Severity]:
        """The worst of each queue or partition, by its number, and of each member, by its name."""
        names, worst = Names(self.group), dict[int | str, Severity]()
        for one in reversed(self.faults):
            if one.kind in (Kind.NO_MEMBERS, Kind.CHANGE_STANDS):
                waiting = [row for row in self.reported_services if isinstance(row.ready, int) and row.ready]
                unserved = (row.number for row in waiting if not row.is_served)
                worst |= dict.fromkeys(unserved, one.kind.severity)
            number = one.figures.get("partition", names.number_of(one.subject.queue))
            if isinstance(number, int):
                worst[number] = one.kind.severity
            worst |= dict.fromkeys(one.subject.members, one.kind.severity)
        return worst

    def severity_of(self, place: int | str) -> Severity | None:
        """The worst problem of a queue or partition, by its number, or of a member, by its name; None without one. The
        colour of it in every view."""
        return self._severities.get(place)

    @property
    def is_whole(self) -> bool:
        """True if the record and every queue are there."""
        return self.spec is not None and all(queue.status is not None for queue in self.queues)

    @property
    def is_one_queue(self) -> bool:
        """True if all members consume one queue, which the broker shares out."""
        return bool(self.queues) and self.queues[0].number is None

    @property
    def has_partitions(self) -> bool:
        """True if it is in mode Partitioned, on either engine."""
        return self.spec is not None and self.spec.mode == PARTITIONED

    @property
    def is_shared(self) -> bool:
        """True if every member is active, as none serves a queue or partition alone."""
        return self.spec is not None and self.spec.mode in UNCOUNTED_MODES

    @property
    def native(self) -> Native | Unknown | None:
        """Fields of a group that is one queue of a type that only the embedded broker has; None where it is not,
        UNKNOWN where it could not be read."""
        status = self.queues[0].status if self.is_one_queue else None
        return status.native if isinstance(status, QueueStatus) else status

    # Rows

    @cached_property
    def queue_rows(self) -> tuple[QueueRow, ...]:
        """A row for each of `queues`."""
        return tuple(map(self._queue_row, self.queues))

    @cached_property
    def services(self) -> tuple[ServiceRow, ...] | Unknown:
        """A row for each queue or partition, in the order of their numbers; none in the modes in which all members
        share one queue. UNKNOWN where the partitions of one queue could not be read."""
        if isinstance(self.native, PartitionsStatus):
            return tuple(map(self._partition_row, self.native.partitions))
        if self.native is UNKNOWN and self.has_partitions:
            return UNKNOWN
        if self.is_shared:
            return ()
        numbered = {queue.number: queue for queue in self.queues if queue.number is not None}
        numbers = set(range(0 if self.spec is None else self.spec.queue_count))
        numbers |= {number for number, one in numbered.items() if one.is_in_use}
        if (moving := self.moving_keys) is not None:  # an empty staging queue needs no consumer
            numbers |= {one for one in numbered if one < moving.partitions or one in self._reports}
        return tuple(self._service_row(number, numbered.get(number)) for number in sorted(numbers))

    @property
    def sessions(self) -> SessionsStatus | None:
        """None where there are none, or they could not be read."""
        return self.native if isinstance(self.native, SessionsStatus) else None

    # Who serves what

    def member_of(self, tag: str | None) -> Beat | None:
        """The member whose consumer has this tag."""
        return None if tag is None else self._by_tag.get(tag)

    def server_of(self, tag: str | None) -> str | None:
        """Name of the member whose consumer has this tag, or else the tag."""
        member = self.member_of(tag)
        return tag if member is None else member.name

    def active_member(self, number: int) -> Beat | None:
        """The member that reports to be active on queue `number`, or whose consumer the broker reports to be.

        A member reports it from its first delivery on, the broker at once, RabbitMQ up to 5 s later.
        """
        if self.is_one_queue:
            partitions = self.native.partitions if isinstance(self.native, PartitionsStatus) else ()
            served = (one for one in partitions if one.partition == number and one.is_served)
            return next((self.member_of(one.consumer_tag) for one in served), None)
        for member, one in self._reports.get(number, ()):
            if one.active:
                return member
        tag = next((queue.active_tag for queue in self.queues if queue.number == number), None)
        return None if tag is UNKNOWN else self.member_of(tag)

    @property
    def rebalance(self) -> str:
        """Ready, HoldDown or Rebalancing: as the broker reports where it moves partitions, or else as members do, the
        least settled first; Unknown without a report."""
        if isinstance(self.native, PartitionsStatus):
            return self.native.rebalance
        reported = {member.rebalance for member in self._member_rows}
        return next((status for status in _LEAST_SETTLED_FIRST if status in reported), UNKNOWN_STATUS)

    @property
    def is_settled(self) -> bool:
        """True if every queue or partition is the primary of one member, and none is to move.

        Who is active may be unknown yet: a broker does not report a consumer to it before its first message.
        """
        if self.is_shared:
            return True
        rows = self.reported_services
        is_assigned = all(sum(one.is_primary for _, one in row.bindings) == 1 for row in rows)
        return bool(rows) and is_assigned and self.rebalance == Status.READY

    @property
    def unserved(self) -> list[int]:
        """Numbers of the queues or partitions that no member is known to serve; where all members consume one queue,
        that one unless it has a consumer."""
        if self.is_shared:
            consumers = [queue.count("consumers") for queue in self.queues]
            return [] if any(count is UNKNOWN or count for count in consumers) else [0]
        # In an online change of their number members consume a staging queue only after another one.
        count = inf if self.spec is None else self.spec.queue_count
        return [one.number for one in self.reported_services if not one.is_served and one.number < count]

    @property
    def service_counts(self) -> dict[str, int] | None:
        """Number of queues or partitions in each status; None where there are none, or one is unknown."""
        statuses = [one.status for one in self.reported_services]
        if not statuses or UNKNOWN_STATUS in statuses:
            return None
        return {status: statuses.count(status) for status in Status}

    @cached_property
    def served_by(self) -> dict[int, list[int]]:
        """Numbers of the queues or partitions that each member serves, by the member's index."""
        served: dict[int, list[int]] = {member.index: [] for member in self._member_rows}
        for one in self.reported_services:
            if one.member is not None:
                served[one.member.index].append(one.number)
        return served

    @property
    def active_count(self) -> int:
        """Members that serve something."""
        return len(self.served_by) if self.is_shared else sum(map(bool, self.served_by.values()))

    @property
    def work_of_members(self) -> dict[str, int] | Unknown:
        """Load of each member by its name: its queues or partitions, or where all consume one queue, the
        messages that it has in flight."""
        if self.members is UNKNOWN:
            return UNKNOWN
        return {
            member.name: member.in_flight if self.is_shared else len(self.served_by[member.index])
            for member in self.members
        }

    @property
    def standing_by(self) -> list[str]:
        """Names of the members that no queue or partition is assigned to, as others are as many as there are."""
        if self.is_shared or self.is_one_queue or len(self._member_rows) <= len(self.reported_services):
            return []
        return [one.name for one in self._member_rows if not one.primaries and not self.served_by[one.index]]

    @cached_property
    def slow_members(self) -> dict[str, Slow]:
        """Members whose calls take far longer than those of their peers, by name."""
        return slow_members({one.name: one.pace for one in self._member_rows})

    @property
    def hot_keys(self) -> list[HotKey]:
        """Keys with most time in calls, as far as members report it."""
        return hottest(one.pace for one in self._member_rows)

    @property
    def finished_hz(self) -> float | None:
        """Messages a second that its members processed in the last minute; None where one does not report it."""
        paces = [one.pace for one in self._member_rows]
        known = [one.finished_hz for one in paces if one is not None]
        return sum(known) if paces and len(known) == len(paces) else None

    @cached_property
    def sequences(self) -> GroupSequences | None:
        """Sequence numbers, as the members report them; None where none does."""
        rows = self.reported_services
        unreported = [one.number for one in rows if one.consumer is not None and one.member is None]
        return sequences_of(self._member_rows, unreported)

    @property
    def sequences_text(self) -> str:
        """Line for people: gaps, inversions and repeats, or why they are not known."""
        if self.sequences is not None:
            return self.sequences.line
        if self.is_one_queue and self.spec is not None:
            return unaudited_text(self.spec.mode)
        return "gaps and order are unknown: no member reports them"

    @property
    def parking(self) -> ParkingState | None:
        """The parked keys as reported by the member that has read most of them; None without a report. `parked` may be
        more: after a crash the parking queue can have a message twice, or one that was not parked in the end."""
        return _parking(self._member_rows)

    def to_json(self) -> dict[str, Any]:
        """For `--json`: counts are numbers, `"unknown"`, or null for what is not there."""
        return {
            "group": self.group,
            "owner": self.owner or None,
            "publisher_username": self.publishers.username or None,
            "attributes": None if self.spec is None else self.spec.attributes(),
            "queues": [row.to_json() for row in self.queue_rows],
            **self._sharing_json(),
            **({} if self.parked is None else {"parked": plain(self.parked)}),
            "members": "unknown" if self.members is UNKNOWN else list(map(member_json, self.members)),
            "ready": plain(self.ready),
            "unacked": plain(self.unacked),
            "dead_letters": plain(self.dead_letters),
            "unrouted": plain(self.unrouted),
            "oldest_published_at_us": self.oldest_us,
            "finish_rate": rounded(self.finished_hz),
            "hot_keys": list(map(hot_key_json, self.hot_keys)),
            "sequences": None if self.sequences is None else self.sequences.to_json(),
            "repartition": self.queue_count_to_be,
            "paused": "unknown" if self.is_paused is None else self.is_paused,
            "ingress_paused": "unknown" if self.is_ingress_paused is None else self.is_ingress_paused,
            "problems": [one.to_json() for one in self.problems],
        }

    def _sharing_json(self) -> dict[str, Any]:
        """State of the sharing of queues, in modes that have one."""
        fields: dict[str, Any] = {}
        if self.has_partitions:
            fields["rebalance_status"] = self.rebalance
            services = self.services
            fields["partitions"] = "unknown" if services is UNKNOWN else [one.to_json() for one in services]
        if self.native is not UNKNOWN and self.native is not None:
            fields |= native_json(self.native)
        elif self.moving_keys is not None:
            fields["moving_keys"] = asdict(self.moving_keys)
        return fields

    @property
    def _member_rows(self) -> tuple[Beat, ...]:
        return () if self.members is UNKNOWN else self.members

    @property
    def reported_services(self) -> tuple[ServiceRow, ...]:
        """`services`, and none where they could not be read."""
        return () if self.services is UNKNOWN else self.services

    @cached_property
    def _by_tag(self) -> dict[str, Beat]:
        names = Names(self.group)
        return {names.mailbox(member.index): member for member in self._member_rows}

    @cached_property
    def _reports(self) -> dict[int, list[tuple[Beat, QueueState]]]:
        """The members' reports of each queue, by its number; none of a member that has nothing to do with it."""
        reports: dict[int, list[tuple[Beat, QueueState]]] = {}
        for member in self._member_rows:
            for one in member.queues:
                reports.setdefault(one.queue, []).append((member, one))
        return reports

    def _queue_row(self, queue: ObservedQueue) -> QueueRow:
        member = None if queue.number is None else self.active_member(queue.number)
        server = None if self.is_one_queue else queue.active_tag if member is None else member.name
        # Members that consume one queue report of it what others report of queue 0.
        return QueueRow(queue, member, server, self._progress(queue.number or 0, queue.count("ready")))

    def _progress(self, number: int, ready: Count | None) -> str | None:
        """Stalled, or Blocked, only while messages wait: a report is older than the count."""
        reports = self._reports.get(number, ())
        for trouble in (Progress.STALLED, Progress.BLOCKED):
            if any(one.progress is trouble for _, one in reports) and ready != 0:
                return trouble
        # A member reports to be active from its first delivery on, and the broker at once.
        active = None if self.is_one_queue else self.active_member(number)
        serving = next(((member, one) for member, one in reports if one.active or member is active), None)
        if serving is None:
            return None
        member, state = serving
        if member.paused and state.in_flight:
            return PAUSED
        return Progress.IDLE if state.progress is Progress.STALLED else state.progress

    def _partition_row(self, one: PartitionStatus) -> ServiceRow:
        tag = one.consumer_tag if one.is_served else None
        bindings: tuple[tuple[Beat, QueueState], ...] = ()
        if (member := self.member_of(tag)) is not None:
            state = QueueState(one.partition, Role.PRIMARY, True, Status(one.status), one.unacked)
            bindings = ((member, state),)
        return ServiceRow(
            one.partition,
            one.status if one.status in _STATUSES else UNKNOWN_STATUS,
            member,
            tag,
            one.ready,
            one.unacked,
            bindings,
            handoff_s=one.handoff_s,
            settled=one.settled,
        )

    def _service_row(self, number: int, queue: ObservedQueue | None) -> ServiceRow:
        member = self.active_member(number)
        tag = None if queue is None or queue.active_tag is UNKNOWN else queue.active_tag
        return ServiceRow(
            number,
            self._status(number, member),
            member,
            tag,
            None if queue is None else queue.count("ready"),
            None if queue is None else queue.count("unacked"),
            tuple(self._reports.get(number, ())),
        )

    def _status(self, number: int, active: Beat | None) -> str:
        """Served, standing still for a handoff, not served though members consume it, consumed by no member. A member
        does not consume a queue that it does not report."""
        if active is not None:
            is_paused = any(one.queue == number and one.status is Status.PAUSED for one in active.queues)
            return Status.PAUSED if is_paused else Status.READY
        if self.members is UNKNOWN:
            return UNKNOWN_STATUS
        is_consumed = any(one.is_consumed for _, one in self._reports.get(number, ()))
        return Status.UNASSIGNED if is_consumed else Status.UNBOUND


def describe(group: str, observed: Snapshot, *, beats: Iterable[Beat] | AdminError | Unknown) -> Description:
    """`beats`: status reports of the members, or the error with which they could not be read."""
    names, subject = Names(group), Subject(group)
    why = dict(observed.why)
    members: tuple[Beat, ...] | Unknown = UNKNOWN
    if isinstance(beats, AdminError):
        why["members",] = str(beats)
    elif beats is not UNKNOWN:
        members = members_of(beats)
    problems = [
        Problem(Kind.PART_UNKNOWN, subject, {"parts": parts, "cause": cause}) for parts, cause in why.items()
    ]
    spec = None
    if observed.record is None:
        problems.append(Problem(Kind.RECORD_MISSING, subject))
    elif observed.record is not UNKNOWN:
        try:
            spec = spec_in(observed.record.text, group)
        except (GroupUnfinished, RecordUnreadable) as error:
            problems.append(error.problem)
    if spec is not None:
        if observed.queue_count_to_be is None:
            problems += drift(spec, observed)
            problems += _change(spec, observed)
        else:  # half of it is as it was, and half as it is to be
            problems.append(UnderWay(group, spec.queue_count, observed.queue_count_to_be).problem)
    problems += [
        Problem(Kind.EXCHANGE_MISSING, Subject(group, exchange=name))
        for name, exchange in observed.exchanges.items()
        if exchange is None
    ]
    problems += [
        Problem(Kind.QUEUE_MISSING, Subject(group, name))
        for name, status in observed.queues.items()
        if status is None and (name != names.config or observed.record is not None)
    ]
    queues = [
        ObservedQueue(name, names.number_of(name), status)
        for name, status in observed.queues.items()
        if names.is_served(name)
    ]
    queues.sort(key=lambda queue: -1 if queue.number is None else queue.number)

    def ready(queue: str) -> Count | None:
        return ObservedQueue(queue, None, observed.queues.get(queue)).count("ready")

    dead, unrouted = ready(names.dead), ready(names.unrouted)
    if isinstance(dead, int) and dead:
        problems.append(Problem(Kind.DEAD_LETTERS, Subject(group, names.dead), {"count": dead}))
    if isinstance(unrouted, int) and unrouted:
        problems.append(Problem(Kind.UNROUTED, Subject(group, names.unrouted), {"count": unrouted}))
    parked = ready(names.parking) if observed.has_parking else None
    problems += parking_problems(group, None if members is UNKNOWN else _parking(members), parked)
    staging = set() if (move := observed.key_move(group)) is None else {*move.sources}
    if spec is not None:
        # Of an interrupted change, too: its own problem says what takes these messages away.
        staging |= {one.number for one in queues if one.number is not None and one.number >= spec.queue_count}
    problems += backlog_problems(names, queues, members, staging=staging)
    is_paused = None if observed.paused is None else CONSUMPTION in observed.paused
    if members is not UNKNOWN:
        if (sequences := sequences_of(members, ())) is not None:
            problems += sequence_problems(group, sequences, unrouted if isinstance(unrouted, int) else 0)
        problems += member_problems(
            names,
            members,
            is_one_queue=bool(queues) and queues[0].number is None,
            is_paused=is_paused,
            has_parking=observed.has_parking,
        )
        if spec is not None:
            problems += load_problems(spec, members)
        if observed.moving_keys(group) is not None:
            numbers = [one.number for one in queues if one.number is not None]
            problems += (one for one in held_up(group, members, numbers) if one not in problems)
    return Description(
        group=group,
        spec=spec,
        queues=tuple(queues),
        dead_letters=dead,
        unrouted=unrouted,
        members=members,
        problems=worst_first(problems),
        owner=observed.owner,
        publishers=observed.publishers,
        is_paused=is_paused,
        is_ingress_paused=observed.is_ingress_paused(group),
        queue_count_to_be=observed.queue_count_to_be,
        moving_keys=observed.moving_keys(group),
        parked=parked,
    )


def _parking(members: Iterable[Beat]) -> ParkingState | None:
    """As reported by the member that has read most of it."""
    rows = (one.parking for one in members if one.parking is not None)
    return max(rows, key=lambda one: (one.is_read, one.keys, one.messages), default=None)


def _change(spec: GroupSpec, observed: Snapshot) -> Iterator[Problem]:
    """An online change of the number of queues or partitions: it goes on, or it stands, because its command was killed;
    or it has left parts, as that was killed before it removed them."""
    names, subject = Names(spec.name), Subject(spec.name)
    is_of_operator = is_of_kubernetes(observed.owner)
    moving = observed.moving_keys(spec.name)
    if moving is not None:
        problem = moving.problem(spec.name)
        if isinstance(moving, MovingQueues) and observed.is_driven is False and not is_of_operator:
            problem = Problem(Kind.CHANGE_STANDS, subject, problem.figures)
        yield problem
    elif observed.is_driven is False and observed.queues.get(names.moves) is not None:
        surplus, bindings = surplus_queues(names, observed, spec.queue_count), observed.bindings
        figures = {
            "queues": spec.queue_count,
            "left": tuple(name for name, _ in reversed(surplus)),
            "messages": plain(_sum(one.ready for _, one in surplus)),
            "bindings": "unknown" if bindings is UNKNOWN else len(forwarding_bindings(names, bindings)),
        }
        yield Problem(Kind.CHANGE_LEFT_TO_OPERATOR if is_of_operator else Kind.CHANGE_LEFT, subject, figures)


def _sum(counts: Iterable[Count | None]) -> Count:
    """Unknown as soon as one part is: half a sum would read as a small one."""
    total = 0
    for count in counts:
        if count is None:
            continue
        if count is UNKNOWN:
            return UNKNOWN
        total += count
    return total
