"""The lane of a key: its messages in time order, those that wait in its queue last, from what members remember and from
where they are now, or from journals. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, tzinfo
from typing import Any

from lbg_core.command_output import text_table
from lbg_core.counted_nouns import counted
from lbg_core.group import SequenceSet
from lbg_core.group.held_messages import Ending, HeldState, PeekedMessage
from lbg_core.group.members_protocol import KeyAnswer
from lbg_core.group.sequences import Run
from lbg_core.peers import printable


class Published(enum.StrEnum):
    """A message that journals of publishers have, and those of members have not."""

    UNDELIVERED = "undelivered"


Word = Ending | HeldState | Published
"""State of a message at the end of a visit to a member: what became of it there, or what it is now."""

WAITS = (HeldState.WAITING, HeldState.READY)
"""States of a message that others of its key may be the reason of."""

_TEXTS: dict[Word, str] = {
    Ending.FINISHED: "finished",
    Ending.UNACKNOWLEDGED: "finished, not acknowledged: delivered again",
    Ending.DEAD: "dead letter",
    Ending.REPEAT: "repeat: dropped, not called",
    Ending.PARKED: "parked",
    Ending.FORWARDED: "forwarded to its new queue",
    Ending.RELEASED: "given back to the queue",
    HeldState.WAITING: "WAITS at the member",
    HeldState.RUNNING: "RUNS",
    HeldState.RETRYING: "WAITS for its next try",
    HeldState.POISONED: "POISONED: waits for its next try",
    HeldState.REFUSED: "on its way to the dead letters",
    HeldState.PARKING: "on its way to the parking queue",
    HeldState.MOVING: "on its way to its new queue",
    HeldState.PROCESSED: "finished, the broker has not confirmed it",
    HeldState.READY: "WAITS in the queue",
    HeldState.UNROUTED: "unrouted: in no queue",
    Published.UNDELIVERED: "NOT DELIVERED in these journals",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """A message at a member, or where it is without one (`member` None). Times are microseconds since the epoch, 0
    where there is none. `seq` counts the messages of a publisher and hash, of all keys. `last_end_us` 0: the last call
    runs. `is_called_again`: the application had finished it before."""

    publisher: str | None
    seq: int | None
    queue: int
    member: str | None
    published_at_us: int
    received_us: int
    first_call_us: int
    last_call_us: int
    last_end_us: int
    attempts: int
    word: Word
    redelivered: bool
    reason: str = ""
    is_called_again: bool = False

    @property
    def at_us(self) -> int:
        return self.received_us or self.published_at_us


@dataclass(frozen=True, slots=True)
class Moved:
    """From here on another member has the key."""

    at_us: int
    queue: int
    former: str
    member: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequence numbers of a publisher and the key's hash that no member that answered has or had, or no journal."""

    at_us: int
    publisher: str
    first: int
    last: int


Step = Visit | Moved | Gap


@dataclass(frozen=True, slots=True)
class Memory:
    """Reach of a member's memory: its last `kept` messages of all keys, since `since_us`. `left`: older ones of the key
    that it did not send."""

    member: str
    kept: int
    since_us: int
    left: int


@dataclass(frozen=True, slots=True)
class Journaled:
    """Reach of journals: their records of the key. `left`: older ones that are not in the lane."""

    published: int
    delivered: int
    left: int


@dataclass(frozen=True, slots=True)
class Lane:
    """From journals, if `journaled`; else from what members remember."""

    steps: tuple[Step, ...]
    memories: tuple[Memory, ...] = ()
    journaled: Journaled | None = None

    @property
    def open_from(self) -> int:
        """Place of the first message that the others wait for, or else of the first that waits; the number of steps
        without one."""
        words = [one.word if isinstance(one, Visit) else None for one in self.steps]
        open_ = [
            place
            for place, word in enumerate(words)
            if isinstance(word, HeldState) and word is not HeldState.DEAD
        ]
        return next((place for place in open_ if words[place] not in WAITS), next(iter(open_), len(words)))

    def to_json(self) -> dict[str, Any]:
        reach = {"remembered": [asdict(one) for one in self.memories]}
        return {
            "steps": [{"step": type(one).__name__.lower(), **asdict(one)} for one in self.steps],
            **(reach if self.journaled is None else asdict(self.journaled)),
        }


