"""Specification of `lbg pipeline validate`, in plain Python on lists of records.

One message is (group, publisher, hash, seq). A delivery is *final* when its verdict is ack, dead or repeat, and an
*acknowledgement* when it is ack or dead. Where docs/journal.md leaves room:

* Order is judged within (group, publisher's history, hash, key), by epoch and then by number. A key with two hashes is
  told for each hash after the first, and its order is also that of publishing, by time within (group, history, key).
* A delivery with the same message, member, incarnation and number as another one is the same one, in another file.
* A number that no journal has is early if no lower one is published, or delivered where none is published.
* An inversion is certain if a higher number came before it on the same incarnation, or more than the clocks' skew
  earlier on another. Two incarnations at the same microsecond are therefore uncertain with no skew at all.
* An overlap is told of the record that started later, once, naming who finished last of those that it ran into. It is
  certain if one of them could not be shifted out of its way by the skew. A span of no length overlaps nothing.
* A repeated message is told once for each acknowledgement after its first.
* In mode Sessions a delivery is misplaced if its message has another (session, sequence) than at its first delivery,
  or its (session, sequence) was first another message's, or it has none. Its order is judged as well.
* Shards move in mode Exclusive, and in mode Partitioned with messages that have a key: others go anywhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from lbg_core.group import EXCLUSIVE, PARTITIONED, DeliveredRecord, PublishedRecord
from testing.pipeline.findings import Completeness, GroupJudgement, LostRange, Move
from testing.pipeline.offences import (
    ACKNOWLEDGED_VIEW,
    DELIVERED_VIEW,
    Message,
    different,
    message_of,
    misplaced,
    mode_of,
    out_of_order,
    overlaps,
    rehashed,
    repeated,
    when,
)

Record = PublishedRecord | DeliveredRecord
FINAL = frozenset({"ack", "dead", "repeat"})
ACKNOWLEDGED = frozenset({"ack", "dead"})
BREAKING = frozenset({"inverted", "overlap", "misplaced", "rehashed", "rekeyed", "resized"})


def judge(
    records: Iterable[Record],
    *,
    settle_s: float = 0,
    clock_skew_s: float = 0,
    exactly_once: bool = False,
) -> dict[str, GroupJudgement]:
    """By group, whatever the order of the records."""
    published: dict[str, list[PublishedRecord]] = defaultdict(list)
    delivered: dict[str, list[DeliveredRecord]] = defaultdict(list)
    end_us = 0
    for record in records:
        if isinstance(record, PublishedRecord):
            published[record.group].append(record)
        else:
            delivered[record.group].append(record)
        end_us = max(end_us, *_times(record))
    settled_us = end_us - round(settle_s * 1e6)
    skew_us = round(clock_skew_s * 1e6)
    judged = {}
    for group in sorted(published.keys() | delivered.keys()):
        judged[group] = _judged(published[group], delivered[group], settled_us, skew_us)
        broken = any(one.kind in BREAKING and not one.uncertain for one in judged[group].offences)
        broken |= exactly_once and judged[group].count("repeated") > 0
        judged[group].verdict = "broken" if broken or judged[group].lost else "sound"
    return judged


def _times(record: Record) -> Iterator[int]:
    names = ("published", "confirmed", "delivered", "started", "finished", "settled")
    return (at_us for name in names if (at_us := getattr(record, f"{name}_at_us", None)) is not None)


def _judged(
    published: list[PublishedRecord], delivered: list[DeliveredRecord], settled_us: int, skew_us: int
) -> GroupJudgement:
    once = {(*message_of(one), one.incarnation, one.member, one.delivery): one for one in delivered}
    delivered = sorted(once.values(), key=when("delivered_at_us"))
    acknowledged = [one for one in delivered if one.verdict in ACKNOWLEDGED]
    settled = [one for one in acknowledged if one.settled_at_us is not None]
    settled.sort(key=when("settled_at_us"))
    verdicts = Counter(one.verdict for one in delivered)
    judged = GroupJudgement(
        published=len(published),
        delivered=len(delivered),
        acknowledged=len(acknowledged),
        dead=verdicts["dead"],
        released=verdicts["released"],
        redelivered=sum(one.redelivered for one in delivered),
    )
    judged.lost = _lost(judged.completeness, published, delivered, settled_us)
    judged.offences = [
        *out_of_order(delivered, DELIVERED_VIEW, skew_us),
        *out_of_order(settled, ACKNOWLEDGED_VIEW, skew_us),
        *repeated(acknowledged),
        *misplaced(delivered),
        *overlaps(delivered, skew_us),
        *rehashed(delivered),
        *different(published, delivered),
    ]
    judged.moves = list(_moves(delivered))
    return judged


def _lost(
    completeness: dict[tuple[str, int], Completeness],
    published: Sequence[PublishedRecord],
    delivered: Sequence[DeliveredRecord],
    settled_us: int,
) -> list[LostRange]:
    """Fills `completeness`. A message with two records of publishing was confirmed when the first of them says."""
    confirmed: dict[Message, int] = {}
    for one in published:
        confirmed[message_of(one)] = min(
            one.confirmed_at_us, confirmed.get(message_of(one), one.confirmed_at_us)
        )
    arrived = {message_of(one) for one in delivered}
    for publisher, hash_ in {message[:2] for message in confirmed.keys() | arrived}:
        of_stream = [
            {seq for *stream, seq in messages if stream == [publisher, hash_]}
            for messages in (confirmed, arrived)
        ]
        known = of_stream[0] | of_stream[1]
        begin = min(of_stream[0] or known)
        absent = set(range(max(known))) - known
        completeness[publisher, hash_] = Completeness(
            unrecorded=sum(seq > begin for seq in absent), early=sum(seq < begin for seq in absent)
        )
    final = {message_of(one) for one in delivered if one.verdict in FINAL}
    lost: list[Message] = []
    for message in sorted(confirmed.keys() | arrived):
        stream = completeness.setdefault(message[:2], Completeness())
        stream.published += message in confirmed
        stream.distinct += message in arrived
        stream.unpublished += message not in confirmed
        if message in confirmed and message not in final:
            is_pending = confirmed[message] > settled_us
            stream.pending += is_pending
            stream.lost += not is_pending
            lost += [] if is_pending else [message]
    ranges: list[LostRange] = []
    for publisher, hash_, seq in lost:
        if ranges and (ranges[-1].publisher, ranges[-1].hash, ranges[-1].last + 1) == (publisher, hash_, seq):
            ranges[-1] = replace(ranges[-1], last=seq)
        else:
            ranges.append(LostRange(publisher, hash_, seq, seq))
    return ranges


def _moves(delivered: Sequence[DeliveredRecord]) -> Iterator[Move]:
    shards: dict[int, list[DeliveredRecord]] = defaultdict(list)
    for one in delivered:
        if mode_of(one) == EXCLUSIVE or (mode_of(one) == PARTITIONED and one.key is not None):
            shards[one.hash_].append(one)
    for hash_, of_hash in sorted(shards.items()):
        for was, now in pairwise(of_hash):
            if was.member != now.member:
                pause_us = now.delivered_at_us - was.delivered_at_us
                yield Move(hash_, was.member, now.member, now.delivered_at_us, pause_us)
