"""`lbg group repartition` in a history: the product's own procedure, in virtual time on a simulated broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, cast

from lbg_core.admin import moves_stream
from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    Announce,
    AppendEntry,
    Bind,
    CheckPolicies,
    DeclareQueue,
    DeleteQueue,
    OpenIngress,
    PassFences,
    PutFence,
    PutPermissions,
    ReturnMessages,
    Unbind,
    WriteRecord,
)
from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.amqp_link import AmqpLink
from lbg_core.admin.errors import NotDrained, NotMoved, ProvisioningError, StillInUse, Unreachable
from lbg_core.admin.ingress_permissions import allows, restored, without
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.progress import line_of
from lbg_core.admin.record import CONSUMPTION, INGRESS, Record, headers_of, paused_words
from lbg_core.admin.repartition import repartition_group
from lbg_core.admin.snapshot import (
    UNKNOWN,
    ExchangeState,
    PartitionsStatus,
    QueueStatus,
    Snapshot,
    UserState,
    native_of,
)
from lbg_core.admin.status_reports import REPORT_KEYS
from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import BasicConsume, Method, QueueBind, QueueDeclare, QueueDelete, QueueUnbind
from lbg_core.client import ClientConnection, ConnectError
from lbg_core.group import TO_ALL, GroupSpec, Permissions, is_native, repartition_in, topology_of
from lbg_core.group.key_moves import KeyMove, KeyMoveState
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat, Watch
from lbg_core.group.message_codec import decode, encode
from lbg_core.group.spec import UNCOUNTED_MODES
from lbg_core.group.topology import Binding
from testing.simulation.client import Channel, ChannelRefused, Client
from testing.simulation.clock import Process, Task
from testing.simulation.cluster import Cluster
from testing.simulation.embedded import EmbeddedBroker
from testing.simulation.event_loop import SimConnection, VirtualLoop
from testing.simulation.judge import Judged
from testing.simulation.publisher import SimPublisher

USER = "g"
MARGIN_S = 0.005
SAMPLED_S = 5.0
DURABLE_LOOK_S = 0.01
DRAIN_S = 60.0
RETRY_S = 2.0


class Administered(Judged, Protocol):
    """The part of a history that administrators have."""

    broker: EmbeddedBroker | Cluster
    publishers: list[SimPublisher]
    repartitions: Repartitions

    @property
    def embedded(self) -> EmbeddedBroker: ...
    @property
    def cluster(self) -> Cluster: ...


class SimManagement:
    """Users, permissions and connections, as `PermissionIngress` uses them."""

    def __init__(self, history: Administered) -> None:
        self._history = history

    def lock_permissions(self, group: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def all_permissions(self) -> Mapping[str, Permissions]:
        await self._history.repartitions.round_trip()
        return {USER: self._history.repartitions.permissions}

    async def users(self) -> Mapping[str, UserState]:
        return {USER: UserState(USER, made_for=self._history.spec.name)}

    async def connections_of(self, user: str) -> list[str]:
        await self._history.repartitions.round_trip()
        return [str(one.number) for one in self._history.cluster.connections()]

    async def connection_name(self, connection: str) -> str | None:
        """From its first sample on."""
        found = self._connection(connection)
        if found is None or self._history.clock.now - found.opened_at < 5.0:
            return None
        is_publisher = any(found.client.process is one.process for one in self._history.publishers)
        return f"lbg publish {self._history.spec.name} 1" if is_publisher else "lbg consume"

    async def has_published(self, connection: str) -> bool:
        return True

    async def close_connection(self, connection: str, *, reason: str) -> None:
        await self._history.repartitions.round_trip()
        if (found := self._connection(connection)) is not None:
            self._history.cluster.close_connections(reason, [found])

    def _connection(self, number: str) -> Any:
        return next((one for one in self._history.cluster.connections() if one.number == int(number)), None)


class SimLink(AmqpLink):
    """The product's link, over a simulated connection."""

    def __init__(self, history: Administered) -> None:
        super().__init__(())
        self._history = history

    async def _connected(self) -> ClientConnection:
        if self._connection is None or not self._connection.is_open:
            self._idle.clear()
            loop = cast(VirtualLoop, asyncio.get_running_loop())
            connection = SimConnection.connected(self._history, loop, "repartition")
            if connection is None:
                raise ConnectError("the broker refuses connections")
            self._connection = cast(ClientConnection, connection)
        return self._connection


