"""Values in intervals of time, as matplotlib draws steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Row

from lbg_pipeline.pages import axes

from ..digesting import Digest


def starts(digest: Digest) -> list[int]:
    """Where each interval of the group's time begins."""
    first = digest.first_us - digest.first_us % digest.interval_us
    return list(range(first, digest.last_us + 1, digest.interval_us))


def edges(digest: Digest) -> list[float]:
    """One more than there are intervals."""
    begun = starts(digest)
    return [axes.place(one) for one in (*begun, begun[-1] + digest.interval_us)]


def values(digest: Digest, rows: Iterable[Row], column: str) -> list[float]:
    """The column by interval, 0 where there is no row."""
    told = {row.at_us: row[column] for row in rows}
    return [told.get(at, 0) for at in starts(digest)]


def stepped(each: Sequence[float]) -> list[float]:
    """For `edges` and `drawstyle="steps-post"`: the last value holds to the last edge."""
    return [*each, each[-1]]


def spoken(interval_us: int) -> str:
    """`10 seconds`, `minute`, `2 hours`."""
    seconds = interval_us // 1_000_000
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            return name if seconds == size else f"{seconds // size} {name}s"
    return f"{seconds} seconds"
