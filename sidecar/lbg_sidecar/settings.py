"""Settings of a member, and the rules that follow from them and from its group."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from lbg_core.client import ConnectionSettings
from lbg_core.client.backoff import Backoff
from lbg_core.group import INDEX_MAX, PARTITIONED, SESSIONS, UNCOUNTED_MODES, GroupSpec
from lbg_sidecar.core.dispatcher import RETRY_JITTER, Order, Rules, WhenExhausted
from lbg_sidecar.core.parked_keys import ParkingBounds
from lbg_sidecar.core.queue_bindings import Assignment, BalancingRules
from lbg_sidecar.errors import SettingsError

Broker = str | ConnectionSettings

_Choice = TypeVar("_Choice", Assignment, Order, WhenExhausted)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """One member of one group. Raises SettingsError.

    Three settings are a choice of texts: an instance holds them as `Assignment`, `Order` and `WhenExhausted`, which are
    texts too, and `journal` and `commits` as Path.

    Who and where:

    - `broker`: one address or several, tried in turn. The address also has the heartbeat (5 s): a host that
      falls silent is detected after two to three of them, and a member whose own event loop stood still for
      longer than one treats its connection as lost.
    - `group`: its name. Its attributes are read from the group's record.
    - `name`: what others and the logs call this member; by default host name and process id.

    Sharing the queues:

    - `assignment`: `balanced` (default: loads differ by at most one, only what must move moves) or `static`
      (the rule of "Sticky Load Balancing": queue mod `clients` == `index`).
    - `clients`: the most members there will be, for `static`; None: the group's max_clients.
    - `index`: a fixed client index. None: the previous one if it is free, else the lowest that is.
    - `rebalance_delay_s`: how long membership must be stable before queues move. None: the group's, in mode
      Partitioned; else 5 s, which outlasts the restart of a process and is Solace's default.
    - `max_handoff_s`: how long a queue may stand still to drain before it is moved. None: the group's, in mode
      Partitioned; else 3 s, which is Solace's default. A queue that is not drained by then stays where it is and is
      tried again, each time with twice as long, up to this and `call_timeout_s`. A member that leaves waits longer:
      `shutdown_grace_s`.
    - `release_interval_s`: how often a `static` member releases its secondary queues, spread by a tenth. 30 s
      is that of "Sticky Load Balancing".
    - `moves_at_once`: queues of this member that are on the move at the same time. 2 keeps the work of a move,
      and so its pause, short, and 16 queues still leave a member in well under a second.
    - `standbys`: members that consume a queue behind its primary, with `balanced`. A crash that takes the primary and
      all of them leaves the queue without a consumer until the other members agree on it, about a second. 2 costs
      three consumers for each queue, in a group of any size.

    Processing:

    - `concurrency`: messages at the application at the same time, over all queues. None: what its channel makes use of
      (`app.channel.concurrency_of`), else 16. That suits calls that wait for something else; an application that only
      computes gains nothing above its number of cores.
    - `order`: `key` or `queue`: what is processed one at a time. None: `key`, but in mode Sessions `queue`, because how
      far a session is, is one number.
    - `prefetch`: unacknowledged messages of a queue that this member may have; None derives it, see
      `lbg_sidecar.core.acks.derived_prefetch`. On RabbitMQ the same for all members of a group (docs/rabbitmq.md,
      "Facts").
    - `body_memory_mb`: megabytes (1,000,000 bytes) of message bodies in memory, over all queues. None: a quarter of
      the memory limit of the process's control group, or 64 without one. Further bodies are written to a temporary file
      (in TMPDIR) until the application gets them.
    - `call_timeout_s`: a call without a verdict for this long is aborted and counts as a failed attempt. 30 s
      is what HTTP clients commonly use.
    - `max_attempts`: after so many failed attempts, counted over handoffs, `when_exhausted` applies to the
      message. 10 with the waits below come to about a minute: longer than the restart of what an application calls.
    - `when_exhausted`: `block` (default): it is retried, every `retry_max_s` or after the longer wait that the
      application asks for, and its key waits; it is shown as poisoned. Nothing is lost or skipped by default.
      `dead-letter`: it goes to the dead letters, and its key goes on without it. `park`: it goes to the group's parking
      queue, and all later messages of its key after it, in order, until an administrator releases the key
      (docs/parked-keys.md).
    - `park_max_keys`, `park_max_messages`, `park_max_mb`: bounds of the group's parked keys, their messages, and
      megabytes (1,000,000 bytes) of the bodies. Beyond one of them this member parks nothing more, and keys block. A
      member reads an entry of about 200 bytes for each message when it connects.
    - `retry_first_s`, `retry_max_s`: the wait after the first failure, doubling up to the longest.
    - `republish`: publish every processed message to `lbg.G.validate` before it is acknowledged, for
      `lbg validate`. While nothing listens there, messages wait.
    - `journal`: a directory for the journal, in a sidecar also of what is published through it; None writes none.
    - `commits`: a directory for the commit log, which lets a member that comes back under the same `name` drop what
      it had processed before it died (docs/exactly-once.md). Needs a `name`. None: no commit log.

    Leaving:

    - `shutdown_grace_s`: the most time that handing over may take when the member leaves. What the application has not
      finished by then is cut off, and counted, because it will be delivered again. 20 s and the
      `presence.MARGIN_S` of all that comes after fit into the 30 s that Kubernetes gives by default.

    - `consumer_timeout_s`: how long the broker lets a message be unacknowledged (RabbitMQ: `consumer_timeout`, 30 min).
      The member declares it to RabbitMQ from 4.3 on; before, it must not exceed the broker's. A queue whose oldest
      message is unacknowledged for half of it is released, in order, before the broker closes the channel.
    """

    broker: Broker | Sequence[Broker] = field(default="amqp://guest:guest@127.0.0.1:5672/", repr=False)
    group: str
    name: str = ""
    assignment: Assignment | Literal["balanced", "static"] = Assignment.BALANCED
    clients: int | None = None
    index: int | None = None
    rebalance_delay_s: float | None = None
    max_handoff_s: float | None = None
    release_interval_s: float = 30.0
    moves_at_once: int = 2
    standbys: int = 2
    concurrency: int | None = None
    order: Order | Literal["key", "queue"] | None = None
    prefetch: int | None = None
    body_memory_mb: int | None = None
    call_timeout_s: float = 30.0
    max_attempts: int = 10
    when_exhausted: WhenExhausted | Literal["block", "dead-letter", "park"] = WhenExhausted.BLOCK
    park_max_keys: int = 1000
    park_max_messages: int = 100_000
    park_max_mb: int = 256
    retry_first_s: float = 0.1
    retry_max_s: float = 30.0
    republish: bool = False
    journal: Path | str | None = None
    commits: Path | str | None = None
    shutdown_grace_s: float = 20.0
    consumer_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if not self.name and self.commits is not None:
            raise SettingsError(
                "name", self.name, "commits need one that the member has again after a restart"
            )
        if not self.name:
            object.__setattr__(self, "name", _made_up_name())
        object.__setattr__(self, "assignment", _one_of(Assignment, "assignment", self.assignment))
        if self.order is not None:
            object.__setattr__(self, "order", _one_of(Order, "order", self.order))
        object.__setattr__(
            self, "when_exhausted", _one_of(WhenExhausted, "when_exhausted", self.when_exhausted)
        )
        if self.when_exhausted is WhenExhausted.PARK:
            _require_fit_for_parking(self)
        for name in ("journal", "commits"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name in (
            *("moves_at_once", "standbys", "max_attempts"),
            *("park_max_keys", "park_max_messages", "park_max_mb"),
        ):
            _at_least(1, name, getattr(self, name))
        for name, least in (
            ("clients", 1),
            ("index", 0),
            ("prefetch", 1),
            ("body_memory_mb", 1),
            ("concurrency", 1),
        ):
            if getattr(self, name) is not None:
                _at_least(least, name, getattr(self, name))
        if self.prefetch is not None and self.prefetch > 65_535:
            raise SettingsError("prefetch", self.prefetch, "AMQP allows at most 65535")
        for name in ("release_interval_s", "call_timeout_s", "retry_first_s", "retry_max_s"):
            _positive(name, getattr(self, name))
        if self.max_handoff_s is not None:
            _positive("max_handoff_s", self.max_handoff_s)
        if self.rebalance_delay_s is not None:
            _at_least(0, "rebalance_delay_s", self.rebalance_delay_s)
        _at_least(0, "shutdown_grace_s", self.shutdown_grace_s)
        _positive("consumer_timeout_s", self.consumer_timeout_s)
        if self.index is not None and self.index > INDEX_MAX:
            raise SettingsError("index", self.index, f"must be at most {INDEX_MAX}")
        if self.index is not None and self.clients is not None and self.index >= self.clients:
            raise SettingsError("index", self.index, f"must be below clients ({self.clients})")
        if not self.addresses:
            raise SettingsError("broker", (), "at least one address is needed")

    @property
    def addresses(self) -> tuple[Broker, ...]:
        """`broker` as one or several, in the order to be tried."""
        if isinstance(self.broker, str | ConnectionSettings):
            return (self.broker,)
        return tuple(self.broker)

    @property
    def has_own_name(self) -> bool:
        """True if the name is a setting, so that it is the same after a restart."""
        return self.name != _made_up_name()


def _made_up_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _at_least(least: float, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise SettingsError(name, value, f"must be at least {least}")


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SettingsError(name, value, "must be above 0")


def _one_of(kind: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise SettingsError(name, value, f"must be one of {', '.join(kind)}") from None


SESSION_NAME_MAX = 128
"""The embedded broker's rule for `x-session` (docs/embedded-broker.md)."""


