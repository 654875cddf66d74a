"""What an engine cannot do for a group: refused when it is to be made, with the reason and what to do instead."""

from __future__ import annotations

from lbg_broker.amqp import ReplyCode
from lbg_broker.group import MESSAGE_GROUPS, SESSIONS, Engine, GroupSpec, Names, is_native, topology_of
from lbg_broker.group.engines import OLDEST_RABBITMQ

from .errors import ApplyFailed, Refused, Unsupported, would_break
from .observed import Observed
from .policies import losses, reorderings

_NOT_ON_RABBITMQ = {
    MESSAGE_GROUPS: (
        "no queue of RabbitMQ gives the messages of a key to one consumer at a time; the nearest there is mode "
        "Partitioned, in which every key has a queue and every queue one consumer at a time"
    ),
    SESSIONS: (
        "no queue of RabbitMQ numbers its messages for sessions; the nearest there is mode Exclusive with members that "
        "remember what they have processed (docs/exactly-once.md)"
    ),
}


def refuse_unsupported(spec: GroupSpec, observed: Observed) -> None:
    """Raises Unsupported."""
    if reason := why_unsupported(spec, observed.engine):
        raise Unsupported(f"group {spec.name!r} cannot be created on {observed.engine}: {reason}")
    topology = topology_of(spec, observed.engine)
    losing, reordering = losses(topology, observed), reorderings(topology, observed)
    if losing or reordering:
        raise would_break(spec.name, losing, reordering)


def why_unsupported(spec: GroupSpec, engine: Engine) -> str | None:
    """None for what the engine can do."""
    if engine.is_too_old:
        return f"RabbitMQ {'.'.join(map(str, OLDEST_RABBITMQ))} or later is needed"
    if engine.counts_for_owners_only:
        return "it counts a queue for nobody but who may delete it, so members could not: 4.3.1 or later is needed"
    if engine.is_rabbitmq and (lacking := _NOT_ON_RABBITMQ.get(spec.mode)):
        return f"it has no mode {spec.mode}: {lacking}, and the embedded broker has mode {spec.mode} itself"
    return None


def is_older_than_mode(spec: GroupSpec, engine: Engine, failure: ApplyFailed) -> bool:
    """Whether an embedded broker does not know the kind of queue that the group's mode needs: it refuses arguments that
    it does not know, and has no other way to tell."""
    cause = failure.__cause__
    return (
        is_native(spec, engine)
        and isinstance(cause, Refused)
        and cause.status == ReplyCode.PRECONDITION_FAILED
        and "is not supported" in str(cause)
        and failure.action == f"declare queue {Names(spec.name).parent}"
    )


def too_old(spec: GroupSpec, engine: Engine) -> Unsupported:
    return Unsupported(
        f"group {spec.name!r} cannot be created on {engine}: this embedded broker is older than mode {spec.mode}: "
        "upgrade it"
    )
