"""Shards that move: a hash is delivered to another member than before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .coding import chunks, coded
from .columns import Columns
from .findings import MOVES
from .intervals import Flags
from .memory import LONGEST_PAUSE, SHARDS
from .telling import Telling


def moves(rows: Columns, old: Any, passed: Flags, telling: Telling) -> Any:
    """Tells them; returns who has the shards then. `old`: who had them before."""
    here = np.flatnonzero(passed & rows.is_placed & rows.is_counted)
    table = rows.table.take(pa.array(here))
    (_, shard), firsts = coded([old["group"], old["hash"]], [table["group"], table["hash"]])
    every = {
        "shard": np.r_[np.arange(len(old)), shard],
        "at": np.r_[old["at_us"].to_numpy(), rows.delivered_us[here]],
        "incarnation": np.r_[np.full(len(old), -1), rows.incarnation[here]],
        "delivery": np.r_[np.full(len(old), -1), rows.delivery[here]],
        "member": np.r_[old["member"].to_numpy(), rows.ints("member")[here]],
    }
    order = np.lexsort((every["delivery"], every["incarnation"], every["at"], every["shard"]))
    shard, at, member = every["shard"][order], every["at"][order], every["member"][order]
    moved = np.flatnonzero((shard[1:] == shard[:-1]) & (member[1:] != member[:-1])) + 1
    groups = pa.chunked_array([*old["group"].chunks, *chunks(table["group"])], pa.string()).take(
        pa.array(firsts)
    )
    hashes = np.r_[old["hash"].to_numpy(), rows.hash[here]][firsts]
    told = pa.table(
        [
            groups.take(pa.array(shard[moved])),
            pa.array(hashes[shard[moved]]),
            pa.array(member[moved - 1]),
            pa.array(member[moved]),
            pa.array(at[moved]),
            pa.array(at[moved] - at[moved - 1]),
        ],
        schema=MOVES,
    )
    telling.table("moves", told)
    for row in told.group_by("group").aggregate([("pause_us", "max")]).to_pylist():
        telling.totals.add(row["group"], LONGEST_PAUSE, row["pause_us_max"])
    lasts = np.flatnonzero(np.r_[shard[1:] != shard[:-1], True]) if len(shard) else shard
    return pa.table([groups, pa.array(hashes), pa.array(member[lasts]), pa.array(at[lasts])], schema=SHARDS)
