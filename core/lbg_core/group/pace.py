"""Pace of members and of keys: time of a call, busy share, and who is slower than others. Pure.

A member measures itself, every `MEASURED_S` over the last `WINDOW_S`, or less if it has not been there for so long, or
remembers less. All views show what it reports. A report without a pace is of an older version: its pace is unknown,
and not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from statistics import median
from typing import Annotated, NamedTuple
from zlib import crc32

from lbg_core.group.json_codec import of_length
from lbg_core.group.member_state import Amount

WINDOW_S = 60.0
MEASURED_S = 5.0

KEYS_MAX = 5
"""Keys in a report: those with most time in calls."""

KEY_MAX_CHARS = 64

SLOW_FROM, SLOW_BY_S, SLOW_CALLS = 3.0, 0.001, 5
"""A member is slow if half of its calls take so many times as long as at its peers, longer by so much, and are so
many."""


Call = tuple[str | None, float, float | None]
"""The key, the begin, and the end of a call; None: it runs. On one clock, in seconds."""


@dataclass(frozen=True, slots=True)
class KeyPace:
    """A key. `busy`: the part of the window in which one of its calls ran, without those that failed and are tried
    again. They run one at a time: at 1 the key cannot go faster, whatever is added. `calls` ended in the window;
    without one `p50_s` and `p99_s` are None."""

    key: Annotated[str, of_length(KEY_MAX_CHARS)]
    busy: Annotated[
        Amount,
        "share of the time in which a call of it ran that is not tried again: at 1 it cannot go faster",
    ]
    calls: Annotated[int, "calls that ended"] = 0
    p50_s: Annotated[Amount | None, "half of them took at most so long; null: none ended"] = None
    p99_s: Annotated[Amount | None, "99 of 100 of them took at most so long; null: none ended"] = None


@dataclass(frozen=True, slots=True)
class Pace:
    """A member in the window.

    `busy`: time in calls, also in those that run, divided by the elapsed time and the calls that may run at a time. The
    other figures are of the last call of each message that it was done with, as a message that is tried again has no
    end yet: of a member whose calls all hang, `busy` is 1 and `p50_s` None. `finished_hz`: messages a second that it
    processed. `p99_s` of fewer than 100 calls is the longest. `keys`: the busiest first.
    """

    busy: Annotated[Amount, "time in calls, of the time that all that may run at a time had"] = 0.0
    finished_hz: Annotated[Amount, "messages that it processed a second"] = 0.0
    calls: Annotated[int, "calls that ended, as far as it remembers them"] = 0
    p50_s: Annotated[Amount | None, "half of them took at most so long; null: none ended"] = None
    p99_s: Annotated[Amount | None, "99 of 100 of them took at most so long; null: none ended"] = None
    keys: Annotated[
        tuple[KeyPace, ...], of_length(KEYS_MAX), "those with most time in calls, the busiest first"
    ] = ()


def quantile(times: Sequence[float], share: float) -> float | None:
    """The least of these rising times that `share` of them do not exceed; None without one."""
    return times[max(0, math.ceil(share * len(times)) - 1)] if times else None


def pace_of(calls: Sequence[Call], *, since: float, now: float, busy: float, finished_hz: float) -> Pace:
    """`calls`: those that ended, and those that run. `since`: begin of the window, or of what is remembered, if that is
    later. `busy` and `finished_hz`: as measured over the window."""
    ended = [(key, end - start) for key, start, end in calls if end is not None and end > since]
    return Pace(
        _rounded(min(1.0, max(0.0, busy)), 2),
        _rounded(max(0.0, finished_hz)),
        len(ended),
        *_quantiles([time_s for _, time_s in ended]),
        _keys(calls, ended, since, now),
    )


def _keys(
    calls: Sequence[Call], ended: Sequence[tuple[str | None, float]], since: float, now: float
) -> tuple[KeyPace, ...]:
    busy_s: dict[str | None, float] = {}
    for key, start, end in calls:
        part_s = (now if end is None else end) - (start if start > since else since)
        if part_s > 0:
            busy_s[key] = busy_s.get(key, 0.0) + part_s
    busy_s.pop(None, None)
    busiest = nsmallest(KEYS_MAX, busy_s, key=lambda key: (-busy_s[key], key))
    times: dict[str | None, list[float]] = {key: [] for key in busiest}
    for key, time_s in ended:
        if key in times:
            times[key].append(time_s)
    seconds = max(now - since, 1e-9)
    return tuple(
        KeyPace(
            _cut(key),
            _rounded(min(1.0, busy_s[key] / seconds), 2),
            len(times[key]),
            *_quantiles(times[key]),
        )
        for key in busiest
        if key is not None
    )


def _cut(key: str) -> str:
    """A long key has its hash at the end, so that two are not taken for one."""
    if len(key) <= KEY_MAX_CHARS:
        return key
    return f"{key[: KEY_MAX_CHARS - 9]}…{crc32(key.encode(errors='surrogatepass')):08x}"


def _quantiles(times: Sequence[float]) -> tuple[float | None, float | None]:
    rising = sorted(times)
    p50_s, p99_s = quantile(rising, 0.5), quantile(rising, 0.99)
    if p50_s is None or p99_s is None:
        return None, None
    return _rounded(max(0.0, p50_s)), _rounded(max(0.0, p99_s))


def _rounded(value: float, digits: int = 3) -> float:
    """For reports: they are shorter, and one like the last is not sent."""
    return float(f"{value:.{digits}g}")


class HotKey(NamedTuple):
    """A key of a group. `rate`: messages a second. None: unknown."""

    key: str
    rate: float | None
    pace: KeyPace | None


def hottest(
    paces: Iterable[Pace | None], rates: Mapping[str, float] | None = None, count: int = KEYS_MAX
) -> list[HotKey]:
    """The keys with most time in calls; of equal ones, and where no member reports times, those with most messages.

    `rates`: messages a second that are known of keys. Calls of one key at several members, as after a move, add up;
    the times are of the member with most of them.
    """
    found: dict[str, KeyPace] = {}
    for one in (key for pace in paces if pace is not None for key in pace.keys):
        seen = found.get(one.key)
        found[one.key] = one if seen is None else _together(seen, one)
    known = rates or {}
    keys = [HotKey(key, known.get(key), found.get(key)) for key in dict.fromkeys((*found, *known))]
    keys.sort(key=lambda one: (-(one.pace.busy if one.pace else 0.0), -(one.rate or 0.0), one.key))
    return keys[:count]


def _together(one: KeyPace, other: KeyPace) -> KeyPace:
    more = max(one, other, key=lambda each: each.calls)
    return replace(more, busy=_rounded(min(1.0, one.busy + other.busy), 2), calls=one.calls + other.calls)


class Slow(NamedTuple):
    """A member whose calls take `factor` times as long as those of its peers, of which half take `peers_s`."""

    factor: float
    peers_s: float


def slow_members(paces: Mapping[str, Pace | None]) -> dict[str, Slow]:
    """Those that are far slower than the median of the others; none where that is unknown."""
    known = {name: one for name, one in paces.items() if one is not None and one.calls >= SLOW_CALLS}
    times = {name: one.p50_s for name, one in known.items() if one.p50_s is not None}
    slow = {}
    for name, p50_s in times.items():
        others = [one for other, one in times.items() if other != name]
        if not others:
            continue
        peers_s = median(others)
        if peers_s > 0 and p50_s >= SLOW_FROM * peers_s and p50_s >= peers_s + SLOW_BY_S:
            slow[name] = Slow(p50_s / peers_s, peers_s)
    return slow
