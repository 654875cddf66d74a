"""A group as its LoadBalancedGroup declares it, or as the keys in a journal show it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.durations import seconds_of
from lbg_core.group import (
    ATTRIBUTES,
    EXCLUSIVE,
    HASH_FUNCTIONS,
    MODES,
    SESSIONS,
    SpecError,
    default_assignment,
    group_name_of,
    hash_of,
)
from lbg_core.group.spec import HASH_COUNT_MAX
from lbg_pipeline.errors import PlanRefused

_KIND = "LoadBalancedGroup"
_CONCURRENCY = {"HTTP": 16, "Stream": 256}
"""The sidecar's default, for a manifest without one (docs/sidecar.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Fields of a manifest that a plan depends on, with the CRD's defaults. `group` is the name on the broker.
    Without scaling `members_min` is None, and `members` the replicas; with it the most that it allows.
    `target_delay_s` is None without spec.scaling.targetDelay."""

    name: str
    group: str
    mode: str
    hash_count: int
    hash_function: str
    queue_count: int
    assignment: str
    replicas: int
    members_min: int | None
    members: int
    target_delay_s: float | None
    concurrency: int
    queue_is_a_lane: bool


def read_manifest(path: Path, *, group: str | None) -> Declared:
    """The one LoadBalancedGroup in the file, or that of `group` if there are several. Raises PlanRefused."""
    import yaml  # here: executors import this module, and their Python need not have it

    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise PlanRefused(f"{path}: {error.strerror}: name the group's manifest with --manifest") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanRefused(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    try:
        groups = [_declared(one) for one in _objects(documents)]
    except _Wrong as error:
        raise PlanRefused(f"{path}: {error}") from None
    named = [one for one in groups if group in (None, one.group)]
    if len(named) == 1:
        return named[0]
    if not groups:
        raise PlanRefused(
            f"{path} has no {_KIND} in it: name the file that `kubectl get lbg NAME -o yaml` makes"
        )
    names = ", ".join(one.group for one in groups)
    if named:
        raise PlanRefused(f"{path} has the groups {names}: name one of them with --group")
    raise PlanRefused(
        f"{path} is of group {names} on the broker, and not of {group}: correct --group, or write the manifest with "
        "`kubectl get lbg NAME -o yaml`, which has the group's name"
    )


class _Wrong(ValueError):
    pass


def _objects(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        if isinstance(document, Mapping):
            listed = document.get("items") if document.get("kind") == "List" else [document]
            yield from (one for one in listed or () if isinstance(one, Mapping) and one.get("kind") == _KIND)


def _declared(manifest: Mapping[str, Any]) -> Declared:
    metadata, spec = _mapping(manifest, "metadata"), _mapping(manifest, "spec")
    name = str(metadata.get("name", ""))
    hashing, queues = _mapping(spec, "hash"), _mapping(spec, "queues")
    scaling = _mapping(spec, "scaling") if "scaling" in spec else None
    app = _mapping(_mapping(spec, "consumer"), "app")
    mode = _word(spec, "mode", MODES, EXCLUSIVE)
    replicas = _count(spec, "replicas", 1, least=0)
    return Declared(
        name=name,
        group=group_name_of(manifest),
        mode=mode,
        hash_count=_count(hashing, "count", 128),
        hash_function=_word(hashing, "function", tuple(HASH_FUNCTIONS), "crc32"),
        queue_count=_count(queues, "count", None),
        assignment=_word(spec, "assignment", ATTRIBUTES["assignment"].choices, default_assignment(mode)),
        replicas=replicas,
        members_min=None if scaling is None else _count(scaling, "minReplicas", 1),
        members=max(1, replicas) if scaling is None else _count(scaling, "maxReplicas", None),
        target_delay_s=_duration_s(scaling or {}, "targetDelay"),
        concurrency=_concurrency(app),
        queue_is_a_lane=mode == SESSIONS or app.get("order") == "Queue",
    )


def _concurrency(app: Mapping[str, Any]) -> int:
    if "concurrency" in app:
        return _count(app, "concurrency", None)
    if app.get("channel") == "HTTPBatch":
        batch = _mapping(app, "batch")
        return _count(batch, "size", 200) * _count(batch, "requests", 2)
    return _CONCURRENCY.get(str(app.get("channel", "HTTP")), 16)


def _mapping(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name, {})
    if not isinstance(value, Mapping):
        raise _Wrong(f"{name} is {value!r:.40} and must be an object")
    return value


def _count(parent: Mapping[str, Any], name: str, default: int | None, *, least: int = 1) -> int:
    value = parent.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _Wrong(f"{name} is {value!r:.40} and must be a whole number of at least {least}")
    return value


def _duration_s(parent: Mapping[str, Any], name: str) -> float | None:
    """Of a duration such as 1m30s (Gateway API, GEP-2257); None without the field."""
    value = parent.get(name)
    if value is None:
        return None
    try:
        return seconds_of(str(value))
    except ValueError:
        raise _Wrong(f"{name} is {value!r:.40} and must be a duration such as 10s") from None


def _word(parent: Mapping[str, Any], name: str, words: tuple[str, ...], default: str) -> str:
    value = parent.get(name, default)
    if value not in words:
        raise _Wrong(f"{name} is {value!r:.40} and must be one of {', '.join(words)}")
    return str(value)


ENOUGH = 24
"""Different keys after which a common divisor that is too large by chance is out of the question (1 in 2**23)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Hash and queue of one key, from a record."""

    key: str
    hash: int
    queue: int


@dataclass(frozen=True, slots=True)
class Recognised:
    """Counts and function of the group by its stamps; None for those that the stamps do not determine."""

    hash_count: int | None = None
    hash_function: str | None = None
    queue_count: int | None = None


def recognise(stamps: Collection[Stamp]) -> Recognised:
    """hash = H(key) mod count, so the count divides H(key) - hash of every key, and nothing larger divides them all."""
    if len({stamp.key for stamp in stamps}) < ENOUGH:
        return Recognised()
    for name, whole in HASH_FUNCTIONS.items():
        try:
            count = math.gcd(*(whole(stamp.key) - stamp.hash for stamp in stamps))
        except SpecError:
            continue  # keys that are no numbers were not hashed by `modulo`
        if max(stamp.hash for stamp in stamps) < count <= HASH_COUNT_MAX:
            return Recognised(count, name, _queue_count(stamps, count))
    return Recognised()


def _queue_count(stamps: Collection[Stamp], hash_count: int) -> int | None:
    count = math.gcd(*(stamp.hash - stamp.queue for stamp in stamps))
    if count == 0:
        return hash_count
    return count if count > max(stamp.queue for stamp in stamps) else None


def first_stranger(stamps: Collection[Stamp], hash_count: int, function: str) -> Stamp | None:
    """A key whose record has another hash. Queues are not compared: groups are repartitioned."""
    for stamp in stamps:
        try:
            if hash_of(stamp.key, hash_count, function) != stamp.hash:
                return stamp
        except SpecError:
            return stamp
    return None
