"""A request as events: CloudEvents 1.0 or a plain body; refusals in HTTP's terms. Pure.

Attributes become AMQP headers `cloudEvents:NAME` (CloudEvents AMQP binding 1.0.2, section 3.1.3.1); `datacontenttype`
becomes the content type. Values are their canonical strings, as in the HTTP binding.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import unquote

from lbg_core.admin import GroupNotFound
from lbg_core.client import AccessRefused, AuthenticationError
from lbg_core.publisher import BrokerRefused, GroupClosed, GroupGone, MessageOptions, SizeRefused
from lbg_sidecar.app.cloudevents import BATCH_CONTENT_TYPE, REQUIRED, is_json, no_constant, text_of
from lbg_sidecar.message import AMQP_PREFIXES, trace_in, trace_of


class Refused(Exception):
    """`index`: which event of a batch; `retry_after_s`: when trying the same again may help."""

    def __init__(
        self, status: int, detail: str, *, index: int | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.index = index
        self.retry_after_s = retry_after_s

    def at(self, index: int) -> Refused:
        """The same refusal, for one event of a batch."""
        return Refused(self.status, self.detail, index=index, retry_after_s=self.retry_after_s)


def unavailable(detail: str) -> Refused:
    return Refused(503, detail, retry_after_s=1)


def stopping() -> Refused:
    return unavailable("the sidecar is stopping: nothing was published")


def too_large(size_bytes: int, limit_bytes: int, index: int | None = None) -> Refused:
    return Refused(
        413,
        f"message size {size_bytes} is larger than max size {limit_bytes}, the broker's max_message_size: nothing was "
        "published",
        index=index,
    )


def other_event(event_id: str | None, index: int | None) -> Refused:
    return Refused(
        409,
        f"event id {str(event_id)[:80]!r} of this source was published with another content: nothing was done; "
        "a new event needs a new id",
        index=index,
    )


def ended_by(error: Exception, *, size_bytes: int = 0) -> Refused:
    """Refusal of one event of this size, for the error that ended a group's publisher or kept it from starting."""
    if isinstance(error, SizeRefused):
        if size_bytes > error.limit_bytes:
            return too_large(size_bytes, error.limit_bytes)
        return unavailable("not confirmed: another event was too large for the broker")
    if isinstance(error, GroupNotFound | GroupGone):
        return Refused(404, str(error))
    if isinstance(error, AuthenticationError | AccessRefused | BrokerRefused | GroupClosed):
        return Refused(403, str(error))
    return unavailable(f"not confirmed: {error}")


STRUCTURED = "application/cloudevents+json"

# All headers of a message have to fit in one frame, of 128 KiB as a rule, beside a key of 16 KiB.
ATTRIBUTES_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """`id` is of source and id, None where there is none; `content` is of what a retry cannot have changed.

    `topic_is_explicit`: the topic was given as one; else it is the event's subject, and left out where it does not fit.
    """

    key: str | None
    topic: str
    topic_is_explicit: bool
    body: bytes
    extra: MessageOptions
    event_id: str | None = None
    id: bytes | None = None
    content: bytes = b""


def read_events(body: bytes, headers: Mapping[str, str], query: Mapping[str, str]) -> list[Event]:
    """The events of a request; `headers` has its names in lower case. Raises Refused."""
    kind = headers.get("content-type", "")
    media_type = kind.partition(";")[0].strip().lower()
    trace = trace_in(headers)
    if media_type == STRUCTURED:
        return [_structured(_parsed(body), trace, query)]
    if media_type == BATCH_CONTENT_TYPE:
        return _batched(_parsed(body), trace, query)
    if media_type.startswith("application/cloudevents"):
        raise Refused(
            415, f"{media_type} is not supported: send {STRUCTURED} or {BATCH_CONTENT_TYPE}, or binary mode"
        )
    attributes = {
        name[3:]: _decoded(name, value) for name, value in headers.items() if name.startswith("ce-")
    }
    if attributes:
        return [_event(attributes, kind or None, body, trace, query, key=headers.get("lbg-key"))]
    key = query.get("key") or headers.get("lbg-key") or None
    extra = MessageOptions(trace, _short(kind, "content-type") or None)
    _require_small(extra)
    return [Event(key, query.get("topic", ""), True, body, extra)]


