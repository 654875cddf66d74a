"""Lines of journals as columns: in one go if a writer of ours wrote them, by Arrow's parser if they are as they should
be, by `lbg_broker.group.decode` for the rest.

A block that Arrow does not take, or in which anything is missing or of the wrong type, is halved until what is wrong
stands in a few lines; those are decoded one by one, which gives the exact reason for each that is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lbg_broker.group import EXCLUSIVE, SESSIONS, JournalError, PublishedRecord, decode
from lbg_broker.group.journal import VERDICTS, VERSION
from lbg_pipeline.errors import NewerSchema
from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED, arrow_schema

from .uniform import uniform_batches

DECODED_ONE_BY_ONE = 32
"""Lines; halving a block further costs more than decoding them."""

SEQ_END = 1 << 61
"""So that the difference of two numbers is a number of 64 bits too."""

_PUBLISHED, _DELIVERED, _BROKEN = arrow_schema(PUBLISHED), arrow_schema(DELIVERED), arrow_schema(BROKEN)
_SCHEMAS = {"published": _PUBLISHED, "delivered": _DELIVERED}
_HEAD = (pa.field("v", pa.int64()), pa.field("kind", pa.string()))
_FILLED = frozenset({"group", "mode"})
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
"""What no line may leave out."""
_VERDICTS = pa.array(VERDICTS)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of a block: batches with the schemas PUBLISHED, DELIVERED and BROKEN."""

    published: list[pa.RecordBatch]
    delivered: list[pa.RecordBatch]
    broken: list[pa.RecordBatch]

    def __iadd__(self, other: Parsed) -> Parsed:
        self.published.extend(other.published)
        self.delivered.extend(other.delivered)
        self.broken.extend(other.broken)
        return self


def parse(block: bytes, *, file_of: Callable[[int], str], default_group: str) -> Parsed:
    """The lines of `block`. `file_of` gives the file of a line by its number in the block. Raises NewerSchema."""
    if not block.endswith(b"\n"):
        block += b"\n"
    return _Parser(default_group).parse(block, file_of)


class _Parser:
    def __init__(self, default_group: str) -> None:
        self._default_group = default_group

    def parse(self, block: bytes, file_of: Callable[[int], str]) -> Parsed:
        kind = "delivered" if b'"delivered"' in block[: block.index(b"\n")] else "published"
        batch = _together(block, kind)
        if batch is not None:
            full = self._full(kind, batch)
            return Parsed([full], [], []) if kind == "published" else Parsed([], [full], [])
        line_count = block.count(b"\n")
        if line_count <= DECODED_ONE_BY_ONE:
            return self._one_by_one(block.split(b"\n")[:-1], file_of)
        middle = block.index(b"\n", len(block) // 2) + 1
        if middle == len(block):
            middle = block.rindex(b"\n", 0, middle - 1) + 1
        before = block.count(b"\n", 0, middle)
        parsed = self.parse(block[:middle], file_of)
        parsed += self.parse(block[middle:], lambda line: file_of(before + line))
        return parsed

    def _full(self, kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the defaults for what the lines leave out."""
        schema = _SCHEMAS[kind]
        columns = {name: batch.column(name) for name in schema.names}
        columns["group"] = _filled(columns["group"], self._default_group)
        if kind == "delivered":
            columns["mode"] = _modes(columns["mode"], columns["session"])
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)

    def _one_by_one(self, lines: list[bytes], file_of: Callable[[int], str]) -> Parsed:
        parsed = Parsed([], [], [])
        broken = []
        for number, line in enumerate(lines):
            try:
                record = decode(line)
                is_published = isinstance(record, PublishedRecord)
                batch = self._row("published" if is_published else "delivered", record)
            except JournalError as error:
                _refuse_newer(line, file_of(number))
                broken.append((file_of(number), line.decode("utf-8", "backslashreplace"), str(error)))
            else:
                (parsed.published if is_published else parsed.delivered).append(batch)
        if broken:
            parsed.broken.append(_batch(broken, _BROKEN))
        return parsed

    def _row(self, kind: str, record: Any) -> pa.RecordBatch:
        schema = _SCHEMAS[kind]
        if abs(record.seq) >= SEQ_END:
            raise JournalError(f"a journal line has a value that no column holds: seq {record.seq}")
        nulls = [field.with_nullable(True) for field in schema]
        values = [getattr(record, "hash_" if name == "hash" else name) for name in schema.names]
        try:
            return self._full(kind, _batch([values], pa.schema(nulls)))
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError) as error:
            raise JournalError(f"a journal line has a value that no column holds: {error}") from None


def _filled(column: pa.Array, default: str) -> pa.Array:
    if column.null_count == len(column):
        return pa.repeat(default, len(column))
    return pc.fill_null(column, default) if column.null_count else column


def _modes(modes: pa.Array, sessions: pa.Array) -> pa.Array:
    """A member says its mode only if it is not Exclusive; before it did, only mode Sessions had sessions."""
    if sessions.null_count == len(sessions):
        return _filled(modes, EXCLUSIVE)
    return pc.coalesce(modes, pc.if_else(pc.is_null(sessions), EXCLUSIVE, SESSIONS))


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
    return batch if all(_is_said(name, batch, block) for name in _NULLABLE if name in names) else None


def _is_said(name: str, batch: pa.RecordBatch, block: bytes) -> bool:
    """Whether every null of `name` is one that its line says: Arrow gives null for a missing field too."""
    nulls: int = batch.column(name).null_count
    return nulls == 0 or block.count(b'"%s":null' % name.encode()) == nulls


def _is_unicode(block: bytes) -> bool:
    """Arrow does not look."""
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
    if seqs["min"] is None or seqs["min"] <= -SEQ_END or seqs["max"] >= SEQ_END:
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
