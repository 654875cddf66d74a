"""Why a request is refused, in the words of HTTP. Pure."""

from __future__ import annotations

from lbg_broker.client import AccessRefused, AuthenticationError
from lbg_broker.group import SpecError
from lbg_broker.provisioning import GroupNotFound
from lbg_broker.publishing import BrokerRefused, GroupClosed, GroupGone, SizeRefused

from .errors import Refused

RETRY_AFTER_S = 1


def stopping() -> Refused:
    return Refused(503, "the sidecar is stopping: nothing was published", retry_after_s=RETRY_AFTER_S)


def no_room(in_flight: int) -> Refused:
    return Refused(
        503,
        f"{in_flight} events wait for the broker: none of these was published",
        retry_after_s=RETRY_AFTER_S,
    )


def too_many_events(count: int, limit: int) -> Refused:
    return Refused(413, f"{count} events in one request: at most {limit}")


def too_large(size_bytes: int, limit_bytes: int, index: int | None = None) -> Refused:
    return Refused(
        413,
        f"message size {size_bytes} is larger than max size {limit_bytes}, the broker's max_message_size: nothing was "
        "published",
        index=index,
    )


def too_many_groups(count: int, retry_after_s: int) -> Refused:
    return Refused(
        429,
        f"this sidecar publishes to {count} other groups, its max_groups, and all of them are in use",
        retry_after_s=retry_after_s,
    )


def no_group_name(error: SpecError) -> Refused:
    return Refused(404, f"no group can be called so: {error}")


def other_event(event_id: str | None, index: int | None) -> Refused:
    return Refused(
        409,
        f"event id {str(event_id)[:80]!r} of this source was published with another content: nothing was done; "
        "a new event needs a new id",
        index=index,
    )


def late(missing: int, count: int, within_s: float) -> Refused:
    return Refused(
        503,
        f"the broker has not confirmed {missing} of {count} events within {within_s:g} s: they wait and may still be "
        "published; sent again with the same id, an event is not published a second time",
        retry_after_s=RETRY_AFTER_S,
    )


def ended_by(error: Exception, *, size_bytes: int = 0) -> Refused:
    """What a group's publisher ended with, or could not begin for, as one event of this size has it."""
    if isinstance(error, SizeRefused):
        if size_bytes > error.limit_bytes:
            return too_large(size_bytes, error.limit_bytes)
        return Refused(
            503, "not confirmed: another event was too large for the broker", retry_after_s=RETRY_AFTER_S
        )
    if isinstance(error, GroupNotFound | GroupGone):
        return Refused(404, str(error))
    if isinstance(error, AuthenticationError | AccessRefused | BrokerRefused | GroupClosed):
        return Refused(403, str(error))
    return Refused(503, f"not confirmed: {error}", retry_after_s=RETRY_AFTER_S)
