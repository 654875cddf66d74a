"""Changing the number of queues of a group: close ingress, drain, change, open ingress; or online, where the broker
moves keys in order.

The record is marked first, and unmarked last (`lbg_core.group.spec`). Every step declares a state and can be
repeated, so that the next run after a crash does all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    Bind,
    CheckPolicies,
    DeclareQueue,
    DeleteQueue,
    Unbind,
    WriteRecord,
)
from lbg_core.admin.errors import KeysMove, NotDrained, NotMoved, Unreachable, Unsupported
from lbg_core.admin.groups import assignment_announced
from lbg_core.admin.ingress import Ingress, PermissionIngress, QueueIngress
from lbg_core.admin.key_move import KeyMoveRun, change_queues, known_bindings
from lbg_core.admin.management_admin import ManagementAdmin
from lbg_core.admin.plan import (
    existing,
    record_in,
    recorded,
    require_channels,
    require_owner,
    require_supported,
)
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.progress import Progress, Report, Stage, unreported
from lbg_core.admin.protocol import BrokerAdmin, renew_unchanged
from lbg_core.admin.queue_changes import (
    LATE_S,
    LISTEN_S,
    Counted,
    by_queue,
    left_in,
    numbered_queues,
    repartition_announced,
    repartition_done,
    surplus_queues,
    unsettled,
)
from lbg_core.admin.record import Claim, Record
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import SAMPLED_S, PartitionsStatus, Snapshot
from lbg_core.group import (
    UNCOUNTED_MODES,
    GroupSpec,
    Names,
    has_partitions,
    is_native,
    is_recount,
    marked,
    recounted,
)
from lbg_core.group.key_moves import KeyMove

if TYPE_CHECKING:
    from lbg_core.admin.live import LiveAdmin


DRAIN_LOOK_S = 0.5


LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class SingleQueueLayout:
    """The broker moves its partitions itself; members receive their number, by which they name them."""

    admin: BrokerAdmin
    names: Names
    is_sampled: ClassVar = False

    @property
    def ingress(self) -> QueueIngress:
        return QueueIngress(self.admin, self.names.parent)

    async def depths(self, *, below: int | None) -> Sequence[Counted]:
        """Of the partitions with a number below `below`, or of all that there are."""
        return [
            (self.names.parent, one)
            for one in (await self._partitions_status()).partitions
            if below is None or one.partition < below
        ]

    async def announce(self, queue_count: int) -> None:
        """Announces nothing: what a partition's former consumer processed is acknowledged."""

    async def prepare(self, spec: GroupSpec, *, discard: bool) -> None:
        """Raises Refused when a partition that goes is not empty, unless `discard`."""
        size_bytes = spec.queue_size_bytes * spec.queue_count
        arguments = {"count": spec.queue_count, "discard": discard, "max_length_bytes": size_bytes}
        await self.admin.perform(ActOnQueue(self.names.parent, "repartition", arguments))
        await self.admin.perform(repartition_done(self.names.group, spec.queue_count))

    async def is_prepared(self, spec: GroupSpec) -> bool:
        """True if the broker has the number of partitions of `spec`, or is on its way to it."""
        status = await self._partitions_status()
        moving = status.moving_keys
        return (len(status.partitions) if moving is None else moving.partitions) == spec.queue_count

    async def unsettled(self, spec: GroupSpec, *, late_at: float) -> list[Problem]:
        """Conditions for the queue to be Ready, with no key that moves."""
        status = await self._partitions_status()
        left = [] if status.moving_keys is None else [status.moving_keys.problem(spec.name)]
        if status.rebalance != "Ready":
            subject = Subject(spec.name, self.names.parent)
            left.append(Problem(Kind.QUEUE_NOT_READY, subject, {"rebalance": status.rebalance}))
        return left

    async def tidy(self, spec: GroupSpec, *, discard: bool) -> None:
        """Removes nothing: the broker has removed partitions that are too many."""

    async def _partitions_status(self) -> PartitionsStatus:
        partitions = (await self.admin.observe(self.names.group)).partitions(self.names.group)
        if partitions is None:
            raise Unreachable(f"the partitions of {self.names.parent} could not be read")
        return partitions


TOLD_S = 1.0
"""Seconds for members to request of each other what they processed, before queues change: they do so at once."""


