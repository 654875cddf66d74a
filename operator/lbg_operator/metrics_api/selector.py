"""Label selectors (Kubernetes labels and selectors) on objects with one label.

The grammar is that of `k8s.io/apimachinery/pkg/labels`: `=`, `==`, `!=`, `in`, `notin`, `<`, `>`, existence; the empty
text is a value, and `in` may be one too where a value is expected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lbg_operator.errors import SelectorError

GROUP = "group"
VALUE_MAX, PREFIX_MAX = 63, 253

_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!<>(),]|[^ \t\r\n=!<>(),]+)")
_SPACE = " \t\r\n"
_SYMBOLS = frozenset({"=", "==", "!=", "!", "<", ">", "(", ")", ","})
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WHOLE = re.compile(r"[0-9]+")
_END = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """`operator` is `in`, `notin`, `exists`, `!`, `<` or `>`; signs of equality are `in` and `notin` of one value."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, group: str) -> bool:
        """An object that has the label `group`, and no other."""
        if self.key != GROUP:
            return self.operator in ("notin", "!")
        match self.operator:
            case "in":
                return group in self.values
            case "notin":
                return group not in self.values
            case "exists":
                return True
            case "!":
                return False
            case _:
                (limit,) = self.values
                if not _WHOLE.fullmatch(group):
                    return False
                return int(group) > int(limit) if self.operator == ">" else int(group) < int(limit)


def groups_asked(selector: str) -> list[str]:
    """The groups that `selector` names and lets pass, sorted. Raises SelectorError.

    A selector that names none could mean every group of the namespace. Their sum scales nothing, so it is taken for
    what it most likely is: a forgotten label.
    """
    requirements = parse(selector)
    named = [one.values for one in requirements if one.key == GROUP and one.operator == "in"]
    if not named:
        raise SelectorError(
            f'labelSelector "{selector}" names no group: ask with group=NAME, or group in (NAME, NAME)'
        )
    return sorted(
        name for name in frozenset.intersection(*named) if all(one.matches(name) for one in requirements)
    )


def parse(selector: str) -> list[Requirement]:
    """Raises SelectorError."""
    reading = _Reading(_tokens(selector))
    requirements: list[Requirement] = []
    if reading.next == _END:
        return requirements
    while True:
        requirements.append(_requirement(reading))
        if reading.next == _END:
            return requirements
        reading.expect(",")


def _tokens(selector: str) -> list[str]:
    return [match[1] for match in _TOKEN.finditer(selector.rstrip(_SPACE))]


class _Reading:
    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [*tokens, _END]
        self._at = 0

    @property
    def next(self) -> str:
        return self._tokens[self._at]

    def take(self) -> str:
        token = self.next
        if token != _END:
            self._at += 1
        return token

    def expect(self, token: str) -> None:
        if (token_read := self.take()) != token:
            raise SelectorError(f'unable to parse requirement: found "{token_read}", expected "{token}"')

    def word(self, what: str) -> str:
        token = self.take()
        if token == _END or token in _SYMBOLS:
            raise SelectorError(f'unable to parse requirement: found "{token}", expected {what}')
        return token


def _requirement(reading: _Reading) -> Requirement:
    is_absent = reading.next == "!"
    if is_absent:
        reading.take()
    key = _key(reading.word("a label's name"))
    if is_absent:
        return Requirement(key, "!")
    if reading.next in (_END, ","):
        return Requirement(key, "exists")
    match operator := reading.take():
        case "in" | "notin":
            return Requirement(key, operator, frozenset(map(_value, _listed(reading))))
        case "=" | "==":
            return Requirement(key, "in", frozenset({_single(reading)}))
        case "!=":
            return Requirement(key, "notin", frozenset({_single(reading)}))
        case "<" | ">":
            value = _single(reading)
            if not _WHOLE.fullmatch(value):
                raise SelectorError(f'"{value}" is not a whole number, which {operator} compares')
            return Requirement(key, operator, frozenset({value}))
    raise SelectorError(
        f'unable to parse requirement: found "{operator}", expected one of =, ==, !=, in, notin, <, >'
    )


def _single(reading: _Reading) -> str:
    return "" if reading.next in (_END, ",") else _value(reading.word("a value"))


def _listed(reading: _Reading) -> list[str]:
    reading.expect("(")
    values = [_listed_value(reading)]
    while reading.next == ",":
        reading.take()
        values.append(_listed_value(reading))
    reading.expect(")")
    return values


def _listed_value(reading: _Reading) -> str:
    return "" if reading.next in (",", ")") else reading.word("a value")


def _key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    is_prefixed = len(prefix) <= PREFIX_MAX and _SUBDOMAIN.fullmatch(prefix) is not None
    if (slash and not is_prefixed) or len(name) > VALUE_MAX or not _NAME.fullmatch(name):
        raise SelectorError(f'"{text}" is not a name of a label')
    return text


def _value(text: str) -> str:
    if text and (len(text) > VALUE_MAX or not _NAME.fullmatch(text)):
        raise SelectorError(f'"{text}" is not a value of a label')
    return text
