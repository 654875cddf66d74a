"""Messages later than a target of 10 s, and consumer-hours: `targetDelay` beside lag, CPU and KEDA's QueueLength.

In virtual time. Messages of recorded keys wait in queues, members of a balanced assignment call them one at a time, and
the loop of the HorizontalPodAutoscaler scales the members. `targetDelay` has one setting for all shapes of load; the
value of each other rule is searched for each shape. `python -m bench.scaling` (three minutes).
"""

from __future__ import annotations

import csv
import gzip
import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import fmean
from typing import Any

import numpy as np

from bench.measurement import Measurement
from lbg_core.group import balanced_owners, hash_of, queue_of
from lbg_core.group.sizing import MemberSample, Sample, Sizer, published
from testing import ROOT

TARGET_S = 10.0
QUEUES, HASHES = 64, 1024
REPLICAS_MAX = 16
PEAK_MEMBERS = 7.6
"""Work of the peak, in members: it needs eight."""

SERVICE_S, VARIATION = 0.02, 1.0
"""Calls are lognormal, with this mean and coefficient of variation."""

POD_S, FIRST_DELIVERY_S = (4.0, 12.0), (1.0, 4.2)
"""From the autoscaler's decision until a pod is ready; from then to its first message (bench.first_delivery)."""

SYNC_S, TOLERANCE, STABILIZATION_S = 15, 0.1, 300
"""Defaults of the HorizontalPodAutoscaler, and `scaleDownStabilizationSeconds` of the group."""

SURVEY_S = 10
STEP_S = 5
AHEAD = 500
"""Messages of a queue that are looked at in a step: twice as many as a member calls."""

LATE_MAX = 0.05
"""Share of late messages above which a rule is no rival, and its run ends."""

Array = Any  # of numpy, which the type checker does not follow here


# Load


