"""Lines of journals as columns: by format if our writers wrote them, by a JSON parser otherwise.

A writer puts the same fields in the same order on every line, without blanks. So all lines of a stretch are read side
by side, field by field: the name has to be the first line's, then the values are read, eight bytes of every line at
once. Anything unexpected is left to a real parser: nothing here refuses a line.

Eight bytes are a number of 64 bits, the first of them its lowest. Search and conversion of such a word without a
loop over its bytes: D. Lemire, "Number Parsing at a Gigabyte per Second" (2021), and "Bit Twiddling Hacks",
"Determine if a word has a zero byte".

A block that Arrow refuses, or in which anything is missing or of the wrong type, is halved until the error
is in a few lines; those are decoded one by one, which gives the exact reason for each that is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lbg_core.group import EXCLUSIVE, JournalError, PublishedRecord, decode
from lbg_core.group.journal_record import VERDICTS, VERSION
from lbg_pipeline.errors import NewerSchema
from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED, arrow_schema

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

STRETCH_BYTES = 2 << 20
"""Lines of a block that are parsed together: its arrays fit a core's cache, and numpy's calls cost little."""

TEXT_MAX_BYTES = 64

_PAD = 2 * TEXT_MAX_BYTES
"""Zeros behind a block, for words that reach beyond the last line's end."""

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

    def _pass(self, literal: bytes) -> None:
        if not self._matches(literal, self._at):
            raise _OtherwiseError
        self._at = self._at + len(literal)

    def _matches(self, literal: bytes, places: Ints) -> bool:
        """True if `literal` stands at every place."""
        size = len(literal)
        everywhere = np.ndarray((len(self._text) - size + 1,), f"V{size}", self._text, strides=(1,))
        return everywhere[places].tobytes() == literal * len(places)

    def _texts(self, first: Any) -> pa.Array:
        if isinstance(first, str) and self._matches(literal := b'"%s"' % first.encode(), self._at):
            self._at = self._at + len(literal)
            return pa.repeat(first, len(self._at))
        begins, is_null = self._at + 1, None
        if not self._matches(b'"', self._at):
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
        values = np.arange(0, len(offsets), 2, dtype=np.int32)
        return together.take(pa.array(values, mask=is_null))

    def _quotes(self, begins: Ints, is_null: Flags | None) -> Ints:
        """End of the text that begins there."""
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
        if not (self._matches(b"true", self._at[is_true]) and self._matches(b"false", self._at[~is_true])):
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
        if not self._matches(b"null", self._at[rows]):
            raise _OtherwiseError


def _fields_of(line: bytes) -> tuple[tuple[str, Any], ...]:
    try:
        fields: Any = json.loads(line, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise _OtherwiseError from error
    if not isinstance(fields, tuple) or not all(isinstance(pair, tuple) for pair in fields):
        raise _OtherwiseError
    return fields


def _bytes_before(flags: Words) -> Ints:
    """Number of bytes below the lowest one with an upper bit set; 8 if none has."""
    below = (flags - np.uint64(1)) & ~flags  # the bits below the lowest that is set
    count = ((below & _ONES) * _ONES) >> np.uint64(56)  # and how many bytes have their first bit among these
    count -= flags != 0
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


DECODED_ONE_BY_ONE = 32
"""Lines; halving a block further costs more than decoding them."""

SEQ_END = 1 << 61
"""So that the difference of two numbers is a number of 64 bits too."""

_PUBLISHED, _DELIVERED, _BROKEN = arrow_schema(PUBLISHED), arrow_schema(DELIVERED), arrow_schema(BROKEN)
_SCHEMAS = {"published": _PUBLISHED, "delivered": _DELIVERED}
_HEAD = (pa.field("v", pa.int64()), pa.field("kind", pa.string()))
_FILLED = frozenset({"mode"})
"""May be missing in a line, and has a default in the table."""
_LINES = {
    kind: pa.schema([*_HEAD, *(field.with_nullable(True) for field in schema)])
    for kind, schema in _SCHEMAS.items()
}
_NULLABLE = ("key", "started_at_us", "finished_at_us", "settled_at_us")
"""May be null, but not missing."""
_NEVER_NULL = {
    kind: [field.name for field in schema if not field.nullable and field.name not in _FILLED]
    for kind, schema in _SCHEMAS.items()
}
_NEEDED = {
    kind: {field.name for field in _HEAD}.union(names, set(_NULLABLE).intersection(_SCHEMAS[kind].names))
    for kind, names in _NEVER_NULL.items()
}
"""Required fields of a line."""
_VERDICTS = pa.array(VERDICTS)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of a block: batches with the schemas PUBLISHED, DELIVERED and BROKEN. `source`: where the block is, as
    `lbg_pipeline.journal.scan.Part.source` states it."""

    published: list[pa.RecordBatch]
    delivered: list[pa.RecordBatch]
    broken: list[pa.RecordBatch]
    source: str = ""

    def __iadd__(self, other: Parsed) -> Parsed:
        self.published.extend(other.published)
        self.delivered.extend(other.delivered)
        self.broken.extend(other.broken)
        return self


def parse(block: bytes, *, file_of: Callable[[int], str]) -> Parsed:
    """The lines of `block`. `file_of` gives the file of a line by its number in the block, from 0; in BROKEN `line`
    counts those of the block from 1. Raises NewerSchema."""
    if not block.endswith(b"\n"):
        block += b"\n"
    return _parsed(block, file_of, 0)


def _parsed(block: bytes, file_of: Callable[[int], str], before: int) -> Parsed:
    """`before`: number of lines before those of `block`."""
    kind = "delivered" if b'"delivered"' in block[: block.index(b"\n")] else "published"
    batch = _together(block, kind)
    if batch is not None:
        full = _full(kind, batch)
        return Parsed([full], [], []) if kind == "published" else Parsed([], [full], [])
    line_count = block.count(b"\n")
    if line_count <= DECODED_ONE_BY_ONE:
        return _one_by_one(block.split(b"\n")[:-1], file_of, before)
    middle = block.index(b"\n", len(block) // 2) + 1
    if middle == len(block):
        middle = block.rindex(b"\n", 0, middle - 1) + 1
    parsed = _parsed(block[:middle], file_of, before)
    parsed += _parsed(block[middle:], file_of, before + block.count(b"\n", 0, middle))
    return parsed


def _full(kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the mode, which lines of a group in mode Exclusive leave out."""
    schema = _SCHEMAS[kind]
    columns = {name: batch.column(name) for name in schema.names}
    if kind == "delivered":
        columns["mode"] = _filled(columns["mode"], EXCLUSIVE)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _one_by_one(lines: list[bytes], file_of: Callable[[int], str], before: int) -> Parsed:
    parsed = Parsed([], [], [])
    broken = []
    for number, line in enumerate(lines, before):
        try:
            record = decode(line)
            is_published = isinstance(record, PublishedRecord)
            batch = _row("published" if is_published else "delivered", record)
        except JournalError as error:
            _refuse_newer(line, file_of(number))
            text = line.decode("utf-8", "backslashreplace")
            broken.append((file_of(number), number + 1, text, str(error)))
        else:
            (parsed.published if is_published else parsed.delivered).append(batch)
    if broken:
        parsed.broken.append(_batch(broken, _BROKEN))
    return parsed


def _row(kind: str, record: Any) -> pa.RecordBatch:
    schema = _SCHEMAS[kind]
    if record.seq >= SEQ_END:
        raise JournalError(f"a journal line has a value that no column holds: seq {record.seq}")
    nulls = [field.with_nullable(True) for field in schema]
    values = [getattr(record, "hash_" if name == "hash" else name) for name in schema.names]
    try:
        return _full(kind, _batch([values], pa.schema(nulls)))
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError) as error:
        raise JournalError(f"a journal line has a value that no column holds: {error}") from None


