"""Setting of a history, and what its parts have of the whole: `history.py` alone knows them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lbg_core.amqp.methods import QueueBind
from lbg_core.group import BALANCED, EXCLUSIVE, RABBITMQ, Assignment, Engine, GroupSpec, Names
from lbg_core.group.parked_keys import ParkedKeys
from lbg_core.group.topology import EMBEDDED
from lbg_core.publisher.send_window import SendWindow
from lbg_sidecar.message import Message, Verdict
from testing.simulation.clock import Process
from testing.simulation.network import ClientEnd, Connection, Network


@dataclass(frozen=True, slots=True)
class Setting:
    """Installation and load of a history. `rate_hz`: messages of all publishers a second. `kinds`: the faults and
    operations that there are, by default all of the engine."""

    mode: str = EXCLUSIVE
    engine: str = EMBEDDED
    assignment: Assignment = BALANCED
    members: int = 8
    queues: int = 32
    publishers: int = 3
    keys: int = 40
    rate_hz: float = 20.0
    seconds: float = 600.0
    faults_per_hour: float = 500.0
    kinds: tuple[str, ...] = ()
    has_parking: bool = False

    @property
    def title(self) -> str:
        """Name of the installation: its mode, and where it differs from the default."""
        parts = [self.mode]
        if self.assignment != BALANCED:
            parts.append(self.assignment)
        if self.engine == RABBITMQ:
            parts.append(RABBITMQ)
        if self.has_parking:
            parts.append("parking")
        return ", ".join(parts)


class Broker(Protocol):
    """`EmbeddedBroker` or `Cluster`, as clients have it."""

    engine: Engine
    refuses_in_order: bool

    def connect(self, client: ClientEnd, name: str) -> Connection | None: ...
    def answers(self, connection: Connection) -> bool: ...


class MemberEnd(ClientEnd, Protocol):
    wire: Connection


class Member(Protocol):
    name: str
    process: Process
    stopped_at: float | None

    @property
    def is_app_ready(self) -> bool: ...
    @property
    def consuming(self) -> MemberEnd | None: ...
    def app_ready(self, is_ready: bool) -> None: ...
    def answered(self, message: Message, verdict: Verdict) -> None: ...


class Publisher(Protocol):
    name: str
    is_one_per_key: bool
    machine: SendWindow

    @property
    def is_settled(self) -> bool: ...
    @property
    def wire(self) -> Connection | None: ...
    def row(self, position: int) -> tuple[str, bytes]: ...


class Parkings(Protocol):
    keys: ParkedKeys
    is_running: bool

    def parked_bodies(self) -> set[bytes]: ...
    def appended(self, body: bytes) -> None: ...
    def restored(self, bodies: Iterable[bytes]) -> None: ...
    def fails(self, key: str, row: int) -> bool: ...


class Repartitions(Protocol):
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_moving(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    def bound(self, method: QueueBind) -> None: ...
    def record_message(self) -> tuple[bytes, bytes]: ...


class Context(Network, Protocol):
    """The part of a history that its judge has. `on_end`: callbacks of what was begun."""

    seed: int
    setting: Setting
    spec: GroupSpec
    names: Names
    process: Process
    is_verbose: bool
    is_calm: bool
    is_paused: bool
    is_undisturbed: bool
    grace_s: float
    call_timeout_s: float
    on_end: list[Callable[[], None]]

    @property
    def broker(self) -> Broker: ...
    @property
    def publishers(self) -> Sequence[Publisher]: ...
    @property
    def parkings(self) -> Parkings: ...
    @property
    def repartitions(self) -> Repartitions: ...
    @property
    def parking_settings(self) -> dict[str, Any]: ...
    def note(self, text: str) -> None: ...
    def key_of(self, publisher: str, row: int) -> str: ...
    def member_of(self, client: ClientEnd) -> Member | None: ...
    def frozen(self, connection: Connection, seconds: float) -> None: ...
