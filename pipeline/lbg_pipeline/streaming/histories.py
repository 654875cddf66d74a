"""The histories of a bucket: what has an order over all epochs of a publisher, and how far epochs were forgotten.

A history is that of a publisher and hash, with all the epochs that `lbg_broker.group.epoch_of` joins; or a session,
which is a history of one epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.numbering import histories_of, numbers_in_order

from .coding import coded
from .intervals import Flags, Ints
from .memory import FORGOTTEN, HISTORIES, SESSION_HASH
from .order import NOTHING


class Numbers:
    """Numbers of messages with the epochs that they are of, as integers in their order: `places`."""

    def __init__(self, began_us: Ints, number: Ints) -> None:
        self.places = numbers_in_order(began_us, number)
        self._has_epochs = bool(began_us.any())
        if self._has_epochs:
            self._sorted, at = np.unique(self.places, return_index=True)
            self._began_us, self._number = began_us[at], number[at]

    def number(self, places: Ints) -> Ints:
        """The message's own; NOTHING for NOTHING."""
        if not self._has_epochs:
            return places
        return np.where(places == NOTHING, NOTHING, self._number[np.searchsorted(self._sorted, places)])

    def began_us(self, places: Ints) -> Ints:
        """When the message's epoch began; 0 for NOTHING."""
        if not self._has_epochs:
            return np.zeros(len(places), np.int64)
        return np.where(places == NOTHING, 0, self._began_us[np.searchsorted(self._sorted, places)])


class Histories:
    """Of each of `streams`, a table of group, publisher and hash: `of_stream`, its index in `table`, and `began_us`,
    when its epoch began. The first of `table` are those of `old`, in its order."""

    def __init__(self, old: Any, streams: Any) -> None:
        hash_ = streams["hash"].to_numpy()
        names = _dictionary(streams["publisher"])
        told = names.dictionary.to_pylist()
        histories, began_us = histories_of(told)
        code = names.indices.to_numpy()
        is_session = hash_ == SESSION_HASH
        of_publisher = pa.array(histories, pa.string()).take(pa.array(code))
        history = pc.if_else(pa.array(is_session), names.cast(pa.string()), of_publisher)
        self.began_us: Ints = np.where(is_session, 0, began_us[code])
        (_, self.of_stream), firsts = coded(
            [old["group"], old["history"], old["hash"].to_numpy()], [streams["group"], history, hash_]
        )
        new = pa.array(firsts[len(old) :] - len(old))
        self.table = pa.concat_tables(
            [
                old,
                pa.table(
                    [
                        streams["group"].take(new),
                        history.take(new),
                        streams["hash"].take(new),
                        pa.array(np.full(len(new), NOTHING)),
                    ],
                    schema=HISTORIES,
                ),
            ]
        )
        self._old = len(old)

    def forgotten_us(self, stream: Ints, at_us: Ints, forgotten: Any) -> Ints:
        """By history, the beginning of the latest epoch of which something may have been forgotten. Of one that is
        new, the epochs before that of its first delivery may have been, as far as their group has `forgotten` any.
        `stream` and `at_us` are those of the deliveries."""
        until_us: Ints = self.table["forgotten_us"].to_numpy().copy()
        history = self.of_stream[stream]
        order = np.lexsort((at_us, history))
        is_first = np.diff(history[order], prepend=-1) != 0
        first = order[is_first & (history[order] >= self._old)]
        of_group = dict(zip(forgotten["group"].to_pylist(), forgotten["began_us"].to_pylist(), strict=True))
        groups = self.table["group"].take(pa.array(history[first])).to_pylist()
        latest_us = np.array([of_group.get(group, NOTHING) for group in groups], np.int64)
        until_us[history[first]] = np.minimum(self.began_us[stream[first]] - 1, latest_us)
        return until_us

    def without(self, gone: Flags, forgotten_us: Ints, chains: Any) -> tuple[Any, Any]:
        """The histories that `chains` have, and `chains` with their new indices, once `gone` streams are forgotten."""
        until_us = forgotten_us.copy()
        np.maximum.at(until_us, self.of_stream[gone], self.began_us[gone])
        used = np.zeros(len(self.table), np.bool_)
        used[chains["history"].to_numpy()] = True
        renumbered = np.cumsum(used) - 1
        table = self.table.set_column(3, HISTORIES.field(3), pa.array(until_us))
        chains = chains.set_column(
            0, chains.schema.field(0), pa.array(renumbered[chains["history"].to_numpy()])
        )
        return table.filter(pa.array(used)), chains

    def forgotten_with(self, forgotten: Any, groups: Any, gone: Flags) -> Any:
        """`forgotten` with the `gone` streams, whose `groups` are those of all streams."""
        both = pa.concat_tables(
            [
                forgotten,
                pa.table(
                    [groups.filter(pa.array(gone)), pa.array(self.began_us[gone], pa.int64())],
                    schema=FORGOTTEN,
                ),
            ]
        )
        latest = both.group_by("group").aggregate([("began_us", "max")])
        return pa.table([latest["group"], latest["began_us_max"]], schema=FORGOTTEN)


def _dictionary(column: Any) -> Any:
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    return encoded
