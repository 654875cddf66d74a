"""Attributes of a group: parsing, validation, and the record that the broker stores.

The record stays the group's own, and has one key more: `CL`. The broker refuses what is published to a closed group
as it refuses for a full queue; with `CL` a publisher does not wait.

The record stays the group's own, and has one key more: `RP`, the number of queues that there are to be. With `QC` as it
was, nothing is decided yet; with `QC` equal to it, all that is left is to let members settle and publishers in. With
`RP` the group accepts no messages for now (docs/adr/0033-repartitioning.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from typing import Final, Literal, TypeAlias

from lbg_core.group.errors import NewerRecordError, SpecError
from lbg_core.group.hashing import HASH_FUNCTIONS, HashFunction
from lbg_core.group.names import require_group_name

Mode: TypeAlias = Literal["Exclusive", "Partitioned", "MessageGroups", "Sessions"]

EXCLUSIVE: Final = "Exclusive"
PARTITIONED: Final = "Partitioned"
MESSAGE_GROUPS: Final = "MessageGroups"
SESSIONS: Final = "Sessions"

MODES: tuple[Mode, ...] = (EXCLUSIVE, PARTITIONED, MESSAGE_GROUPS, SESSIONS)
"""Every mode that a group may have; provisioning checks whether an engine supports it."""

NATIVE_MODES: tuple[Mode, ...] = (PARTITIONED, MESSAGE_GROUPS, SESSIONS)
"""Modes for which the embedded broker has a queue type: there a group in one of these modes is one queue."""

UNCOUNTED_MODES: tuple[Mode, ...] = (MESSAGE_GROUPS, SESSIONS)
"""All members consume the one queue there is: queues bound their number nowhere."""


HASH_COUNT_MAX = 65_536
QUEUE_COUNT_MAX = 4_096
QUEUE_SIZE_MAX_MB = 6_000_000
PREFIX_MAX_BYTES = 128
USERNAME_MAX_BYTES = 255
DURATION_MAX_S = 3600

_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")


def number(value: object) -> object:
    """The number in a text; anything else as it is."""
    if not isinstance(value, str):
        return value
    if _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value


def integer(field: str, value: object, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise SpecError(field, value, f"must be an integer from 1 to {maximum}")
    return value


def seconds(field: str, value: object) -> float:
    """To the millisecond, the unit of a queue's arguments."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= DURATION_MAX_S:
        raise SpecError(field, value, f"must be a number of seconds from 0 to {DURATION_MAX_S}")
    return round(float(value), 3)


