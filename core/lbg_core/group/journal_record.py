"""Journal records: one line of JSON for each message published and each message delivered.

docs/journal.md describes every field. All times are integer microseconds since the epoch; no number is below 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from json.encoder import encode_basestring_ascii as _quote
from typing import Any

from lbg_core.group.errors import JournalError

VERSION = 1
"""Raised with a change that a reader would misread."""

VERDICTS = ("ack", "dead", "repeat", "released")
"""Verdict of a delivery: done by the app; sent to the dead letters; dropped, because it was done before; given
back to the queue, so that it is delivered again."""


@dataclass(slots=True)
class PublishedRecord:
    """A message that the broker has confirmed.

    `published_at_us` is the first time it was sent and equals its `lbg-ts`; `resends` counts the times it was
    sent again with the same sequence number.
    """

    publisher: str
    key: str | None
    hash_: int
    queue: int
    seq: int
    published_at_us: int
    confirmed_at_us: int
    resends: int
    group: str
    body_bytes: int


@dataclass(slots=True)
class DeliveredRecord:
    """A message that a member has received and is done with, in the order in which it was done with them.

    `delivery` counts the member's deliveries from 0 and so keeps their order where `delivered_at_us` is the
    same for a batch. `started_at_us` to `finished_at_us` is the time in which the app had it, over all
    `attempts`; both are None if it never got there. `settled_at_us` is when the ack was written, None if it
    never was. `session` and `sequence` are there in mode Sessions; `mode` is the group's, None for Exclusive.
    """

    publisher: str
    key: str | None
    hash_: int
    queue: int
    seq: int
    published_at_us: int
    member: int
    member_name: str
    incarnation: str
    delivery: int
    redelivered: bool
    delivered_at_us: int
    started_at_us: int | None
    finished_at_us: int | None
    settled_at_us: int | None
    attempts: int
    verdict: str
    session: str | None
    sequence: int | None
    group: str
    body_bytes: int
    mode: str | None = None


Record = PublishedRecord | DeliveredRecord


def encode(record: Record) -> str:
    """One line of ASCII, with its newline."""
    return _published(record) if isinstance(record, PublishedRecord) else _delivered(record)


def _published(record: PublishedRecord) -> str:
    key = "null" if record.key is None else _quote(record.key)
    return (
        f'{{"v":{VERSION},"kind":"published","publisher":{_quote(record.publisher)},"key":{key},'
        f'"hash":{record.hash_},"queue":{record.queue},"seq":{record.seq},'
        f'"published_at_us":{record.published_at_us},"confirmed_at_us":{record.confirmed_at_us},'
        f'"resends":{record.resends}{_origin(record)}}}\n'
    )


def _delivered(record: DeliveredRecord) -> str:
    key = "null" if record.key is None else _quote(record.key)
    started = "null" if record.started_at_us is None else record.started_at_us
    finished = "null" if record.finished_at_us is None else record.finished_at_us
    settled = "null" if record.settled_at_us is None else record.settled_at_us
    return (
        f'{{"v":{VERSION},"kind":"delivered","publisher":{_quote(record.publisher)},"key":{key},'
        f'"hash":{record.hash_},"queue":{record.queue},"seq":{record.seq},'
        f'"published_at_us":{record.published_at_us},"member":{record.member},'
        f'"member_name":{_quote(record.member_name)},"incarnation":{_quote(record.incarnation)},'
        f'"delivery":{record.delivery},"redelivered":{"true" if record.redelivered else "false"},'
        f'"delivered_at_us":{record.delivered_at_us},"started_at_us":{started},"finished_at_us":{finished},'
        f'"settled_at_us":{settled},"attempts":{record.attempts},"verdict":{_quote(record.verdict)}{_session(record)}'
        f"{_origin(record)}{_mode(record)}}}\n"
    )


def _session(record: DeliveredRecord) -> str:
    if record.session is None:
        return ""
    return f',"session":{_quote(record.session)},"sequence":{json.dumps(record.sequence)}'


def _origin(record: Record) -> str:
    return f',"group":{_quote(record.group)},"body_bytes":{record.body_bytes}'


def _mode(record: DeliveredRecord) -> str:
    return "" if record.mode is None else f',"mode":{_quote(record.mode)}'


_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, _NONE),
    "int": (int,),
    "int | None": (int, _NONE),
    "bool": (bool,),
}
# Name in JSON and types of each field, in the order of the dataclass.
_PUBLISHED = tuple(
    (field.name.rstrip("_"), _TYPES[str(field.type)]) for field in dataclass_fields(PublishedRecord)
)
_DELIVERED = tuple(
    (field.name.rstrip("_"), _TYPES[str(field.type)]) for field in dataclass_fields(DeliveredRecord)
)
_OPTIONAL = frozenset({"session", "sequence", "mode"})
_JSON_NAMES = {str: "a string", int: "an integer", bool: "true or false", _NONE: "null"}
_MISSING = object()


def decode(line: str | bytes) -> Record:
    """The record of one line; raises JournalError with the reason, also for a version newer than ours.

    Unknown fields are passed over: a field can be added without a new version.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"a journal line is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise JournalError("a journal line is not a JSON object")
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise JournalError(f"a journal line has version {version!r}, not a number from 1 up")
    if version > VERSION:
        raise JournalError(
            f"a journal line is of version {version}, and this LBG reads version {VERSION}: upgrade it"
        )
    kind = fields.get("kind")
    if kind == "published":
        return PublishedRecord(*_values(fields, _PUBLISHED))
    if kind == "delivered":
        record = DeliveredRecord(*_values(fields, _DELIVERED))
        if record.verdict not in VERDICTS:
            raise JournalError(
                f"a journal line has verdict {record.verdict!r}, none of {', '.join(VERDICTS)}"
            )
        return record
    raise JournalError(f"a journal line is of kind {kind!r}, neither published nor delivered")


def _values(fields: dict[str, Any], expected: tuple[tuple[str, tuple[type, ...]], ...]) -> list[Any]:
    values = []
    for name, types in expected:
        value = fields.get(name, None if name in _OPTIONAL else _MISSING)
        if type(value) not in types:
            problem = "is missing" if value is _MISSING else f"is {value!r}"
            raise JournalError(
                f"{name} of a journal line {problem}, not {' or '.join(_JSON_NAMES[type_] for type_ in types)}"
            )
        if type(value) is int and value < 0:
            raise JournalError(f"{name} of a journal line is {value}, below 0")
        values.append(value)
    return values
