"""Parking of a group: its objects on the broker.

A group gets them when its members are to park poisoned messages (docs/adr/0065-parked-keys-are-a-log.md), and keeps
them. Members that run then do not read the parked keys, so they have to be stopped first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from lbg_core.admin.actions import (
    Action,
    Bind,
    CheckPolicies,
    DeclareExchange,
    DeclareQueue,
    PutPermissions,
    WriteRecord,
)
from lbg_core.admin.errors import MembersRun, Unsupported
from lbg_core.admin.groups import apply
from lbg_core.admin.ownership import CLAIM_BY_HAND, Claim, Record
from lbg_core.admin.plan import existing, refuse_key_move, refuse_under_way, require_owner
from lbg_core.admin.protocol import BrokerAdmin
from lbg_core.admin.snapshot import UNKNOWN, Snapshot
from lbg_core.group import GroupSpec, Names, Permissions, Topology
from lbg_core.group.topology import why_without_parking


def plan_parking(group: str, observed: Snapshot, *, claim: Claim = CLAIM_BY_HAND) -> tuple[Action, ...]:
    """The actions that give the group a parking queue; none where it has one. The record comes last: members read there
    that they may write to it.

    Raises GroupNotFound, NotOwned, RecordUnreadable, UnderWay, KeysMove, Unsupported for modes without parking, and
    MembersRun
    while members run, which would not read the parked keys.
    """
    spec = existing(group, observed)
    assert isinstance(observed.record, Record)
    require_owner(spec, observed, claim)
    refuse_under_way(spec, observed)
    refuse_key_move(spec, observed)
    if reason := why_without_parking(spec, observed.engine):
        raise Unsupported(f"group {group!r} can have no parking queue in mode {spec.mode}: {reason}")
    if not observed.has_parking:
        refuse_served(group, observed)
    record = replace(observed.record, has_parking=True)
    topology = replace(observed, record=record).topology_of(spec)
    return tuple(_actions(spec, observed, topology, record))


def refuse_served(group: str, observed: Snapshot) -> None:
    """Raises MembersRun if the group's queues have consumers, or may have."""
    if observed.is_served(group):
        raise MembersRun(
            group,
            ["members run, or may run, and would not read which keys are parked"],
            remedy="stop its members first, and start them again",
        )


def _actions(spec: GroupSpec, observed: Snapshot, topology: Topology, record: Record) -> Iterator[Action]:
    names = Names(spec.name)
    of_parking = (names.parking, names.parked)
    for exchange in topology.exchanges:
        if exchange.name in of_parking and observed.exchanges.get(exchange.name) is None:
            yield DeclareExchange(exchange)
    queues = [
        one for one in topology.queues if one.name in of_parking and observed.queues.get(one.name) is None
    ]
    yield from map(DeclareQueue, queues)
    if queues and observed.engine.is_rabbitmq and observed.policies is not UNKNOWN:
        yield CheckPolicies(spec.name, topology)
    there = frozenset() if observed.bindings is UNKNOWN else observed.bindings
    missing = [one for one in topology.bindings if one.queue in of_parking and one not in there]
    for name, of_queue in groupby(missing, key=lambda binding: binding.queue):
        yield Bind(name, tuple(of_queue), is_new=observed.bindings is not UNKNOWN)
    is_ours = spec.client_username in observed.users_of(spec.name)  # else its permissions are not the group's
    present = observed.permissions
    if is_ours and isinstance(present, Permissions) and present != topology.permissions:
        yield PutPermissions(spec.client_username, topology.permissions, present)
    if record != observed.record:
        assert isinstance(observed.record, Record)
        yield WriteRecord(spec.name, record, observed.record)


async def enable_parking(admin: BrokerAdmin, group: str, *, claim: Claim = CLAIM_BY_HAND) -> Sequence[Action]:
    """Give `group` a parking queue; returns what was done.

    A member reads the record once more when it has its mailbox. One that started meanwhile and read the former record
    has consumers by then, and MembersRun reports it.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    Names(group)
    async with admin.lock(group):
        actions = plan_parking(group, await admin.observe(group), claim=claim)
        await apply(admin, actions)
        if any(isinstance(action, WriteRecord) for action in actions):
            refuse_served(group, await admin.observe(group))
    return actions