@dataclass(frozen=True, slots=True)
class SeparateQueuesLayout:
    """`is_sampled`: what is delivered is counted every 5 s only."""

    admin: BrokerAdmin
    names: Names
    ingress: Ingress
    is_sampled: bool

    async def depths(self, *, below: int | None) -> Sequence[Counted]:
        """Of the queues with a number below `below`, or of all that there are."""
        queues = numbered_queues(self.names, await self.admin.observe(self.names.group))
        return [
            (self.names.queue(number), status)
            for number, status in sorted(queues.items())
            if below is None or number < below
        ]

    async def announce(self, queue_count: int) -> None:
        """Waits, after the drain, until members have reported to each other what they processed."""
        await self.admin.perform(repartition_announced(self.names.group, queue_count))
        await asyncio.sleep(TOLD_S)

    async def prepare(self, spec: GroupSpec, *, discard: bool) -> None:
        """Have every queue and binding of `spec`, and no other binding. What comes in from then on is where it belongs.

        Queues that are too many stay until `tidy`: members still consume from them.
        """
        for action in restriping(spec, await self.admin.observe(self.names.group, desired=spec)):
            await self.admin.perform(action)

    async def unsettled(self, spec: GroupSpec, *, late_at: float) -> list[Problem]:
        """Conditions for all members to have the new number, which they should have at `late_at` of the loop's time."""
        await self.admin.perform(repartition_done(self.names.group, spec.queue_count))
        members = members_of(await self.admin.listen(self.names.group, seconds=LISTEN_S))
        is_late = asyncio.get_running_loop().time() >= late_at
        return list(unsettled(spec.name, members, spec.queue_count, is_late=is_late))

    async def tidy(self, spec: GroupSpec, *, discard: bool) -> None:
        """Removes surplus queues, the highest first. Raises StillInUse when one is not empty, unless `discard`."""
        observed = await self.admin.observe(self.names.group)
        for name, _ in surplus_queues(self.names, observed, spec.queue_count):
            await self.admin.perform(DeleteQueue(name, only_empty=not discard))


def restriping(spec: GroupSpec, observed: Snapshot) -> Iterator[Action]:
    """Changes of bindings that lead each hash to its queue of `spec`, and to no other. Raises StillInUse where
    bindings are unknown.

    Nothing may come in meanwhile: there is a moment in which a hash leads to two queues.
    """
    topology = observed.topology_of(spec)
    names = Names(spec.name)
    bindings = known_bindings(spec.name, observed)
    for queue in topology.queues:
        if observed.queues.get(queue.name) is None:
            yield DeclareQueue(queue)
    if observed.engine.is_rabbitmq:
        yield CheckPolicies(spec.name, topology)
    desired = {one for one in topology.bindings if one.exchange == names.exchange}
    missing = [one for one in topology.bindings if one in desired and one not in bindings]
    yield from (Bind(*one) for one in by_queue(missing))
    stem = names.queue(0)[:-1]
    extra = [
        one
        for one in bindings
        if one.exchange == names.exchange and one.queue.startswith(stem) and one not in desired
    ]
    yield from (Unbind(*one) for one in by_queue(extra))


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """`was`: as the record had it at the start; what an interrupted run had changed already counts. `is_settled`: all
    members were Ready before ingress was opened."""

    was: int
    now: int
    is_changed: bool = True
    is_settled: bool = True


Manner = SingleQueueLayout | SeparateQueuesLayout
"""Layout of a group's messages on its broker."""