class SimAdmin:
    """The part of `LiveAdmin` that a repartition uses. Every step takes a round trip, and fails while the broker is
    down."""

    def __init__(self, history: Administered, process: Process) -> None:
        self._history = history
        self._process = process
        self._client: Client | None = None
        self._channel: Channel | None = None
        self._heard: list[Beat] = []
        self.link = SimLink(history)

    def management_for(self, purpose: str) -> SimManagement:
        return SimManagement(self._history)

    @asynccontextmanager
    async def lock(self, group: str) -> AsyncIterator[None]:
        yield

    async def drive(self, group: str, *, is_over: bool = False) -> None:
        """Nobody looks on."""

    async def renew_lock(self, group: str) -> bool:
        await self._history.repartitions.round_trip()
        return False

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        history = self._history
        await history.repartitions.round_trip()
        queues: dict[str, QueueStatus | Any | None] = {}
        spec = desired or history.spec
        for queue in topology_of(spec, history.broker.engine).queues:
            queues[queue.name] = None
        queues |= history.repartitions.queues()
        return Snapshot(
            history.broker.engine,
            record=history.repartitions.record,
            exchanges={history.names.exchange: ExchangeState()},
            queues=queues,
            bindings=frozenset(history.repartitions.bindings),
            permissions=history.repartitions.permissions,
            policies=(),
        )

    async def perform(self, action: Action) -> None:
        history, state = self._history, self._history.repartitions
        await state.round_trip()
        match action:
            case WriteRecord(_, record):
                state.record = record
                history.spec = GroupSpec.from_record(record.text, name=history.spec.name)
            case PutPermissions(_, permissions):
                state.permit(permissions)
            case OpenIngress():
                write = restored(state.permissions.write, history.names.exchange)
                state.permit(replace(state.permissions, write=write))
            case DeclareQueue(queue):
                await self._administer(
                    QueueDeclare(queue.name, durable=True, arguments=dict(queue.arguments))
                )
            case Bind(_, bindings):
                for one in bindings:
                    await self._administer(QueueBind(one.queue, one.exchange, one.routing_key))
                    state.bindings[one] = None
            case Unbind(_, bindings):
                for one in bindings:
                    await self._administer(QueueUnbind(one.queue, one.exchange, one.routing_key))
                    state.bindings.pop(one, None)
            case DeleteQueue(name, only_empty=only_empty):
                ready, unacked = history.broker.depths().get(name, (0, 0))
                if only_empty and (ready or unacked):
                    raise StillInUse.at(name, Kind.QUEUE_NOT_EMPTY, ready=ready, unacked=unacked)
                await self._administer(QueueDelete(name))
                state.bindings = {one: None for one in state.bindings if one.queue != name}
            case ActOnQueue(queue_name, what, arguments):
                history.embedded.act(queue_name, what, **arguments)
                await self._durable()
            case Announce(_, message):
                channel = await self._connected()
                channel.publish(history.names.members, TO_ALL, encode(message))
            case AppendEntry(group, entry):
                await moves_stream.append(self._amqp, group, entry)
            case PutFence(queue_name, move):
                await moves_stream.put_fence(self._amqp, queue_name, move)
            case PassFences(group, number, move):
                await moves_stream.pass_fences(self._amqp, group, number, move)
            case ReturnMessages(group, number):
                await moves_stream.return_messages(self._amqp, group, number)
            case CheckPolicies():
                pass
            case _:
                raise AssertionError(f"{action} is not simulated")

    async def key_moves(self, group: str) -> KeyMoveState:
        return await moves_stream.read(self._amqp, group)

    @property
    def _amqp(self) -> AmqpAdmin:
        return cast(AmqpAdmin, self)  # for its link and its locks

    @property
    def locks(self) -> SimAdmin:
        return self

    async def renew(self, group: str) -> bool:
        return await self.renew_lock(group)

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        channel = await self._connected()
        self._heard.clear()
        watch = encode(Watch(Identity(0, "observer", ""), seconds, keys=False))
        channel.publish(self._history.names.members, TO_ALL, watch)
        await asyncio.sleep(seconds)
        return list(self._heard)

    async def indexes(self, group: str, *, below: int) -> frozenset[int]:
        await self._history.repartitions.round_trip()
        names, broker = self._history.names, self._history.broker
        return frozenset(index for index in range(below) if broker.has_queue(names.mailbox(index)))

    async def _administer(self, method: Method) -> None:
        broker = self._history.broker
        if isinstance(broker, Cluster):
            await self._history.repartitions.round_trip()
            match method:
                case QueueDeclare():
                    broker.declare(method.queue)
                case QueueBind():
                    broker.bind(method.queue, method.routing_key, exchange=method.exchange)
                case QueueUnbind():
                    broker.unbind(method.queue, method.routing_key, exchange=method.exchange)
                case QueueDelete():
                    broker.delete(method.queue)
            return
        broker.administer(method)
        await self._durable()

    async def _durable(self) -> None:
        """Waits for the commit of what was changed."""
        broker = self._history.embedded
        process = broker.process
        while broker.is_up and broker.process is process and broker.has_uncommitted:  # noqa: ASYNC110 (a commit tells nobody)
            await asyncio.sleep(DURABLE_LOOK_S)
        if not broker.is_up or broker.process is not process:
            raise Unreachable("the broker was lost")

    async def _connected(self) -> Channel:
        if self._client is None or not self._client.is_open or self._channel is None:
            loop = asyncio.get_running_loop()
            opened: asyncio.Future[Channel | None] = loop.create_future()
            Task(self._history.clock, self._process, self._open(opened))
            self._channel = await opened
            if self._channel is None:
                raise Unreachable("the broker refuses connections")
        return self._channel

    def _open(self, opened: asyncio.Future[Channel | None]) -> Any:
        history = self._history

        def lost(_: str) -> None:
            if not opened.done():
                opened.set_result(None)

        client = self._client = Client.connected(history, self._process, "repartition", lost)
        if client is None:
            opened.set_result(None)
            return
        channel = client.open_channel()
        mailbox = f"repartition.{client.connection.number}"
        try:
            yield channel.ask(QueueDeclare(mailbox, exclusive=True))
            for key in REPORT_KEYS:
                yield channel.ask(QueueBind(mailbox, history.names.members, key))
            channel.on_deliveries = self._hear
            yield channel.ask(BasicConsume(mailbox, "beats", no_ack=True))
        except ChannelRefused:
            opened.set_result(None)
            return
        opened.set_result(channel)

    def _hear(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(message := decode(event.body), Beat):
                self._heard.append(message)


class Repartitions:
    """State of the group as administrators have it, and the command that changes its number of queues.

    `record` and `permissions` are the broker's: they go with its store when an old copy of that is put back.
    """

    def __init__(self, history: Administered) -> None:
        self._history = history
        spec, engine = history.spec, history.broker.engine
        topology = topology_of(spec, engine)
        self.record = Record(spec.to_record(), has_parking=history.setting.has_parking)
        self.permissions = topology.permissions
        self.bindings: dict[Binding, None] = dict.fromkeys(topology.bindings)
        self.is_running = False
        self._process = Process("repartition")
        self._unfinished: tuple[int, bool] | None = None
        """Number of queues of the command that runs or was killed, and whether it is offline."""
        self._sampled: dict[str, int] = {}
        if engine.is_rabbitmq:
            self._sample()

    # The broker's state

    @property
    def queue_count(self) -> int:
        return self._history.spec.queue_count

    def record_message(self) -> tuple[bytes, bytes]:
        """Properties and body of the record, as members read it."""
        paused = paused_words(self.record.paused, CONSUMPTION, is_paused=self._history.is_paused)
        headers = headers_of(replace(self.record, paused=paused))
        return BasicProperties(headers=dict(headers)).encode(), self.record.text.encode()

    @property
    def is_closed(self) -> bool:
        """True if publishers wait, as the record has it."""
        return repartition_in(self.record.text) is not None

    @property
    def is_over(self) -> bool:
        return not (self.is_running or self.is_closed or self._has_moving_keys or self.is_moving)

    @property
    def is_moving(self) -> bool:
        """True if keys are on the move between separate queues, or something of that is left."""
        history = self._history
        return bool(self.record.key_move) or history.broker.has_queue(history.names.moves)

    @property
    def _has_moving_keys(self) -> bool:
        natives = (status.native for status in self.queues().values())
        return any(isinstance(one, PartitionsStatus) and one.moving_keys is not None for one in natives)

    def bound(self, method: QueueBind) -> None:
        """An administrator has bound a queue."""
        self.bindings[Binding(method.exchange, method.queue, method.routing_key)] = None

    def permit(self, permissions: Permissions) -> None:
        self.permissions = permissions
        self._history.broker.authority.ingress(allows(permissions.write, self._history.names.exchange))

    def put_back(self, record: Record, permissions: Permissions, bindings: dict[Binding, None]) -> None:
        """An old copy of the store is in the place of the present one."""
        self.record, self.bindings = record, dict(bindings)
        self._unfinished = self._history.spec.queue_count, False
        if (queue_count := repartition_in(record.text)) is not None:
            self._unfinished = queue_count, True
        elif (move := KeyMove.of_id(record.key_move, self._history.spec.hash_count)) is not None:
            self._unfinished = move.new, False
        self.permit(permissions)

    def pause_ingress(self, is_paused: bool) -> bool:
        """False while a repartition has the lock."""
        history = self._history
        exchange = history.names.exchange
        if self.is_running:
            return False
        if is_paused:
            self.permit(replace(self.permissions, write=without(self.permissions.write, exchange)))
        elif not self.is_closed or is_native(history.spec, history.broker.engine):
            self.permit(replace(self.permissions, write=restored(self.permissions.write, exchange)))
        words = paused_words(self.record.paused, INGRESS, is_paused=is_paused)
        self.record = replace(self.record, paused=words)
        return True

    def queues(self) -> dict[str, QueueStatus]:
        """Counts of the management API. RabbitMQ's of unacknowledged messages are samples (tests/rabbitmq/
        test_facts_of_counting.py: test_a_passive_declare_tells_what_is_ready_at_once_and_no_door_of_the_api_what_is_
        delivered), and a queue without a leader has none."""
        history = self._history
        if isinstance(history.broker, Cluster):
            if not history.broker.has_majority:
                return {name: QueueStatus(is_down=True) for name in history.broker.logs}
            return {
                name: QueueStatus(ready, self._sampled.get(name, UNKNOWN), history.broker.consumers(name))
                for name, (ready, _) in history.broker.depths().items()
            }
        return {
            name: QueueStatus(ready, unacked, history.broker.consumers(name), native=native_of(fields))
            for name, ready, unacked, fields in history.broker.described()
        }

    def _sample(self) -> None:
        cluster = self._history.cluster
        if cluster.has_majority:
            self._sampled = {name: unacked for name, (_, unacked) in cluster.depths().items()}
        self._history.clock.after(SAMPLED_S, self._history.process, self._sample)

    async def round_trip(self) -> None:
        history = self._history
        await asyncio.sleep(history.delay_s() + MARGIN_S)
        if not history.broker.is_up:
            raise Unreachable("the broker is down")

    # The command

    def start(self, queue_count: int, *, offline: bool) -> None:
        """Runs until it has succeeded, or found that the group does not drain."""
        if self.is_running or is_uncounted(self._history.spec):
            return
        self._unfinished = queue_count, offline
        self.is_running = True
        self._run(queue_count, offline=offline)

    def kill(self) -> None:
        """kill -9: the lock is free, and the group stays as it is."""
        self._process.alive = False
        self.is_running = False

    def finish(self) -> None:
        """Runs it again where one was killed, as `lbg group show` advises."""
        if self._history.parkings.is_running:  # it has the lock
            self._history.clock.after(RETRY_S, self._history.process, self.finish)
        elif not self.is_running and self._unfinished is not None:
            queue_count, offline = self._unfinished
            self.start(queue_count, offline=offline)

    def _run(self, queue_count: int, *, offline: bool) -> None:
        history = self._history
        self._process = Process("repartition")
        loop = VirtualLoop(history, self._process)
        loop.create_task(self._command(queue_count, offline=offline)).add_done_callback(_succeeded)

    async def _command(self, queue_count: int, *, offline: bool) -> None:
        history = self._history
        admin = cast(LiveAdmin, SimAdmin(history, self._process))
        while True:
            try:
                await repartition_group(
                    admin,
                    history.spec.name,
                    queue_count,
                    timeout_s=DRAIN_S,
                    offline=offline,
                    report=lambda progress: self._report(line_of(progress)),
                )
            except NotDrained:
                break
            except NotMoved as error:
                self._report(f"{error}; going on")
            except ProvisioningError as error:
                self._report(f"{error}; trying again")
                await asyncio.sleep(RETRY_S)
            else:
                break
        self.is_running = False
        self._unfinished = None

    def _report(self, line: str) -> None:
        if self._history.is_verbose:
            self._history.note(f"repartition: {line[:150]}")


def _succeeded(command: asyncio.Task[None]) -> None:
    command.result()


def is_uncounted(spec: GroupSpec) -> bool:
    return spec.mode in UNCOUNTED_MODES
