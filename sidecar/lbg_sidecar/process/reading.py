"""From texts and TOML values to the types of a settings dataclass."""

from __future__ import annotations

import enum
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


def read_value(kind: Any, value: object) -> object:
    """`value`, a text of the environment or a value of TOML, as `kind`. Raises ValueError with the rule."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
    if kind is bool:
        return _boolean(value)
    if kind is int:
        return _whole(value)
    if kind is float:
        return _number(value)
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if issubclass(kind, enum.StrEnum):
        if value not in list(kind):
            raise ValueError(f"must be one of {', '.join(kind)}")
        return kind(value)
    if kind is Path:
        if not value:
            raise ValueError("must be a path")
        return Path(value)
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*YES, *NO):
        return value.lower() in YES
    raise ValueError("must be true or false")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise ValueError("must be a whole number")


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError("must be a number")