async def repartition_group(
    admin: LiveAdmin,
    group: str,
    queue_count: int,
    *,
    timeout_s: float,
    max_clients: int | None = None,
    discard: bool = False,
    offline: bool = False,
    report: Report = unreported,
) -> Repartitioned:
    """Give `group` so many queues, or partitions; go on where an interrupted run stopped.

    The change is online unless `offline`, or an interrupted offline run is to be finished: publishers go on. The broker
    moves keys to their new partitions in order; between separate queues the command and members do
    (`lbg_core.admin.key_move`). Otherwise ingress is closed meanwhile.

    `max_clients`: the limit of clients there is to be; None leaves the one that the group was given.
    `timeout_s` is for the move of keys, or for draining, and once more for members to be Ready. When it is not drained
    by then, or on the first interrupt, nothing is changed and ingress is open again. `discard`: what is left in queues
    that go is deleted, and not waited for; of separate queues only with `offline`. `report` gets a line for each step,
    and for what is waited for.

    Raises NotDrained, NotMoved, NotJoined and other errors of ProvisioningError; SpecError for a number that the group
    cannot have.
    """
    management = admin.management_for("the number of queues can only be changed")
    async with admin.lock(group):
        observed = await admin.observe(group)
        spec, record = existing(group, observed)
        desired = recounted(spec, queue_count, max_clients=max_clients)
        is_interrupted = observed.queue_count_to_be is not None
        is_offline = offline or is_interrupted
        is_moving = observed.is_key_move_left(group)
        if offline and is_moving:
            raise KeysMove(
                group, queues=queue_count if (move := observed.key_move(group)) is None else move.new
            )
        is_online = has_partitions(spec, observed.engine) and not is_offline
        if desired.to_record() == spec.to_record() and not (is_interrupted or is_online or is_moving):
            await admin.perform(assignment_announced(spec))  # a run that was killed may not have come to it
            return Repartitioned(spec.queue_count, queue_count, is_changed=False)
        require_supported(desired, observed)
        if is_offline and desired.queue_count > spec.queue_count:
            require_channels(desired, observed)
        elif not is_offline and not is_moving:
            _require_room(spec, desired, observed)
        if discard and not is_offline and not is_online:
            raise Unsupported(
                f"messages of group {group!r} can only be discarded with --offline: online each is processed"
            )
        if is_online or is_offline:
            manner = _manner_of(admin, management, spec, observed)
            change = _Change(admin, manner, spec, desired, record, discard, timeout_s, report)
            return await (change.online() if is_online else change.offline())
    run = KeyMoveRun(admin, group, queue_count, max_clients, report)
    await change_queues(run, timeout_s=timeout_s)
    report(Progress(Stage.READY))
    return Repartitioned(spec.queue_count, queue_count, is_changed=run.is_changed)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that holds the group's lock from its beginning to its end: of `spec`, which `record` has, to
    `desired`."""

    admin: BrokerAdmin
    manner: Manner
    spec: GroupSpec
    desired: GroupSpec
    record: Record
    discard: bool
    timeout_s: float
    report: Report

    async def offline(self) -> Repartitioned:
        group, queue_count = self.desired.name, self.desired.queue_count
        manner, spec, report = self.manner, self.spec, self.report
        await self._to_record(marked(spec, queue_count), before=self.record.text)
        figures = {"group": group, "former": spec.queue_count, "queues": queue_count}
        report(Progress(Stage.INGRESS_OFF, figures=figures))
        try:
            await manner.ingress.ensure_closed()
            await self._drain()
        except (NotDrained, asyncio.CancelledError):
            await self._undo()
            raise
        report(Progress(Stage.DRAINED))
        await manner.announce(queue_count)
        await manner.prepare(self.desired, discard=self.discard)
        await self._to_record(marked(self.desired, queue_count), before=marked(spec, queue_count))
        report(Progress(Stage.CHANGED, figures=figures))
        is_settled = await self._settle(self.desired)
        report(Progress(Stage.READY if is_settled else Stage.NOT_READY))
        await self.admin.perform(assignment_announced(self.desired))
        await self._open(self.desired)
        return Repartitioned(spec.queue_count, queue_count, is_settled=is_settled)

    async def _drain(self) -> None:
        """Returns when nothing comes in and nothing is left.

        Raises NotDrained, and Busy: who lost the group to another run must not close it again.
        """
        loop, group, manner = asyncio.get_running_loop(), self.spec.name, self.manner
        subject = Subject(group)
        record = replace(self.record, text=marked(self.spec, self.desired.queue_count))
        deadline = loop.time() + self.timeout_s
        still_since: float | None = None
        while True:
            await renew_unchanged(self.admin, group, record)
            is_closed = await manner.ingress.ensure_closed()
            began = loop.time()
            counted = await manner.depths(below=self.desired.queue_count if self.discard else None)
            if not is_closed or any(one.ready != 0 for _, one in counted):
                still_since = None
            elif still_since is None:
                still_since = began
            left = list(left_in(group, counted))
            if still_since is not None and not left:
                if began - still_since >= (SAMPLED_S if manner.is_sampled else 0.0):
                    return
                left = [Problem(Kind.UNACKED_UNCOUNTED, subject)]
            if left and self.record.is_paused:
                left.append(Problem(Kind.GROUP_PAUSED, subject))
            if not is_closed:
                left.append(Problem(Kind.PUBLISHERS_CONNECTED, subject))
            if loop.time() >= deadline:
                raise NotDrained(group, causes=left, within_s=self.timeout_s)
            self.report(Progress(Stage.WAITING, left))
            await asyncio.sleep(DRAIN_LOOK_S)

    async def online(self) -> Repartitioned:
        """Of partitions, which the broker moves."""
        queue_count = self.desired.queue_count
        if is_changed := await self.begin_online():
            self.report(Progress(Stage.CHANGED_PARTITIONS, figures={"queues": queue_count}))
        is_settled = await self._settle(self.desired)
        self.report(Progress(Stage.READY if is_settled else Stage.LEFT_TO_BROKER))
        return Repartitioned(self.spec.queue_count, queue_count, is_changed=is_changed, is_settled=is_settled)

    async def begin_online(self) -> bool:
        """Changes the queue, then its record: a run that was interrupted in between leaves a record that differs, which
        the next run writes. False if both are so already."""
        assert isinstance(self.manner, SingleQueueLayout)
        text = self.desired.to_record()
        if text == self.record.text and await self.manner.is_prepared(self.desired):
            return False
        await self.manner.prepare(self.desired, discard=self.discard)
        await self._to_record(text, before=self.record.text)
        return True

    async def _settle(self, spec: GroupSpec) -> bool:
        """Waits until members, or the broker, are Ready with the number of `spec`; False if they are not by then."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while left := await self.manner.unsettled(spec, late_at=began + LATE_S):
            if loop.time() >= began + self.timeout_s:
                break
            self.report(Progress(Stage.WAITING, left))
            await asyncio.sleep(LOOK_S)
        await self.manner.tidy(spec, discard=self.discard)
        if left:
            self.report(Progress(Stage.WAITED, left))
        return not left

    async def _undo(self) -> None:
        """Routes to the queues that hold the messages again, whatever an earlier run had begun to change."""
        await self.manner.prepare(self.spec, discard=False)
        late_at = asyncio.get_running_loop().time() + LATE_S
        await self.manner.unsettled(self.spec, late_at=late_at)  # tells members
        await self.manner.tidy(self.spec, discard=False)
        self.report(Progress(Stage.UNCHANGED))
        await self._open(self.spec)

    async def _open(self, spec: GroupSpec) -> None:
        """Publishers wait for the record, so it comes after."""
        await self.manner.ingress.open()
        await self._to_record(spec.to_record(), before=marked(spec, spec.queue_count))
        is_paused = self.record.is_ingress_paused
        self.report(Progress(Stage.INGRESS_PAUSED if is_paused else Stage.INGRESS_ON))

    async def _to_record(self, text: str, *, before: str) -> None:
        if text != before:
            record, former = replace(self.record, text=text), replace(self.record, text=before)
            await self.admin.perform(WriteRecord(self.spec.name, record, before=former))


