"""Fills in the tables of docs/operations.md: `python docs/operations_reference.py`.

Severities of problems come from the core, what each condition means from the operator, alerts from the chart.
A test compares the file with what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from lbg_core.admin.problem_kinds import Kind, Severity
from lbg_operator.status.conditions import Reason, Type

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "operations.md"
ALERTS = DOCS.parent / "charts" / "lbg" / "files" / "alerts.yaml"


def filled(page: str) -> str:
    """`page` with each table anew, between `<!-- NAME -->` and `<!-- end -->`."""
    for name, lines in (("problems", problems()), ("conditions", conditions()), ("alerts", alerts())):
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"{PAGE.name} has no place for {name}"
        page = "".join([before, begin, *(f"{line}\n" for line in lines), end, after])
    return page


def problems() -> Iterator[str]:
    yield "| severity | colour | kinds |"
    yield "|---|---|---|"
    for severity in Severity:
        ranked = sorted(
            filter(lambda one: one.is_listed and one.severity is severity, Kind), key=lambda one: one.rank
        )
        kinds = ", ".join(f"`{kind.word}`" for kind in ranked)
        colour = "none" if severity is Severity.NOTE else "red" if severity.is_urgent else "yellow"
        yield f"| `{severity.word}`: {severity.meaning} | {colour} | {kinds} |"


def conditions() -> Iterator[str]:
    for type_ in Type:
        yield f"\n### {type_}\n"
        yield "| status | reason | |"
        yield "|---|---|---|"
        yield from (f"| {one.state} | `{one.word}` | {one.meaning} |" for one in Reason if one.type is type_)
    yield ""


def alerts() -> Iterator[str]:
    yield "| alert | | what to do |"
    yield "|---|---|---|"
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            when = " ".join(part for part in (rule["labels"]["severity"], rule.get("for")) if part)
            texts = rule["annotations"]
            told = _plain(f"{texts['summary']} {texts['description']}")
            yield f"| `{rule['alert']}` | {when} | {told} |"


def _plain(text: str) -> str:
    """A rule's template, for people: its labels as words."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: found[1].upper(), text)
    text = re.sub(r"\{\{ \$value(?: \| \w+)? \}\}", "N", text)
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
