"""Shards that went from member to member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lbg_broker.group import EXCLUSIVE, PARTITIONED
from lbg_pipeline.numbering import Ints

from .deposition import Deposition
from .evidence import JUDGED_MODES


def moves(of: Deposition, shard: Ints) -> Iterator[dict[str, Any]]:
    """Where a queue, or a partition, has one consumer at a time; a message without a key goes to any partition."""
    is_placed = of.mode == JUDGED_MODES.index(EXCLUSIVE)
    is_placed |= (of.mode == JUDGED_MODES.index(PARTITIONED)) & of.has_key
    rows = of.before_us(np.flatnonzero(is_placed), of.delivered_at_us, shard)
    shards, members = shard[rows], of.member[rows]
    moved = (shards[1:] == shards[:-1]) & (members[1:] != members[:-1])
    for was, now in zip(rows[:-1][moved].tolist(), rows[1:][moved].tolist(), strict=True):
        yield {
            "group": of.group[now],
            "hash": int(of.hash[now]),
            "was": int(of.member[was]),
            "now": int(of.member[now]),
            "at_us": int(of.delivered_at_us[now]),
            "pause_us": int(of.delivered_at_us[now] - of.delivered_at_us[was]),
        }
