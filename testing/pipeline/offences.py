"""The offences among the deliveries of a group: the part of `testing.pipeline.reference` that judges one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lbg_core.group import EXCLUSIVE, SESSIONS, DeliveredRecord, PublishedRecord, epoch_of
from testing.pipeline.findings import Offence

Message = tuple[str, int, int]
"""(publisher, hash, seq) within a group."""

DELIVERED_VIEW, ACKNOWLEDGED_VIEW = "delivered", "acknowledged"


def when(name: str) -> Callable[[DeliveredRecord], tuple[int, str, int]]:
    return lambda one: (getattr(one, name), one.incarnation, one.delivery)


def message_of(record: PublishedRecord | DeliveredRecord) -> Message:
    return record.publisher, record.hash_, record.seq


def _line_and_number(one: DeliveredRecord) -> tuple[tuple[Any, ...], tuple[int, int]] | None:
    """Within what its order is judged, and by which epoch and number; None if it has no order."""
    if mode_of(one) == SESSIONS:
        return None if one.session is None or one.sequence is None else ((one.session,), (0, one.sequence))
    epoch = epoch_of(one.publisher)
    return None if one.key is None else ((epoch.history, one.hash_, one.key), (epoch.began_us, one.seq))


def mode_of(one: DeliveredRecord) -> str:
    return one.mode or EXCLUSIVE


def out_of_order(ordered: Sequence[DeliveredRecord], view: str, skew_us: int) -> Iterator[Offence]:
    at_name = "delivered_at_us" if view == DELIVERED_VIEW else "settled_at_us"
    split = {one.key for one in rehashed(ordered)}
    lines: dict[tuple[Any, ...], list[tuple[tuple[int, int], DeliveredRecord]]] = defaultdict(list)
    published: dict[tuple[Any, ...], list[tuple[tuple[int, int], DeliveredRecord]]] = defaultdict(list)
    for one in ordered:
        if (placed := _line_and_number(one)) is None:
            continue
        line, number = placed
        before = lines[line]
        at_us = getattr(one, at_name)
        highest = max((other for other, _ in before), default=(-1, -1))
        higher = [each for other, each in before if other > number]
        is_of_split = one.key in split and mode_of(one) != SESSIONS
        time = number[0], one.published_at_us
        across = published[line[0], line[-1]] if is_of_split else []
        later = [each for other, each in across if other > time]
        if any(other == number for other, _ in before):
            yield _offence(one, "rewound", view, at_us, expected=highest[1] + 1)
        elif higher or later:
            certain = any(
                each.incarnation == one.incarnation or at_us - getattr(each, at_name) > skew_us
                for each in (*higher, *later)
            )
            expected = highest[1] + 1 if higher else None
            yield _offence(one, "inverted", view, at_us, expected=expected, uncertain=not certain)
        before.append((number, one))
        across.append((time, one))


def rehashed(delivered: Sequence[DeliveredRecord]) -> Iterator[Offence]:
    """The first delivery of each further hash of a key."""
    hashes: dict[str, list[int]] = defaultdict(list)
    for one in delivered:
        if one.key is None or mode_of(one) == SESSIONS or one.hash_ in hashes[one.key]:
            continue
        if hashes[one.key]:
            yield _offence(one, "rehashed", None, one.delivered_at_us)
        hashes[one.key].append(one.hash_)


def different(
    published: Sequence[PublishedRecord], delivered: Sequence[DeliveredRecord]
) -> Iterator[Offence]:
    """Of both sides' records of a message. A hash to two queues of which messages were published is of a group whose
    number of queues changed."""
    records = {message_of(one): one for one in published}
    queues: dict[int, set[int]] = defaultdict(set)
    for one in published:
        queues[one.hash_].add(one.queue)
    for each in delivered:
        record = records.get(message_of(each))
        if record is None:
            continue
        if record.key != each.key:
            yield _offence(each, "rekeyed", None, each.delivered_at_us)
        if record.body_bytes != each.body_bytes:
            yield _offence(each, "resized", None, each.delivered_at_us)
        if record.queue != each.queue and len(queues[each.hash_]) == 1:
            yield _offence(each, "rerouted", None, each.delivered_at_us)


def repeated(acknowledged: Sequence[DeliveredRecord]) -> Iterator[Offence]:
    """Those that were not settled count as the last."""
    seen: set[Message] = set()
    for one in sorted(
        acknowledged,
        key=lambda one: (one.settled_at_us is None, one.settled_at_us or 0, one.incarnation, one.delivery),
    ):
        if message_of(one) in seen:
            at_us = one.delivered_at_us if one.settled_at_us is None else one.settled_at_us
            yield _offence(one, "repeated", None, at_us)
        seen.add(message_of(one))


def misplaced(delivered: Sequence[DeliveredRecord]) -> Iterator[Offence]:
    place_of: dict[Message, tuple[str, int]] = {}
    message_at: dict[tuple[str, int], Message] = {}
    for one in delivered:
        if mode_of(one) != SESSIONS:
            continue
        is_placed = False
        if one.session is not None and one.sequence is not None:
            place = one.session, one.sequence
            first_place = place_of.setdefault(message_of(one), place)
            first_message = message_at.setdefault(place, message_of(one))
            is_placed = (first_place, first_message) == (place, message_of(one))
        if not is_placed:
            yield _offence(one, "misplaced", DELIVERED_VIEW, one.delivered_at_us)


def overlaps(delivered: Sequence[DeliveredRecord], skew_us: int) -> Iterator[Offence]:
    spans: dict[str, list[DeliveredRecord]] = defaultdict(list)
    for one in delivered:
        if one.key is None or one.started_at_us is None or one.finished_at_us is None:
            continue
        if mode_of(one) != SESSIONS and one.started_at_us < one.finished_at_us:
            spans[one.key].append(one)
    for of_key in spans.values():
        of_key.sort(key=when("started_at_us"))
        for number, one in enumerate(of_key):
            into = [
                each
                for each in of_key[:number]
                if (each.member, each.incarnation) != (one.member, one.incarnation)
                and one.started_at_us < each.finished_at_us
            ]
            if into:
                other = max(into, key=when("finished_at_us"))
                yield _offence(
                    one,
                    "overlap",
                    None,
                    one.started_at_us,
                    uncertain=all(
                        each.incarnation != one.incarnation and _shift_us(each, one) <= skew_us
                        for each in into
                    ),
                    other=other,
                )


def _shift_us(first: DeliveredRecord, second: DeliveredRecord) -> int:
    """Shift of one of two spans until they no longer intersect."""
    return min(first.finished_at_us - second.started_at_us, second.finished_at_us - first.started_at_us)


def _offence(
    one: DeliveredRecord,
    kind: str,
    view: str | None,
    at_us: int | None,
    *,
    expected: int | None = None,
    uncertain: bool = False,
    other: DeliveredRecord | None = None,
) -> Offence:
    return Offence(
        kind=kind,
        view=view,
        publisher=one.publisher,
        key=one.key,
        hash=one.hash_,
        seq=one.seq,
        expected=expected,
        member=one.member,
        member_name=one.member_name,
        incarnation=one.incarnation,
        delivery=one.delivery,
        at_us=at_us,
        uncertain=uncertain,
        finished_at_us=one.finished_at_us,
        other_member=None if other is None else other.member,
        other_incarnation=None if other is None else other.incarnation,
        other_started_at_us=None if other is None else other.started_at_us,
        other_finished_at_us=None if other is None else other.finished_at_us,
        session=one.session,
        sequence=one.sequence,
    )
