"""Queues that change their primary when a member joins or leaves.

`python -m testing.assignment_movement`

Exhaustive: every queue count from 1 to --queues, every live subset of indexes 0 to --indexes - 1, every member of
it that could leave. A join is the same change read backwards, so it moves as many. Prints the tables of
docs/internals/assignment.md; 16 and 16, the default, take about half a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbg_core.group import balanced_primaries

Assign = Callable[[int, list[int]], dict[int, int]]


@dataclass
class Movement:
    """Sums over many changes of a live set: queues moved, and the fewest that an assignment with a memory moves."""

    changes: int = 0
    moved: int = 0
    fewest: int = 0
    worst_excess: int = 0

    def count(self, moved: int, fewest: int) -> None:
        self.changes += 1
        self.moved += moved
        self.fewest += fewest
        self.worst_excess = max(self.worst_excess, moved - fewest)

    @property
    def ratio(self) -> float:
        return self.moved / self.fewest if self.fewest else 1.0

    @property
    def mean(self) -> float:
        return self.moved / self.changes if self.changes else 0.0

    @property
    def mean_fewest(self) -> float:
        return self.fewest / self.changes if self.changes else 0.0


@dataclass
class Measured:
    """`dense`: changes between 0..n-1 and the same without one. `one_hole`: one index was missing before."""

    every: Movement
    dense: Movement
    one_hole: Movement


def measure(assign: Assign, queue_count: int, index_count: int) -> Measured:
    """Every leave from every live subset of `index_count` indexes that leaves somebody.

    A leave moves at least what the leaver had: that is the minimum. No memory helps below it.
    """
    result = Measured(Movement(), Movement(), Movement())
    packed = [0] * (1 << index_count)
    for live in range(1, 1 << index_count):
        primaries = assign(queue_count, members_of(live))
        packed[live] = sum(primary << 8 * queue for queue, primary in primaries.items())
    lanes = sum(0xFF << 8 * queue for queue in range(queue_count))
    low_bits = lanes // 0xFF
    copies = [low_bits * index for index in range(index_count)]
    for live in range(1, 1 << index_count):
        holes = live.bit_length() - live.bit_count()
        for leaver in members_of(live):
            rest = live & ~(1 << leaver)
            if rest:
                moved = queue_count - _zero_lanes(packed[live] ^ packed[rest], low_bits)
                fewest = _zero_lanes(packed[live] ^ copies[leaver], low_bits)
                result.every.count(moved, fewest)
                if holes == 0:
                    result.dense.count(moved, fewest)
                elif holes == 1:
                    result.one_hole.count(moved, fewest)
    return result


def _zero_lanes(value: int, low_bits: int) -> int:
    """Number of zero bytes of `value`, one for each bit of `low_bits`; bytes are below 16."""
    folded = value | value >> 2
    return low_bits.bit_count() - ((folded | folded >> 1) & low_bits).bit_count()


def members_of(live: int) -> list[int]:
    return [index for index in range(live.bit_length()) if live >> index & 1]


# What else was tried. Each obeys the two laws.


def by_position(queue_count: int, live: list[int]) -> dict[int, int]:
    """Queue q to the member at position q mod n of the sorted live indexes."""
    return {queue: live[queue % len(live)] for queue in range(queue_count)}


def by_join_order(queue_count: int, live: list[int]) -> dict[int, int]:
    """As if the live members had joined in the order of their indexes, each taking its share from the fullest."""
    owners = [live[0]] * queue_count
    for count, newcomer in enumerate(live[1:], start=2):
        for _ in range(queue_count // count):
            fullest = max(live[: count - 1], key=owners.count)
            owners[owners.index(fullest)] = newcomer
    return dict(enumerate(owners))


def by_bounded_rendezvous(queue_count: int, live: list[int]) -> dict[int, int]:
    """Every (queue, member) pair has a random weight; pairs are taken from the heaviest while both have room."""
    pairs = ((queue, member) for queue in range(queue_count) for member in live)
    return _greedy(queue_count, live, sorted(pairs, key=lambda pair: _mixed(pair[0] << 32 | pair[1])))


def by_rounds(queue_count: int, live: list[int]) -> dict[int, int]:
    """The same with the rounds of the rule we use for weights, but without homes."""
    pairs = ((queue, member) for queue in range(queue_count) for member in live)
    return _greedy(
        queue_count, live, sorted(pairs, key=lambda pair: (pair[0] ^ pair[1]) * 2_654_435_769 & 0xFFFFFFFF)
    )


def _greedy(queue_count: int, live: list[int], pairs: list[tuple[int, int]]) -> dict[int, int]:
    floor, extra = divmod(queue_count, len(live))
    loads = dict.fromkeys(live, 0)
    owners: dict[int, int] = {}
    for queue, member in pairs:
        room = loads[member] < floor or (loads[member] == floor and extra > 0)
        if queue not in owners and room:
            extra -= loads[member] == floor
            owners[queue] = member
            loads[member] += 1
    return owners


def _mixed(value: int) -> int:
    value = (value ^ value >> 31) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31


def rows(queue_counts: range, index_count: int) -> Iterator[str]:
    yield "| queues | moved, mean | fewest, mean | ratio | dense | one hole | worst excess |"
    yield "|---|---|---|---|---|---|---|"
    for queue_count in queue_counts:
        found = measure(balanced_primaries, queue_count, index_count)
        yield (
            f"| {queue_count} | {found.every.mean:.3f} | {found.every.mean_fewest:.3f} | {found.every.ratio:.3f}"
            f" | {found.dense.ratio:.3f} | {found.one_hole.ratio:.3f} | {found.every.worst_excess} |"
        )


def comparison(queue_counts: range, index_count: int) -> Iterator[str]:
    yield "| rule | every change | dense | one hole | worst excess |"
    yield "|---|---|---|---|---|"
    for name, assign in (
        ("**homes, orphans in rounds** (ours)", balanced_primaries),
        ("rounds without homes", by_rounds),
        ("capacity-bounded rendezvous", by_bounded_rendezvous),
        ("join order, newcomer takes its share", by_join_order),
        ("position in the sorted live set", by_position),
    ):
        found = [measure(assign, queue_count, index_count) for queue_count in queue_counts]
        every, dense, one_hole = (
            sum(ratios) / len(found)
            for ratios in zip(
                *((one.every.ratio, one.dense.ratio, one.one_hole.ratio) for one in found), strict=True
            )
        )
        worst = max(one.every.worst_excess for one in found)
        yield f"| {name} | {every:.3f} | {dense:.3f} | {one_hole:.3f} | {worst} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--queues", type=int, default=16, help="the highest queue count")
    options.add_argument("--indexes", type=int, default=16, help="indexes that can be live; at most 16")
    options.add_argument(
        "--compare-indexes", type=int, default=10, help="the same, for the comparison of rules"
    )
    chosen = options.parse_args()
    counts = range(1, chosen.queues + 1)
    began = time.monotonic()
    print(f"Live subsets of {chosen.indexes} indexes:\n")
    for row in rows(counts, chosen.indexes):
        print(row, flush=True)
    print(
        f"\nMean ratio over queue counts 1 to {chosen.queues}, live subsets of {chosen.compare_indexes} indexes:\n"
    )
    for row in comparison(counts, chosen.compare_indexes):
        print(row, flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
