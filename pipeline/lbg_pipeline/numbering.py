"""Columns as numpy's integers, rows of them as numbers, and the one number by which messages have their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lbg_broker.group import epoch_of

Ints = npt.NDArray[Any]
"""Of int64."""

_MOST = 2**62


def ints_of(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Without nulls."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def dense(*columns: Ints) -> tuple[Ints, Ints]:
    """A number from 0 for each different row of `columns`, and a row that has it, by number."""
    packed = columns[0]
    for column in columns[1:]:
        packed = joined(packed, column)
    order = np.argsort(packed)
    is_new = np.diff(packed[order], prepend=packed[order][:1] - 1) != 0
    codes = np.empty(len(packed), np.int64)
    codes[order] = np.cumsum(is_new) - 1
    return codes, order[is_new]


def joined(major: Ints, minor: Ints) -> Ints:
    """One number for each pair, in the order of the pairs."""
    if not len(major):
        return major
    low = int(minor.min())
    span = int(minor.max()) - low + 1
    if (int(major.max()) + 1) * span >= _MOST or int(major.min()) < 0:
        _, major = np.unique(major, return_inverse=True)
        _, minor = np.unique(minor, return_inverse=True)
        low, span = 0, int(minor.max()) + 1
    packed: Ints = major * span + (minor - low)
    return packed


def histories_of(publishers: Iterable[str]) -> tuple[list[str], Ints]:
    """The history that each publisher is an epoch of, and when that epoch began: within a history, hash and key
    messages are in order if `numbers_in_order` rises."""
    epochs = [epoch_of(publisher) for publisher in publishers]
    return [epoch.history for epoch in epochs], np.array([epoch.began_us for epoch in epochs], np.int64)


def numbers_in_order(began_us: Ints, number: Ints) -> Ints:
    """One number for each message, by the beginning of its epoch and then its own number; its own where nothing has a
    later epoch than the first. `number` is at least -1."""
    return joined(began_us, number) if began_us.any() else number
