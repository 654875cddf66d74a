"""A broker for provisioning tests, in memory: what `BrokerAdmin` says, without a broker."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    AppendEntry,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteUser,
    OpenIngress,
    PassFences,
    PutFence,
    PutPermissions,
    PutUser,
    RevokePermissions,
    Unbind,
    WriteRecord,
)
from lbg_core.admin.errors import Busy
from lbg_core.admin.ingress_permissions import opened
from lbg_core.admin.record import BY_HAND, Record
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import (
    UNKNOWN,
    ExchangeState,
    Handoffs,
    MovingKeys,
    PartitionsStatus,
    PartitionStatus,
    Policy,
    QueueStatus,
    Snapshot,
    UserState,
)
from lbg_core.group import ONE_USER, Engine, GroupSpec, Names, Permissions, Publishers, topology_of
from lbg_core.group.key_moves import (
    BarrierEntry,
    BeginEntry,
    Entry,
    JoinEntry,
    KeyMoveState,
    PassEntry,
)
from lbg_core.group.members_protocol import Beat
from lbg_core.group.topology import Binding
from testing.admin.reports import beat_of

EMBEDDED_ENGINE = Engine.parse("LBG", "0.1.0")


class FakeAdmin:
    """Objects in dictionaries. `fail_on` may raise for an action; `amqp_only` leaves unknown what only the
    management API tells."""

    def __init__(self, *, engine: Engine = EMBEDDED_ENGINE, amqp_only: bool = False) -> None:
        self.engine = engine
        self.amqp_only = amqp_only
        self.exchanges: dict[str, ExchangeState] = {}
        self.queues: dict[str, QueueStatus] = {}
        self.bindings: set[Binding] = set()
        self.users: dict[str, UserState] = {}
        self.passwords: dict[str, str] = {}
        self.connections: dict[str, int] = {}
        self.permissions: dict[str, Permissions] = {}
        self.records: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.objects: dict[str, str] = {}
        self.publishers: dict[str, Publishers] = {}
        self.paused: dict[str, frozenset[str] | None] = {}
        self.parking: dict[str, bool] = {}
        self.policies: tuple[Policy, ...] = ()
        self.beats: list[Mapping[str, Any] | Beat] = []
        """JSON of status reports, as `beat_of` reads it."""
        self.moving_keys: MovingKeys | None = None
        """Keys that move after a change of the number of partitions."""
        self.entries: list[Entry] = []
        """Of the stream of a change of the number of queues."""
        self.key_move: dict[str, str] = {}
        self.joins = True
        """False: members are of a version without changes of separate queues."""
        self.passes_fences = True
        self.channel_max: int | None = None
        self.locked: set[str] = set()
        self.driven: set[str] = set()
        """Groups of which a command goes on with a change."""
        self.performed: list[Action] = []
        self.fail_on: Callable[[Action], Exception | None] = lambda action: None

    def holds_nothing(self) -> bool:
        return not (self.exchanges or self.queues or self.bindings or self.users or self.permissions)

    @asynccontextmanager
    async def lock(self, group: str) -> AsyncIterator[None]:
        Names(group)
        if group in self.locked:
            raise Busy(group)
        self.locked.add(group)
        try:
            yield
        finally:
            self.locked.remove(group)

    async def drive(self, group: str, *, is_over: bool = False) -> None:
        (self.driven.discard if is_over else self.driven.add)(group)

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        names = Names(group)
        record = self._record(group)
        spec = desired or (record and record.spec_of(group))
        mine = [name for name in (*self.exchanges, *self.queues) if name.startswith(f"{names.exchange}.")]
        publishers = record.publishers if record else ONE_USER
        has_parking = names.parked in self.queues if record is None else record.has_parking
        asked = topology_of(spec, self.engine, publishers, has_parking=has_parking) if spec else None
        exchanges = dict.fromkeys(
            [*([one.name for one in asked.exchanges] if asked else []), names.exchange, *mine]
        )
        queues = dict.fromkeys([*([one.name for one in asked.queues] if asked else []), names.config, *mine])
        observed = Snapshot(
            self.engine,
            record=record,
            exchanges={
                n: self.exchanges.get(n) for n in exchanges if n in self.exchanges or n not in self.queues
            },
            queues={n: self.queues.get(n) for n in queues if n in self.queues or n not in self.exchanges},
            bindings=frozenset(self.bindings),
            users=dict(self.users),
            connections=dict(self.connections),
            permissions=self.permissions.get(spec.client_username) if spec else None,
            publisher_permissions=self.permissions.get(publishers.username),
            policies=self.policies,
            has_parked_stream=record is None and has_parking,
            channel_max=self.channel_max,
            is_driven=group in self.driven,
            prefixes={
                name: other.hash_prefix
                for name in self.records
                if name != group
                and (found := self._record(name)) is not None
                and (other := found.spec_of(name)) is not None
            },
        )
        return _amqp_only(observed) if self.amqp_only else observed

    def _record(self, group: str) -> Record | None:
        text = self.records.get(group)
        publishers = self.publishers.get(group, ONE_USER)
        paused = self.paused.get(group, frozenset())
        has_parking = self.parking.get(group, False)
        return (
            None
            if text is None
            else Record(
                text,
                self.owners.get(group, BY_HAND),
                publishers,
                paused,
                has_parking,
                key_move=self.key_move.get(group, ""),
                object_name=self.objects.get(group, ""),
            )
        )

    async def perform(self, action: Action) -> None:
        if error := self.fail_on(action):
            raise error
        self.performed.append(action)
        match action:
            case DeclareExchange(exchange):
                self.exchanges[exchange.name] = ExchangeState(exchange.type, exchange.arguments)
            case DeclareQueue(queue):
                self.queues[queue.name] = _status_of(queue.arguments, None)
            case ActOnQueue(name, "repartition", told):
                changed = {"x-partition-count": told["count"], "x-max-length-bytes": told["max_length_bytes"]}
                arguments = self.queues[name].arguments
                assert isinstance(arguments, Mapping)
                self.queues[name] = _status_of({**arguments, **changed}, self.moving_keys)
            case Bind(_, bindings):
                self.bindings |= set(bindings)
            case Unbind(_, bindings):
                self.bindings -= set(bindings)
            case PutUser(name, password, group):
                self.users[name] = UserState(name, group, _hash_of(password))
                self.passwords[name] = password
            case PutPermissions(user, permissions):
                self.permissions[user] = permissions
            case RevokePermissions(user):
                self.permissions.pop(user, None)
            case WriteRecord(group, record):
                self.records[group], self.owners[group] = record.text, record.owner
                self.objects[group] = record.object_name
                self.publishers[group] = record.publishers
                self.paused[group] = record.paused
                self.parking[group] = record.has_parking
                self.key_move[group] = record.key_move
            case AppendEntry(_, entry):
                self.entries.append(entry)
                if isinstance(entry, BeginEntry) and self.joins:  # members take part at once
                    members = members_of(map(beat_of, self.beats))
                    self.entries += (JoinEntry(one.index, one.incarnation) for one in members)
            case PutFence(name, move) if self.passes_fences:
                number = int(name.rpartition(".")[2])
                self.entries += (BarrierEntry("m0", (number,)), PassEntry(move, number, "m0"))
            case PassFences(_, number, move):
                self.entries += (BarrierEntry("admin", (number,)), PassEntry(move, number, "admin"))
            case DeleteExchange(name):
                self.exchanges.pop(name, None)
                self.bindings = {one for one in self.bindings if one.exchange != name}
            case DeleteQueue(name):
                self.queues.pop(name, None)
                self.bindings = {one for one in self.bindings if one.queue != name}
                self.records = {
                    group: text for group, text in self.records.items() if Names(group).config != name
                }
            case OpenIngress(group):
                exchange = Names(group).exchange
                self.permissions = {user: opened(one, exchange) for user, one in self.permissions.items()}
            case DeleteUser(name):
                self.users.pop(name, None)
                self.permissions.pop(name, None)

    def management_for(self, purpose: str) -> FakeAdmin:
        return self

    def lock_permissions(self, group: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def all_permissions(self) -> dict[str, Permissions]:
        return dict(self.permissions)

    async def renew_lock(self, group: str) -> bool:
        """Nobody else takes it."""
        return False

    async def key_moves(self, group: str) -> KeyMoveState:
        state = KeyMoveState()
        for entry in self.entries:
            state.apply(entry)
        return state

    async def groups(self) -> Sequence[str]:
        return list(self.records)

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        return list(map(beat_of, self.beats))

    async def indexes(self, group: str, *, below: int) -> frozenset[int]:
        """Members that report are known by that, and there are no others."""
        return frozenset()

    async def close(self) -> None:
        self.locked.clear()


def _status_of(arguments: Mapping[str, Any], moving_keys: MovingKeys | None) -> QueueStatus:
    native = None
    if (count := arguments.get("x-partition-count")) is not None:
        partitions = (PartitionStatus(number, "Unassigned", None, 0, 0) for number in range(count))
        native = PartitionsStatus("Ready", True, Handoffs(0, 0, 0), tuple(partitions), moving_keys)
    return QueueStatus(0, 0, 0, None, arguments, native=native)


def _hash_of(password: str) -> str:
    """As RabbitMQ has it («Passwords»)."""
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _amqp_only(observed: Snapshot) -> Snapshot:
    return replace(
        observed,
        exchanges={name: seen and ExchangeState() for name, seen in observed.exchanges.items()},
        queues={
            name: seen and QueueStatus(ready=seen.ready, consumers=seen.consumers)
            for name, seen in observed.queues.items()
        },
        bindings=UNKNOWN,
        users=UNKNOWN,
        connections=UNKNOWN,
        permissions=UNKNOWN,
        policies=UNKNOWN,
        prefixes=UNKNOWN,
    )
