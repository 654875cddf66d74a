"""Online change of the number of separate queues: keys move between queues while publishers go on.

docs/adr/0071-keys-move-between-queues.md has the protocol. `KeyMoveSteps` decides what is to be done next; it is pure.
`change_queues` does it on a broker, a round at a time: each observes anew and holds the group's lock for itself, so
another run, or the operator, goes on where one ended. Every step declares a state and can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lbg_core.admin.actions import (
    Action,
    Announce,
    AppendEntry,
    Bind,
    DeleteQueue,
    PassFences,
    PutFence,
    ReturnMessages,
    Unbind,
    WriteRecord,
)
from lbg_core.admin.errors import Busy, NotJoined, NotMoved, Refused, StillInUse, Unsupported
from lbg_core.admin.groups import apply, assignment_announced
from lbg_core.admin.member_problems import held_up
from lbg_core.admin.plan import additions, existing, record_in, refuse_under_way
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.progress import Progress, Report, Stage, unreported
from lbg_core.admin.protocol import BrokerAdmin, rewrite_record
from lbg_core.admin.queue_changes import (
    LATE_S,
    LISTEN_S,
    by_queue,
    forwarding_bindings,
    left_in,
    repartition_done,
    sender,
    surplus_queues,
    unsettled,
)
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Snapshot
from lbg_core.group import TO_MOVES, GroupSpec, Names, binding_key, forwarded_key, recounted
from lbg_core.group.key_moves import BeginEntry, EndEntry, KeyMove, KeyMoveState
from lbg_core.group.members_protocol import Beat, KeysMove
from lbg_core.group.topology import Binding, Topology

FENCE_DELAY_S = 0.2
"""Between the last unbind and the fence, on RabbitMQ: a channel that routed before may deliver to the queue later."""

NEARLY_EMPTY = 20
"""Ready messages of a staging queue up to which its hashes go on: what comes then waits in the new queue."""

JOIN_S = 15.0
"""For members to take part: they do so at once. One that has not by then stands still."""

LOOK_S = 0.1

INDEXES_MIN = 64
"""So many indexes are looked at in each round: members have the lowest ones that are free."""


@dataclass(frozen=True, slots=True)
class Look:
    """Knowledge of a group whose keys move. `ready` and `consumers`: counts of its queues by number; a queue that
    could not be counted is missing. `members`: those that report. `indexes`: those of all that are live, also of
    members that stand still, or whose reports do not arrive: the broker delivers messages to them. `now`: seconds of
    any clock."""

    state: KeyMoveState
    bindings: frozenset[Binding]
    ready: Mapping[int, int]
    consumers: Mapping[int, int]
    members: Sequence[Beat]
    indexes: frozenset[int]
    now: float


class KeyMoveSteps:
    """Decides on the steps of one change, by what is observed; of its own it has the fences that it put, and the times
    from which on a queue gets no more messages of the hashes that leave it. Whoever begins anew puts a second fence."""

    def __init__(self, spec: GroupSpec, move: KeyMove, *, fence_delay_s: float) -> None:
        self.move = move
        self._names = Names(spec.name)
        self._prefix = spec.hash_prefix
        self._fence_delay_s = fence_delay_s
        self._cut_at: dict[int, float] = {}
        self._fenced: set[int] = set()
        self._hashes: dict[int, list[int]] = {}
        for hash_ in move.hashes:
            self._hashes.setdefault(hash_ % move.old, []).append(hash_)

    def actions(self, look: Look) -> Iterator[Action]:
        """The next actions, in their order; none while there is something to wait for. `done` gets each that was
        done."""
        if look.state.is_ended or any(self.outsiders(look)):
            return
        for source, staging in self.move.staging.items():
            if staging not in look.state.passed:
                yield from self._of_source(source, staging, look)
        if all(staging in look.state.passed for staging in self.move.sources):
            yield AppendEntry(self._names.group, EndEntry(self.move.id))

    def done(self, action: Action) -> None:
        if isinstance(action, PutFence) and (number := self._names.number_of(action.queue)) is not None:
            self._fenced.add(number)

    def outsiders(self, look: Look) -> Iterator[Problem]:
        """Live members that do not take part."""
        joined, group = look.state.joined, self._names.group
        known = {index for index, _ in joined} | {one.index for one in look.members}
        for one in look.members:
            if (one.index, one.incarnation) not in joined:
                yield Problem(Kind.MEMBER_NOT_JOINED, Subject(group, members=(one.name,)))
        for index in sorted(look.indexes - known):
            yield Problem(Kind.MEMBER_SILENT, Subject(group), {"index": index})

    def waits(self, look: Look) -> list[Problem]:
        """The pending conditions and their causes; none while there is nothing to wait for."""
        group, passed, before = self._names.group, look.state.passed, list[int]()
        left = list(self.outsiders(look))
        for source, staging in self.move.staging.items():
            queue = staging if source in passed else source
            if queue in passed:
                continue
            count = look.ready.get(queue)
            if queue == staging and (count is None or count > NEARLY_EMPTY):
                kind = Kind.QUEUE_UNCOUNTED if count is None else Kind.STAGING_FULL
                left.append(Problem(kind, Subject(group, self._names.queue(queue)), {"count": count}))
            if queue == staging or queue in self._fenced:
                before.append(queue)
        for queue in sorted(self._fenced.intersection(before)):
            left.append(Problem(Kind.FENCE_AHEAD, Subject(group, self._names.queue(queue))))
        return left and [*left, *held_up(group, look.members, before)]

    def is_untouched(self, look: Look) -> bool:
        """True if no hash has begun to leave its queue."""
        staged = {self._names.queue(number) for number in self.move.sources}
        return not look.state.passed and not any(
            one.exchange == self._names.exchange and one.queue in staged for one in look.bindings
        )

    def _of_source(self, source: int, staging: int, look: Look) -> Iterator[Action]:
        """A queue's bindings are as they should be, its fence is in it, and it is passed: first for the old queue, and
        then for its staging queue."""
        hashes = self._hashes[source]
        if source not in look.state.passed:
            wanted = [self._binding(hash_, staging) for hash_ in hashes]
            yield from self._cut(source, wanted, [self._binding(one, source) for one in hashes], look)
            return
        wanted = [self._binding(hash_, hash_ % self.move.new) for hash_ in hashes]
        has_begun = any(one in look.bindings for one in wanted)
        if has_begun or look.ready.get(staging, NEARLY_EMPTY + 1) <= NEARLY_EMPTY:
            former = [self._binding(hash_, number) for hash_ in hashes for number in (source, staging)]
            yield from self._cut(staging, wanted, former, look)

    def _cut(
        self, queue: int, wanted: Sequence[Binding], former: Sequence[Binding], look: Look
    ) -> Iterator[Action]:
        missing = [one for one in wanted if one not in look.bindings]
        extra = [one for one in former if one in look.bindings]
        if missing or extra:
            self._cut_at[queue] = look.now
            yield from (Bind(*one) for one in by_queue(missing))
            yield from (Unbind(*one) for one in by_queue(extra))
        elif queue not in self._fenced:
            if look.now - self._cut_at.setdefault(queue, look.now) >= self._fence_delay_s:
                yield PutFence(self._names.queue(queue), self.move.id)
        elif not look.members and look.consumers.get(queue) == 0:
            yield PassFences(self._names.group, queue, self.move.id)

    def _binding(self, hash_: int, queue: int) -> Binding:
        return Binding(self._names.exchange, self._names.queue(queue), binding_key(self._prefix, hash_))


# The objects of a change


def key_move_announced(group: str, move: KeyMove) -> Announce:
    """A change is on its way: members that do not take part in it yet follow its stream."""
    return Announce(group, KeysMove(sender(), move.id))


def beginning(spec: GroupSpec, move: KeyMove, observed: Snapshot) -> Iterator[Action]:
    """The actions that make what a change needs, up to the record, which has it from then on; only what is missing. The
    first entry comes before: a member that reads the record, and the stream after it, waits for nothing that nobody
    writes."""
    names, topology = Names(spec.name), observed.topology_of(spec)
    known_bindings(spec.name, observed)
    objects = _objects(names, move, topology)
    yield from additions(spec, topology, objects, observed, judged=objects)
    record = record_in(spec.name, observed)
    if record.key_move != move.id:
        yield AppendEntry(spec.name, BeginEntry(move))
        yield WriteRecord(spec.name, replace(record, key_move=move.id), record)


def _objects(names: Names, move: KeyMove, topology: Topology) -> Topology:
    """Queues and bindings that there are only during a change, and those of the new number."""
    like = next(one for one in topology.queues if one.name == names.queue(0))
    numbers = range(move.queue_count)
    queues = [replace(like, name=names.queue(number)) for number in numbers]
    stream = replace(like, name=names.moves, arguments={"x-queue-type": "stream"})
    bindings = [Binding(names.members, names.queue(number), forwarded_key(number)) for number in numbers]
    return replace(
        topology,
        exchanges=(),
        queues=(stream, *queues),
        bindings=(Binding(names.members, names.moves, TO_MOVES), *bindings),
    )


def tidying(spec: GroupSpec, observed: Snapshot) -> Iterator[Action]:
    """The actions that remove what a change has left, but for queues that are too many. The stream comes last: it shows
    that something is left."""
    names = Names(spec.name)
    if observed.bindings is not UNKNOWN:
        yield from (Unbind(*one) for one in by_queue(forwarding_bindings(names, observed.bindings)))
    yield DeleteQueue(names.moves)


def known_bindings(group: str, observed: Snapshot) -> frozenset[Binding]:
    if observed.bindings is UNKNOWN:
        raise StillInUse(group, kind=Kind.BINDINGS_UNKNOWN)
    return observed.bindings


# The change on a broker


@dataclass(slots=True)
class KeyMoveRun:
    """One run of changes of `group` to so many queues. A change that is on its way already is finished first.
    `max_clients`: the limit of members there is to be; None leaves it. `is_changed`: something was to do.
    `is_complete`: nothing is left to do. `left`: conditions that the round waits for."""

    admin: BrokerAdmin
    group: str
    queue_count: int
    max_clients: int | None = None
    report: Report = unreported
    is_changed: bool = False
    is_complete: bool = False
    left: list[Problem] = field(default_factory=list)
    _steps: KeyMoveSteps | None = None
    _members: Sequence[Beat] = ()
    _indexes: frozenset[int] = frozenset()
    _began_at: float = 0.0
    _settling_since: float | None = None

    @property
    def _names(self) -> Names:
        return Names(self.group)

    async def round(self) -> bool:
        """One round; True when nothing is left to do. It changes what can be changed now, and listens to members.

        Raises NotJoined when members do not take part, with nothing changed; UnderWay where an offline change was
        killed; Busy, and other errors of ProvisioningError.
        """
        await self.admin.drive(self.group)
        self._members = members_of(await self.admin.listen(self.group, seconds=LISTEN_S))
        async with self.admin.lock(self.group):
            self.is_complete = await self._round()
        return self.is_complete

    async def _round(self) -> bool:
        observed = await self.admin.observe(self.group)
        spec, record = existing(self.group, observed)
        refuse_under_way(spec, observed)
        if record.key_move:
            move = observed.key_move(spec.name)
            if move is None:
                raise Unsupported(
                    f"the change of the number of queues of group {spec.name!r} cannot be read: {record.key_move!r}"
                )
            await self._go_on(spec, move, observed)
            return False
        desired = recounted(spec, self.queue_count, max_clients=self.max_clients)
        if spec.queue_count != desired.queue_count:
            await self._begin(spec, observed)
            return False
        if spec.to_record() != desired.to_record():  # the limit of members
            await rewrite_record(self.admin, self.group, record, text=desired.to_record())
            await self.admin.perform(assignment_announced(desired))
            self.is_changed = True
        return not observed.is_key_move_left(spec.name) or await self._settled(spec, observed)

    async def _begin(self, spec: GroupSpec, observed: Snapshot) -> None:
        if not await self._tidy(spec, observed):
            return
        observed = await self.admin.observe(spec.name)
        move = KeyMove.between(spec.queue_count, self.queue_count, spec.hash_count)
        await apply(self.admin, tuple(beginning(spec, move, observed)))
        self.is_changed = True
        self._report(Stage.BEGUN, group=spec.name, former=move.old, queues=move.new)
        await self.admin.perform(key_move_announced(self.group, move))

    async def _go_on(self, spec: GroupSpec, move: KeyMove, observed: Snapshot) -> None:
        now = asyncio.get_running_loop().time()
        if self._steps is None or self._steps.move.id != move.id:
            delay = FENCE_DELAY_S if observed.engine.is_rabbitmq else 0.0
            self._steps, self._began_at = KeyMoveSteps(spec, move, fence_delay_s=delay), now
            if not self.is_changed:
                self._report(Stage.CONTINUED, group=spec.name, former=move.old, queues=move.new)
            self.is_changed = True
        for action in beginning(spec, move, observed):
            await self.admin.perform(action)
        highest = max((one.index for one in self._members), default=0)
        below = max(spec.max_clients, highest + 1, INDEXES_MIN)
        self._indexes = await self.admin.indexes(spec.name, below=below)
        look = await self._look(spec, observed)
        if look.state.move is None or look.state.move.id != move.id:
            await self.admin.perform(AppendEntry(spec.name, BeginEntry(move)))
            look = await self._look(spec, observed)
        steps = self._steps
        if outsiders := list(steps.outsiders(look)):
            await self.admin.perform(key_move_announced(self.group, move))
            if now - self._began_at >= JOIN_S and steps.is_untouched(look):
                await self._take_back(spec, observed)
                raise NotJoined(spec.name, causes=outsiders)
        while not look.state.is_ended and (actions := list(steps.actions(look))):
            if not await self._performed(steps, actions):
                break
            await asyncio.sleep(FENCE_DELAY_S if observed.engine.is_rabbitmq else 0.0)
            observed = await self.admin.observe(spec.name)
            look = await self._look(spec, observed)
        if look.state.is_ended:
            await self._end(move, observed)
            return
        if waits := steps.waits(look):
            self._report(Stage.WAITING, [*waits, observed.moving_queues(spec.name, move).problem(spec.name)])

    async def _performed(self, steps: KeyMoveSteps, actions: Sequence[Action]) -> bool:
        """False from a fence on that a full queue refuses: it is put in the next round."""
        for action in actions:
            try:
                await self.admin.perform(action)
            except Refused as error:
                if not isinstance(action, PutFence):
                    raise
                subject = Subject(self.group, action.queue)
                self._report(Stage.WAITING, [Problem(Kind.FENCE_REFUSED, subject, {"cause": str(error)})])
                return False
            steps.done(action)
        return True

    async def _look(self, spec: GroupSpec, observed: Snapshot) -> Look:
        queues = {
            number: status
            for name, status in observed.queues.items()
            if isinstance(status, QueueStatus) and (number := self._names.number_of(name)) is not None
        }
        return Look(
            await self.admin.key_moves(spec.name),
            known_bindings(spec.name, observed),
            {number: one.ready for number, one in queues.items() if one.ready is not UNKNOWN},
            {number: one.consumers for number, one in queues.items() if one.consumers is not UNKNOWN},
            self._members,
            self._indexes,
            asyncio.get_running_loop().time(),
        )

    async def _end(self, move: KeyMove, observed: Snapshot) -> None:
        """The record has the new number from here on."""
        spec, record = existing(self.group, observed)
        limit = self.max_clients or (spec.max_clients if spec.limits_clients else None)
        ended = recounted(spec, move.new, max_clients=None if limit is None else min(limit, move.new))
        await rewrite_record(self.admin, self.group, record, text=ended.to_record(), key_move="")
        self._report(Stage.CHANGED, queues=move.new)
        await self.admin.perform(repartition_done(self.group, move.new))

    async def _settled(self, spec: GroupSpec, observed: Snapshot) -> bool:
        """Waits until members have the number, and removes what the change has left."""
        self.is_changed = True
        now = asyncio.get_running_loop().time()
        self._settling_since = now if self._settling_since is None else self._settling_since
        await self.admin.perform(repartition_done(self.group, spec.queue_count))
        is_late = now >= self._settling_since + LATE_S
        if behind := list(unsettled(self.group, self._members, spec.queue_count, is_late=is_late)):
            self._report(Stage.WAITING, behind)
            return False
        return await self._tidy(spec, observed)

    async def _tidy(self, spec: GroupSpec, observed: Snapshot) -> bool:
        """False while a queue that is to go has messages."""
        surplus = surplus_queues(self._names, observed, spec.queue_count)
        for name, one in surplus:
            number = self._names.number_of(name)
            if number is not None and one.consumers == 0 and one.ready not in (0, UNKNOWN):
                await self.admin.perform(ReturnMessages(self.group, number))
        counted = (
            (name, replace(one, unacked=0) if one.unacked is UNKNOWN else one) for name, one in surplus
        )
        if left := list(left_in(self.group, counted)):
            self._report(Stage.WAITING, left)
            return False
        for name, _ in surplus:
            await self.admin.perform(DeleteQueue(name, only_empty=True))
        if observed.queues.get(self._names.moves) is not None:
            for action in tidying(spec, observed):
                await self.admin.perform(action)
        return True

    async def _take_back(self, spec: GroupSpec, observed: Snapshot) -> None:
        await rewrite_record(self.admin, self.group, record_in(self.group, observed), key_move="")
        await self.admin.perform(repartition_done(self.group, spec.queue_count))
        await self._tidy(spec, observed)
        self._report(Stage.UNCHANGED)

    def _report(self, stage: Stage, left: Sequence[Problem] = (), **figures: object) -> None:
        if stage is Stage.WAITING:
            self.left += left
        self.report(Progress(stage, left, figures))


async def change_queues(run: KeyMoveRun, *, timeout_s: float) -> None:
    """Rounds until nothing is left to do. Raises NotMoved when that lasts longer than `timeout_s`, and the errors of
    `KeyMoveRun.round`; Busy only when another client has the group for so long."""
    try:
        await _change_queues(run, timeout_s=timeout_s)
    finally:
        await run.admin.drive(run.group, is_over=True)


async def _change_queues(run: KeyMoveRun, *, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        run.left.clear()
        try:
            if await run.round():
                return
        except Busy:
            if loop.time() >= deadline:
                raise
        if loop.time() >= deadline:
            left = run.left or [Problem(Kind.STEP_DUE, Subject(run.group))]
            raise NotMoved(run.group, queues=run.queue_count, causes=left, within_s=timeout_s)
        await asyncio.sleep(LOOK_S)
