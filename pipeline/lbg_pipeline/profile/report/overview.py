"""The few figures of a group, and what a reader must know before the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Row

from lbg_pipeline.pages import Fact, Facts, Note
from lbg_pipeline.pages.formatting import count, duration, moment, rate, ratio, share, size, whole

from ..digesting import Digest
from ..histograms import AGE, SERVICE, SIZE
from .intervals import spoken


def facts(digest: Digest) -> Facts:
    return Facts([*_volume(digest), *_values(digest.latencies), *_spread(digest), *_moves(digest.pauses)])


def notes(digest: Digest) -> Iterator[Note]:
    if digest.delivered is None:
        yield Note("No member's journal tells of this group: only what was published is known.", warns=True)
        return
    if digest.published is None:
        yield Note(
            "No publisher's journal tells of this group: only what was delivered is known.", warns=True
        )
    if digest.delivered.early:
        yield Note(
            f"{whole(digest.delivered.early)} messages were delivered before they were published: the clocks of "
            "publishers and members differ, and ages at delivery are off by as much.",
            warns=True,
        )


def _volume(digest: Digest) -> Iterator[Fact]:
    yield Fact(
        "time told of",
        duration(digest.last_us - digest.first_us),
        f"{moment(digest.first_us)} to {moment(digest.last_us)} UTC",
    )
    published, delivered = digest.published, digest.delivered
    if published is not None:
        mean = _mean_rate(published.messages, published.first_us, published.last_us)
        publishers = f"{whole(published.publishers)} publisher{'' if published.publishers == 1 else 's'}"
        yield Fact("published", count(published.messages), f"{mean} by {publishers}")
    if delivered is not None:
        done = delivered.ack + delivered.dead
        mean = _mean_rate(done, delivered.first_us, delivered.last_us)
        yield Fact("done", count(done), f"{mean}, {whole(delivered.dead)} dead letters")
        peak = max((row.messages for row in digest.done_over_time), default=0)
        yield Fact(
            "peak rate",
            rate(peak * 1e6 / digest.interval_us),
            f"mean of the busiest {spoken(digest.interval_us)}",
        )
        yield Fact(
            "redelivered",
            count(delivered.redelivered),
            f"{whole(delivered.released)} given back, {whole(delivered.repeat)} dropped as repeats",
        )


def _mean_rate(messages: int, first_us: int, last_us: int) -> str:
    return (
        rate(messages * 1e6 / (last_us - first_us))
        if messages > 1 and last_us > first_us
        else "at one moment"
    )


def _values(latencies: Iterable[Row]) -> Iterator[Fact]:
    told = {row.metric: row for row in latencies}
    for metric, label, written in (
        (AGE, "age at delivery, median", duration),
        (SERVICE, "service time, median", duration),
        (SIZE, "size of a body, median", size),
    ):
        if metric in told:
            row = told[metric]
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
            f"in {whole(runs)} runs; busy {ratio(busy / present if present else None)} of their time",
        )


def _moves(pauses: Iterable[Row]) -> Iterator[Fact]:
    for row in pauses:
        if row.unit == "queue":
            yield Fact(
                "handoffs of queues",
                count(row["count"]),
                f"a message waited {duration(row.waited_p50)} at the median, {duration(row.waited_greatest)} at most",
            )
