"""What the application's HTTP reply says: one place for one message a request and for the items of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ..verdict import ACK, Kind, Verdict, drop, retry

REASON_MAX_CHARS = 500
AFTER_MAX_S = 86_400.0

_WORDS = {"ack": Kind.ACK, "retry": Kind.RETRY, "drop": Kind.DROP}
_DAPR = {"SUCCESS": Kind.ACK, "RETRY": Kind.RETRY, "DROP": Kind.DROP}
_BATCH_RULE = 'must be empty or {"verdicts": [{"id": …, "verdict": …}, …]}'


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """What a reply says of the messages of a batch: of those it names, and of the rest."""

    rest: Verdict
    named: Mapping[str, Verdict] = field(default_factory=dict)

    def of(self, name: str) -> Verdict:
        return self.named.get(name, self.rest)


def verdict_of_reply(
    status: int, body: bytes, retry_after: str | None, *, now_s: float, is_cut: bool = False
) -> Verdict:
    """`now_s`: seconds since 1970, for a Retry-After that is a date. `is_cut`: the body is longer than what is here.

    Only 422 and an explicit word drop a message: a wrong path (404) or a login page (302) must lose nothing. A JSON
    object that is cut may say anything where it is cut: that is a retry, for an acknowledgement cannot be taken back.
    """
    after_s = retry_after_s(retry_after, now_s=now_s)
    if 200 <= status < 300:
        if is_cut and _is_object(body):
            return retry(_too_long(body), after_s=after_s)
        return _said(body, after_s)
    if status == 422:
        return drop(_shown(body) or "HTTP 422")
    shown = _shown(body)
    return retry(f"HTTP {status}: {shown}" if shown else f"HTTP {status}", after_s=after_s)


def verdicts_of_reply(
    status: int, body: bytes, retry_after: str | None, *, now_s: float, is_cut: bool = False
) -> BatchVerdicts:
    """For a batch. Only an explicit word drops a message: a 422 may be about one of them, or about the batch's form.

    A 2xx without a body (or with `null`, which frameworks send for a handler that returns nothing) acknowledges all.
    """
    after_s = retry_after_s(retry_after, now_s=now_s)
    shown = _shown(body)
    if not 200 <= status < 300:
        return BatchVerdicts(retry(f"HTTP {status}: {shown}" if shown else f"HTTP {status}", after_s=after_s))
    if is_cut:
        return BatchVerdicts(retry(_too_long(body), after_s=after_s))
    if body.strip() in (b"", b"null"):
        return BatchVerdicts(ACK)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    items = fields.get("verdicts") if isinstance(fields, dict) else None
    if not isinstance(items, list) or not all(_is_named(item) for item in items):
        return BatchVerdicts(retry(f"the reply {_BATCH_RULE}: {shown[:100]}", after_s=after_s))
    named: dict[str, Verdict] = {}
    for item in items:
        verdict = verdict_of_fields(item, after_s)
        if named.setdefault(item["id"], verdict) != verdict:
            named[item["id"]] = retry("the reply has two verdicts for it", after_s=after_s)
    return BatchVerdicts(retry("the reply has no verdict for it", after_s=after_s), named)


def verdict_of_fields(fields: dict[str, object], after_s: float | None = None) -> Verdict:
    """From ``{"verdict": …, "reason": …, "after_s": …}`` or Dapr's ``{"status": …}``; `after_s` where it says none.

    A word nobody knows is a retry that says so: an acknowledgement cannot be taken back.
    """
    word = fields.get("verdict", fields.get("status"))
    kind = None
    if isinstance(word, str):
        kind = _WORDS.get(word) if "verdict" in fields else _DAPR.get(word)
    if kind is None:
        return retry(
            f"the reply's verdict is {word!r}: must be ack, retry or drop (Dapr: SUCCESS, RETRY, DROP)"
        )
    if kind is Kind.ACK:
        return ACK
    reason = str(fields.get("reason") or "")[:REASON_MAX_CHARS]
    if kind is Kind.DROP:
        return drop(reason)
    own = fields.get("after_s")
    if isinstance(own, int | float) and not isinstance(own, bool) and own >= 0:
        after_s = min(float(own), AFTER_MAX_S)
    return retry(reason, after_s=after_s)


def retry_after_s(value: str | None, *, now_s: float) -> float | None:
    """RFC 9110, section 10.2.3: seconds, or a date. What cannot be read says nothing."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return min(float(value[:9]), AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    wait_s = (at - datetime.fromtimestamp(now_s, UTC)).total_seconds()
    return min(max(wait_s, 0.0), AFTER_MAX_S)


def _said(body: bytes, after_s: float | None) -> Verdict:
    if not _is_object(body):
        return ACK
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ACK
    if "verdict" in fields or "status" in fields:
        return verdict_of_fields(fields, after_s)
    return ACK


def _is_object(body: bytes) -> bool:
    return body.lstrip().startswith(b"{")


def _too_long(body: bytes) -> str:
    return f"the reply is longer than {len(body)} bytes, so that its verdict cannot be read: answer 204 or a verdict"


def _is_named(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def _shown(body: bytes) -> str:
    return " ".join(body[: REASON_MAX_CHARS * 4].decode("utf-8", "replace").split())[:REASON_MAX_CHARS]
