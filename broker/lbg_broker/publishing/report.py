"""What a publisher reports at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .ordering import OrderedPublishing
from .state_file import StateFile
from .state_layout import EndedEpoch, EndedEpochs, Totals


@dataclass(frozen=True, slots=True)
class PublishingReport:
    """`published` messages have a sequence number, and `epochs` says for each hash how many in each epoch, the oldest
    first; `publisher` and `next_seq` are the last of them. `confirmed` of them the broker has taken. These, and the
    counts of what went otherwise (see `counts.Counts`), are over all `runs` of a state file, but for `epochs_left_out`:
    so many came before. The rest is of this run. `bad_rows` were no messages and were passed over. `messages_per_s`:
    confirmed in this run, over its `seconds` from the first attempt to connect on. `resumed_at_us`: when the state was
    saved that it went on from, 0 where that is not known; None if there was none. `new_epoch`: messages that were not
    sent before, as that state says.
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
    epochs: list[dict[str, object]]
    epochs_left_out: int
    resumed_at_us: int | None
    new_epoch: int

    @classmethod
    def of(
        cls,
        publisher: str,
        machine: OrderedPublishing,
        *,
        state: StateFile | None,
        bad_rows: int = 0,
        seconds: float,
    ) -> PublishingReport:
        counts, published = machine.counts, machine.stamper.position
        before = Totals() if state is None else state.before
        ended = EndedEpochs() if state is None else state.ended
        if state is not None and machine.ended_epoch is not None and not state.has_next_epoch:
            ended = ended.with_one_more(EndedEpoch.of(state.identity.publisher, machine.ended_epoch))
        last = EndedEpoch.of(publisher, machine.stamper.next_seq)
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
            next_seq=dict(last.next_seq),
            epochs=[
                {"publisher": each.publisher, "next_seq": dict(each.next_seq)} for each in (*ended.kept, last)
            ],
            epochs_left_out=ended.left_out,
            resumed_at_us=state.saved_at_us if state is not None and state.start.is_resumed else None,
            new_epoch=machine.new_epoch_count,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"