@cache
def flights() -> tuple[list[tuple[int, int]], list[str]]:
    """Day of February and minute of each departure of the sample, and its key."""
    times, keys = [], []
    with gzip.open(ROOT / "examples" / "flights-sample.csv.gz", "rt", newline="") as rows:
        for row in csv.DictReader(rows):
            if row["dep_time"] != "NA" and row["tailnum"] != "NA":
                clock = int(row["dep_time"])
                times.append((int(row["day"]), clock // 100 * 60 + clock % 100))
                keys.append(row["tailnum"])
    return times, keys


def recorded() -> Array:
    """Work by second: departures of 7 to 10 February, with a snowstorm, by quarters of an hour; a day in an hour."""
    days, quarter_s = range(7, 11), 3600 / 96
    counts = Counter(
        (day - days.start) * 96 + minute // 15 % 96 for day, minute in flights()[0] if day in days
    )
    quarters = np.array([counts[number] for number in range(96 * len(days))], float)
    seconds = np.arange(len(days) * 3600)
    return np.interp(seconds, (np.arange(len(quarters)) + 0.5) * quarter_s, quarters)


def black_friday() -> Array:
    """Ten times the load within ten minutes, waves for 75 minutes, and back within 90."""
    peak = 0.92 + 0.08 * np.cos(np.arange(4500) / 4500 * 4 * math.pi)
    parts = (
        np.full(1800, 0.1),
        np.linspace(0.1, 1, 600),
        peak,
        np.linspace(1, 0.1, 5400),
        np.full(2100, 0.1),
    )
    return np.concatenate(parts)


def sawtooth() -> Array:
    """From an eighth of the peak to it within 20 minutes, nine times."""
    return np.tile(np.linspace(1 / 8, 1, 1200), 9)


SHAPES: Mapping[str, Callable[[], Array]] = {
    "flights": recorded,
    "Black Friday": black_friday,
    "sawtooth": sawtooth,
}


@dataclass(frozen=True)
class Traffic:
    """Messages by queue, and in it by time. `ends[t, q]`: place of the first message of queue q not there by t."""

    arrival_s: Array
    service_s: Array
    starts: Array
    ends: Array

    @property
    def until_s(self) -> int:
        return len(self.ends) - 1


def traffic(shape: Array, seed: int) -> Traffic:
    chance = np.random.default_rng(seed)
    rates = shape / shape.max() * PEAK_MEMBERS / SERVICE_S
    counts = chance.poisson(rates)
    second = np.repeat(np.arange(len(counts)), counts)
    arrival_s = np.sort(second + chance.random(len(second)))
    keys = flights()[1]
    queues = np.array([queue_of(hash_of(key, HASHES), QUEUES) for key in keys])
    queue = queues[chance.integers(0, len(keys), len(second))]
    spread = math.sqrt(math.log(1 + VARIATION**2))
    service_s = chance.lognormal(math.log(SERVICE_S) - spread**2 / 2, spread, len(second))
    by_queue = np.argsort(queue, kind="stable")
    came = np.zeros((len(counts) + 1, QUEUES), np.int64)
    np.add.at(came, (np.floor(arrival_s).astype(int) + 1, queue), 1)
    totals = np.bincount(queue, minlength=QUEUES)
    starts = np.cumsum(totals) - totals
    return Traffic(arrival_s[by_queue], service_s[by_queue], starts, starts + np.cumsum(came, axis=0))


# Members


class Group:
    """Members 0 to n - 1 that serve, each with one call at a time, in the order in which messages came."""

    def __init__(self, load: Traffic) -> None:
        self.load = load
        self.now = 0
        self.late = 0
        self.members = 0
        self.place = load.starts.copy()
        self.free_s = np.zeros(REPLICAS_MAX)
        self.calls = np.zeros(REPLICAS_MAX, np.int64)
        self.work_s = np.zeros(REPLICAS_MAX)
        self.delivered = np.zeros((REPLICAS_MAX, QUEUES), np.int64)
        self.running = np.zeros(REPLICAS_MAX, np.int64)
        """Queue of the last call of each."""
        self.incarnations = [0] * REPLICAS_MAX
        self._owners = np.zeros(QUEUES, np.int64)

    def scale(self, members: int) -> None:
        for index in range(self.members, members):
            self.free_s[index], self.calls[index], self.work_s[index] = self.now, 0, 0.0
            self.delivered[index] = 0
            self.incarnations[index] += 1
        self.members = members
        self._owners = np.array(balanced_owners(QUEUES, frozenset(range(members))))

    def run(self, until: int) -> None:
        while self.now < until:
            step = min(self.now + STEP_S, until)
            self._step(step)
            self.now = step

    def _step(self, until: int) -> None:
        load = self.load
        lengths = np.minimum(load.ends[until] - self.place, AHEAD)
        queue = np.repeat(np.arange(QUEUES), lengths)
        first = np.cumsum(lengths) - lengths
        index = np.arange(len(queue)) + (self.place - first)[queue]
        member, arrival_s = self._owners[queue], load.arrival_s[index]
        base_s = member * 1e6  # keeps the members apart, in one array
        order = np.argsort(base_s + arrival_s)
        queue, member, arrival_s, base_s = queue[order], member[order], arrival_s[order], base_s[order]
        service_s = load.service_s[index[order]]
        ahead_s = np.cumsum(service_s) - service_s
        may_s = np.maximum(arrival_s, self.free_s[member]) + base_s
        start_s = np.maximum.accumulate(may_s - ahead_s) + ahead_s - base_s
        begun = start_s < until
        queue, member, start_s, service_s = queue[begun], member[begun], start_s[begun], service_s[begun]
        self.late += int(np.count_nonzero(start_s - arrival_s[begun] > TARGET_S))
        self.free_s[member] = start_s + service_s  # the last one of each remains
        self.place += np.bincount(queue, minlength=QUEUES)
        self.calls += np.bincount(member, minlength=REPLICAS_MAX)
        self.work_s += np.bincount(member, service_s, REPLICAS_MAX)
        self.running[member] = queue
        pairs = np.bincount(member * QUEUES + queue, minlength=REPLICAS_MAX * QUEUES)
        self.delivered += pairs.reshape(REPLICAS_MAX, QUEUES)

    def busy_s(self, member: int) -> float:
        return float(self.work_s[member] - max(0.0, self.free_s[member] - self.now))

    @property
    def waiting(self) -> Array:
        """Messages of each queue that are ready or unacknowledged."""
        calls = self.running[self.free_s > self.now]
        return self.load.ends[self.now] - self.place + np.bincount(calls, minlength=QUEUES)

    @property
    def unserved_late(self) -> int:
        """Messages that wait for longer than the target at the end."""
        load, now = self.load, self.now
        return sum(
            int(np.count_nonzero(load.arrival_s[place:end] < now - TARGET_S))
            for place, end in zip(self.place, load.ends[now], strict=True)
        )


# Rules


class Rule:
    """Metric of an autoscaler: `read` at each of `reads`, and `desired` at each sync."""

    def __init__(self, group: Group, chance: random.Random) -> None:
        self.group, self.chance = group, chance

    def reads(self, syncs: Sequence[int]) -> Iterable[int]:
        raise NotImplementedError

    def read(self) -> None:
        raise NotImplementedError

    def desired(self, current: int) -> int:
        raise NotImplementedError


def is_within(ratio: float) -> bool:
    return 1.0 - TOLERANCE <= ratio <= 1.0 + TOLERANCE


def average_value(value: float, current: int) -> int:
    """Replicas by an external metric with target type AverageValue 1, whose values have three digits."""
    value = math.ceil(value * 1000 - 1e-6) / 1000
    return current if is_within(value / current) else math.ceil(value)


class Delay(Rule):
    """Ours."""

    def __init__(self, group: Group, chance: random.Random) -> None:
        super().__init__(group, chance)
        self.sizer = Sizer(TARGET_S)

    def reads(self, syncs: Sequence[int]) -> Iterable[int]:
        return range(self.chance.randrange(SURVEY_S), syncs[-1], SURVEY_S)

    def read(self) -> None:
        group = self.group
        members = tuple(
            MemberSample(
                f"{one}-{group.incarnations[one]}",
                1,
                int(group.calls[one] - (group.free_s[one] > group.now)),
                group.busy_s(one),
                dict(enumerate(group.delivered[one].tolist())),
            )
            for one in range(group.members)
        )
        waiting = dict(enumerate(group.waiting.tolist()))
        self.sizer.add(Sample(float(group.now), members, waiting))

    def desired(self, current: int) -> int:
        wanted = self.sizer.sizing().wanted
        return current if wanted is None else average_value(published(wanted, current, TOLERANCE), current)


class Lag(Rule):
    """`targetLag`, which the operator counts: up to 2 s old."""

    AGE_S = 2

    def __init__(self, group: Group, chance: random.Random, target: float) -> None:
        super().__init__(group, chance)
        self.target = target
        self.lag = 0

    def reads(self, syncs: Sequence[int]) -> Iterable[int]:
        return [max(0, sync - self.chance.randint(0, self.AGE_S)) for sync in syncs]

    def read(self) -> None:
        self.lag = int(self.group.waiting.sum())

    def desired(self, current: int) -> int:
        return average_value(self.lag / self.target, current)


class QueueLength(Lag):
    """KEDA's: messages of the broker's statistics, which are up to 5 s old."""

    AGE_S = 5


class Cpu(Rule):
    """Busy share of the pods over 15 s, by scrapes of metrics-server every 15 s."""

    SCRAPE_S = 15

    def __init__(self, group: Group, chance: random.Random, target: int) -> None:
        super().__init__(group, chance)
        self.target = target
        self.scrapes: deque[dict[str, float]] = deque([{}, {}], maxlen=2)

    def reads(self, syncs: Sequence[int]) -> Iterable[int]:
        return range(self.chance.randrange(self.SCRAPE_S), syncs[-1], self.SCRAPE_S)

    def read(self) -> None:
        group = self.group
        self.scrapes.append(
            {f"{one}-{group.incarnations[one]}": group.busy_s(one) for one in range(group.members)}
        )

    def desired(self, current: int) -> int:
        """Pods without a value count as idle against more replicas, and as busy (100 %) against fewer."""
        before, last = self.scrapes
        used = [100 * (busy_s - before[one]) / self.SCRAPE_S for one, busy_s in last.items() if one in before]
        if not used:
            return current
        ratio = int(sum(used) / len(used)) / self.target
        missing = current - len(used)
        if missing > 0:
            known, count = ratio, len(used) + missing
            ratio = (
                int((sum(used) + (max(100, self.target) * missing if known < 1 else 0)) / count) / self.target
            )
            if (known < 1) != (ratio < 1):
                return current
        return current if is_within(ratio) else math.ceil(ratio * max(current, len(used)) - 1e-9)


# Autoscaler


@dataclass(frozen=True)
class Outcome:
    """Share of late messages, consumer-hours from each pod's creation, and replicas at each sync."""

    late: float
    hours: float
    replicas: tuple[int, ...] = ()


NO_RIVAL = Outcome(1.0, math.inf)


def outcome(load: Traffic, rule_of: Callable[[Group, random.Random], Rule], seed: int) -> Outcome:
    chance, group = random.Random(seed), Group(load)
    rule = rule_of(group, chance)
    replicas = first = max(1, math.ceil(float(load.ends[60].sum() - load.starts.sum()) / 60 * SERVICE_S))
    group.scale(first)
    syncs = range(chance.randrange(SYNC_S), load.until_s, SYNC_S)
    events = sorted([*((at, 1) for at in syncs), *((at, 0) for at in rule.reads(syncs))])
    starting: list[int] = []
    """Times at which pods get their first message."""
    recommended = deque([(0, first)])
    total, pod_seconds, counted_at, history = len(load.arrival_s), 0, 0, list[int]()

    def join(until: int) -> None:
        while starting and starting[0] <= until:
            group.run(starting.pop(0))
            group.scale(group.members + 1)
        group.run(until)

    for at, is_sync in events:
        join(at)
        if not is_sync:
            rule.read()
            continue
        desired = min(max(rule.desired(replicas), 1), REPLICAS_MAX)
        recommended.append((at, desired))
        while recommended[0][0] <= at - STABILIZATION_S:
            recommended.popleft()
        pod_seconds += replicas * (at - counted_at)
        counted_at = at
        if desired > replicas:
            desired = min(desired, max(replicas + 4, 2 * replicas))
            starting = sorted(
                [
                    *starting,
                    *(
                        at + math.ceil(chance.uniform(*POD_S) + chance.uniform(*FIRST_DELIVERY_S))
                        for _ in range(desired - replicas)
                    ),
                ]
            )
        else:
            desired = min(replicas, max(number for _, number in recommended))
            starting = starting[: max(0, len(starting) - (replicas - desired))]
            group.scale(desired - len(starting))
        replicas = desired
        history.append(replicas)
        if group.late > LATE_MAX * total:
            return NO_RIVAL
    join(load.until_s)
    pod_seconds += replicas * (load.until_s - counted_at)
    late = group.late + group.unserved_late
    return Outcome(late / total, pod_seconds / 3600, tuple(history))


# Comparison

LAGS = (*(round(1.2**step, 1) for step in range(38)),)
SHARES = (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, *range(70, 100))
RIVALS: tuple[tuple[str, type[Lag] | type[Cpu], Sequence[int]], ...] = (
    ("targetLag", Lag, LAGS),
    ("QueueLength", QueueLength, LAGS),
    ("CPU %", Cpu, SHARES),
)
NEAR = 0.9
"""The bar: within a tenth of the rivals' front."""


def is_ahead(rival: Outcome, ours: Outcome) -> bool:
    """True for a rival that misses fewer than nine tenths of our late messages in our hours, or needs fewer than nine
    tenths of our hours for as few."""
    is_earlier = rival.hours <= ours.hours and rival.late < NEAR * ours.late
    is_cheaper = rival.late <= ours.late and rival.hours < NEAR * ours.hours
    return is_earlier or is_cheaper


def nearest(rivals: Mapping[str, Outcome], ours: Outcome) -> Iterator[str]:
    """Of one rule: the cheapest value with as few late messages as ours, and the one with the fewest in our hours."""
    as_late = [title for title, one in rivals.items() if one.late <= ours.late]
    as_dear = [title for title, one in rivals.items() if one.hours <= ours.hours]
    yield from sorted(as_late, key=lambda title: rivals[title].hours)[:1]
    yield from sorted(as_dear, key=lambda title: rivals[title].late)[:1]


def row(title: str, one: Outcome, note: str = "") -> str:
    if one.hours == math.inf:
        return f"| {title} | > {LATE_MAX:.0%} | | {note} |"
    return f"| {title} | {one.late:.2%} | {one.hours:.1f} | {note} |"


def compared(name: str, seeds: Sequence[int]) -> bool:
    """Prints the table of a shape; True if the bar is held."""
    loads = [(traffic(SHAPES[name](), seed), seed) for seed in seeds]

    def mean(rule_of: Callable[[Group, random.Random], Rule]) -> Outcome:
        outcomes = [outcome(load, rule_of, seed) for load, seed in loads]
        return Outcome(fmean(one.late for one in outcomes), fmean(one.hours for one in outcomes))

    ours = mean(Delay)
    print(f"\n{name}: {sum(len(load.arrival_s) for load, _ in loads):,} messages\n")
    print("| rule | late | consumer-hours | |\n|---|---|---|---|")
    print(row(f"targetDelay {TARGET_S:.0f}s", ours), flush=True)
    is_held = True
    for rule, kind, values in RIVALS:
        rivals = {f"{rule} {value:g}": mean(partial(kind, target=value)) for value in values}
        ahead = {title for title, one in rivals.items() if is_ahead(one, ours)}
        is_held &= not ahead
        for title in dict.fromkeys(
            (*nearest(rivals, ours), *sorted(ahead), *(("CPU % 70",) if kind is Cpu else ()))
        ):
            print(row(title, rivals[title], "ahead" if title in ahead else ""), flush=True)
    print(f"\n{name}: {'held' if is_held else 'missed'}", flush=True)
    return is_held


def main() -> int:
    parser = Measurement(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    asked = parser.asked()
    held = [compared(name, asked.seeds) for name in asked.shapes]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