def processing_rules(
    settings: MemberSettings, spec: GroupSpec, *, concurrency: int, has_parking: bool = False
) -> Rules:
    """`concurrency` is the one that counts where none is set. `has_parking`: the group has a parking queue."""
    bounds = ParkingBounds(
        settings.park_max_keys, settings.park_max_messages, settings.park_max_mb * 1_000_000
    )
    order = Order.QUEUE if spec.mode == SESSIONS else Order.KEY
    return Rules(
        concurrency=concurrency if settings.concurrency is None else settings.concurrency,
        order=order if settings.order is None else Order(settings.order),
        call_timeout_s=settings.call_timeout_s,
        max_attempts=settings.max_attempts,
        when_exhausted=WhenExhausted(settings.when_exhausted),
        backoff=Backoff(
            first_s=settings.retry_first_s,
            max_s=max(settings.retry_max_s, settings.retry_first_s),
            jitter=RETRY_JITTER,
        ),
        republish=settings.republish,
        parking=bounds if has_parking else None,
    )


def keys_at_once(rules: Rules) -> int:
    """Number of keys that a member can work on at a time."""
    return rules.concurrency if rules.order is Order.KEY else 1


def balancing_rules(
    settings: MemberSettings, spec: GroupSpec, *, is_native: bool, on_rabbitmq: bool = False
) -> BalancingRules:
    """`is_native`: the broker itself shares the messages out, from one queue. `on_rabbitmq`: each is a quorum queue.
    Raises SettingsError."""
    clients = settings.clients or spec.max_clients
    if clients > spec.queue_count and spec.mode not in UNCOUNTED_MODES:
        raise SettingsError("clients", clients, f"the group has {spec.queue_count} queues: QC >= CC")
    if settings.assignment is Assignment.STATIC and settings.index is not None and settings.index >= clients:
        raise SettingsError("index", settings.index, f"must be below the number of clients ({clients})")
    rebalance_delay_s, max_handoff_s = settings.rebalance_delay_s, settings.max_handoff_s
    return BalancingRules(
        queue_count=1 if is_native else spec.queue_count,
        assignment=Assignment(settings.assignment),
        client_count=clients,
        prefetch=settings.prefetch,
        rebalance_delay_s=spec.rebalance_delay_s if rebalance_delay_s is None else rebalance_delay_s,
        max_handoff_s=spec.max_handoff_s if max_handoff_s is None else max_handoff_s,
        release_interval_s=settings.release_interval_s,
        moves_at_once=settings.moves_at_once,
        standbys=settings.standbys,
        shutdown_grace_s=settings.shutdown_grace_s,
        consumer_timeout_s=settings.consumer_timeout_s,
        on_rabbitmq=on_rabbitmq,
    )


