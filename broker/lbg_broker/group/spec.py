"""A group's attributes: what the document's admin is given, parsed, validated, and as the group's record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from .errors import SpecError
from .hashing import HASH_FUNCTIONS
from .names import require_group_name

MODES = ("Exclusive", "Partitioned", "MessageGroups", "Sessions")
"""Every mode that a group may ask for; whether an engine can do it is for provisioning to say."""

HASH_COUNT_MAX = 65_536
QUEUE_COUNT_MAX = 4_096
QUEUE_SIZE_MAX_MB = 6_000_000
PREFIX_MAX_BYTES = 128
USERNAME_MAX_BYTES = 255

BYTES_PER_MB = 1_000_000

_DECIMAL = re.compile(r"[0-9]{1,18}")
_RECORD_FIELDS = {
    "HP": "hash_prefix",
    "HC": "hash_count",
    "QC": "queue_count",
    "QS": "queue_size_mb",
    "CU": "client_username",
    "HF": "hash_function",
    "MD": "mode",
    "CC": "max_clients",
}
_PASSWORDS = frozenset({"CP", "client_password"})


@dataclass(frozen=True, slots=True, init=False)
class GroupSpec:
    """A group's attributes; whoever holds one holds a valid one. Raises SpecError.

    `queue_size_mb` is the spool limit of one queue in megabytes of 1,000,000 bytes. `max_clients` is CC of
    the document's HC >= QC >= CC; None stands for as many as there are queues. There is no password in it.
    """

    name: str
    hash_prefix: str
    hash_count: int
    queue_count: int
    queue_size_mb: int
    client_username: str
    hash_function: str
    mode: str
    max_clients: int

    def __init__(
        self,
        name: str,
        hash_prefix: str,
        *,
        hash_count: int,
        queue_count: int,
        queue_size_mb: int,
        client_username: str,
        hash_function: str = "crc32",
        mode: str = "Exclusive",
        max_clients: int | None = None,
    ) -> None:
        keep = object.__setattr__
        keep(self, "name", require_group_name(name))
        keep(self, "hash_prefix", _prefix(hash_prefix))
        keep(self, "hash_count", _integer("hash_count", hash_count, HASH_COUNT_MAX))
        keep(self, "queue_count", _integer("queue_count", queue_count, QUEUE_COUNT_MAX))
        if queue_count > hash_count:
            raise SpecError(
                "queue_count", queue_count, f"must be at most hash_count ({hash_count}): HC >= QC >= CC"
            )
        keep(self, "queue_size_mb", _integer("queue_size_mb", queue_size_mb, QUEUE_SIZE_MAX_MB))
        keep(self, "client_username", _username(client_username))
        keep(self, "hash_function", _one_of("hash_function", hash_function, tuple(HASH_FUNCTIONS)))
        keep(self, "mode", _one_of("mode", mode, MODES))
        if max_clients is None:
            max_clients = queue_count
        keep(self, "max_clients", _integer("max_clients", max_clients, HASH_COUNT_MAX))
        if max_clients > queue_count:
            raise SpecError(
                "max_clients", max_clients, f"must be at most queue_count ({queue_count}): HC >= QC >= CC"
            )

    @classmethod
    def parse(cls, mapping: Mapping[str, object]) -> GroupSpec:
        """A spec from field names (`hash_count` or `hashCount`) and values.

        Counts may be decimal strings; a password is accepted and forgotten. Raises SpecError for what is
        missing, unknown or invalid.
        """
        given: dict[str, object] = {}
        for name, value in mapping.items():
            field = re.sub(r"(?<=[a-z])[A-Z]", lambda found: "_" + found[0].lower(), str(name))
            if field in _PASSWORDS:
                continue
            if field not in _FIELDS:
                # Not the value: under a mistyped name it may be a password.
                raise SpecError("attribute", name, f"is none of a group's: {', '.join(_FIELDS)}")
            if field in given:
                raise SpecError("attribute", name, "is given twice, in two spellings")
            if value is not None:
                given[field] = _number(value) if field in _COUNTS else value
        for field in _REQUIRED:
            if field not in given:
                raise SpecError(field, None, "is required")
        return cls(**given)  # type: ignore[arg-type]  # checked in __post_init__

    @classmethod
    def from_record(cls, text: str | bytes, *, name: str) -> GroupSpec:
        """The spec of group `name` from its record; raises SpecError when it is not one."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("record", _excerpt(text), f"must be JSON ({error})") from None
        if not isinstance(record, dict):
            raise SpecError("record", _excerpt(text), "must be a JSON object")
        given: dict[str, object] = {"name": name}
        for key, value in record.items():
            if key in _PASSWORDS:
                continue
            if key not in _RECORD_FIELDS:
                raise SpecError("key", key, f"is none of a record's: {', '.join(_RECORD_FIELDS)}")
            given[_RECORD_FIELDS[key]] = value
        return cls.parse(given)

    def to_record(self) -> str:
        """The document's compact JSON: HP, HC, QC, QS, CU, and HF, MD, CC where they are not the default."""
        record: dict[str, object] = {
            key: getattr(self, field) for key, field in list(_RECORD_FIELDS.items())[:5]
        }
        if self.hash_function != "crc32":
            record["HF"] = self.hash_function
        if self.mode != "Exclusive":
            record["MD"] = self.mode
        if self.max_clients != self.queue_count:
            record["CC"] = self.max_clients
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    @property
    def queue_size_bytes(self) -> int:
        return self.queue_size_mb * BYTES_PER_MB


_FIELDS = tuple(field.name for field in fields(GroupSpec))
_COUNTS = frozenset({"hash_count", "queue_count", "queue_size_mb", "max_clients"})
_REQUIRED = _FIELDS[:6]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which a group that exists differs from the one wanted."""

    field: str
    existing: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.field}: {self.existing} -> {self.wanted}"


def differences(existing: GroupSpec, wanted: GroupSpec) -> tuple[Difference, ...]:
    """Every field in which the two differ, in the order of the fields; empty when they are the same group."""
    return tuple(
        Difference(field, getattr(existing, field), getattr(wanted, field))
        for field in _FIELDS
        if getattr(existing, field) != getattr(wanted, field)
    )


def _integer(field: str, value: object, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise SpecError(field, value, f"must be an integer from 1 to {maximum}")
    return value


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError("hash_prefix", value, "must be text of at least one character")
    if any(mark in value for mark in ".#*"):
        raise SpecError("hash_prefix", value, "must not contain . # or *: it is one word of a topic")
    return _plain("hash_prefix", value, PREFIX_MAX_BYTES)


def _username(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError("client_username", value, "must be text of at least one character")
    if ":" in value:
        raise SpecError(
            "client_username", value, "must not contain a colon: HTTP basic authentication ends there"
        )
    return _plain("client_username", value, USERNAME_MAX_BYTES)


def _plain(field: str, value: str, maximum_bytes: int) -> str:
    if not value.isprintable() or " " in value:
        raise SpecError(field, value, "must not contain spaces or unprintable characters")
    if len(value.encode()) > maximum_bytes:
        raise SpecError(field, value, f"must take at most {maximum_bytes} bytes of UTF-8")
    return value


def _one_of(field: str, value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise SpecError(field, value, f"must be one of {', '.join(known)}")
    return value


def _excerpt(text: str | bytes) -> str:
    """A broken record may hold a password, so only its size is shown."""
    return f"({len(text)} long)"
