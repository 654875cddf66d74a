"""Values as dense codes, equal where the values are equal, over several tables at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .intervals import Ints

_ROOM = 1 << 62


def coded(*tables: Sequence[Any]) -> tuple[list[Ints], Ints]:
    """Each table is a sequence of columns (Arrow arrays or numpy integers), the same in each. Returns the code of
    each row, by table, and for each code the first row of all tables, one after the other, that has it."""
    lengths = [len(columns[0]) for columns in tables]
    code = np.zeros(sum(lengths), np.int64)
    count = 1
    for column in zip(*tables, strict=True):
        values, distinct = _one(column)
        if count * distinct > _ROOM:
            code, count = _dense(code)
        code = code * distinct + values
        count *= distinct
    code, count = _dense(code)
    firsts = np.empty(count, np.int64)
    firsts[code[::-1]] = np.arange(len(code))[::-1]
    return np.split(code, np.cumsum(lengths)[:-1]), firsts


def _one(column: Sequence[Any]) -> tuple[Ints, int]:
    parts: list[Any] = []
    for part in column:
        plain = pa.array(part) if isinstance(part, np.ndarray) else part
        if pa.types.is_dictionary(plain.type):
            plain = plain.cast(plain.type.value_type)
        parts += chunks(plain)
    encoded = pa.chunked_array(parts).combine_chunks().dictionary_encode("encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(1, len(encoded.dictionary))


def _dense(code: Ints) -> tuple[Ints, int]:
    encoded = pa.array(code).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def ranked(column: Any) -> Ints:
    """A number for each text, in the order of the texts."""
    encoded = column.dictionary_encode() if not pa.types.is_dictionary(column.type) else column
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    names = encoded.dictionary.to_pylist()
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return np.asarray(rank[encoded.indices.to_numpy(zero_copy_only=False)])


def chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
