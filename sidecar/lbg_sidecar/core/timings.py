"""Times of what members send to each other and to observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; each is spread by plus or minus a fifth, so that members do not act in step.

    A live set is settled when it has not changed for `settled_s`. What only repairs is rare from then on: on RabbitMQ
    each of these messages costs some tenths of a millisecond of CPU, and a group at rest sends nothing else.
    """

    report_s: float = 0.25  # between two status reports, at least
    changed_report_s: float = 1.0  # from a report to the next, if its content has changed
    same_report_s: float = 15.0  # and if it has not, and nobody watches
    ping_s: float = 0.65  # the next in the ring, while the live set changes
    digest_s: float = 3.0  # one of its neighbours, while the live set changes
    settled_ping_s: float = 15.0  # the next in the ring, if its end would show in its last will
    settled_unwatched_ping_s: float = 4.0  # and if not
    settled_digest_s: float = 30.0
    settled_s: float = 10.0
    change_s: float = 0.02  # a change is reported after this long, together with those that follow it
    alone_s: float = 3.0  # between two hellos to all of a member that knows no other
    answer_s: float = 0.5  # for a directory, and for the coordinator to send a change to all
    quiet_s: float = 1.0  # a live set that has not changed for so long is compared
    suspicion_s: float = 0.1  # at most one ping to one member in this time, however often it is suspected


def spread(seconds: float, uniform: Callable[[], float]) -> float:
    """By plus or minus a fifth."""
    return seconds * (0.8 + 0.4 * uniform())