def lane_of(answers: Sequence[KeyAnswer], elsewhere: Iterable[PeekedMessage]) -> Lane:
    """`elsewhere`: messages of the key that no member holds."""
    visits = [visit for answer in answers for visit in _visits_at(answer)]
    ended = {(one.publisher, one.seq, one.word): place for place, one in enumerate(visits)}
    for message in elsewhere:
        visit = _visit_of(message, message.member)
        place = ended.get((visit.publisher, visit.seq, visit.word))
        if place is None or visit.seq is None:
            visits.append(visit)
        else:  # a member remembers how it came there, and the message why
            visits[place] = replace(visits[place], reason=visit.reason)
    memories = (
        Memory(one.sender.name, one.kept, one.since_us, one.left) for one in sorted(answers, key=_name_of)
    )
    return Lane(steps_of(visits, _known(answers)), tuple(memories))


def steps_of(visits: Iterable[Visit], known: Mapping[str, SequenceSet]) -> tuple[Step, ...]:
    """`known`: numbers of the key's hash that are somewhere, by publisher; no gap is seen in those of others."""
    ordered = sorted(visits, key=lambda one: (one.word is HeldState.READY, one.at_us, one.seq or 0))
    return tuple(_with_remarks(_marked(ordered), known))


def _name_of(answer: KeyAnswer) -> str:
    return answer.sender.name


def _visits_at(answer: KeyAnswer) -> Iterator[Visit]:
    member = answer.sender.name
    for one in answer.handled:
        yield Visit(
            one.publisher,
            one.seq,
            one.queue,
            member,
            one.published_at_us,
            one.received_us,
            one.first_call_us,
            one.last_call_us,
            one.last_end_us,
            one.attempts,
            one.ending,
            one.redelivered,
        )
    yield from (_visit_of(message, member) for message in answer.messages)


def _visit_of(message: PeekedMessage, member: str | None) -> Visit:
    publisher, _, seq = message.identity or (None, None, None)
    is_running = message.state is HeldState.RUNNING
    return Visit(
        publisher,
        seq,
        message.queue,
        member,
        message.published_at_us,
        message.received_us,
        message.first_call_us,
        message.last_call_us if is_running else 0,
        0,
        message.attempts,
        message.state,
        message.redelivered,
        message.reason,
    )


def _marked(visits: Iterable[Visit]) -> Iterator[Visit]:
    """With what was called again although it was finished."""
    finished: set[tuple[str | None, int]] = set()
    for one in visits:
        name = (one.publisher, one.seq) if one.seq is not None else None
        if name in finished and one.first_call_us:
            one = replace(one, is_called_again=True)
        if name is not None and one.word in (Ending.FINISHED, Ending.UNACKNOWLEDGED):
            finished.add(name)
        yield one


def _known(answers: Iterable[KeyAnswer]) -> dict[str, SequenceSet]:
    known: dict[str, SequenceSet] = {}
    for answer in answers:
        for publisher, _, runs in answer.numbers:
            numbers = known.setdefault(publisher, SequenceSet())
            for first, last in runs:
                numbers.add_run(first, last)
    return known


def _with_remarks(visits: Iterable[Visit], known: Mapping[str, SequenceSet]) -> Iterator[Step]:
    member: str | None = None
    highest: dict[str, int] = {}
    for one in visits:
        if one.received_us and one.member is not None:
            if member not in (None, one.member):
                yield Moved(one.at_us, one.queue, str(member), one.member)
            member = one.member
        if one.publisher is not None and one.seq is not None and one.publisher in known:
            last = highest.get(one.publisher)
            if last is not None and one.seq > last + 1:
                for first, end in _holes(known[one.publisher], last + 1, one.seq - 1):
                    yield Gap(one.at_us, one.publisher, first, end)
            highest[one.publisher] = max(last or 0, one.seq)
        yield one


def _holes(numbers: SequenceSet, first: int, last: int) -> Iterator[Run]:
    """Runs from `first` to `last` that are not in the set."""
    for begin, end in numbers.runs():
        if begin > last:
            break
        if end >= first:
            if begin > first:
                yield first, begin - 1
            first = end + 1
    if first <= last:
        yield first, last


HEADER = ("TIME", "SEQ", "PUBLISHED", "QUEUE", "MEMBER", "WAITED", "TRIES", "LAST CALL", "")
"""WAITED: from publishing to the first call at the member."""


def lane_rows(lane: Lane, now_us: int, zone: tzinfo | None = None) -> tuple[list[str], list[tuple[str, ...]]]:
    """Publishers, and the rows of a table below `HEADER`. `zone`: of the times; None: this machine's."""
    clock = _Clock(now_us, zone)
    steps = [one for one in lane.steps if isinstance(one, Visit | Gap)]
    named = list(dict.fromkeys(one.publisher for one in steps if one.publisher is not None))
    marks = {one: "" if len(named) == 1 else f"{_mark(place)}:" for place, one in enumerate(named)}
    publishers = [printable(f"{marks[one]} {one}".strip(), max_chars=None) for one in named]
    gap = "GAP: no member that answered has or had them" if lane.journaled is None else "GAP: in no journal"
    return publishers, [_row(step, marks, clock, gap) for step in lane.steps]


