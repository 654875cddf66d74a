"""Messages of a group where they are, and those that a member was done with, in answers to administrators."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from lbg_core.group.member_state import Time


class HeldState(enum.StrEnum):
    """State of a message: no member holds it, and it is to be delivered, parked, a dead letter, or unrouted. At a
    member: its turn has not come; the application has it; it failed and is to be called again; its attempts are used
    up, and it is called again; it goes to the dead letters, to the parking queue, or to the queue to which its key
    moves; it is processed, and that is not confirmed."""

    READY = "ready"
    PARKED = "parked"
    DEAD = "dead"
    UNROUTED = "unrouted"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    POISONED = "poisoned"
    REFUSED = "refused"
    PARKING = "parking"
    MOVING = "moving"
    PROCESSED = "processed"


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message of a group where it is. `attempts` and `reason` are of its calls at the member that holds it. Its body
    is text or in base64, perhaps not all of it; `body_bytes` is the size of all of it. `member` and `member_index` are
    of the sender of the answer, for who receives it; None: it waits at the broker. `identity`: None without a stamp.
    `received_us`, `first_call_us` and `last_call_us` are of that member, in microseconds since the epoch; 0 where there
    is none."""

    id: str
    key: str | None
    queue: int
    state: HeldState
    attempts: int
    reason: str
    redelivered: bool
    published_at_us: int
    routing_key: str
    content_type: str | None
    body: str | None
    body_base64: str | None
    body_bytes: int
    member: str | None = None
    member_index: int | None = None
    identity: tuple[str, int, int] | None = None
    received_us: Time = 0
    first_call_us: Time = 0
    last_call_us: Time = 0

    def age_s(self, now_us: int) -> float | None:
        """Age since it was published; None without that time."""
        return None if not self.published_at_us else max(0, now_us - self.published_at_us) / 1e6


class Ending(enum.StrEnum):
    """End of a message at a member: processed; processed, and delivered again as the member lost the queue before the
    ack; refused, and a dead letter; dropped, as it was processed before; in the parking queue; in the queue to which
    its key moved; given back to its queue after a call."""

    FINISHED = "finished"
    UNACKNOWLEDGED = "finished-unacknowledged"
    DEAD = "dead"
    REPEAT = "repeat-dropped"
    PARKED = "parked"
    FORWARDED = "forwarded"
    RELEASED = "given-back"


class Handled(NamedTuple):
    """A message of a key that a member was done with. `publisher`, `hash` and `seq` are None without a stamp. Times are
    microseconds since the epoch, 0 where there is none."""

    publisher: str | None
    hash: int | None
    seq: int | None
    queue: int
    published_at_us: Time
    received_us: Time
    first_call_us: Time
    last_call_us: Time
    last_end_us: Time
    done_us: Time
    attempts: int
    ending: Ending
    redelivered: bool
