"""A message as a CloudEvent 1.0: HTTP binary mode, and the JSON form for batches.

A message that was published as a CloudEvent (AMQP binding: headers `cloudEvents:*`, `cloudEvents_*`) keeps the
attributes it came with; what is missing is ours. Everything that only we know is an extension whose name starts with
`lbg`, `lbgid` among them: an event's own id is unique for its source alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from ..message import Message

BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
EVENT_TYPE = "lbg.message.v1"
UNKNOWN_CONTENT = "application/octet-stream"

SEQUENCE_DIGITS = 19
"""The sequence extension asks for strings that sort as text; 19 digits hold every number below 2**63."""

_AMQP_PREFIXES = ("cloudEvents:", "cloudEvents_")  # CloudEvents AMQP binding 1.0.2, section 3.1.3.1
_REQUIRED = frozenset({"specversion", "id", "source", "type"})
_TRACE = ("traceparent", "tracestate")  # distributed tracing extension: the W3C header's value as it is
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# HTTP binding 1.0.2, section 3.1.3.2: what is outside U+0021 to U+007E, and '"' and '%', is percent-encoded.
_PLAIN_IN_HEADER = "".join(chr(mark) for mark in range(0x21, 0x7F) if chr(mark) not in '"%')


def attributes(message: Message) -> dict[str, str]:
    """The context attributes, as text; `datacontenttype` is not among them."""
    headers = message.delivery.headers
    found = {
        "specversion": "1.0",
        "id": message.id,
        "source": f"/lbg/{quote(message.group)}",
        "type": EVENT_TYPE,
        "lbgid": message.id,
        "lbgqueue": str(message.queue),
        "lbgattempt": str(message.attempt),
    }
    if message.held.published_at_us:
        found["time"] = _time(message.held.published_at_us)
    if topic := message.topic:
        found["subject"] = topic
    if message.key:
        found["partitionkey"] = message.key
    identity = message.held.identity
    if identity is not None:
        found["lbgpublisher"] = identity[0]
        found["lbghash"] = str(identity[1])
        found["sequence"] = str(identity[2]).zfill(SEQUENCE_DIGITS)
    for name in _TRACE:
        value = headers.get(name)
        if isinstance(value, str) and value:
            found[name] = value
    own = _own(headers)
    found.update((name, value) for name, value in own.items() if not name.startswith("lbg"))
    return found


def binary_headers(message: Message) -> dict[str, str]:
    """HTTP headers of binary mode; the body is `message.data`."""
    found = attributes(message)
    headers = {f"ce-{name}": quote(value, safe=_PLAIN_IN_HEADER) for name, value in found.items()}
    headers["Content-Type"] = quote(content_type(message), safe=_PLAIN_IN_HEADER + ' "%')
    for name in _TRACE:
        value = found.get(name, "")
        if value and value.isascii() and value.isprintable():
            headers[name] = value
    return headers


def batch_item(message: Message) -> str:
    """The JSON of one event of a batch. JSON data is put in as it is, so that no number loses a digit."""
    kind = content_type(message)
    fields = json.dumps(attributes(message) | {"datacontenttype": kind}, separators=(",", ":"))
    return f"{fields[:-1]},{_data(message.data, kind)}}}"


def content_type(message: Message) -> str:
    return message.content_type or UNKNOWN_CONTENT


def _data(body: bytes, kind: str) -> str:
    try:
        text = body.decode()
        if not _is_json(kind):
            return f'"data":{json.dumps(text)}'
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return f'"data_base64":"{base64.b64encode(body).decode()}"'
    return f'"data":{text}'


def _is_json(kind: str) -> bool:
    """CloudEvents JSON format 1.0.2, section 3.1: `*/json` and `*/*+json`."""
    subtype = kind.partition(";")[0].strip().lower().partition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _own(headers: Mapping[str, Any]) -> dict[str, str]:
    """What the publisher said of its event; nothing, if that is not a whole CloudEvent 1.x."""
    own = {}
    for header, value in headers.items():
        if header.startswith(_AMQP_PREFIXES):
            name = header[len(_AMQP_PREFIXES[0]) :]
            text = _text(value)
            if text and name.isascii() and name.isalnum() and name.islower() and name != "datacontenttype":
                own[name] = text
    return own if own.keys() >= _REQUIRED and own["specversion"].startswith("1.") else {}


def _text(value: object) -> str | None:
    """CloudEvents 1.0.2, section "Type System": the canonical string of a value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return None


def _time(at_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
