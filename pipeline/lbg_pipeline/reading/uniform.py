"""Lines as our own writers write them, as columns: faster than a parser of any JSON.

A writer puts the same fields in the same order on every line, without blanks. So all lines of a stretch are read side
by side, field by field: the name has to be the first line's, then the values are taken, eight bytes of every line at
once. Whatever is not as expected is left to a real parser: nothing here says that a line is wrong.

Eight bytes are a number of 64 bits, the first of them its lowest. How such a word is searched and read without looking
at its bytes one by one: D. Lemire, "Number Parsing at a Gigabyte per Second" (2021), and "Bit Twiddling Hacks",
"Determine if a word has a zero byte".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

STRETCH_BYTES = 2 << 20
"""Of a block at once: what is made of it on the way stays near a core, and numpy's calls do not show."""

TEXT_MAX_BYTES = 64

_PAD = 2 * TEXT_MAX_BYTES
"""Zeros behind a block, for what is read beyond a line's end before that is seen."""

_NEWLINE, _BLANK, _QUOTE = b"\n"[0], b" "[0], b'"'[0]


def _repeated(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_ONES, _SIXES, _ZERO_DIGITS, _QUOTES = (_repeated(byte) for byte in (0x01, 0x06, 0x30, _QUOTE))
_HIGH_BITS, _HIGH_HALVES = _repeated(0x80), _repeated(0xF0)
_POWERS = np.array([10**power for power in range(9)], np.uint64)
_INT32_END = 1 << 31


class _OtherwiseError(Exception):
    """Something is not as our writers write it."""


def uniform_batches(block: bytes, schema: pa.Schema, *, needed: AbstractSet[str]) -> list[pa.RecordBatch]:
    """The lines of `block` with the columns of `schema`, null where the lines of a stretch have no such field. None at
    all unless every line is an object of these fields as our writers write it, and has those that are `needed`."""
    if b"\\" in block:
        return []
    text = np.zeros(len(block) + _PAD, np.uint8)
    text[: len(block)] = np.frombuffer(block, np.uint8)
    try:
        return [_Stretch(text, begin, end).batch(schema, needed) for begin, end in _stretches(block)]
    except (_OtherwiseError, IndexError):
        return []


def _stretches(block: bytes) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(block):
        end = block.rfind(b"\n", begin, begin + STRETCH_BYTES) + 1
        if not end:
            end = block.index(b"\n", begin) + 1
        yield begin, end
        begin = end


class _Stretch:
    """Lines from `begin` to `end`. `at` is how far each of them has been read."""

    def __init__(self, text: npt.NDArray[np.uint8], begin: int, end: int) -> None:
        lines = text[begin:end]
        self._text = text
        self._words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
        self._ends = np.flatnonzero(lines == _NEWLINE) + begin
        if np.count_nonzero(lines < _BLANK) != len(self._ends):
            raise _OtherwiseError
        self._first = bytes(text[begin : self._ends[0]])
        self._at = np.concatenate(([begin], self._ends[:-1] + 1))

    def batch(self, schema: pa.Schema, needed: AbstractSet[str]) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        before = b"{"
        for name, value in _fields_of(self._first):
            if name not in schema.names or name in columns:
                raise _OtherwiseError
            self._pass(b'%s"%s":' % (before, name.encode()))
            kind = schema.field(name).type
            if pa.types.is_string(kind):
                columns[name] = self._texts(value)
            elif pa.types.is_boolean(kind):
                columns[name] = self._flags()
            else:
                columns[name] = self._numbers(kind)
            before = b","
        self._pass(b"}")
        if (self._at != self._ends).any() or not needed <= columns.keys():
            raise _OtherwiseError
        return pa.RecordBatch.from_arrays(
            [
                columns[field.name] if field.name in columns else pa.nulls(len(self._at), field.type)
                for field in schema
            ],
            schema=schema,
        )

    def _pass(self, told: bytes) -> None:
        if not self._says(told, self._at):
            raise _OtherwiseError
        self._at = self._at + len(told)

    def _says(self, told: bytes, places: Ints) -> bool:
        """Whether `told` stands at every place."""
        size = len(told)
        everywhere = np.ndarray((len(self._text) - size + 1,), f"V{size}", self._text, strides=(1,))
        return everywhere[places].tobytes() == told * len(places)

    def _texts(self, first: Any) -> pa.Array:
        if isinstance(first, str) and self._says(told := b'"%s"' % first.encode(), self._at):
            self._at = self._at + len(told)
            return pa.repeat(first, len(self._at))
        begins, is_null = self._at + 1, None
        if not self._says(b'"', self._at):
            is_null = self._text[self._at] != _QUOTE
            self._must_be_null(is_null)
            begins = np.where(is_null, self._at, begins)
        ends = self._quotes(begins, is_null)
        self._at = ends + 1
        if is_null is not None:
            self._at[is_null] += len("null") - 1
        # What stands between two values is a value too, and not taken.
        offsets = np.empty(2 * len(begins), np.int32)
        offsets[::2], offsets[1::2] = begins, ends
        together = pa.StringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(self._text)
        )
        wanted = np.arange(0, len(offsets), 2, dtype=np.int32)
        return together.take(pa.array(wanted, mask=is_null))

    def _quotes(self, begins: Ints, is_null: Flags | None) -> Ints:
        """Where the text that begins there ends."""
        ends = begins.copy()
        open_rows = np.arange(len(begins)) if is_null is None else np.flatnonzero(~is_null)
        for _ in range(0, TEXT_MAX_BYTES, 8):
            other = self._words[ends[open_rows]] ^ _QUOTES
            is_quote = (other - _ONES) & ~other & _HIGH_BITS
            before = _bytes_before(is_quote)
            ends[open_rows] += before
            open_rows = open_rows[before == 8]
            if not len(open_rows):
                return ends
        raise _OtherwiseError

    def _flags(self) -> pa.Array:
        is_true = self._text[self._at] == b"t"[0]
        if not (self._says(b"true", self._at[is_true]) and self._says(b"false", self._at[~is_true])):
            raise _OtherwiseError
        self._at = self._at + np.where(is_true, len("true"), len("false"))
        return pa.array(is_true)

    def _numbers(self, kind: pa.DataType) -> pa.Array:
        """Without a sign, of up to 16 digits."""
        digits = self._words[self._at] ^ _ZERO_DIGITS
        size = _bytes_before(_not_digits(digits))
        is_null = None
        if not size.all():
            is_null = size == 0
            self._must_be_null(is_null)
        if ((digits & np.uint64(0xFF) == 0) & (size > 1)).any():
            raise _OtherwiseError  # JSON has no leading zeros
        values = _value_of(digits, size)
        is_long = size == 8
        if is_long.any():
            digits = self._words[self._at + 8] ^ _ZERO_DIGITS
            more = _bytes_before(_not_digits(digits))
            if not is_long.all():
                more *= is_long
            values = values * _POWERS[more] + _value_of(digits, more)
            size += more
        if is_null is not None:
            size[is_null] = len("null")
        self._at = self._at + size
        if pa.types.is_int32(kind):
            if (values >= _INT32_END).any():
                raise _OtherwiseError
            return pa.array(values.astype(np.int32), mask=is_null)
        return pa.array(values.view(np.int64), kind, mask=is_null)

    def _must_be_null(self, rows: Flags) -> None:
        if not self._says(b"null", self._at[rows]):
            raise _OtherwiseError


def _fields_of(line: bytes) -> tuple[tuple[str, Any], ...]:
    try:
        told: Any = json.loads(line, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise _OtherwiseError from error
    if not isinstance(told, tuple) or not all(isinstance(pair, tuple) for pair in told):
        raise _OtherwiseError
    return told


def _bytes_before(found: Words) -> Ints:
    """How many bytes are below the lowest that has one of its upper bits set: 8 if none has."""
    below = (found - np.uint64(1)) & ~found  # the bits below the lowest that is set
    count = ((below & _ONES) * _ONES) >> np.uint64(56)  # and how many bytes have their first bit among these
    count -= found != 0
    return count.view(np.int64)


def _not_digits(values: Words) -> Words:
    """Upper bits of the bytes that are over 9: right up to and with the first such byte."""
    return ((values + _SIXES) | values) & _HIGH_HALVES


def _value_of(digits: Words, count: Ints) -> Words:
    """The number of the first `count` digits: neighbours are joined three times."""
    low, high = int(count.min()), int(count.max())
    if low < 8:
        gap = np.uint64(8 * (8 - high)) if low == high else (8 * (8 - count)).view(np.uint64)
        digits = np.where(count == 0, np.uint64(0), digits << gap) if low == 0 else digits << gap
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
