"""A member's settings and what its group says of itself, put together: the rules that its machine follows."""

from __future__ import annotations

from lbg_broker.group import PARTITIONED, SESSIONS, UNCOUNTED_MODES, GroupSpec

from .balancing.rules import Assignment, BalancingRules
from .consuming.backoff import Backoff
from .consuming.consumption import Order, Rules
from .errors import SettingsError
from .settings import MemberSettings

SESSION_NAME_MAX = 128
"""The embedded broker's rule for `x-session` (docs/embedded-broker.md)."""


def processing_rules(settings: MemberSettings, spec: GroupSpec, *, concurrency: int) -> Rules:
    """`concurrency` is the one that counts where none is set."""
    order = Order.QUEUE if spec.mode == SESSIONS else Order.KEY
    return Rules(
        concurrency=concurrency if settings.concurrency is None else settings.concurrency,
        order=order if settings.order is None else settings.order,
        call_timeout_s=settings.call_timeout_s,
        max_attempts=settings.max_attempts,
        when_exhausted=settings.when_exhausted,
        backoff=Backoff(
            first_s=settings.retry_first_s, max_s=max(settings.retry_max_s, settings.retry_first_s)
        ),
        republish=settings.republish,
    )


def keys_at_once(rules: Rules) -> int:
    """How many keys a member can work on at a time."""
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
        assignment=settings.assignment,
        client_count=clients,
        prefetch=settings.prefetch,
        rebalance_delay_s=spec.rebalance_delay_s if rebalance_delay_s is None else rebalance_delay_s,
        max_handoff_s=spec.max_handoff_s if max_handoff_s is None else max_handoff_s,
        release_interval_s=settings.release_interval_s,
        moves_at_once=settings.moves_at_once,
        shutdown_grace_s=settings.shutdown_grace_s,
        consumer_timeout_s=settings.consumer_timeout_s,
        on_rabbitmq=on_rabbitmq,
    )


def require_fit(settings: MemberSettings, spec: GroupSpec, *, is_native: bool) -> None:
    """Raises SettingsError where the settings say what the group's mode cannot do."""
    if settings.assignment is Assignment.STATIC:
        if is_native:
            raise SettingsError(
                "assignment",
                "static",
                f"in mode {spec.mode} this broker shares the messages out: leave it balanced",
            )
        if spec.mode == PARTITIONED:
            raise SettingsError(
                "assignment",
                "static",
                f"in mode {PARTITIONED} loads differ by at most one: leave it balanced",
            )
    if spec.mode == SESSIONS:
        _require_fit_for_a_session(settings)


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
            "order", "key", f"in mode {SESSIONS} how far a member is, is one number: leave it at queue"
        )
