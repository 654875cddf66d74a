"""An application's answers in JSON, in the words that every channel shares. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..consuming.positions import StreamRuns
from ..verdict import ACK, Kind, Verdict
from .knowledge import parse_processed

AFTER_MAX_S = 86_400


def read_object(text: str | bytes) -> dict[str, Any]:
    """Raises ValueError unless it is one JSON object."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def read_verdict(fields: Mapping[str, Any]) -> Verdict:
    """From `verdict`, `reason` and `after_s`; raises ValueError with what is wrong."""
    kind = fields.get("verdict")
    reason = str(fields.get("reason") or "")
    if kind == "ack":
        return ACK
    if kind == "drop":
        return Verdict(Kind.DROP, reason)
    if kind == "retry":
        return Verdict(Kind.RETRY, reason, _after_s(fields.get("after_s")))
    raise ValueError('"verdict" must be "ack", "retry" or "drop"')


def parse_verdict(line: bytes) -> tuple[str, Verdict]:
    """The id and the verdict in a command's line; raises ValueError with the reason."""
    fields = read_object(line)
    name = fields.get("id")
    if not isinstance(name, str):
        raise ValueError('no object with an "id"')
    return name, read_verdict(fields)


def parse_first_line(line: bytes) -> tuple[StreamRuns, ...] | None:
    """A command's positions; None if it does not begin with them. Raises ValueError if they cannot be read."""
    fields = read_object(line)
    return parse_processed(fields["processed"]) if "processed" in fields else None


def _after_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= AFTER_MAX_S:
        raise ValueError(f'"after_s" must be a number of seconds from 0 to {AFTER_MAX_S}')
    return value