def prefix(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError("hash_prefix", value, "must be text of at least one character")
    if any(mark in value for mark in ".#*"):
        raise SpecError("hash_prefix", value, "must not contain . # or *: it is one word of a topic")
    return _plain("hash_prefix", value, PREFIX_MAX_BYTES)


def username(value: object, *, field: str = "client_username") -> str:
    """`value`, if it can name a user; raises SpecError."""
    if not isinstance(value, str) or not value:
        raise SpecError(field, value, "must be text of at least one character")
    if ":" in value:
        raise SpecError(field, value, "must not contain a colon: HTTP basic authentication ends there")
    return _plain(field, value, USERNAME_MAX_BYTES)


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(field, value, f"must be one of {', '.join(allowed)}")
    return value


def _plain(field: str, value: str, maximum_bytes: int) -> str:
    if not value.isprintable() or " " in value:
        raise SpecError(field, value, "must not contain spaces or unprintable characters")
    if len(value.encode()) > maximum_bytes:
        raise SpecError(field, value, f"must take at most {maximum_bytes} bytes of UTF-8")
    return value


DEFAULT_HASH_COUNT = 100
DEFAULT_QUEUE_COUNT = 4
"""In modes MessageGroups and Sessions there is one queue."""
DEFAULT_QUEUE_SIZE_MB = 1000
DEFAULT_HASH_FUNCTION: HashFunction = "crc32"

REBALANCE_DELAY_S = 5.0
MAX_HANDOFF_S = 3.0
"""Solace's defaults ("Configuring Partitioned Queues")."""

BYTES_PER_MB = 1_000_000

RECORD_VERSION: Final = 1
VERSION_KEY: Final = "V"

_RECORD_FIELDS = {
    "HP": "hash_prefix",
    "HC": "hash_count",
    "QC": "queue_count",
    "QS": "queue_size_mb",
    "CU": "client_username",
    "HF": "hash_function",
    "MD": "mode",
    "CC": "max_clients",
    "RD": "rebalance_delay_s",
    "MH": "max_handoff_s",
}
_PASSWORDS = frozenset({"CP", "client_password"})

REPARTITION_KEY = "RP"
CLOSED_KEY = "CL"
UNFINISHED_KEY = "UF"
"""Fields of a record that are no attributes: a repartition under way, a closed group, an unfinished create."""


@dataclass(frozen=True, slots=True, init=False)
class GroupSpec:
    """A group's attributes, always valid. Raises SpecError.

    ::

        GroupSpec("orders", hash_count=100, queue_count=8, queue_size_mb=64)

    `hash_prefix` and `client_username` are the group's name unless they are given, `queue_count` is 4.
    `queue_size_mb` is the spool limit of one queue in megabytes of 1,000,000 bytes. `max_clients` is CC of
    HC >= QC >= CC ("Sticky Load Balancing"); None stands for as many as there are queues. In modes MessageGroups and
    Sessions all members consume one queue: `queue_count` is 1, and None stands for as many clients as there are hashes.
    `limits_clients`: `max_clients` was given, so it stays when the number of queues changes; two specs that differ in
    nothing else are equal.
    `rebalance_delay_s` and `max_handoff_s` are of the partitions of mode Partitioned. There is no password in it.
    """

    name: str
    hash_prefix: str
    hash_count: int
    queue_count: int
    queue_size_mb: int
    client_username: str
    hash_function: HashFunction
    mode: Mode
    max_clients: int
    rebalance_delay_s: float
    max_handoff_s: float
    limits_clients: bool = dataclass_field(init=False, compare=False)

    def __init__(
        self,
        name: str,
        hash_prefix: str | None = None,
        *,
        hash_count: int = DEFAULT_HASH_COUNT,
        queue_count: int | None = None,
        queue_size_mb: int = DEFAULT_QUEUE_SIZE_MB,
        client_username: str | None = None,
        hash_function: HashFunction = DEFAULT_HASH_FUNCTION,
        mode: Mode = EXCLUSIVE,
        max_clients: int | None = None,
        rebalance_delay_s: float | None = None,
        max_handoff_s: float | None = None,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "name", require_group_name(name))
        set_field(self, "hash_prefix", prefix(name if hash_prefix is None else hash_prefix))
        set_field(self, "hash_count", integer("hash_count", hash_count, HASH_COUNT_MAX))
        set_field(self, "mode", one_of("mode", mode, MODES))
        set_field(self, "queue_count", _queue_count(queue_count, hash_count, mode))
        set_field(self, "queue_size_mb", integer("queue_size_mb", queue_size_mb, QUEUE_SIZE_MAX_MB))
        set_field(self, "client_username", username(name if client_username is None else client_username))
        set_field(self, "hash_function", one_of("hash_function", hash_function, tuple(HASH_FUNCTIONS)))
        set_field(self, "limits_clients", max_clients is not None)
        if max_clients is None:
            max_clients = self._most_clients
        set_field(self, "max_clients", integer("max_clients", max_clients, HASH_COUNT_MAX))
        if mode not in UNCOUNTED_MODES and max_clients > self.queue_count:
            raise SpecError(
                "max_clients",
                max_clients,
                f"must be at most queue_count ({self.queue_count}): HC >= QC >= CC",
            )
        for field, value, default in (
            ("rebalance_delay_s", rebalance_delay_s, REBALANCE_DELAY_S),
            ("max_handoff_s", max_handoff_s, MAX_HANDOFF_S),
        ):
            duration = default if value is None else seconds(field, value)
            if duration != default and mode != PARTITIONED:
                raise SpecError(field, value, f"goes with mode {PARTITIONED} only, and this is {mode}")
            set_field(self, field, duration)

    @classmethod
    def parse(cls, mapping: Mapping[str, object]) -> GroupSpec:
        """A spec from field names (`hash_count` or `hashCount`) and values.

        Counts may be decimal strings; a password is accepted and forgotten. Raises SpecError for what is
        missing, unknown or invalid.
        """
        fields: dict[str, object] = {}
        for name, value in mapping.items():
            field = re.sub(r"(?<=[a-z])[A-Z]", lambda match: "_" + match[0].lower(), str(name))
            if field in _PASSWORDS:
                continue
            if field not in _FIELDS:
                # Not the value: under a mistyped name it may be a password.
                raise SpecError("attribute", name, f"is none of a group's: {', '.join(_FIELDS)}")
            if field in fields:
                raise SpecError("attribute", name, "is given twice, in two spellings")
            if value is not None:
                fields[field] = number(value) if field in _NUMBERS else value
        for field in _REQUIRED:
            if field not in fields and not (field == "queue_count" and fields.get("mode") in UNCOUNTED_MODES):
                raise SpecError(field, None, "is required")
        return cls(**fields)  # type: ignore[arg-type]  # checked in __post_init__

    @classmethod
    def from_record(cls, text: str | bytes, *, name: str) -> GroupSpec:
        """The spec of group `name` from its record; raises SpecError when it is not one, and its kind
        NewerRecordError. "Sticky Load Balancing" has no version in it: without one it is read as ours."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("record", _excerpt(text), f"must be JSON ({error})") from None
        if not isinstance(record, dict):
            raise SpecError("record", _excerpt(text), "must be a JSON object")
        version = record.pop(VERSION_KEY, RECORD_VERSION)
        if type(version) is int and version > RECORD_VERSION:
            raise NewerRecordError(
                VERSION_KEY, version, f"is newer than {RECORD_VERSION}, which this LBG reads"
            )
        if version != RECORD_VERSION:
            raise SpecError(VERSION_KEY, version, f"must be {RECORD_VERSION}, the version of a record")
        fields: dict[str, object] = {"name": name}
        for key, value in record.items():
            if key in _PASSWORDS or key in (REPARTITION_KEY, CLOSED_KEY):
                continue
            if key == UNFINISHED_KEY:
                raise SpecError("key", key, "is of a group whose create was not finished")
            if key not in _RECORD_FIELDS:
                raise SpecError("key", key, f"is none of a record's: {', '.join(_RECORD_FIELDS)}")
            fields[_RECORD_FIELDS[key]] = value
        return cls.parse(fields)

    @classmethod
    def from_unfinished(cls, text: str | bytes, *, name: str) -> GroupSpec | None:
        """The spec of group `name` whose create was not finished; None where the record is not one of such a group."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(record, dict) or record.pop(UNFINISHED_KEY, None) is not True:
            return None
        try:
            return cls.from_record(json.dumps(record), name=name)
        except SpecError:
            return None

    def to_unfinished(self) -> str:
        """The record of the group while it is being made: only the next create reads it."""
        return json.dumps(
            {**json.loads(self.to_record()), UNFINISHED_KEY: True}, separators=(",", ":"), ensure_ascii=False
        )

    def to_record(self) -> str:
        """The record as compact JSON, with the names of "Sticky Load Balancing".

        V, its version; HP, HC, QC, QS, CU; HF, MD, RD, MH where they are not the default; CC where it was given.
        """
        record: dict[str, object] = {VERSION_KEY: RECORD_VERSION}
        record |= {key: getattr(self, field) for key, field in list(_RECORD_FIELDS.items())[:5]}
        for key, default in (
            ("HF", DEFAULT_HASH_FUNCTION),
            ("MD", EXCLUSIVE),
            ("CC", None if self.limits_clients else self.max_clients),
            ("RD", REBALANCE_DELAY_S),
            ("MH", MAX_HANDOFF_S),
        ):
            if (value := getattr(self, _RECORD_FIELDS[key])) != default:
                record[key] = value
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    def altered(self, **changes: object) -> GroupSpec:
        """The same group with other values of some attributes; a limit of clients that was not given is not given.

        Raises SpecError.
        """
        fields = self.attributes()
        if not self.limits_clients:
            fields["max_clients"] = None
        return GroupSpec(**fields | changes)  # type: ignore[arg-type]  # checked in __init__

    def attributes(self) -> dict[str, object]:
        """Every attribute and its value."""
        return {name: getattr(self, name) for name in _FIELDS}

    @property
    def queue_size_bytes(self) -> int:
        return self.queue_size_mb * BYTES_PER_MB

    @property
    def _most_clients(self) -> int:
        return self.hash_count if self.mode in UNCOUNTED_MODES else self.queue_count


_FIELDS = tuple(one.name for one in fields(GroupSpec) if one.compare)
_NUMBERS = frozenset(
    {"hash_count", "queue_count", "queue_size_mb", "max_clients", "rebalance_delay_s", "max_handoff_s"}
)
_REQUIRED = _FIELDS[:6]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which a group that exists differs from the one wanted."""

    field: str
    existing: object
    desired: object

    def __str__(self) -> str:
        return f"{self.field}: {self.existing} -> {self.desired}"


def differences(existing: GroupSpec, desired: GroupSpec) -> tuple[Difference, ...]:
    """Every field in which the two differ, in the order of the fields; empty when they are the same group."""
    return tuple(
        Difference(field, getattr(existing, field), getattr(desired, field))
        for field in _FIELDS
        if getattr(existing, field) != getattr(desired, field)
    )


def _queue_count(value: int | None, hash_count: int, mode: str) -> int:
    if value is None:
        value = 1 if mode in UNCOUNTED_MODES else DEFAULT_QUEUE_COUNT
    count = integer("queue_count", value, QUEUE_COUNT_MAX)
    if mode in UNCOUNTED_MODES and count != 1:
        raise SpecError("queue_count", count, f"must be 1 in mode {mode}: all members consume the one queue")
    if count > hash_count:
        raise SpecError("queue_count", count, f"must be at most hash_count ({hash_count}): HC >= QC >= CC")
    return count


def _excerpt(text: str | bytes) -> str:
    """A broken record may hold a password, so only its size is shown."""
    return f"({len(text)} long)"


def closed_record(spec: GroupSpec) -> str:
    """The record of a group that is closed."""
    return json.dumps(
        {**json.loads(spec.to_record()), CLOSED_KEY: True}, separators=(",", ":"), ensure_ascii=False
    )


def is_closed_in(record: str) -> bool:
    """True if the group was closed; False where the record is none."""
    try:
        fields = json.loads(record)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get(CLOSED_KEY) is True


def recounted(spec: GroupSpec, queue_count: int, *, max_clients: int | None = None) -> GroupSpec:
    """The same group with another number of queues; raises SpecError where it cannot have that many.

    A limit of its clients stays, or becomes `max_clients`, and has to fit: HC >= QC >= CC. Without one there may be as
    many as queues.
    """
    if spec.mode in UNCOUNTED_MODES:
        raise SpecError("mode", spec.mode, "has one queue for all members, and no partitions to count")
    limit = {} if max_clients is None else {"max_clients": max_clients}
    return spec.altered(queue_count=queue_count, **limit)


def marked(spec: GroupSpec, queue_count: int) -> str:
    """The record of a group whose number of queues is being changed to `queue_count`."""
    return json.dumps(
        {**json.loads(spec.to_record()), REPARTITION_KEY: queue_count},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def repartition_in(record: str) -> int | None:
    """The number of queues to which the group is being changed; None without a change or a record."""
    try:
        fields = json.loads(record)
    except (ValueError, RecursionError):
        return None
    target = fields.get(REPARTITION_KEY) if isinstance(fields, dict) else None
    return target if isinstance(target, int) else None