def _decoded(name: str, value: str) -> str:
    try:
        decoded = unquote(value, errors="strict")
        decoded.encode()
    except UnicodeError:
        raise Refused(400, f"header {name} is not percent-encoded UTF-8") from None
    return decoded


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def _batched(events: object, trace: dict[str, str], query: Mapping[str, str]) -> list[Event]:
    if not isinstance(events, list):
        raise Refused(400, f"{BATCH_CONTENT_TYPE} must be a JSON array of events")
    batch = []
    for index, event in enumerate(events):
        try:
            batch.append(_structured(event, trace, query))
        except Refused as error:
            raise error.at(index) from None
    return batch


def _structured(event: object, trace: dict[str, str], query: Mapping[str, str]) -> Event:
    if not isinstance(event, dict):
        raise Refused(400, "an event must be a JSON object")
    fields = {name: value for name, value in event.items() if value is not None}
    if "data" in fields and "data_base64" in fields:
        raise Refused(400, "an event has data or data_base64, not both")
    data, encoded = fields.pop("data", None), fields.pop("data_base64", None)
    attributes = {name: _text(name, value) for name, value in fields.items()}
    kind = attributes.pop("datacontenttype", None)
    if encoded is not None:
        body = _from_base64(encoded)
    elif isinstance(data, str) and kind is not None and not is_json(kind):
        body = _utf8("data", data)
    elif data is None:
        body = b""
    else:
        body = _json(data)
        kind = kind or "application/json"  # JSON format 1.0.2, section 3.1: without a content type it is this
    return _event(attributes, kind, body, trace, query)


def _event(
    attributes: dict[str, str],
    kind: str | None,
    body: bytes,
    trace: dict[str, str],
    query: Mapping[str, str],
    *,
    key: str | None = None,
) -> Event:
    for name, value in attributes.items():
        if not (name.isascii() and name.isalnum() and name == name.lower()) or len(name) > 100:
            raise Refused(400, f"{name[:40]!r} cannot name an attribute: lower-case letters and digits")
        _utf8(f"attribute {name}", value)
    for name in REQUIRED:
        if not attributes.get(name):
            raise Refused(400, f"attribute {name} is missing: a CloudEvent has {', '.join(REQUIRED)}")
    if not attributes["specversion"].startswith("1."):
        raise Refused(400, f"specversion {attributes['specversion'][:20]!r} is not supported: only 1.x is")
    attributes.pop("datacontenttype", None)
    key = attributes.get("partitionkey") or query.get("key") or key or None
    topic = query.get("topic") or attributes.get("subject", "")
    headers = {AMQP_PREFIXES[0] + name: value for name, value in attributes.items()}
    extra = MessageOptions(headers | trace_of(headers | trace), _short(kind or "", "datacontenttype") or None)
    _require_small(extra)
    return Event(
        key,
        topic,
        bool(query.get("topic")),
        body,
        extra,
        attributes["id"],
        _digest(attributes["source"], attributes["id"]),
        _digest(key or "", topic, kind or "", attributes["type"], body=body),
    )


def _text(name: str, value: object) -> str:
    text = text_of(value)
    if text is None:
        raise Refused(400, f"attribute {name[:40]} must be a string, a boolean or an integer")
    return text


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Refused(400, f"{name} must be Unicode text without unpaired surrogates") from None


def _from_base64(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Refused(400, "data_base64 is not Base64")


def _json(data: object) -> bytes:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:  # 1e400 was read as infinity, which JSON does not have
        raise Refused(400, "data has a number beyond the range of a double: send data_base64") from None


def _short(kind: str, name: str) -> str:
    if len(_utf8(name, kind)) > 180:
        raise Refused(400, f"{name} takes more than 180 bytes")
    return kind


def _require_small(extra: MessageOptions) -> None:
    size_bytes = sum(
        len(name) + len(value.encode("utf-8", "replace")) for name, value in extra.headers.items()
    )
    if size_bytes > ATTRIBUTES_MAX_BYTES:
        raise Refused(400, f"the attributes take {size_bytes} bytes; at most {ATTRIBUTES_MAX_BYTES} fit")


def _digest(*texts: str, body: bytes = b"") -> bytes:
    digest = blake2b(digest_size=16)
    for text in texts:
        part = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(part) + part)
    digest.update(body)
    return digest.digest()
