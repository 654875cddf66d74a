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
    - `kind`: its type, without None and without the texts that are accepted beside an enum or a path. `choices`: its
      values, of an enum or a Literal.
    - `default`: None where there is none. `is_optional`: None is a value, too.
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
    choices: tuple[str, ...] = ()
    default: Any = None
    is_required: bool = False
    is_optional: bool = False

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
        if isinstance(value, str) and self.kind in (int, float):
            try:
                value = self.kind(value)
            except ValueError:
                raise ValueError(self._number_rule) from None
        if self.kind not in (int, float) and not isinstance(value, str):
            raise ValueError("must be a text")
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        """`value` in its bounds, an enum or a path of its text. Raises ValueError with the rule."""
        if self.kind in (int, float):
            if (
                not isinstance(value, int | self.kind)
                or isinstance(value, bool)
                or not self._has_room_for(value)
            ):
                raise ValueError(self._number_rule)
            try:
                return self.kind(value)
            except OverflowError:
                raise ValueError(self._number_rule) from None
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        if self.kind is Path and not str(value):
            raise ValueError("must be a path")
        if not str(value).startswith(self.begins):
            raise ValueError(f"must start with {self.begins}")
        return value if self.kind in (str, bool) else self.kind(value)

    def _has_room_for(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def _number_rule(self) -> str:
        noun = "a whole number" if self.kind is int else "a number"
        if self.most is not None:
            return f"must be {noun} from {self.least} to {self.most}"
        if self.above is not None:
            return f"must be {noun} above {self.above}"
        return f"must be {noun}" if self.least is None else f"must be {noun} of at least {self.least}"


def about(help_: str, declaration: type[Declaration] = Declaration, **more: Any) -> Mapping[str, Declaration]:
    """The metadata of a field without a default: its help, and fields of its Declaration."""
    return {_ABOUT: declaration(help_, **more)}


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
                kind, choices, is_optional = _kind_of(kinds[one.name])
                found[one.name] = replace(
                    one.metadata[_ABOUT],
                    name=one.name,
                    kind=kind,
                    choices=choices,
                    default=None if is_required else one.default,
                    is_required=is_required,
                    is_optional=is_optional,
                )
    return found


def check(instance: object, error: Callable[[str, object, str], Exception]) -> None:
    """Every value of a frozen dataclass in its bounds, as its type.

    Raises `error`, of the name, the value and the rule.
    """
    for name, one in declarations(type(instance)).items():  # type: ignore[arg-type]  # any class is hashable
        value = getattr(instance, name)
        if value is None and one.is_optional:
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


def _kind_of(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """The type that a hint stands for, its choices, and True if it has None. Texts are accepted beside an enum or a
    path."""
    options: Sequence[Any] = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [one for one in options if isinstance(one, type) and one not in (str, types.NoneType)]
    words = [word for one in options if get_origin(one) is Literal for word in get_args(one)]
    kind = kinds[0] if kinds else str
    choices = tuple(kind) if issubclass(kind, enum.StrEnum) else () if kinds else tuple(words)
    return kind, choices, types.NoneType in options


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*YES, *NO):
        return value.lower() in YES
    raise ValueError("must be true or false")
