"""Objects that `lbg dead`, `lbg unrouted` and `lbg park` print as JSON."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict


class DeadLetter(TypedDict):
    """A dead letter, or an unrouted message."""

    id: str | None
    key: str | None
    reason: str
    attempts: int | None
    queue: int | None
    member: int | None
    member_name: str | None
    age_s: float | None
    routing_key: str
    body: NotRequired[Annotated[str, "with --bodies"]]
    body_base64: NotRequired[Annotated[str, "in place of body, for one that is not UTF-8"]]
    body_bytes: NotRequired[Annotated[int, "size of the whole body"]]


class DeadLetters(TypedDict):
    """Dead letters or unrouted messages of a group."""

    group: str
    total: int
    letters: list[DeadLetter]


class _Settled(TypedDict):
    group: str
    total: Annotated[int, "messages selected"]
    unknown: Annotated[int, "of unknown fate"]
    not_looked_at: Annotated[int, "held by another client"]
    unroutable: Annotated[int, "unrouted messages with a routing key of another group, prefix or hash count"]
    missing_ids: list[str]


class Replayed(_Settled):
    """Messages that were published again."""

    replayed: int


class Discarded(_Settled):
    """Messages that were deleted."""

    discarded: int


class ParkingEnabled(TypedDict):
    """A group that has a parking queue now."""

    group: str
    action: Literal["enabled", "unchanged"]
    changes: list[str]


class ParkedKey(TypedDict):
    """A key in the set of parked keys."""

    key: str
    state: Annotated[
        Literal["parked", "released"], "released: its messages are delivered, and not all are yet"
    ]
    messages: int
    bytes: int
    first: Annotated[list[str], "id of the first message of each publisher"]
    age_s: Annotated[float | None, "age of its oldest message, since it was published"]
    reason: Annotated[
        str | None,
        "last error of the message for which it is parked; null while another command reads the messages",
    ]


class ParkedKeys(TypedDict):
    """Parked keys of a group."""

    group: str
    keys: list[ParkedKey]
    messages: int
    bytes: int
    leftovers: Annotated[
        int, "copies in the parking queue beyond one for each message: of crashes, or being parked now"
    ]


class ParkedMessages(TypedDict):
    """Parked messages of a key."""

    group: str
    key: str
    letters: list[DeadLetter]


class ParkReleased(TypedDict):
    """Keys whose messages were given back."""

    group: str
    action: Literal["released"]
    released: Annotated[list[str], "keys that are free now"]
    failed_again: Annotated[list[str], "keys that are parked again"]
    left: Annotated[list[str], "keys with messages that are not processed yet"]
    published: Annotated[int, "messages given back"]
    rounds: int
    leftovers: Annotated[int, "copies of crashes that were deleted"]


class ParkReplayed(TypedDict):
    """A parked message that was given back alone."""

    group: str
    action: Literal["replayed"]
    key: str
    id: str


class ParkDiscarded(TypedDict):
    """Parked messages that were deleted."""

    group: str
    action: Literal["discarded"]
    discarded: int
