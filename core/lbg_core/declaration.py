"""Settings and attributes that are declared once: fields of a dataclass, with their help and bounds in `about`.

Options, environment variables, files, tables of docs and checks follow from `declarations`. No I/O here.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")

_ABOUT = "about"
_NAME = re.compile(r"\{(\w+)\}")
_REFERENCE = re.compile(r"\(\[[^]]+\]\(([^)#]+)[^)]*\)\)")
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One setting or attribute, as its field and `about` declare it.

    - `help`: a sentence in Markdown without its full stop; names of other settings stand in braces.
    - `least`, `above`, `most`: bounds of a number, of which `above` is excluded. `begins`: the beginning of a text.
    - `metavar`: the value's word in help; empty: it follows from the type and the unit.
    - `variable`: the environment variable that an option reads; empty: none.
    - `is_secret`: no error shows the value.
    - `kind`: its type, without None and without the texts that are accepted beside an enum or a path.
    - `default`: None where there is none.
    """

    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    begins: str = ""
    metavar: str = ""
    variable: str = ""
    is_secret: bool = False
    name: str = ""
    kind: Any = str
    default: Any = None
    is_required: bool = False

    @property
    def option(self) -> str:
        """`--rebalance-delay` of `rebalance_delay_s`: help and metavar give the unit."""
        return option_of(self.name)

    def help_for(self, name_of: Callable[[str], str]) -> str:
        """The help with other settings as `name_of` names them."""
        return _NAME.sub(lambda found: name_of(found[1]), self.help)

    def read(self, value: object) -> object:
        """`value`, a text of the environment or a value of TOML, as `kind`. Raises ValueError with the rule."""
        if self.kind is bool:
            return _boolean(value)
        if self.kind is int:
            return _whole(value)
        if self.kind is float:
            return _number(value)
        if not isinstance(value, str):
            raise ValueError("must be a text")
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        """`value` in its bounds, an enum or a path of its text. Raises ValueError with the rule."""
        if self.kind is Path:
            if not str(value):
                raise ValueError("must be a path")
            return Path(value)
        if issubclass(self.kind, enum.StrEnum):
            if value not in list(self.kind):
                raise ValueError(f"must be one of {', '.join(self.kind)}")
            return self.kind(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.least is not None and not (is_number and value >= self.least):
            raise ValueError(f"must be at least {self.least}")
        if self.above is not None and not (is_number and value > self.above):
            raise ValueError(f"must be above {self.above}")
        if self.most is not None and not (is_number and value <= self.most):
            raise ValueError(f"must be at most {self.most}")
        if not str(value).startswith(self.begins):
            raise ValueError(f"must start with {self.begins}")
        return value


def about(help_: str, **more: Any) -> Mapping[str, Declaration]:
    """The metadata of a field without a default: its help, and fields of its Declaration."""
    return {_ABOUT: Declaration(help_, **more)}


def declared(default: T, help_: str, **more: Any) -> T:
    """A field with a default, its help, and fields of its Declaration."""
    made: T = field(default=default, metadata=about(help_, **more))
    return made


@cache
def declarations(*holders: type) -> Mapping[str, Declaration]:
    """All declared fields of the dataclasses by name, in their order; the first of a name counts."""
    found: dict[str, Declaration] = {}
    for holder in holders:
        kinds = get_type_hints(holder)
        for one in fields(holder):
            if _ABOUT in one.metadata and one.name not in found:
                is_required = one.default is MISSING
                found[one.name] = replace(
                    one.metadata[_ABOUT],
                    name=one.name,
                    kind=_kind_of(kinds[one.name]),
                    default=None if is_required else one.default,
                    is_required=is_required,
                )
    return found


def check(instance: object, error: Callable[[str, object, str], Exception]) -> None:
    """Every value of a frozen dataclass in its bounds, as its type; None is one where it is the default.

    Raises `error`, of the name, the value and the rule.
    """
    for name, one in declarations(type(instance)).items():  # type: ignore[arg-type]  # any class is hashable
        value = getattr(instance, name)
        if value is None and one.default is None:
            continue
        try:
            object.__setattr__(instance, name, one.checked(value))
        except ValueError as wrong:
            raise error(name, value, str(wrong)) from None


def option_of(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def without_links(text: str) -> str:
    """Markdown for a terminal: a link is its text, and one in parentheses its page."""
    return _LINK.sub(r"\1", _REFERENCE.sub(r"(docs/\1)", text))


def _kind_of(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    choices: Sequence[Any] = get_args(kind)
    kinds = [one for one in choices if one is not types.NoneType and get_origin(one) is not Literal]
    found = [one for one in kinds if one is not str] or kinds
    return found[0] if isinstance(found[0], type) else str


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
