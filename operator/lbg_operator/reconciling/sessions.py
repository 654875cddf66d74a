"""How many consumers a group in mode Sessions has, and which of its sessions have to end first. Pure.

A session's messages are for nobody else, so a pod goes when its session is over: it is given nothing new, its pod works
off what it has, and the sidecar leaves at the End-of-Session and stays out (ADR 34).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbg_broker.provisioning.native import CLOSING, LIVE, SessionSeen, SessionsSeen


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """- `replicas`: of the StatefulSet now.
    - `close`: sessions that are to be given nothing new.
    - `mark`, `unmark`: pods whose session is ending, and pods of which that was thought and is not so.
    - `renew`: pods whose session is over and that are wanted again, which they are as new ones only.
    - `waits_for`: the sessions that more pods are kept for than were asked for.
    """

    replicas: int
    close: tuple[str, ...] = ()
    mark: tuple[str, ...] = ()
    unmark: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()
    waits_for: tuple[SessionSeen, ...] = ()


def plan_sessions(
    stateful_set: str, wanted: int, seen: SessionsSeen, pods: Mapping[str, bool]
) -> SessionPlan:
    """`pods` maps the name of each pod to whether it was marked. A pod is called as its session.

    A session that has messages and no pod, as it began when its pod was about to go, gets its pod back to work them
    off. One that has neither messages nor a consumer holds up nobody.
    """
    sessions = {one.session: one for one in seen.sessions}
    numbered = [(ordinal_of(stateful_set, one.session), one) for one in seen.sessions]
    holding = [
        (ordinal, one)
        for ordinal, one in numbered
        if ordinal is not None and ordinal >= wanted and (one.state == LIVE or one.messages)
    ]
    close = tuple(one.session for _, one in holding if one.state != CLOSING)
    ending = {*close, *(one.session for one in seen.sessions if one.state == CLOSING)}
    over = [name for name, is_marked in pods.items() if is_marked and name not in sessions]
    return SessionPlan(
        replicas=max([wanted, *(ordinal + 1 for ordinal, _ in holding)]),
        close=close,
        mark=tuple(name for name, is_marked in pods.items() if name in ending and not is_marked),
        unmark=tuple(
            name for name, is_marked in pods.items() if is_marked and name in sessions and name not in ending
        ),
        renew=() if seen.closed else tuple(_below(wanted, stateful_set, over)),
        waits_for=tuple(one for _, one in holding),
    )


def ordinal_of(stateful_set: str, name: str) -> int | None:
    """The number of a pod, and so of its session; None for what is neither of this StatefulSet."""
    before, _, number = name.rpartition("-")
    return int(number) if before == stateful_set and number.isdecimal() else None


def told(sessions: Iterable[SessionSeen], *, at_most: int = 10) -> str:
    """The sessions by name, with their states and messages."""
    named = [f"{one.session} ({one.state}, {one.messages} messages)" for one in sessions]
    return ", ".join(named[:at_most]) + (f" and {len(named) - at_most} more" if len(named) > at_most else "")


def _below(wanted: int, stateful_set: str, pods: Iterable[str]) -> Iterable[str]:
    for pod in pods:
        ordinal = ordinal_of(stateful_set, pod)
        if ordinal is not None and ordinal < wanted:
            yield pod