def lane_lines(lane: Lane, now_us: int, zone: tzinfo | None = None) -> Iterator[str]:
    """A table for people, and how far back it reaches."""
    publishers, rows = lane_rows(lane, now_us, zone)
    if publishers:
        yield f"publisher{'' if len(publishers) == 1 else 's'} {', '.join(publishers)}"
    yield from text_table(HEADER, rows) if rows else ("no message of this key is remembered",)
    yield reach_text(lane, now_us, zone)


_JOURNALS = "the journals (lbg pipeline validate … --key KEY)"


def reach_text(lane: Lane, now_us: int, zone: tzinfo | None = None) -> str:
    """Reach of the lane into the past."""
    if (of := lane.journaled) is not None:
        left = f", {of.left:,} older of them are not shown" if of.left else ""
        return (
            f"history: {of.published:,} published and {counted(of.delivered, 'delivery', 'deliveries')} in the "
            f"journals{left}; what waits now: lbg group key"
        )
    if not lane.memories:
        return f"history: no member answered; what was finished is in {_JOURNALS}"
    clock = _Clock(now_us, zone)
    kept = ", ".join(
        f"{printable(one.member)} {one.kept:,} since {clock.of(one.since_us)[:8]}"
        + (f", {one.left:,} older of this key are not shown" if one.left else "")
        for one in lane.memories
    )
    return f"history: the last messages of all keys at {kept}; earlier ones and those of other members: {_JOURNALS}"


class _Clock:
    def __init__(self, now_us: int, zone: tzinfo | None) -> None:
        self._zone = zone
        self._today = self._at(now_us).date()

    def _at(self, us: int) -> datetime:
        return datetime.fromtimestamp(us / 1e6, self._zone)

    def of(self, us: int) -> str:
        if us <= 0:
            return "-"
        try:
            at = self._at(us)
        except (ValueError, OverflowError, OSError):  # as a foreign publisher stamped it
            return "-"
        time = f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"
        return time if at.date() == self._today else f"{at:%m-%d} {time}"


def _mark(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else f"P{place}"


def _row(step: Step, marks: dict[str, str], clock: _Clock, gap: str) -> tuple[str, ...]:
    match step:
        case Moved():
            text = f"moved from {printable(step.former)} to {printable(step.member)}"
            return (clock.of(step.at_us), "", "", str(step.queue), "", "", "", "", text)
        case Gap():
            numbers = str(step.first) if step.first == step.last else f"{step.first}-{step.last}"
            return (clock.of(step.at_us), f"{marks[step.publisher]}{numbers}", "", "", "", "", "", "", gap)
        case Visit():
            return _visit_row(step, marks, clock)


def _visit_row(one: Visit, marks: dict[str, str], clock: _Clock) -> tuple[str, ...]:
    called = one.first_call_us
    waited = duration(called - one.published_at_us) if called and one.published_at_us else "-"
    lasted = "-"
    if one.last_call_us and one.last_end_us >= one.last_call_us:
        lasted = duration(one.last_end_us - one.last_call_us)
    elif one.word is HeldState.RUNNING:
        lasted = f"since {clock.of(one.last_call_us)}"
    words = _TEXTS[one.word]
    if one.is_called_again:
        words += ", CALLED AGAIN"
    elif one.redelivered:
        words += ", delivered again"
    if one.attempts > 1 and called and one.last_end_us > called:
        words += f", {duration(one.last_end_us - called)} in all"
    if one.reason:
        words += f": {' '.join(one.reason.split())}"
    return (
        clock.of(one.at_us),
        "-" if one.seq is None else f"{marks.get(one.publisher or '', '')}{one.seq}",
        clock.of(one.published_at_us),
        str(one.queue),
        "-" if one.member is None else printable(one.member),
        waited,
        str(one.attempts) if one.attempts else "-",
        lasted,
        printable(words, max_chars=200),
    )


def duration(us: int) -> str:
    """A time for people."""
    if us < 100:
        return f"{us / 1000:.2f} ms"
    if us < 10_000:
        return f"{us / 1000:.1f} ms"
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    if us < 120_000_000:
        return f"{us / 1e6:.1f} s"
    return f"{us / 60e6:.0f} min" if us < 7200_000_000 else f"{us / 3600e6:.0f} h"