def _filled(column: pa.Array, default: str) -> pa.Array:
    if column.null_count == len(column):
        return pa.repeat(default, len(column))
    return pc.fill_null(column, default) if column.null_count else column


def _together(block: bytes, kind: str) -> pa.RecordBatch | None:
    """All lines, if every one is a whole record of this kind and of our version."""
    if not _is_unicode(block):
        return None
    return _uniform(block, kind) or _by_arrow(block, kind)


def _uniform(block: bytes, kind: str) -> pa.RecordBatch | None:
    """As our writers write them."""
    batches = uniform_batches(block, _LINES[kind], needed=_NEEDED[kind])
    if not batches:
        return None
    batch = pa.concat_batches(batches)
    return batch if _is_whole(batch, kind) else None


def _by_arrow(block: bytes, kind: str) -> pa.RecordBatch | None:
    """With any blanks, escapes and order of fields."""
    if not block.startswith(b"{"):  # Arrow 26 ends the process for a null in front
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pj.ParseOptions(explicit_schema=_LINES[kind], unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    [batch] = table.to_batches() or [None]
    if batch is None or batch.num_rows != block.count(b"\n") or not _is_whole(batch, kind):
        return None
    names = batch.schema.names
    integers = [column for column in batch.columns if pa.types.is_integer(column.type)]
    if any((pc.min(column).as_py() or 0) < 0 for column in integers):
        return None
    return batch if all(_has_no_missing(name, batch, block) for name in _NULLABLE if name in names) else None


def _has_no_missing(name: str, batch: pa.RecordBatch, block: bytes) -> bool:
    """True if every null of `name` is written in its line: Arrow reads a missing field as null too."""
    nulls: int = batch.column(name).null_count
    return nulls == 0 or block.count(b'"%s":null' % name.encode()) == nulls


def _is_unicode(block: bytes) -> bool:
    """True if the block is UTF-8, which Arrow does not check."""
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_whole(batch: pa.RecordBatch, kind: str) -> bool:
    versions = batch.column("v")
    bounds = pc.min_max(versions).as_py()
    if versions.null_count or bounds["min"] < 1 or bounds["max"] > VERSION:
        return False
    seqs = pc.min_max(batch.column("seq")).as_py()
    if seqs["max"] is None or seqs["max"] >= SEQ_END:
        return False
    kinds = batch.column("kind")
    if kinds.null_count or not pc.all(pc.equal(kinds, kind)).as_py():
        return False
    if any(batch.column(name).null_count for name in _NEVER_NULL[kind]):
        return False
    return kind == "published" or bool(pc.all(pc.is_in(batch.column("verdict"), _VERDICTS)).as_py())


def _refuse_newer(line: bytes, file: str) -> None:
    try:
        version = json.loads(line)["v"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return
    if type(version) is int and version > VERSION:
        raise NewerSchema(file, version, VERSION)


def _batch(rows: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
