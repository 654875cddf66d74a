"""What a publisher reports at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .ordering import OrderedPublishing
from .state_layout import Totals


@dataclass(frozen=True, slots=True)
class PublishingReport:
    """`published` messages have a sequence number, and `next_seq` says for each hash how many; `confirmed` of
    them the broker has taken. These, and the counts of what went otherwise (see `counts.Counts`), are over
    all `runs` of a state file; the rest is of this run. `bad_rows` were no messages and were passed over.
    `messages_per_s`: confirmed in this run, over its `seconds` from the first attempt to connect on.
    """

    publisher: str
    published: int
    confirmed: int
    refused: int
    resends: int
    maybe_twice: int
    accepted_after_gap: int
    inverted: int
    runs: int
    published_in_this_run: int
    without_key: int
    bad_rows: int
    connections: int
    seconds: float
    messages_per_s: float
    next_seq: dict[int, int]

    @classmethod
    def of(
        cls, publisher: str, machine: OrderedPublishing, *, before: Totals, bad_rows: int = 0, seconds: float
    ) -> PublishingReport:
        counts, published = machine.counts, machine.stamper.position
        return cls(
            publisher=publisher,
            published=published,
            confirmed=published - sum(not message.confirmed for message in machine.floor.open),
            refused=before.refused + counts.refused,
            resends=before.resends + counts.resends,
            maybe_twice=before.maybe_twice + counts.maybe_twice,
            accepted_after_gap=before.accepted_after_gap + counts.accepted_after_gap,
            inverted=before.inverted + counts.inverted,
            runs=before.runs + 1,
            published_in_this_run=counts.confirmed,
            without_key=counts.without_key,
            bad_rows=bad_rows,
            connections=counts.connections,
            seconds=round(seconds, 3),
            messages_per_s=round(counts.confirmed / seconds, 1) if seconds > 0 else 0.0,
            next_seq={hash_: seq for hash_, seq in enumerate(machine.stamper.next_seq) if seq},
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"
