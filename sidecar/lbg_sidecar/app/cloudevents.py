"""A message as a CloudEvent 1.0, and as the JSON of commands and streams.

Nearly every message has the headers of our publisher and no others, and the stamp has their values: then
nothing is decoded, and no dict is made (tests/sidecar/app/test_message_json.py requires equal results of both ways).

A message that was published as a CloudEvent (AMQP binding: headers `cloudEvents:*`, `cloudEvents_*`) has the attributes
it was published with; missing ones are LBG's. Everything that only LBG has is an extension whose name starts with
`lbg`, `lbgid` among them: an event's own id is unique for its source alone.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any
from urllib.parse import quote

from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS
from lbg_sidecar.message import AMQP_PREFIXES, BAGGAGE, PARENT, STATE, Message, trace_in


def message_json(message: Message) -> str:
    """`message.as_json()` as text, without a line break."""
    in_flight = message.in_flight
    identity, delivery = in_flight.identity, message.delivery
    if identity is None or message.span is not None or not in_flight.is_only_stamped:
        return json.dumps(message.as_json(), separators=(",", ":"))
    try:
        data = delivery.body.decode()
    except UnicodeDecodeError:
        return json.dumps(message.as_json(), separators=(",", ":"))
    publisher, hash_, seq = identity
    publisher_json = _quoted(publisher)
    key, key_header = "null", ""
    if in_flight.key is not None:
        key = _quoted(in_flight.key)
        key_header = f'"{HEADER_KEY}":{key},'
    redelivered = "true" if delivery.redelivered else "false"
    return (
        f'{{"id":{_quoted(message.id)},"group":{_quoted(message.group)},"queue":{message.queue},"hash":{hash_},'
        f'"key":{key},"publisher":{publisher_json},"seq":{seq},"topic":{_quoted(message.topic)},"attempt":{in_flight.attempts},'
        f'"redelivered":{redelivered},"headers":{{{key_header}"{HEADER_PUBLISHER}":{publisher_json},"{HEADER_SEQ}":{seq},'
        f'"{HEADER_TS}":{in_flight.published_at_us}}},"data":{_quoted(data)}}}'
    )


BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
EVENT_TYPE = "lbg.message.v1"
UNKNOWN_CONTENT = "application/octet-stream"

SEQUENCE_DIGITS = 19
"""The sequence extension requires strings that sort as text; 19 digits hold every number below 2**63."""

REQUIRED = ("specversion", "id", "source", "type")

_TIME_ENDS_US = 253_402_300_800_000_000  # RFC 3339 has no year 10000; a foreign stamp may hold any number

# HTTP binding 1.0.2, section 3.1.3.2: what is outside U+0021 to U+007E, and '"' and '%', is percent-encoded.
_PLAIN_IN_HEADER = "".join(chr(mark) for mark in range(0x21, 0x7F) if chr(mark) not in '"%')
_is_plain = re.compile(f"[{re.escape(_PLAIN_IN_HEADER)}]*").fullmatch

_WORTH_DECODING = re.compile(rb"cloudEvents[:_]|trace(?:parent|state)|baggage").search
"""Decoding the headers costs more than all the rest; without one of these names in them they have no attribute."""


def _has_context(message: Message) -> bool:
    return message.span is not None or _WORTH_DECODING(message.delivery.header) is not None


def attributes(message: Message) -> dict[str, str]:
    """The context attributes, as text; `datacontenttype` is not among them."""
    in_flight = message.in_flight
    name = message.id
    values = {
        "specversion": "1.0",
        "id": name,
        "source": _source(message.group),
        "type": EVENT_TYPE,
        "lbgid": name,
        "lbgqueue": str(message.queue),
        "lbgattempt": str(in_flight.attempts),
    }
    if 0 < in_flight.published_at_us < _TIME_ENDS_US:
        values["time"] = _time(in_flight.published_at_us)
    if topic := message.topic:
        values["subject"] = topic
    if in_flight.key:
        values["partitionkey"] = in_flight.key
    identity = in_flight.identity
    if identity is not None:
        values["lbgpublisher"] = identity[0]
        values["lbghash"] = str(identity[1])
        values["sequence"] = str(identity[2]).zfill(SEQUENCE_DIGITS)
    if in_flight.sequence is not None:
        values["lbgsession"] = str(message.session)
        values["lbgsequence"] = str(in_flight.sequence)
        if in_flight.epoch is not None:
            values["lbgepoch"] = in_flight.epoch
    if not _has_context(message):
        return values
    headers = message.delivery.headers
    sent = trace_in(headers) | ({} if message.span is None else message.span.headers)
    values.update((name, sent[name]) for name in (PARENT, STATE) if name in sent)
    own = _own(headers)
    own.pop("partitionkey", None)  # the message's key is the one that its order follows
    values.update((name, value) for name, value in own.items() if not name.startswith("lbg"))
    return values


def binary_headers(message: Message) -> dict[str, str]:
    """HTTP headers of binary mode; the body is `message.data`."""
    values = attributes(message)
    headers = {
        f"ce-{name}": value if _is_plain(value) else quote(value, safe=_PLAIN_IN_HEADER)
        for name, value in values.items()
    }
    headers["Content-Type"] = _content_type_header(content_type(message))
    return headers | trace(message)


def trace(message: Message) -> dict[str, str]:
    """Its trace context and baggage, as W3C headers."""
    return message.trace if _has_context(message) else {}


def batch_item(message: Message) -> str:
    """The JSON of one event of a batch. JSON data is put in as it is, so that no number loses a digit."""
    kind = content_type(message)
    data = _data(message.data, kind)
    if _has_context(message):
        baggage = {name: value for name, value in trace(message).items() if name == BAGGAGE}
        fields = json.dumps(baggage | attributes(message) | {"datacontenttype": kind}, separators=(",", ":"))
        return f"{fields[:-1]},{data}}}"
    return f'{{{_stamped(message)},"datacontenttype":{_quoted(kind)},{data}}}'


def _stamped(message: Message) -> str:
    """`attributes` of a message with the stamp alone, as JSON: a third of the time of a dict that is dumped
    (tests/sidecar/app/test_cloudevents.py holds both to the same)."""
    in_flight = message.in_flight
    name = _quoted(message.id)
    at_us, topic, key, identity = in_flight.published_at_us, message.topic, in_flight.key, in_flight.identity
    time = f',"time":"{_time(at_us)}"' if 0 < at_us < _TIME_ENDS_US else ""
    subject = f',"subject":{_quoted(topic)}' if topic else ""
    partition = f',"partitionkey":{_quoted(key)}' if key else ""
    stream = ""
    if identity is not None:
        publisher, hash_, seq = identity
        sequence = str(seq).zfill(SEQUENCE_DIGITS)
        stream = f',"lbgpublisher":{_quoted(publisher)},"lbghash":"{hash_}","sequence":"{sequence}"'
    session = ""
    if in_flight.sequence is not None:
        session = f',"lbgsession":{_quoted(str(message.session))},"lbgsequence":"{in_flight.sequence}"'
        if in_flight.epoch is not None:
            session += f',"lbgepoch":{_quoted(in_flight.epoch)}'
    return (
        f'"specversion":"1.0","id":{name},"source":{_quoted(_source(message.group))},"type":"{EVENT_TYPE}",'
        f'"lbgid":{name},"lbgqueue":"{message.queue}","lbgattempt":"{in_flight.attempts}"'
        f"{time}{subject}{partition}{stream}{session}"
    )


def content_type(message: Message) -> str:
    return message.content_type or UNKNOWN_CONTENT


def _data(body: bytes, kind: str) -> str:
    try:
        text = body.decode()
        if not is_json(kind):
            return f'"data":{_quoted(text)}'
        _JSON.decode(text)
    except (ValueError, RecursionError):
        return f'"data_base64":"{base64.b64encode(body).decode()}"'
    return f'"data":{text}'


@lru_cache(maxsize=256)
def is_json(kind: str) -> bool:
    """CloudEvents JSON format 1.0.2, section 3.1: `*/json` and `*/*+json`."""
    subtype = kind.partition(";")[0].strip().lower().partition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def no_constant(name: str) -> object:
    """Refuses NaN and the infinities, which Python's JSON has: `parse_constant` of `json.loads`."""
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=no_constant)


def _own(headers: Mapping[str, Any]) -> dict[str, str]:
    """Attributes that the publisher set; none if they are no whole CloudEvent 1.x."""
    own = {}
    for header, value in headers.items():
        if header.startswith(AMQP_PREFIXES):
            name = header[len(AMQP_PREFIXES[0]) :]
            text = text_of(value)
            if text and name.isascii() and name.isalnum() and name.islower() and name != "datacontenttype":
                own[name] = text
    return own if own.keys() >= set(REQUIRED) and own["specversion"].startswith("1.") else {}


def text_of(value: object) -> str | None:
    """CloudEvents 1.0.2, section "Type System": the canonical string of a value; None for one of no type there."""
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


@lru_cache(maxsize=256)
def _source(group: str) -> str:
    return f"/lbg/{quote(group)}"


@lru_cache(maxsize=256)
def _content_type_header(kind: str) -> str:
    return quote(kind, safe=_PLAIN_IN_HEADER + ' "%')


def _time(at_us: int) -> str:
    seconds, us = divmod(at_us, 1_000_000)
    return f"{_second(seconds)}.{us:06d}Z"


@lru_cache(maxsize=256)  # most messages of a moment were published in the same few seconds
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().removesuffix("+00:00")
