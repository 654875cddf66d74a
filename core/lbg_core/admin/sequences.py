"""Sequence numbers of a group, as its members report them: gaps, inversions, repeats, and what is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, listed
from lbg_core.counted_nouns import counted
from lbg_core.group import MESSAGE_GROUPS, PARTITIONED, SESSIONS
from lbg_core.group.member_state import Repeats, SequenceReport
from lbg_core.group.members_protocol import Beat


@dataclass(frozen=True, slots=True)
class GroupSequences:
    """Sum of the reports of all members. `unreported`: numbers of the queues that are served by who sends no report.
    Nothing is known of messages after the last one of each stream that was delivered."""

    reports: SequenceReport
    unreported: tuple[int, ...] = ()
    during_standstill: int = 0

    @property
    def line(self) -> str:
        """For people."""
        one, texts = self.reports, []
        if one.missing:
            missing = f"{counted(one.missing, 'message')} missing in {one.gap_streams:,} of "
            texts.append(f"{missing}{counted(one.streams, 'stream')} since {time_text(one.gap_since_us)}")
        else:
            texts.append(f"no {'new gap' if one.overdue else 'gap open'} in {counted(one.streams, 'stream')}")
        if one.overdue:
            overdue = f"{counted(one.overdue, 'message')} missing for more than a day, since "
            texts.append(overdue + time_text(one.overdue_since_us))
        texts.append(f"{one.out_of_order:,} out of order")
        for repeats in one.repeats:
            cause = f"loss of {repeats.member or 'a member'}"
            texts.append(f"{repeats.messages:,} again since {time_text(repeats.since_us)} ({cause})")
        if self.during_standstill:
            texts.append(f"{counted(self.during_standstill, 'call')} ran during a standstill")
        if one.unknown_streams:
            streams = counted(one.unknown_streams, "stream")
            texts.append(f"{streams} unknown before {time_text(one.unknown_before_us)}")
        if one.order_unknown:
            texts.append(f"the order of {counted(one.order_unknown, 'message')} unknown")
        if self.unreported:
            queues = listed([str(queue) for queue in self.unreported])
            texts.append(f"unknown without a report: queues {queues}")
        return ", ".join(texts)

    def to_json(self) -> dict[str, Any]:
        return {
            **report_json(self.reports),
            "during_standstill": self.during_standstill,
            "unreported_queues": list(self.unreported),
            "text": self.line,
        }


def sequences_of(members: Sequence[Beat], unreported: Iterable[int]) -> GroupSequences | None:
    """None where no member has the audit: in the modes in which the broker shares one queue out."""
    reports = [one.sequences for one in members if one.sequences is not None]
    silent = {one.queue for member in members if member.sequences is None for one in member.served}
    if not reports:
        return None
    gaps = [one for one in reports if one.missing]
    oldest = min(gaps, key=lambda one: one.gap_since_us, default=SequenceReport())
    repeats: dict[str, Repeats] = {}
    for one in sorted(
        (each for report in reports for each in report.repeats), key=lambda each: each.since_us
    ):
        former = repeats.get(one.member, Repeats(one.member, one.since_us, 0))
        repeats[one.member] = former._replace(messages=former.messages + one.messages)
    total = SequenceReport(
        streams=sum(one.streams for one in reports),
        missed=sum(one.missed for one in reports),
        late=sum(one.late for one in reports),
        missing=sum(one.missing for one in gaps),
        gap_streams=sum(one.gap_streams for one in gaps),
        gap_since_us=oldest.gap_since_us,
        first_missing=oldest.first_missing,
        overdue=sum(one.overdue for one in reports),
        overdue_since_us=min((one.overdue_since_us for one in reports if one.overdue), default=0),
        unknown_streams=sum(one.unknown_streams for one in reports),
        unknown_before_us=max(one.unknown_before_us for one in reports),
        out_of_order=sum(one.out_of_order for one in reports),
        out_of_order_id=next((one.out_of_order_id for one in reports if one.out_of_order_id), ""),
        order_unknown=sum(one.order_unknown for one in reports),
        repeated=sum(one.repeated for one in reports),
        repeats=tuple(repeats.values()),
    )
    standstill = sum(one.counts.get("during_standstill", 0) for one in members)
    return GroupSequences(total, tuple(sorted(silent | set(unreported))), standstill)


_UNAUDITED = {
    PARTITIONED: "their moves are not announced",
    MESSAGE_GROUPS: "any member may have the next message of a stream",
    SESSIONS: "any session may have the next message of a stream",
}


def unaudited_text(mode: str) -> str:
    """Reason for which members count no gaps where the broker shares one queue out."""
    cause = _UNAUDITED[mode]
    return f"gaps and order are not audited in mode {mode} ({cause}): see `lbg pipeline validate`"


def sequence_problems(group: str, sequences: GroupSequences, unrouted: int) -> Iterator[Problem]:
    """`unrouted`: messages in the unrouted queue, among which missing ones may be."""
    one = sequences.reports
    if one.missing:
        figures = {
            "count": one.missing,
            "streams": one.gap_streams,
            "since": time_text(one.gap_since_us),
            "unrouted": unrouted,
        }
        kind = Kind.GAP_UNROUTED if unrouted else Kind.GAP_OPEN
        yield Problem(kind, Subject(group, message=one.first_missing), figures)
    if one.out_of_order_id:
        subject = Subject(group, message=one.out_of_order_id)
        yield Problem(Kind.OUT_OF_ORDER, subject, {"count": one.out_of_order})


def report_json(report: SequenceReport) -> dict[str, Any]:
    """For `--json`."""
    return {**asdict(report), "repeats": [one._asdict() for one in report.repeats]}


def time_text(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M} UTC"
