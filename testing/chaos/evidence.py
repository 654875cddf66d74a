"""Files of a run's directory, for the checks and for a reader."""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from testing.chaos import ledger, losses
from testing.chaos.history_checks import judge
from testing.chaos.ledger import Record
from testing.chaos.losses import Loss
from testing.chaos.schedule import Sizes
from testing.chaos.stream import keys_of
from testing.chaos.verdict import Name, Rules, Verdict


def leave(
    directory: Path,
    *,
    seed: int,
    sizes: Sizes,
    losses_: Collection[Loss],
    told_twice: list[int],
    dead: Collection[Name],
) -> None:
    """Beside the ledgers, what else there is to know of a run."""
    losses.write(directory / "losses.jsonl", losses_)
    told = {"seed": seed, "sizes": asdict(sizes), "told_twice": told_twice, "dead": list(dead)}
    (directory / "run.json").write_text(json.dumps(told))


def judge_directory(directory: Path) -> Verdict:
    told = json.loads((directory / "run.json").read_text())
    sizes = Sizes(**told["sizes"])
    streams = [
        keys_of(told["seed"], publisher, sizes.messages_of(publisher), sizes.keys)
        for publisher in range(sizes.publishers)
    ]
    return judge(
        streams,
        records_of(directory),
        losses=list(losses.read(directory / "losses.jsonl")),
        dead={(publisher, position) for publisher, position in told["dead"]},
        rules=Rules(window=sizes.prefetch, overlap_s=overlap_s(sizes), told_twice=told["told_twice"]),
    )


def overlap_s(sizes: Sizes) -> float:
    """A member gives its connection up after two to three silent heartbeats, and then cancels its calls."""
    return 3.0 * sizes.heartbeat_s + 2.0


def records_of(directory: Path) -> Iterator[tuple[int, Record]]:
    """Of all lives, in order of time."""
    merged = heapq.merge(*(_of_life(path) for path in directory.glob("*.ledger")))
    return ((life, record) for record, life in merged)


def history_of(directory: Path, name: Name) -> Iterator[str]:
    """Every record of a message and of those just before and behind it in its key, as lines for a person."""
    told = json.loads((directory / "run.json").read_text())
    sizes = Sizes(**told["sizes"])
    publisher, position = name
    keys = keys_of(told["seed"], publisher, sizes.messages_of(publisher), sizes.keys)
    same = [each for each, key in enumerate(keys) if key == keys[position]]
    at = same.index(position)
    near = set(same[max(0, at - 1) : at + 2])
    for life, record in records_of(directory):
        if record.publisher == publisher and record.position in near and record.kind != ledger.Kind.STARTED:
            yield (
                f"    {record.at_ns / 1e9:.6f} life {life} {ledger.Kind(record.kind).name:8} "
                f"({publisher}, {record.position}) key {record.key} seq {record.seq} queue {record.queue} "
                f"attempt {record.attempt}{' redelivered' if record.redelivered else ''}"
            )


def _of_life(path: Path) -> Iterator[tuple[Record, int]]:
    life = int(path.stem)
    return ((record, life) for record in ledger.read(path))
