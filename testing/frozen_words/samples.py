"""Sample values of the product's types, and walks through the JSON that they become."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from lbg_core.group import spec

SAMPLE_TEXT = "sample"


def samples(kind: Any, **given: object) -> list[Any]:
    """Instances of a dataclass, from its types alone: together they have every value of its enumerations and flags."""
    made = [_filled(kind, turn, given) for turn in range(8)]
    return list({repr(one): one for one in made}.values())


def _filled(kind: Any, turn: int, given: Mapping[str, object] | None = None) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {one.name: _filled(hints[one.name], turn) for one in dataclasses.fields(kind)}
        return kind(**values | {name: value for name, value in (given or {}).items() if name in values})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return (
            (_filled(inner[0], turn),) if inner[1:] == (...,) else tuple(_filled(one, turn) for one in inner)
        )
    if origin is dict or origin is Mapping:
        return {SAMPLE_TEXT: _filled(inner[1], turn)}
    if type(None) in inner:
        return _filled(inner[0], turn)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[turn % len(list(kind))]
    return {bool: turn % 2 == 0, int: 1, float: 1.0, str: SAMPLE_TEXT}[kind]


def paths(value: object, path: str = "") -> set[str]:
    """Every name in JSON with the names above it; what a list has is behind []."""
    if isinstance(value, Mapping):
        found = set()
        for name, inner in value.items():
            where = f"{path}.{name}".lstrip(".")
            found |= {where} | paths(inner, where)
        return found
    if isinstance(value, list):
        return {word for inner in value for word in paths(inner, f"{path}[]")}
    return set()


def texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in JSON, with the name that it stands under."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, path)
    elif isinstance(value, str):
        yield path, value


def sample_spec(mode: str, **given: Any) -> Any:
    counts = {} if mode in ("MessageGroups", "Sessions") else {"queue_count": 2}
    settings = {"rebalance_delay_s": 7.0, "max_handoff_s": 8.0} if mode == "Partitioned" else {}
    least = {"hash_count": 4, "queue_size_mb": 64, "client_username": "orders", "max_clients": 2}
    return spec.GroupSpec("orders", "orders", mode=mode, **counts, **settings, **least, **given)


def arguments(thing: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(thing.arguments.items()))
