"""Columns of integers: dense codes, joined numbers, and sets of numbers as intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lbg_core.group import epoch_of

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Intervals(NamedTuple):
    firsts: Ints
    lasts: Ints

    @property
    def total(self) -> int:
        """Number of numbers in it."""
        return int((self.lasts - self.firsts + 1).sum())


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def of_points(points: Ints) -> Intervals:
    """Of numbers that rise; one may be there more than once."""
    if not len(points):
        return NONE
    ends = np.flatnonzero(np.diff(points) > 1)
    return Intervals(points[np.r_[0, ends + 1]], points[np.r_[ends, len(points) - 1]])


def set_of(points: Ints) -> Intervals:
    """Of numbers in any order."""
    return of_points(np.sort(points))


def union(*sets: Intervals) -> Intervals:
    firsts = np.concatenate([one.firsts for one in sets])
    if not len(firsts):
        return NONE
    order = np.argsort(firsts, kind="stable")
    firsts = firsts[order]
    lasts = np.maximum.accumulate(np.concatenate([one.lasts for one in sets])[order])
    begins = np.flatnonzero(np.r_[True, firsts[1:] > lasts[:-1] + 1])
    return Intervals(firsts[begins], lasts[np.r_[begins[1:] - 1, len(lasts) - 1]])


def holds(intervals: Intervals, points: Ints) -> Flags:
    """Mask of the `points` that are in the set."""
    if not len(intervals.firsts):
        return np.zeros(len(points), np.bool_)
    at = np.searchsorted(intervals.firsts, points, "right") - 1
    return (at >= 0) & (points <= intervals.lasts[at])


def minus(intervals: Intervals, removed: Intervals) -> Intervals:
    """Difference: the numbers of the first that are not in the second. Two of the first that touch stay two, so that
    each piece is of one of them: `piece_of`."""
    if not len(intervals.firsts) or not len(removed.firsts):
        return intervals
    # Where either begins or ends, the answer may change; between two such places it is one thing throughout.
    cuts = np.unique(
        np.concatenate([intervals.firsts, intervals.lasts + 1, removed.firsts, removed.lasts + 1])
    )
    begins = cuts[:-1]
    left = holds(intervals, begins) & ~holds(removed, begins)
    return Intervals(begins[left], cuts[1:][left] - 1)


def common(one: Intervals, other: Intervals) -> int:
    """Number of numbers in both."""
    return one.total - minus(one, other).total


def piece_of(intervals: Intervals, pieces: Intervals) -> Ints:
    """For each of `pieces`, the index of the interval that it is a part of."""
    return np.searchsorted(intervals.firsts, pieces.firsts, "right") - 1


IntArray = npt.NDArray[Any]
"""Of int64."""

_MOST = 2**62


def ints_of(column: pa.ChunkedArray | pa.Array) -> IntArray:
    """Without nulls."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    ints: IntArray = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return ints


def dense(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """A number from 0 for each different row of `columns`, and a row that has it, by number."""
    packed = columns[0]
    for column in columns[1:]:
        packed = joined(packed, column)
    order = np.argsort(packed)
    is_new = np.diff(packed[order], prepend=packed[order][:1] - 1) != 0
    codes = np.empty(len(packed), np.int64)
    codes[order] = np.cumsum(is_new) - 1
    return codes, order[is_new]


def joined(major: IntArray, minor: IntArray) -> IntArray:
    """One number for each pair, in the order of the pairs."""
    if not len(major):
        return major
    low = int(minor.min())
    span = int(minor.max()) - low + 1
    if (int(major.max()) + 1) * span >= _MOST or int(major.min()) < 0:
        _, major = np.unique(major, return_inverse=True)
        _, minor = np.unique(minor, return_inverse=True)
        low, span = 0, int(minor.max()) + 1
    packed: IntArray = major * span + (minor - low)
    return packed


def in_order(major: IntArray, at: IntArray, *ties: IntArray) -> IntArray:
    """The order by `major`, `at` and `ties`; as fast as one sort of numbers where there are few ties."""
    packed = joined(major, at)
    order = np.argsort(packed)
    ordered = packed[order]
    same = np.concatenate((ordered[1:] == ordered[:-1], [False])) if len(order) else np.zeros(0, bool)
    tied = np.flatnonzero(same | np.concatenate(([False], same[:-1])))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((*(tie[rows] for tie in reversed(ties)), packed[rows]))]
    return order


def highest_so_far(group: IntArray, value: IntArray) -> IntArray:
    """The highest value up to each item, and that one, in its group. Items of one group follow one another, and groups
    rise."""
    packed = joined(group, value)
    is_highest = packed == np.maximum.accumulate(packed)
    at = np.maximum.accumulate(np.where(is_highest, np.arange(len(packed)), 0))
    return np.asarray(value[at])


def is_again(values: IntArray) -> Flags:
    """Mask of the items whose value is that of an earlier item."""
    is_repeated = np.zeros(len(values), np.bool_)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return is_repeated


