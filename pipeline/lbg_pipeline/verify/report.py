"""Report of a verification, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lbg_core.command_output import text_table
from lbg_core.counted_nouns import counted

SHOWN = 20
"""Violations and lost ranges in a report; the tables have all."""

_COLUMNS = (
    "group",
    "verdict",
    "published",
    "delivered",
    "lost",
    "inverted",
    "overlaps",
    "rewound",
    "repeated",
    "moves",
)
_NAMES = 2
"""Columns of text, before those of numbers."""


@dataclass(frozen=True, slots=True)
class Report:
    """`verdicts` are rows of the table of that name; `first_*` the first of a table, worst first."""

    verdicts: Sequence[dict[str, Any]]
    broken_lines: int
    copies: Sequence[dict[str, Any]]
    first_offences: Sequence[dict[str, Any]]
    first_lost: Sequence[dict[str, Any]]
    first_broken_lines: Sequence[dict[str, Any]]

    @property
    def is_sound(self) -> bool:
        return all(row["verdict"] == "sound" for row in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.is_sound, **asdict(self)}


def report_lines(report: Report) -> Iterator[str]:
    rows = [
        {**row, "inverted": _both(row, "inverted"), "rewound": _both(row, "rewound")}
        for row in report.verdicts
    ]
    cells = [[str(row[name]) for name in _COLUMNS] for row in rows]
    yield from text_table(_COLUMNS, cells, names=_NAMES)
    for row in rows:
        yield from _notes(row)
    if report.broken_lines:
        yield f"{report.broken_lines} LINES ARE NOT RECORDS and were not checked: table broken has them"
        for broken in report.first_broken_lines:
            yield f"  {broken['file']}: {broken['reason']}"
    for copy in report.copies:
        if copy["count"] is None:
            yield f"{copy['other']} begins as {copy['file']}: it is a copy, and was not read"
            continue
        yield (
            f"group {copy['group']}: {counted(copy['count'], 'record is', 'records are')} in two files, and counted "
            f"once: {copy['file']}, {copy['other']}"
        )
    for offence in report.first_offences:
        yield f"  {_offence(offence)}"
    for lost in report.first_lost:
        yield (
            f"  lost: group {lost['group']}, publisher {lost['publisher']}, hash {lost['hash']}, "
            f"{lost['first']} to {lost['last']}"
        )


def _both(row: dict[str, Any], kind: str) -> str:
    """As delivered and as acknowledged."""
    delivered, acknowledged = row[f"{kind}_delivered"], row[f"{kind}_acknowledged"]
    return str(delivered) if delivered == acknowledged else f"{delivered}/{acknowledged}"


_DIFFERENCES = {
    "rehashed": (
        "other hash of a key that has one already: its publishers have different hash counts or functions",
        "other hashes of keys that have one already: their publishers have different hash counts or functions",
    ),
    "rekeyed": (
        "delivery has another key than its publisher recorded",
        "deliveries have other keys than their publishers recorded",
    ),
    "resized": (
        "delivery has another body size than its publisher recorded",
        "deliveries have other body sizes than their publishers recorded",
    ),
    "rerouted": (
        "delivery came from another queue than its publisher recorded; a change of the number of queues does that",
        "deliveries came from other queues than their publishers recorded; a change of the number of queues does that",
    ),
}


def _notes(row: dict[str, Any]) -> Iterator[str]:
    group = row["group"]
    if row["pending"]:
        yield (
            f"group {group}: {counted(row['pending'], 'message is', 'messages are')} pending: confirmed too late to "
            "count as lost"
        )
    if row["unpublished"]:
        yield (
            f"group {group}: {counted(row['unpublished'], 'message has', 'messages have')} no record of their publisher"
        )
    if row["unrecorded"]:
        yield (
            f"group {group}: {counted(row['unrecorded'], 'number is', 'numbers are')} in no journal (table gaps): a "
            "file is missing, or a publisher ended before it wrote them"
        )
    if row["early"]:
        yield (
            f"group {group}: {counted(row['early'], 'number is', 'numbers are')} older than the journals of their "
            "publishers: earlier files are not here"
        )
    for name, meaning in _DIFFERENCES.items():
        if row[name]:
            yield f"group {group}: {counted(row[name], *meaning)}"
    if row["misplaced"]:
        yield (
            f"group {group}: {counted(row['misplaced'], 'message was', 'messages were')} misplaced: out of place in "
            "a session"
        )
    if row["uncertain"]:
        yield f"group {group}: {row['uncertain']} violations are uncertain: the clock skew may explain them"
    if row["redelivered"]:
        yield f"group {group}: {row['redelivered']} deliveries were marked redelivered by the broker"
    if row["longest_pause_us"] is not None:
        yield f"group {group}: the longest pause of a hash that moved was {row['longest_pause_us'] / 1000:.1f} ms"


def _offence(one: dict[str, Any]) -> str:
    expected = "" if one["expected"] is None else f", expected {one['expected']}"
    view = "" if one["view"] is None else f" as {one['view']}"
    other = "" if one["other_member"] is None else f" while member {one['other_member']} had it"
    number = (
        one["seq"]
        if one["session"] is None
        else f"{one['seq']} (session {one['session']}, {one['sequence']})"
    )
    return (
        f"{one['kind']}{view}{' (uncertain)' if one['uncertain'] else ''}: group {one['group']}, key {one['key']!r} of "
        f"hash {one['hash']}: {number}{expected}, publisher {one['publisher']}, member {one['member']} "
        f"{one['member_name']}{other}"
    )
