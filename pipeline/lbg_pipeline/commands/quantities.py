"""Times on the command line: types of options, which raise BadParameter."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click

_SPAN = re.compile(r"([0-9]{1,9})(s|m|h|d|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(told: str) -> int:
    """A span, as 300, 300s, 5m, 1h or 7d."""
    match = _SPAN.fullmatch(told)
    if match is None:
        raise click.BadParameter(f"{told!r} is no span of time: say it as 300s, 5m, 1h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def moment(told: str) -> datetime:
    """RFC 3339; UTC without an offset."""
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        raise click.BadParameter(f"{told!r} is no time: say it as 2026-11-27T16:55:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def zone(told: str) -> str:
    """A time zone of the IANA."""
    try:
        ZoneInfo(told)
    except (
        LookupError,
        ValueError,
        OSError,
    ):  # the last two for names of folders, and outside of the database
        raise click.BadParameter(
            f"{told!r} is no time zone that is known here: say it as Europe/Berlin"
        ) from None
    return told