def validate_against(
    settings: MemberSettings, spec: GroupSpec, *, is_native: bool, has_parking: bool = False
) -> None:
    """Raises SettingsError for settings that the group's mode, or the group, does not support."""
    if has_parking:
        _require_fit_for_parking(settings)
    elif settings.when_exhausted is WhenExhausted.PARK:
        raise SettingsError(
            "when_exhausted",
            "park",
            f"group {spec.name} has no parking queue: `lbg park enable {spec.name}` gives it one, where its mode can",
        )
    if settings.assignment is Assignment.STATIC:
        if is_native:
            raise SettingsError(
                "assignment",
                "static",
                f"in mode {spec.mode} this broker assigns the messages: leave it balanced",
            )
        if spec.mode == PARTITIONED:
            raise SettingsError(
                "assignment",
                "static",
                f"in mode {PARTITIONED} loads differ by at most one: leave it balanced",
            )
    if spec.mode == SESSIONS:
        _require_fit_for_a_session(settings)


def _require_fit_for_parking(settings: MemberSettings) -> None:
    """Of every member of a group with a parking queue, as all of them follow the parked keys."""
    if settings.order is Order.QUEUE:
        raise SettingsError(
            "order", "queue", "with a parking queue a key leaves its queue: leave it at key, or do not park"
        )
    if settings.republish:
        raise SettingsError(
            "republish", True, "with a parking queue messages are delivered more than once: do not validate"
        )


def _require_fit_for_a_session(settings: MemberSettings) -> None:
    if not settings.has_own_name:
        raise SettingsError(
            "name",
            settings.name,
            f"in mode {SESSIONS} it is the session's, so the member must have it again after a restart: give it one "
            "(in Kubernetes, the name of a StatefulSet's pod)",
        )
    if len(settings.name) > SESSION_NAME_MAX:
        raise SettingsError(
            "name", settings.name, f"in mode {SESSIONS} it takes at most {SESSION_NAME_MAX} characters"
        )
    if settings.order is Order.KEY:
        raise SettingsError(
            "order", "key", f"in mode {SESSIONS} a member's position is one number: leave it at queue"
        )