async def change_online(
    admin: BrokerAdmin,
    desired: GroupSpec,
    run: KeyMoveRun,
    *,
    claim: Claim,
    within_s: float,
    after_moves: bool = False,
) -> GroupSpec | None:
    """Changes a group online to the number of queues or partitions, and the limit of clients, of `desired`, for so
    many seconds; returns the group as it is recorded then. The broker moves partitions by itself, and `run` goes on
    with separate queues at the next call.

    None, and nothing is done, if the group differs in anything else, or its number does not change online, or with
    `after_moves` while keys move by another change. Raises NotOwned and other errors of ProvisioningError.
    """
    async with admin.lock(desired.name):
        observed = await admin.observe(desired.name)
        spec = recorded(desired.name, observed)
        if spec is None or spec.mode in UNCOUNTED_MODES or observed.queue_count_to_be is not None:
            return None
        require_owner(desired, observed, claim)
        if not is_recount(spec, desired):
            return None
        if run.max_clients is None and spec.limits_clients:
            run.max_clients = min(spec.max_clients, desired.queue_count)
        moving = observed.moving_keys(desired.name)
        if after_moves and moving is not None and moving.partitions != desired.queue_count:
            return None
        if has_partitions(spec, observed.engine):
            record = record_in(desired.name, observed)
            layout = SingleQueueLayout(admin, Names(desired.name))
            change = _Change(admin, layout, spec, desired, record, False, within_s, unreported)
            run.is_changed = await change.begin_online()
            run.is_complete = True  # the broker does the rest
            return desired if run.is_changed else None
        require_supported(desired, observed)
        if not observed.is_key_move_left(desired.name):
            _require_room(spec, desired, observed)
    with suppress(NotMoved):
        await change_queues(run, timeout_s=within_s)
    return recorded(desired.name, await admin.observe(desired.name))


def _require_room(spec: GroupSpec, desired: GroupSpec, observed: Snapshot) -> None:
    """Raises Unsupported where an online change has more queues than a member that is left alone could consume."""
    if desired.queue_count != spec.queue_count:
        change = KeyMove.between(spec.queue_count, desired.queue_count, spec.hash_count)
        require_channels(desired, observed, queues_meanwhile=change.queue_count)


def _manner_of(
    admin: BrokerAdmin, management: ManagementAdmin, spec: GroupSpec, observed: Snapshot
) -> Manner:
    engine, names = observed.engine, Names(spec.name)
    if is_native(spec, engine):
        return SingleQueueLayout(admin, names)
    is_paused = isinstance(observed.record, Record) and observed.record.is_ingress_paused
    ingress = PermissionIngress(admin, management, names, closes=engine.is_rabbitmq, stays_closed=is_paused)
    return SeparateQueuesLayout(admin, names, ingress, is_sampled=engine.is_rabbitmq)
