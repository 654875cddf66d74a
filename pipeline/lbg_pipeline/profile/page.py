"""Page of a profile: a section for each group. Rows in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyspark.sql import Row

from lbg_core.counted_nouns import counted
from lbg_pipeline.html import Column, Fact, Facts, Note, Section, Table, page
from lbg_pipeline.html.numbers import count, duration, moment, rate, ratio, share, size, whole
from lbg_pipeline.html.page import Part
from lbg_pipeline.profile.digest import DETAILED_GROUPS, Digest
from lbg_pipeline.profile.histograms import AGE, SERVICE, SIZE
from lbg_pipeline.profile.load_sections import latency, load, spoken
from lbg_pipeline.profile.member_sections import members, moves, skew


def facts(digest: Digest) -> Facts:
    return Facts([*_volume(digest), *_values(digest.latencies), *_spread(digest), *_moves(digest.pauses)])


def notes(digest: Digest) -> Iterator[Note]:
    if digest.delivered is None:
        yield Note("The journals have no deliveries of this group, only published messages.", warns=True)
        return
    if digest.published is None:
        yield Note("The journals have no published messages of this group, only deliveries.", warns=True)
    if digest.delivered.early:
        yield Note(
            f"{counted(digest.delivered.early, 'message was', 'messages were')} delivered before they were "
            "published: the clocks of publishers and members differ, and ages at delivery have the same error.",
            warns=True,
        )


def _volume(digest: Digest) -> Iterator[Fact]:
    yield Fact(
        "time covered",
        duration(digest.last_us - digest.first_us),
        f"{moment(digest.first_us)} to {moment(digest.last_us)} UTC",
    )
    published, delivered = digest.published, digest.delivered
    if published is not None:
        mean = _mean_rate(published.messages, published.first_us, published.last_us)
        publishers = f"{counted(published.publishers, 'publisher')}"
        yield Fact("published", count(published.messages), f"{mean} by {publishers}")
    if delivered is not None:
        done = delivered.ack + delivered.dead
        mean = _mean_rate(done, delivered.first_us, delivered.last_us)
        yield Fact("done", count(done), f"{mean}, {counted(delivered.dead, 'dead letter')}")
        peak = max((row.messages for row in digest.done_over_time), default=0)
        yield Fact(
            "peak rate",
            rate(peak * 1e6 / digest.interval_us),
            f"mean of the busiest {spoken(digest.interval_us)}",
        )
        yield Fact(
            "redelivered",
            count(delivered.redelivered),
            f"{whole(delivered.released)} released, {whole(delivered.repeat)} dropped as repeats",
        )


def _mean_rate(messages: int, first_us: int, last_us: int) -> str:
    return (
        rate(messages * 1e6 / (last_us - first_us))
        if messages > 1 and last_us > first_us
        else "at one moment"
    )


def _values(latencies: Iterable[Row]) -> Iterator[Fact]:
    by_metric = {row.metric: row for row in latencies}
    for metric, label, written in (
        (AGE, "age at delivery, median", duration),
        (SERVICE, "service time, median", duration),
        (SIZE, "size of a body, median", size),
    ):
        if metric in by_metric:
            row = by_metric[metric]
            yield Fact(label, written(row.p50), f"99 % within {written(row.p99)}")


def _spread(digest: Digest) -> Iterator[Fact]:
    for row in digest.skew:
        if row.unit in ("key", "queue"):
            yield Fact(
                f"{row.unit}s",
                count(row["count"]),
                f"the hottest has {share(row.hottest_share)}; Gini {ratio(row.gini_messages)}",
            )
    if digest.runs:
        members, runs = len({row.member for row in digest.runs}), len(digest.runs)
        present = sum(row.presence_us for row in digest.runs)
        busy = sum(row.busy_us for row in digest.runs)
        yield Fact(
            "members",
            whole(members),
            f"in {counted(runs, 'run')}; busy {ratio(busy / present if present else None)} of their time",
        )


def _moves(pauses: Iterable[Row]) -> Iterator[Fact]:
    for row in pauses:
        if row.unit == "queue":
            yield Fact(
                "handoffs of queues",
                count(row["count"]),
                f"a message waited {duration(row.waited_p50)} at the median, {duration(row.waited_greatest)} at most",
            )


def report(
    digests: Sequence[Digest],
    published: Mapping[str, Row],
    delivered: Mapping[str, Row],
    *,
    journals: Sequence[str],
    broken: int,
    made_by: str,
) -> str:
    """One HTML page: all groups in a table, and those of `digests` drawn. `broken` is the number of lines set aside."""
    parts = [Note(_broken(broken), warns=True)] if broken else []
    names = sorted({*published, *delivered})
    sections = [_group(digest) for digest in digests]
    if not names:
        parts.append(Note("These journals have no records.", warns=True))
    if len(names) > 1 or parts:
        sections.insert(
            0, Section("All groups", [*parts, *([_groups(names, published, delivered)] if names else [])])
        )
    title = f"Profile of {names[0]}" if len(names) == 1 else f"Profile of {counted(len(names), 'group')}"
    return page(title, sections, subtitle=f"From the journals in {', '.join(journals)}", made_by=made_by)


def _broken(broken: int) -> str:
    if broken == 1:
        return "1 line is not a record and is ignored: the table broken has it with the reason."
    return (
        f"{counted(broken, 'line is not a record and is', 'lines are not records and are')} ignored: the table broken "
        "has them with the reason."
    )


def _groups(names: Sequence[str], published: Mapping[str, Row], delivered: Mapping[str, Row]) -> Table:
    columns = [Column("group"), Column("from (UTC)"), Column("to (UTC)")]
    columns += [
        Column(name, numeric=True) for name in ("published", "deliveries", "done", "dead", "redelivered")
    ]
    left_out = f"The {DETAILED_GROUPS} largest are drawn below." if len(names) > DETAILED_GROUPS else ""
    return Table(
        columns, [_row(name, published.get(name), delivered.get(name)) for name in names], "", left_out
    )


def _row(name: str, published: Row | None, delivered: Row | None) -> list[str]:
    spans = [one for one in (published, delivered) if one is not None]
    counts = [None] * 4 if delivered is None else [delivered.deliveries, delivered.ack + delivered.dead]
    if delivered is not None:
        counts += [delivered.dead, delivered.redelivered]
    return [
        name,
        moment(min(one.first_us for one in spans)),
        moment(max(one.last_us for one in spans)),
        whole(None if published is None else published.messages),
        *map(whole, counts),
    ]


def _group(digest: Digest) -> Section:
    return Section(digest.group, list(_parts(digest)))


def _parts(digest: Digest) -> Iterator[Part]:
    yield facts(digest)
    yield from notes(digest)
    yield load(digest)
    yield latency(digest)
    if digest.skew:
        yield skew(digest)
    for section in (moves(digest), members(digest)):
        if section is not None:
            yield section
