"""Another number of queues, by the documented procedure ("Adding and Removing Partitions in a Queue"): ingress off,
wait until everything is drained, change, wait until members are Ready, ingress on.

The record says first that it is under way, and last that it is over (`lbg_broker.group.recounting`). Every step says
how things shall be and can be done again, so that whoever runs it after a crash does all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lbg_broker.group import GroupSpec, Names, is_native, marked, recounted

from ..actions import WriteRecord
from ..admin import BrokerAdmin
from ..errors import GroupNotFound, NotDrained, RecordUnreadable
from ..management_side import ManagementSide
from ..observed import Observed
from ..planning import recorded
from ..supporting import refuse_unsupported
from .draining import Depth, drain
from .ingress import Ingress, PermissionIngress
from .one_queue import OneQueue
from .separate_queues import SeparateQueues

if TYPE_CHECKING:
    from ..live import LiveAdmin

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """`was`: as the record had it at the start; what an interrupted run had changed already counts. `is_settled`: all
    members were Ready before ingress was opened."""

    was: int
    now: int
    is_changed: bool = True
    is_settled: bool = True


class Manner(Protocol):
    """How a group's messages lie on its broker, as far as repartitioning has to know."""

    @property
    def ingress(self) -> Ingress: ...

    @property
    def is_sampled(self) -> bool: ...

    async def depths(self, *, below: int | None) -> Sequence[Depth]: ...
    async def announce(self, queue_count: int) -> None: ...
    async def prepare(self, spec: GroupSpec, *, discard: bool) -> None: ...
    async def settle(self, spec: GroupSpec, *, discard: bool, timeout_s: float, tell: Tell) -> bool: ...


async def repartition_group(
    admin: LiveAdmin,
    group: str,
    queue_count: int,
    *,
    timeout_s: float,
    max_clients: int | None = None,
    discard: bool = False,
    tell: Tell = lambda line: None,
) -> Repartitioned:
    """Give `group` so many queues, or partitions; go on where an interrupted run stopped.

    `max_clients`: the limit of clients there is to be; None leaves the one that the group was given.
    `timeout_s` is for draining, and once more for members to be Ready. When it is not drained by then, or on the first
    interrupt, nothing is changed and ingress is open again. `discard`: what is left in queues that go is deleted, and
    not waited for. `tell` gets a line for each step, and for what is waited for.

    Raises NotDrained and other errors of ProvisioningError; SpecError for a number that the group cannot have.
    """
    names = Names(group)
    management = admin.management_for("the number of queues can only be changed")
    async with admin.lock(group):
        observed = await admin.observe(group)
        spec = _existing(group, observed)
        wanted = recounted(spec, queue_count, max_clients=max_clients)
        if wanted.to_record() == spec.to_record() and observed.queue_count_to_be is None:
            return Repartitioned(spec.queue_count, queue_count, is_changed=False)
        refuse_unsupported(wanted, observed)
        manner = _manner_of(admin, management, names, spec, observed)
        await _to_record(admin, spec, marked(spec, queue_count), before=str(observed.record))
        tell(f"ingress off: {group} goes from {spec.queue_count} to {queue_count} queues")
        try:
            await manner.ingress.close()
            await drain(
                group,
                manner.ingress,
                lambda: manner.depths(below=queue_count if discard else None),
                keep_lock=lambda: admin.keep_lock(group),
                is_sampled=manner.is_sampled,
                timeout_s=timeout_s,
                tell=tell,
            )
        except (NotDrained, asyncio.CancelledError):
            await _take_back(admin, manner, spec, tell)
            raise
        tell("drained")
        await manner.announce(queue_count)
        await manner.prepare(wanted, discard=discard)
        await _to_record(admin, wanted, marked(wanted, queue_count), before=marked(spec, queue_count))
        tell(f"changed: {queue_count} queues")
        is_settled = await manner.settle(wanted, discard=discard, timeout_s=timeout_s, tell=tell)
        tell("members are Ready" if is_settled else "not all members are Ready")
        await _open(admin, manner, wanted, tell)
    return Repartitioned(spec.queue_count, queue_count, is_settled=is_settled)


async def _take_back(admin: BrokerAdmin, manner: Manner, spec: GroupSpec, tell: Tell) -> None:
    """What an earlier run may have begun to change leads to where the messages lie again."""
    await manner.prepare(spec, discard=False)
    await manner.settle(spec, discard=False, timeout_s=0.0, tell=lambda line: None)
    tell("nothing is changed")
    await _open(admin, manner, spec, tell)


async def _open(admin: BrokerAdmin, manner: Manner, spec: GroupSpec, tell: Tell) -> None:
    """Publishers wait for the record, so it comes after."""
    await manner.ingress.open()
    await _to_record(admin, spec, spec.to_record(), before=marked(spec, spec.queue_count))
    tell("ingress on")


async def _to_record(admin: BrokerAdmin, spec: GroupSpec, text: str, *, before: str) -> None:
    if text != before:
        await admin.perform(WriteRecord(spec.name, text, before=before))


def _existing(group: str, observed: Observed) -> GroupSpec:
    if observed.is_empty:
        raise GroupNotFound(group)
    spec = recorded(group, observed)
    if spec is None:
        raise RecordUnreadable(group, "it is missing or not one")
    return spec


def _manner_of(
    admin: BrokerAdmin, management: ManagementSide, names: Names, spec: GroupSpec, observed: Observed
) -> Manner:
    engine = observed.engine
    if is_native(spec, engine):
        return OneQueue(admin, names)
    ingress = PermissionIngress(admin, management, names, closes=engine.is_rabbitmq)
    return SeparateQueues(admin, engine, names, ingress)
