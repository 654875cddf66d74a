"""Report of a verification, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lbg_core.command_output import text_table
from lbg_core.counted_nouns import counted
from lbg_pipeline.html.numbers import UNKNOWN, duration
from lbg_pipeline.verify.incidents import Row, times

SHOWN = 20
"""Keys, violations and lost ranges in a report; the page has more, and the tables have all."""

_BROKEN_LINES = 5
_GROUPS = 3
"""Groups in the sentence of the verdict."""

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
    """`verdicts` are rows of the table of that name; `affected`, `first_keys`, `first_offences` and `first_lost` the
    first rows of `lbg_pipeline.verify.incidents.Incidents`; `unchecked`: groups of which something was not judged,
    with the reasons."""

    verdicts: Sequence[Row]
    broken_lines: int
    copies: Sequence[Row]
    affected: Sequence[Row]
    first_keys: Sequence[Row]
    first_offences: Sequence[Row]
    first_lost: Sequence[Row]
    first_broken_lines: Sequence[Row]
    unchecked: Sequence[Row] = ()

    @property
    def verdict(self) -> str:
        """Of all groups: sound, broken or unchecked."""
        if any(row["verdict"] == "broken" for row in self.verdicts):
            return "broken"
        return "unchecked" if self.unchecked else "sound"

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.verdict == "sound", "verdict": self.verdict, **asdict(self)}


def report_lines(report: Report) -> Iterator[str]:
    yield verdict_text(report)
    for one in report.unchecked:
        what = "no record" if one["group"] is None else f"group {one['group']} not"
        yield f"{what} checked, because {one['reason']}"
    yield from (f"group {row['group']}: {affected_text(row)}" for row in report.affected)
    rows = [
        {**row, "inverted": _both(row, "inverted"), "rewound": _both(row, "rewound")}
        for row in report.verdicts
    ]
    cells = [[str(row[name]) for name in _COLUMNS] for row in rows]
    if rows:
        yield from text_table(_COLUMNS, cells, names=_NAMES)
    for row in report.verdicts:
        yield from (f"group {row['group']}: {note}" for note in notes(row))
    yield from map(copy_text, report.copies)
    if report.broken_lines:
        yield f"{broken_lines_text(report.broken_lines)}: table broken"
        yield from (f"  {broken_text(one)}" for one in report.first_broken_lines[:_BROKEN_LINES])
    yield from (f"  {lost_text(one)}" for one in report.first_lost)
    yield from (f"  {offence_text(one)}" for one in report.first_offences)
    if report.first_keys:
        yield "the story of one key: lbg pipeline validate --journal PATH --key KEY"


_FAULTS = {
    "lost": ("message lost", "messages lost"),
    "inverted": ("message out of order", "messages out of order"),
    "overlaps": ("overlap of two members", "overlaps of two members"),
    "misplaced": ("message misplaced", "messages misplaced"),
    "rehashed": ("further hash of a key", "further hashes of keys"),
    "rekeyed": ("message with another key", "messages with another key"),
    "resized": ("message of another size", "messages of another size"),
}


def faults_text(row: Row) -> str:
    """Counts of a verdict that break it."""
    counts = {**row, "inverted": max(row["inverted_delivered"], row["inverted_acknowledged"])}
    found = [counted(counts[name], *nouns) for name, nouns in _FAULTS.items() if counts[name]]
    return ", ".join(found) or counted(row["repeated"], "message repeated", "messages repeated")


def verdict_text(report: Report) -> str:
    """One sentence: the verdict of all groups."""
    groups = counted(len(report.verdicts), "group")
    if not report.verdicts:
        return "Nothing checked: the journals have no record"
    broken = [row for row in report.verdicts if row["verdict"] == "broken"]
    if broken:
        shown = "; ".join(f"{row['group']}: {faults_text(row)}" for row in broken[:_GROUPS])
        more = f"; and {len(broken) - _GROUPS} more" if len(broken) > _GROUPS else ""
        of_all = "group" if len(report.verdicts) == 1 else f"{len(broken)} of {groups}:"
        return f"Broken: {of_all} {shown}{more}"
    if unchecked := [one["group"] for one in report.unchecked]:
        judged = any(row["delivered"] for row in report.verdicts)
        more = f" and {len(unchecked) - _GROUPS} more" if len(unchecked) > _GROUPS else ""
        return (
            f"{'Not all' if judged else 'Nothing'} checked: {'group' if len(unchecked) == 1 else 'groups'} "
            f"{', '.join(unchecked[:_GROUPS])}{more}"
        )
    messages = counted(sum(row["published"] for row in report.verdicts), "message")
    return f"Sound: {messages} of {groups}, none lost, none out of order"


def affected_text(row: Row) -> str:
    """A row of `Incidents.affected`: the keys, the time and the members."""
    members = ", ".join(map(str, row["members"]))
    at = f", {'member' if len(row['members']) == 1 else 'members'} {members}" if members else ""
    return f"{counted(row['keys'], 'key')}, {during_text(row)}{at}"


def during_text(row: Row) -> str:
    first, last = iso(row["first_us"]), iso(row["last_us"])
    return first if first == last else f"{first} to {last}"


def iso(at_us: int | None) -> str:
    """UTC, in microseconds."""
    if at_us is None:
        return UNKNOWN
    try:
        at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):  # as a foreign publisher stamped it
        return f"{at_us} µs"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06}Z"


def offence_text(one: Row) -> str:
    """Line of a finding: time, kind, message, member, and what is near it."""
    text = (
        f"{iso(one['at_us'])} {kind_text(one)}: group {one['group']}, {message_text(one)}, {member_text(one)}"
    )
    return "; ".join(filter(None, (text, near_text(one))))


def kind_text(one: Row) -> str:
    view = "" if one["view"] is None else f" as {one['view']}"
    return f"{one['kind']}{view}{' (uncertain)' if one['uncertain'] else ''}"


def message_text(one: Row) -> str:
    key = "no key" if one["key"] is None else f"key {one['key']!r}"
    session = "" if one["session"] is None else f" (session {one['session']}, {one['sequence']})"
    expected = "" if one["expected"] is None else f", after {one['expected'] - 1}"
    return (
        f"{key} of hash {one['hash']}, number {one['seq']}{session} of publisher {one['publisher']}{expected}"
    )


def member_text(one: Row) -> str:
    text = f"member {one['member']} {one['member_name']}, run {one['incarnation']}"
    if one["other_member"] is None:
        return text
    started, finished = (iso(one.get(f"other_{name}_at_us")) for name in ("started", "finished"))
    return f"{text}, while member {one['other_member']}, run {one['other_incarnation']}, had {started} to {finished}"


def lost_text(one: Row) -> str:
    """Line of a lost range: the times and keys of its first and last message, and what is near them."""
    stream = f"group {one['group']}, publisher {one['publisher']}, hash {one['hash']}"
    return "; ".join(filter(None, (f"lost: {stream}, {lost_messages_text(one)}", near_text(one))))


def lost_messages_text(one: Row) -> str:
    known = [one[name] for name in ("first_message", "last_message") if one[name] is not None]
    if one["first"] == one["last"]:
        return f"number {one['first']}{''.join(f', {_published_text(message)}' for message in known[:1])}"
    numbers = f"numbers {one['first']} to {one['last']} ({one['count']:,})"
    return numbers + "".join(
        f"{' to ' if at else ', '}{_published_text(message)}" for at, message in enumerate(known)
    )


def _published_text(message: Row) -> str:
    key = "no key" if message["key"] is None else f"key {message['key']!r}"
    return f"{key} published {iso(message['published_at_us'])}"


def near_text(one: Row) -> str:
    """The move and the end of a run near a finding."""
    move, ended, at_us = one.get("move"), one.get("ended"), times(one)
    parts = []
    if move is not None and at_us is not None:
        after_us = at_us[0] - move["at_us"] if at_us[0] > move["at_us"] else min(0, at_us[1] - move["at_us"])
        when = "as" if not after_us else f"{duration(abs(after_us))} {'after' if after_us > 0 else 'before'}"
        parts.append(
            f"{when} its hash moved from member {move['was']} to {move['now']} at {iso(move['at_us'])}"
        )
    if ended is not None:
        run = f"run {ended['incarnation']} of member {ended['member']} {ended['member_name']}"
        parts.append(f"{run} ended at {iso(ended['at_us'])}")
        if ended["next_at_us"] is not None:
            parts.append(f"its run {ended['next_incarnation']} began at {iso(ended['next_at_us'])}")
    return "; ".join(parts)


def broken_lines_text(count: int) -> str:
    return counted(
        count, "LINE IS NOT A RECORD and was not checked", "LINES ARE NOT RECORDS and were not checked"
    )


def broken_text(one: Row) -> str:
    line = "" if one.get("line") is None else f", line {one['line']}"
    return f"{one['file']}{line}: {one['reason']}"


def copy_text(copy: Row) -> str:
    if copy["count"] is None:
        return f"{copy['other']} begins as {copy['file']}: it is a copy, and was not read"
    return (
        f"group {copy['group']}: {counted(copy['count'], 'record is', 'records are')} in two files, and counted "
        f"once: {copy['file']}, {copy['other']}"
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


def notes(row: Row) -> Iterator[str]:
    """Remarks on the counts of a verdict: on messages that were not checked, and on those that are no fault."""
    if row["pending"]:
        yield (
            f"{counted(row['pending'], 'message is', 'messages are')} pending: confirmed too late to "
            "count as lost"
        )
    if row["unpublished"]:
        yield (f"{counted(row['unpublished'], 'message has', 'messages have')} no record of their publisher")
    if row["unrecorded"]:
        yield (
            f"{counted(row['unrecorded'], 'number is', 'numbers are')} in no journal (table gaps): a "
            "file is missing, or a publisher ended before it wrote them"
        )
    if row["early"]:
        yield (
            f"{counted(row['early'], 'number is', 'numbers are')} older than the journals of their "
            "publishers: earlier files are not here"
        )
    for name, meaning in _DIFFERENCES.items():
        if row[name]:
            yield counted(row[name], *meaning)
    if row["misplaced"]:
        yield (
            f"{counted(row['misplaced'], 'message was', 'messages were')} misplaced: out of place in "
            "a session"
        )
    if row["uncertain"]:
        uncertain = counted(row["uncertain"], "violation is", "violations are")
        yield f"{uncertain} uncertain: the clock skew may explain them"
    if row["rewound_delivered"]:
        again = counted(row["rewound_delivered"], "delivery", "deliveries")
        yield f"{again} came again after a handover or a crash: table offences"
    if row["repeated"]:
        yield f"{counted(row['repeated'], 'message was', 'messages were')} acknowledged more than once: table offences"
    if row["redelivered"]:
        redelivered = counted(row["redelivered"], "delivery was", "deliveries were")
        yield f"{redelivered} marked redelivered by the broker"
    if row["longest_pause_us"] is not None:
        yield f"the longest pause of a hash that moved was {row['longest_pause_us'] / 1000:.1f} ms"
