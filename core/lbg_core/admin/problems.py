"""Problems of groups, and the one place that renders them. Pure.

Others' names, as of a member or a key, fill the sentence of a kind, and the words of its commands; no code reads a
sentence. `text_of` and `lines_of` render lines for a terminal and for a condition of Kubernetes, `Problem.to_json` the
fields for JSON and for pages. `worst_first` has the order of all lists, `Severity` the one that renderers colour by.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from string import Formatter
from typing import Any

from lbg_core.admin.problem_kinds import AS_CREATED, Kind, Severity
from lbg_core.peers import printable

_COMMAND = re.compile("`(lbg [^`]*)`")

NAMED_MAX = 5
"""Names in a list; of a longer one the number of the others is shown."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Names of what a problem is about, as others gave them; empty for what it is not about."""

    group: str
    queue: str = ""
    exchange: str = ""
    members: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    message: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Act that solves a problem, with its commands as lists of words."""

    text: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a group, or what a change of it waits for. While its kind and subject stay, it is the same one,
    whatever its figures and causes are."""

    kind: Kind
    subject: Subject
    figures: Mapping[str, object] = field(default_factory=dict, hash=False)
    causes: tuple[Problem, ...] = field(default=(), hash=False)

    @property
    def remedy(self) -> Remedy | None:
        """None without one, and where a command lacks a word, as the id of a message that is not reported."""
        commands = tuple(argv(one, **self._fields) for one in _COMMAND.findall(self.kind.remedy))
        if not self.kind.remedy or any("" in one for one in commands):
            return None
        return Remedy(self.remedy_text(), commands)

    def remedy_text(self, quote: str = "") -> str:
        """Text of the remedy, with each command between two `quote`."""
        parts = _COMMAND.split(self.kind.remedy)
        parts[::2] = map(self.sentence, parts[::2])
        commands = (command_line(argv(one, **self._fields)) for one in parts[1::2])
        parts[1::2] = (f"{quote}{printable(one, max_chars=None)}{quote}" for one in commands)
        return "".join(parts)

    def sentence(self, template: str) -> str:
        """The template with the fields of the subject and the figures."""
        return sentence_of(template, self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        return {**asdict(self.subject), **self.figures, "causes": "; ".join(lines_of(self.causes))}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.word,
            "severity": self.kind.severity.word,
            "subject": asdict(self.subject),
            "figures": dict(self.figures),
            "text": self.sentence(self.kind.sentence),
            "remedy": None if self.remedy is None else asdict(self.remedy),
        } | ({"causes": [one.to_json() for one in self.causes]} if self.causes else {})


def worst_first(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """In the order of their kinds' severity; those of one kind as they come."""
    return tuple(sorted(problems, key=lambda one: (one.kind.severity, one.kind.rank)))


def sentence_of(template: str, fields: Mapping[str, object]) -> str:
    """The template with these fields, on one line."""
    return printable(_Sentence().vformat(template, (), fields), max_chars=None)


def text_of(problem: Problem) -> str:
    """Line for people: the sentence and the remedy."""
    sentence = problem.kind.sentence
    if problem.remedy is None:
        return problem.sentence(sentence)
    return f"{problem.sentence(sentence)}{'; ' if ': ' in sentence else ': '}{problem.remedy_text('`')}"


def lines_of(problems: Iterable[Problem]) -> Iterator[str]:
    """Lines for people, of a kind of which there are many the first, and the number of the others."""
    by_kind: dict[Kind, list[Problem]] = {}
    for problem in problems:
        by_kind.setdefault(problem.kind, []).append(problem)
    for same in by_kind.values():
        yield from map(text_of, same[:NAMED_MAX])
        if len(same) > NAMED_MAX:
            yield f"{len(same) - NAMED_MAX} more like the last"


def marked_lines(problems: Iterable[Problem]) -> Iterator[tuple[Severity, str]]:
    """Lines of a list that has the worst first, each with a mark, and the severity by which it is coloured."""
    for severity, same in groupby(problems, key=lambda one: one.kind.severity):
        mark = "-" if severity is Severity.NOTE else "!"
        yield from ((severity, f"{mark} {line}") for line in lines_of(same))


def difference_of(problem: Problem) -> str:
    """Line for a list of differences between what was observed and what was created."""
    return problem.sentence(problem.kind.sentence.removeprefix(AS_CREATED))


def argv(template: str, **fields: str) -> tuple[str, ...]:
    """Words of a command. A field is one word, whatever is in it, and no option."""
    return tuple(_words(template, fields))


def _words(template: str, fields: Mapping[str, str]) -> Iterator[str]:
    for word in template.split():
        filled = word.format(**fields)
        if filled.startswith("-") and not word.startswith("-"):
            yield "--"
        yield filled


def command_line(words: Sequence[str]) -> str:
    """A command to copy into a shell."""
    return " ".join(word if word == "…" else shlex.quote(word) for word in words)


def moment_text(time_us: int) -> str:
    """A time since the epoch, in microseconds."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def listed(names: Sequence[str], shown: int = NAMED_MAX) -> str:
    """So many of these names, and the number of the others."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


class _Sentence(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "r" and isinstance(value, tuple):
            return tuple(map(repr, value))
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> str:
        if value is None or value == ():
            return "none"
        if isinstance(value, bool):
            return format_spec if value else ""
        if isinstance(value, tuple):
            if format_spec == ";":
                return "; ".join(value)
            return listed(value, int(format_spec or NAMED_MAX))
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {one}" for name, one in value.items())
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if "|" in format_spec:
            return format_spec.split("|")[value != 1]
        return format(value, format_spec)
