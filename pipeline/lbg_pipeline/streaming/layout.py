"""The layouts of what a checkpoint remembers of a bucket: this version's, and the one before, which is read too.

Before, chains were of streams: a publisher's epochs were judged each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lbg_pipeline.errors import CheckpointRefused

from .coding import coded
from .histories import Histories, Numbers
from .memory import CHAINS, FORGOTTEN, HISTORIES, SCHEMAS, Memory
from .order import NOTHING, highest_after

_LONG = pa.int64()
CHAINS_BEFORE = pa.schema(
    [
        ("stream", _LONG),
        ("key", pa.string()),
        ("delivered", _LONG),
        ("acknowledged", _LONG),
        ("last_us", _LONG),
    ]
)
_BEFORE: Mapping[str, Any] = {
    "chains": CHAINS_BEFORE,
    **{name: SCHEMAS[name] for name in ("streams", "sets", "shards", "totals")},
}


def memory_of(tables: Mapping[str, Sequence[Any]]) -> Memory:
    """What the state's tables hold, by name; none is there of a new bucket. Raises CheckpointRefused for a layout that
    is neither."""
    if not tables:
        return Memory()
    given = {
        name: pa.concat_tables([several[0].schema.empty_table(), *several])
        for name, several in tables.items()
    }
    layout = {name: table.schema for name, table in given.items()}
    if layout == SCHEMAS:
        return Memory(**given)
    if layout != _BEFORE:
        raise CheckpointRefused(
            "the checkpoint was written by another version of LBG, and this one does not know its layout: go on with "
            "that version, or name new directories with --checkpoint and --out, and what is there is judged anew"
        )
    histories, chains = _joined(given["streams"], given["chains"])
    return Memory(
        **{**given, "histories": histories, "chains": chains, "forgotten": _forgotten(given["streams"])}
    )


def _joined(streams: Any, before: Any) -> tuple[Any, Any]:
    """Histories and chains over the epochs of `before`. What epochs earlier than those that are remembered were, is
    not known: they count as forgotten."""
    histories = Histories(HISTORIES.empty_table(), streams)
    earliest_us = np.full(len(histories.table), np.iinfo(np.int64).max)
    np.minimum.at(earliest_us, histories.of_stream, histories.began_us)
    stream = before["stream"].to_numpy()
    [chain], firsts = coded([histories.of_stream[stream], before["key"]])
    first = pa.array(firsts)
    chains = {
        "history": pa.array(histories.of_stream[stream][firsts]),
        "key": before["key"].take(first),
        "last_us": pa.array(
            highest_after(chain, before["last_us"].to_numpy(), np.zeros(len(firsts), np.int64))
        ),
    }
    for view in ("delivered", "acknowledged"):
        number = before[view].to_numpy()
        numbers = Numbers(np.where(number == NOTHING, 0, histories.began_us[stream]), number)
        highest = highest_after(chain, numbers.places, np.full(len(firsts), NOTHING))
        chains[f"{view}_began_us"] = pa.array(numbers.began_us(highest))
        chains[view] = pa.array(numbers.number(highest))
    table = histories.table.set_column(3, HISTORIES.field(3), pa.array(earliest_us - 1))
    return table, pa.table([chains[name] for name in CHAINS.names], schema=CHAINS)


def _forgotten(streams: Any) -> Any:
    """Not known either: any epoch that began before the newest record may have been."""
    latest = streams.group_by("group").aggregate([("last_us", "max")])
    return pa.table([latest["group"], latest["last_us_max"]], schema=FORGOTTEN)
