"""Attributes of a group: parsing, validation, and the record that the broker stores.

The record stays the group's own, and has one key more: `CL`. The broker refuses what is published to a closed group
as it refuses for a full queue; with `CL` a publisher does not wait.

The record stays the group's own, and has one key more: `RP`, the number of queues that there are to be. With `QC` as it
was, nothing is decided yet; with `QC` equal to it, all that is left is to let members settle and publishers in. With
`RP` the group accepts no messages for now (docs/adr/0033-repartitioning.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from lbg_core.declaration import Declaration, about, check, declarations
from lbg_core.group.errors import NewerRecordError, SpecError
from lbg_core.group.hashing import HashFunction
from lbg_core.group.names import require_group_name

T = TypeVar("T")

Mode: TypeAlias = Literal["Exclusive", "Partitioned", "MessageGroups", "Sessions"]

Assignment: TypeAlias = Literal["Balanced", "Static", "ByLoad"]

BALANCED: Final = "Balanced"
STATIC: Final = "Static"
BY_LOAD: Final = "ByLoad"

EXCLUSIVE: Final = "Exclusive"
PARTITIONED: Final = "Partitioned"
MESSAGE_GROUPS: Final = "MessageGroups"
SESSIONS: Final = "Sessions"

MODES: tuple[Mode, ...] = (EXCLUSIVE, PARTITIONED, MESSAGE_GROUPS, SESSIONS)
"""Every mode that a group may have; provisioning checks whether an engine supports it."""


def default_assignment(mode: str) -> Assignment:
    """Mode Partitioned has the one that it has on each engine."""
    return BY_LOAD if mode == EXCLUSIVE else BALANCED


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


def _plain(field: str, value: str, maximum_bytes: int) -> str:
    if not value.isprintable() or " " in value:
        raise SpecError(field, value, "must not contain spaces or unprintable characters")
    if len(value.encode()) > maximum_bytes:
        raise SpecError(field, value, f"must take at most {maximum_bytes} bytes of UTF-8")
    return value


DERIVED: Any = None
"""Default of an attribute that follows from others."""

BYTES_PER_MB = 1_000_000

RECORD_VERSION: Final = 1
VERSION_KEY: Final = "V"

_PASSWORDS = frozenset({"CP", "client_password"})

REPARTITION_KEY = "RP"
CLOSED_KEY = "CL"
UNFINISHED_KEY = "UF"
"""Fields of a record that are no attributes: a repartition under way, a closed group, an unfinished create."""


@dataclass(frozen=True, slots=True)
class Attribute(Declaration):
    """An attribute of a group.

    - `key`: its key in the record; empty: it has none.
    - `manifest`: its field in a LoadBalancedGroup; empty: it has none.
    - `modes`: those in which it may be another than its default; empty: all.
    - `shown`: its words in `lbg group show`, beside those that every group has.
    - `is_alterable`: a group that exists may get another value, and is the same group.
    """

    key: str = ""
    manifest: str = ""
    modes: tuple[Mode, ...] = ()
    shown: str = ""
    is_alterable: bool = False

    def counts_in(self, mode: str) -> bool:
        """False where it is always its default."""
        return not self.modes or mode in self.modes


def attribute(key: str, default: T, help_: str, **more: Any) -> T:
    """The field of an attribute: its key in the record, its default, its help, and fields of its Attribute."""
    made: T = field(default=default, metadata=about(help_, Attribute, key=key, **more))
    return made


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group's attributes, always valid. Raises SpecError.

    ::

        GroupSpec("orders", hash_count=100, queue_count=8, queue_size_mb=64)

    `max_clients` is CC of HC >= QC >= CC ("Sticky Load Balancing"). `limits_clients`: it was given, so it stays when
    the number of queues changes; two specs that differ in nothing else are equal. There is no password in it.
    """

    name: str = field(metadata=about("Name of the group", Attribute))
    hash_prefix: str = attribute(
        "HP", DERIVED, "First word of every routing key; by default the name", manifest="hash.prefix"
    )
    _: KW_ONLY
    hash_count: int = attribute(
        "HC", 100, "Number of hashes of the key space", least=1, most=HASH_COUNT_MAX, manifest="hash.count"
    )
    queue_count: int = attribute(
        "QC",
        DERIVED,
        "Number of queues or partitions, and so of members that are active at a time; by default 4, in modes "
        "MessageGroups and Sessions 1",
        least=1,
        most=QUEUE_COUNT_MAX,
        manifest="queues.count",
    )
    queue_size_mb: int = attribute(
        "QS",
        1000,
        "Spool limit of each queue in megabytes (1,000,000 bytes); a full queue refuses",
        least=1,
        most=QUEUE_SIZE_MAX_MB,
        manifest="queues.size",
    )
    client_username: str = attribute(
        "CU", DERIVED, "User of the members, which is created; by default the name", metavar="NAME"
    )
    hash_function: HashFunction = attribute(
        "HF", "crc32", "Function from a key to its hash", manifest="hash.function"
    )
    mode: Mode = attribute(
        "MD", EXCLUSIVE, "Rule by which members share the stream ([modes.md](modes.md))", manifest="mode"
    )
    max_clients: int = attribute(
        "CC",
        DERIVED,
        "Highest number of members; by default the queue count, in modes MessageGroups and Sessions the hash count",
        least=1,
        most=HASH_COUNT_MAX,
        is_alterable=True,
    )
    rebalance_delay_s: float = attribute(
        "RD",
        5.0,
        "Mode Partitioned: how long membership must be stable before partitions move",
        least=0,
        most=DURATION_MAX_S,
        manifest="rebalanceDelaySeconds",
        modes=(PARTITIONED,),
        shown="rebalance delay {:g} s",
    )
    """Solace's default, and that of `max_handoff_s` ("Configuring Partitioned Queues")."""
    max_handoff_s: float = attribute(
        "MH",
        3.0,
        "Mode Partitioned: longest pause of a partition for a handoff",
        least=0,
        most=DURATION_MAX_S,
        manifest="maxHandoffSeconds",
        modes=(PARTITIONED,),
        shown="handoffs within {:g} s",
    )
    assignment: Assignment = attribute(
        "AS",
        DERIVED,
        "Mode Exclusive, and Partitioned on RabbitMQ: rule by which queues are assigned to members. `Balanced`: loads "
        "differ by at most one queue. `ByLoad`: as Balanced, and queues leave members that have more to do than "
        "others. `Static`: queue mod the highest number of members == index. By default ByLoad in mode Exclusive, "
        "Balanced in others ([balance-and-scale.md](balance-and-scale.md))",
        manifest="assignment",
        modes=(EXCLUSIVE, PARTITIONED),
        shown="assignment {}",
        is_alterable=True,
    )
    """`Balanced`: only what must move moves. `ByLoad`: docs/adr/0087-exceptions-by-load.md. `Static`: that of "Sticky
    Load Balancing". The broker decides who is active, whatever it is."""
    rebalance_threshold_percent: int = attribute(
        "RT",
        10,
        "Assignment `ByLoad`: a queue moves if the load of the busier one of both members falls by so many percent; a "
        "higher threshold moves fewer queues",
        least=1,
        most=90,
        manifest="rebalanceThresholdPercentage",
        modes=(EXCLUSIVE, PARTITIONED),
        metavar="PERCENT",
        is_alterable=True,
    )
    """Name and default are those of KCL 3 (`reBalanceThresholdPercentage`)."""
    limits_clients: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("limits_clients", self.max_clients is not None)
        has_one_queue = self.mode in UNCOUNTED_MODES
        derived = self._derived()
        for name, value in derived.items():
            if getattr(self, name) is None:
                set_field(name, value)
        if not self.limits_clients:
            set_field("max_clients", self.hash_count if has_one_queue else self.queue_count)
        require_group_name(self.name)
        prefix(self.hash_prefix)
        username(self.client_username)
        check(self, SpecError)
        if has_one_queue and self.queue_count != 1:
            rule = f"must be 1 in mode {self.mode}: all members consume the one queue"
            raise SpecError("queue_count", self.queue_count, rule)
        if self.queue_count > self.hash_count:
            rule = f"must be at most hash_count ({self.hash_count}): HC >= QC >= CC"
            raise SpecError("queue_count", self.queue_count, rule)
        if not has_one_queue and self.max_clients > self.queue_count:
            rule = f"must be at most queue_count ({self.queue_count}): HC >= QC >= CC"
            raise SpecError("max_clients", self.max_clients, rule)
        for name, one in ATTRIBUTES.items():
            value = getattr(self, name)
            if one.kind is float:  # to the millisecond, the unit of a queue's arguments
                set_field(name, round(value, 3))
            if not one.counts_in(self.mode) and value != derived.get(name, one.default):
                modes = " or ".join(one.modes)
                raise SpecError(name, value, f"goes with mode {modes} only, and this is {self.mode}")

    def _derived(self) -> dict[str, Any]:
        """Defaults that follow from other attributes; without `max_clients`, which also counts as given or not."""
        return {
            "hash_prefix": self.name,
            "client_username": self.name,
            "queue_count": 1 if self.mode in UNCOUNTED_MODES else 4,
            "assignment": default_assignment(self.mode),
        }

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
        found: dict[str, Any] = {}
        for key, value in record.items():
            if key in _PASSWORDS or key in (REPARTITION_KEY, CLOSED_KEY):
                continue
            if key == UNFINISHED_KEY:
                raise SpecError("key", key, "is of a group whose create was not finished")
            if key not in _BY_KEY:
                # Not the value: under a mistyped name it may be a password.
                raise SpecError("key", key, f"is none of a record's: {', '.join(_BY_KEY)}")
            one = _BY_KEY[key]
            try:
                found[one.name] = one.read(value)
            except ValueError as error:
                raise SpecError(one.name, value, str(error)) from None
        for key in _REQUIRED_KEYS:
            if key not in record and not (key == "QC" and found.get("mode") in UNCOUNTED_MODES):
                raise SpecError(_BY_KEY[key].name, None, "is required")
        return cls(name, **found)

    @classmethod
    def from_unfinished(cls, text: str | bytes, *, name: str) -> GroupSpec | None:
        """The spec of group `name` whose create was not finished; None where the record is not one of such a group."""
        record = _fields_in(text)
        if record.pop(UNFINISHED_KEY, None) is not True:
            return None
        try:
            return cls.from_record(json.dumps(record), name=name)
        except SpecError:
            return None

    def to_unfinished(self) -> str:
        """The record of the group while it is being made: only the next create reads it."""
        return self.to_record({UNFINISHED_KEY: True})

    def to_record(self, further: Mapping[str, object] | None = None) -> str:
        """The record as compact JSON, with the names of "Sticky Load Balancing", and `further` fields.

        V, its version; HP, HC, QC, QS, CU; the others where they are not the default, and CC where it was given.
        """
        record: dict[str, object] = {VERSION_KEY: RECORD_VERSION}
        derived = self._derived()
        for key, one in _BY_KEY.items():
            value = getattr(self, one.name)
            is_default = value == derived.get(one.name, one.default)
            if one.name == "max_clients":
                is_default = not self.limits_clients
            if key in _REQUIRED_KEYS or not is_default:
                record[key] = value
        return json.dumps(record | dict(further or {}), separators=(",", ":"), ensure_ascii=False)

    def altered(self, **changes: object) -> GroupSpec:
        """The same group with other values of some attributes; a limit of clients that was not given is not given.

        Raises SpecError.
        """
        fields: dict[str, Any] = self.attributes()
        if not self.limits_clients:
            del fields["max_clients"]
        return GroupSpec(**fields | changes)

    def altered_as(self, other: GroupSpec) -> GroupSpec:
        """The same group with `other`'s values of what a group may alter, its limit of clients as far as it fits."""
        limit = other.max_clients if other.limits_clients else None
        if limit is not None and self.mode not in UNCOUNTED_MODES:
            limit = min(limit, self.queue_count)
        return self.altered(**other.alterable | {"max_clients": limit})

    def attributes(self) -> dict[str, object]:
        """Every attribute and its value."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    @property
    def alterable(self) -> dict[str, Any]:
        """Attributes that the group may change, and their values."""
        return {name: getattr(self, name) for name, one in ATTRIBUTES.items() if one.is_alterable}

    @property
    def queue_size_bytes(self) -> int:
        return self.queue_size_mb * BYTES_PER_MB


ATTRIBUTES = cast(Mapping[str, Attribute], declarations(GroupSpec))
"""All attributes by name, in the order to show them."""

_BY_KEY = {one.key: one for one in ATTRIBUTES.values() if one.key}
_REQUIRED_KEYS = ("HP", "HC", "QC", "QS", "CU")
"""Those of "Sticky Load Balancing", also for values that are the default."""


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
        for field in ATTRIBUTES
        if getattr(existing, field) != getattr(desired, field)
    )


def conflicts(existing: GroupSpec, desired: GroupSpec) -> tuple[Difference, ...]:
    """The differences that nobody can alter: one of the two is another group."""
    return tuple(one for one in differences(existing, desired) if not ATTRIBUTES[one.field].is_alterable)


def is_recount(existing: GroupSpec, desired: GroupSpec) -> bool:
    """True if the two differ in nothing but the number of queues or partitions, and what a group may alter."""
    return {one.field for one in conflicts(existing, desired)} <= {"queue_count"}


def _excerpt(text: str | bytes) -> str:
    """A broken record may hold a password, so only its size is shown."""
    return f"({len(text)} long)"


def closed_record(spec: GroupSpec) -> str:
    """The record of a group that is closed."""
    return spec.to_record({CLOSED_KEY: True})


def is_closed_in(record: str) -> bool:
    """True if the group was closed; False where the record is none."""
    return _fields_in(record).get(CLOSED_KEY) is True


def _fields_in(record: str | bytes) -> dict[str, Any]:
    """Of a record; none where it is not one."""
    try:
        fields = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


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
    return spec.to_record({REPARTITION_KEY: queue_count})


def repartition_in(record: str) -> int | None:
    """The number of queues to which the group is being changed; None without a change or a record."""
    target = _fields_in(record).get(REPARTITION_KEY)
    return target if isinstance(target, int) else None