def histories_of(publishers: Iterable[str]) -> tuple[list[str], IntArray]:
    """The history that each publisher is an epoch of, and when that epoch began: within a history, hash and key
    messages are in order if `numbers_in_order` rises."""
    epochs = [epoch_of(publisher) for publisher in publishers]
    return [epoch.history for epoch in epochs], np.array([epoch.began_us for epoch in epochs], np.int64)


def numbers_in_order(began_us: IntArray, number: IntArray) -> IntArray:
    """One number for each message, by the beginning of its epoch and then its own number; its own where nothing has a
    later epoch than the first. `number` is at least -1."""
    return joined(began_us, number) if began_us.any() else number


ROOM = 1 << 62
NEVER = -(1 << 62)
"""A time that is null."""


def coded(*tables: Sequence[Any]) -> tuple[list[Ints], Ints]:
    """Each table is a sequence of columns (Arrow arrays or numpy integers), the same in each. Returns the code of
    each row, by table, and for each code the first row of all tables, one after the other, that has it."""
    lengths = [len(columns[0]) for columns in tables]
    code = np.zeros(sum(lengths), np.int64)
    count = 1
    for column in zip(*tables, strict=True):
        values, distinct = _one(column)
        if count * distinct > ROOM:
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


_ODD = np.uint64(0x9E3779B97F4A7C15)


def digests(texts: Any) -> npt.NDArray[np.uint64]:
    """64 bits of each text of an Arrow array: equal for equal texts; 0 for a null."""
    _, offsets, text = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    begins, sizes = ends[:-1], np.diff(ends)
    padded = np.zeros(int(ends[-1]) + 8, np.uint8)
    if ends[-1]:
        padded[:-8] = np.frombuffer(text, np.uint8)[: ends[-1]]
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    mixed = (sizes.astype(np.uint64) + np.uint64(1)) * _ODD
    for at in range(0, int(sizes.max(initial=0)), 8):
        rows: Any = slice(None) if (sizes > at).all() else np.flatnonzero(sizes > at)
        unused = (8 * np.maximum(8 + at - sizes[rows], 0)).astype(np.uint64)
        mixed[rows] = (mixed[rows] ^ (words[begins[rows] + at] << unused)) * _ODD
        mixed[rows] ^= mixed[rows] >> np.uint64(32)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD
    if texts.null_count:
        mixed[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    return mixed


def chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def chunked(*columns: Any) -> Any:
    """One column of all their items."""
    return pa.chunked_array([chunk for column in columns for chunk in chunks(column)], columns[0].type)


def to_bytes(rows: pa.Table | pa.RecordBatch, *, compression: str | None = None) -> bytes:
    """A stream of Arrow's; `pyarrow.ipc.open_stream` reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write(rows)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


class Line:
    """Places for the numbers in `numbers`, of streams 0 to `streams` - 1."""

    def __init__(self, streams: int, numbers: Iterable[Ints]) -> None:
        self._streams = streams
        present = [one for one in numbers if len(one)]
        self._low = min((int(one.min()) for one in present), default=0)
        self._width = max((int(one.max()) for one in present), default=0) - self._low + 3
        self._ranks: Ints | None = None
        if self._width * (streams + 1) > ROOM:
            # Numbers too far apart for one line, as only a damaged journal has them: their ranks have its room. With
            # each number its follower is ranked, so that neighbours stay neighbours and others do not become such.
            every = np.concatenate(present)
            self._ranks = np.unique(
                np.concatenate([every, np.minimum(every, np.iinfo(np.int64).max - 1) + 1])
            )
            self._low, self._width = 0, len(self._ranks) + 3

    def place(self, stream: Ints, number: Ints) -> Ints:
        if self._ranks is not None:
            number = np.searchsorted(self._ranks, number)
        return stream.astype(np.int64) * self._width + (number - self._low)

    def number(self, place: Ints) -> Ints:
        number = place % self._width
        return self._ranks[number] if self._ranks is not None else number + self._low

    def stream(self, place: Ints) -> Ints:
        return place // self._width

    def intervals(self, stream: Ints, firsts: Ints, lasts: Ints) -> Intervals:
        return Intervals(self.place(stream, firsts), self.place(stream, lasts))

    def ranges(self, places: Intervals) -> tuple[Ints, Ints, Ints]:
        """Stream, first and last number of each interval."""
        first, last = self.number(places.firsts), self.number(places.lasts)
        if self._ranks is not None:
            # An interval of ranks ends before the number of the next rank, which is that of the follower at least.
            followers = np.append(self._ranks, self._ranks[-1:])
            last = np.maximum(first, followers[places.lasts % self._width + 1] - 1)
        return self.stream(places.firsts), first, last

    def count_by_stream(self, places: Intervals) -> Ints:
        stream, first, last = self.ranges(places)
        count = np.zeros(self._streams, np.int64)
        np.add.at(count, stream, last - first + 1)
        return count
