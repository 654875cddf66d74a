"""Settings of a member, and the rules that follow from them and from its group."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lbg_core.client import ConnectionSettings
from lbg_core.client.backoff import Backoff
from lbg_core.declaration import about, check, declared
from lbg_core.group import INDEX_MAX, SESSIONS, STATIC, GroupSpec
from lbg_sidecar.core.dispatcher import RETRY_JITTER, Order, ParkingBounds, Rules, WhenExhausted
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.errors import SettingsError

Broker = str | ConnectionSettings

PREFETCH_MAX = 65_535
"""AMQP 0-9-1, basic.qos: a short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """One member of one group. Raises SettingsError.

    Two settings are a choice of texts: an instance holds them as `Order` and `WhenExhausted`, which are texts too, and
    `journal` and `commits` as Path.
    """

    broker: Broker | Sequence[Broker] = field(default="amqp://guest:guest@127.0.0.1:5672/", repr=False)
    """One address or several, tried in turn. The address also has the heartbeat (5 s): a host that falls silent is
    detected after two to three of them, and a member whose own event loop stood still for longer than one treats its
    connection as lost."""
    group: str = field(metadata=about("The group to join", metavar="NAME"))
    """Its attributes are read from the group's record."""
    name: str = declared(
        "",
        "Name of the member in logs and in `lbg group show`; by default host name and process id. Required with "
        "{commits} and in mode Sessions, where it names the session",
    )
    concurrency: int | None = declared(
        None,
        "Most messages at the application at the same time, over all queues; by default 16, in a sidecar with "
        "`http-batch` as many as fill its requests (400), with `stream` 256",
        least=1,
    )
    """16 suits calls that wait for something else; an application that only computes gains nothing above its number of
    cores. None: `AppChannel.concurrency`."""
    order: Order | Literal["key", "queue"] | None = declared(
        None,
        "What is processed one at a time: `key` or `queue`. By default `key`, in mode Sessions `queue`",
    )
    """In mode Sessions how far a session is, is one number."""

    call_timeout_s: float = declared(
        30.0, "A call without a verdict for this long is aborted and counts as a failed attempt", above=0
    )
    """30 s is what HTTP clients commonly use."""
    max_attempts: int = declared(
        10,
        "Failed attempts of a message, counted over handoffs, after which {when_exhausted} applies",
        least=1,
    )
    """10 with the waits below come to about a minute: longer than the restart of what an application calls."""
    when_exhausted: WhenExhausted | Literal["block", "dead-letter", "park"] = declared(
        WhenExhausted.BLOCK,
        "`block`: the key waits while the message is retried every {retry_max_s}. `dead-letter`: the message becomes a "
        "[dead letter](dead-letters.md), and the key goes on. `park`: the message and all later ones of its key are "
        "[parked](parked-keys.md), in order, until `lbg park release`",
    )
    """Nothing is lost or skipped by default. An application may ask for a longer wait than `retry_max_s`."""
    park_max_keys: int = declared(
        1000,
        "Most parked keys of the group, beyond which keys block",
        least=1,
    )
    park_max_messages: int = declared(100_000, "Most parked messages of the group", least=1)
    """A member reads an entry of about 200 bytes for each when it connects."""
    park_max_mb: int = declared(256, "Most megabytes of parked bodies of the group", least=1)
    """Of 1,000,000 bytes."""
    retry_first_s: float = declared(0.1, "Wait after the first failed attempt; it doubles", above=0)
    retry_max_s: float = declared(30.0, "Longest wait between attempts", above=0)
    prefetch: int | None = declared(
        None,
        "Most unacknowledged messages of a queue; by default derived. On RabbitMQ the same for all members of a group",
        least=1,
        most=PREFETCH_MAX,
    )
    """None: see `lbg_sidecar.core.acks.derived_prefetch`. RabbitMQ: docs/internals/rabbitmq.md."""
    body_memory_mb: int | None = declared(
        None,
        "Megabytes of message bodies in memory; by default a quarter of the container's memory limit, or 64 "
        "([memory](member.md#memory))",
        least=1,
    )
    """Of 1,000,000 bytes, over all queues. None: a quarter of the memory limit of the process's control group, or 64
    without one. Further bodies are written to a temporary file (in TMPDIR) until the application gets them."""
    consumer_timeout_s: float = declared(
        1800.0,
        "Longest time for which a message may be unacknowledged; before RabbitMQ 4.3 at most its `consumer_timeout`",
        above=0,
    )
    """The member declares it to RabbitMQ from 4.3 on. A queue whose oldest message is unacknowledged for half of it is
    released, in order, before the broker closes the channel."""
    commits: Path | str | None = declared(
        None,
        "Folder for the commit log, by which a member of the same {name} repeats nothing after a crash "
        "([exactly-once.md](exactly-once.md))",
    )
    journal: Path | str | None = declared(None, "Folder for the [journal](journal.md)")
    """In a sidecar also of what is published through it."""
    republish: bool = declared(False, "Publish each processed message again, for `lbg validate`")
    """To `lbg.G.validate`, before it is acknowledged. While nothing listens there, messages wait."""
    index: int | None = declared(
        None, "A fixed client index; by default the lowest free one", least=0, most=INDEX_MAX
    )
    """None: the previous one if it is free, else the lowest that is."""
    rebalance_delay_s: float | None = declared(
        None,
        "How long membership must be stable before queues move: 5; in mode Partitioned the group's value",
        least=0,
    )
    """5 s outlasts the restart of a process and is Solace's default."""
    max_handoff_s: float | None = declared(
        None, "Longest pause of a queue for a handoff: 3; in mode Partitioned the group's value", above=0
    )
    """3 s is Solace's default. A queue that is not drained by then stays where it is and is tried again, each time with
    twice as long, up to this and `call_timeout_s`. A member that leaves waits longer: `shutdown_grace_s`."""
    release_interval_s: float = declared(
        30.0, "For assignment `Static`: how often a member releases its secondary queues", above=0
    )
    """Spread by a tenth. 30 s is that of "Sticky Load Balancing"."""
    moves_at_once: int = declared(
        2, "Most queues of this member that are handed over at the same time", least=1
    )
    """2 keeps the work of a move, and so its pause, short, and 16 queues still leave a member in well under a
    second."""
    standbys: int = declared(
        2,
        "For assignments `Balanced` and `ByLoad`: members that consume a queue behind its primary "
        "([balance-and-scale.md](balance-and-scale.md))",
        least=1,
    )
    """A crash that takes the primary and all of them leaves the queue without a consumer until the other members agree
    on it, about a second. 2 costs three consumers for each queue, in a group of any size."""
    shutdown_grace_s: float = declared(
        20.0,
        "Longest time in which running calls may end when the member leaves ([Leaving](sidecar.md#leaving))",
        least=0,
    )
    """Calls of the application that run then are cut off, and counted, because they will be made again. 20 s and the
    `presence.MARGIN_S` of all that comes after fit into the 30 s that Kubernetes gives by default."""

    def __post_init__(self) -> None:
        if not self.name and self.commits is not None:
            raise SettingsError(
                "name", self.name, "commits need one that the member has again after a restart"
            )
        check(self, SettingsError)
        if not self.name:
            object.__setattr__(self, "name", _made_up_name())
        if self.when_exhausted is WhenExhausted.PARK:
            _require_fit_for_parking(self)
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
    if spec.assignment == STATIC and settings.index is not None and settings.index >= spec.max_clients:
        raise SettingsError(
            "index", settings.index, f"must be below the number of clients ({spec.max_clients})"
        )
    rebalance_delay_s, max_handoff_s = settings.rebalance_delay_s, settings.max_handoff_s
    return BalancingRules(
        queue_count=1 if is_native else spec.queue_count,
        assignment=spec.assignment,
        rebalance_threshold_percent=spec.rebalance_threshold_percent,
        client_count=spec.max_clients,
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
