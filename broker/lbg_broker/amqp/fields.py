"""The types of method arguments (AMQP 0-9-1 section 4.2.5): how each is written and read.

A method declares its arguments with these names, so the declaration is at once the Python type and the wire
type: ``queue: ShortStr = ""``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any, Final, TypeAlias

from lbg_broker.amqp import tables
from lbg_broker.amqp.errors import DecodeError, EncodeError

__all__ = [
    "BIT",
    "TAG_BYTES",
    "Bit",
    "FieldType",
    "Long",
    "LongLong",
    "LongStr",
    "Octet",
    "Short",
    "ShortStr",
    "TableField",
    "Tags",
]


@dataclass(frozen=True, slots=True, eq=False)
class FieldType:
    """One wire type. `read` takes the data, the position, and what to do about text that is not UTF-8."""

    name: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes, int, str], tuple[Any, int]]
    zero: object


def _number(name: str, layout: str) -> FieldType:
    struct = Struct(layout)
    size = struct.size

    def read(data: bytes, position: int, _errors: str) -> tuple[int, int]:
        return struct.unpack_from(data, position)[0], position + size

    return FieldType(name, struct.pack, read, 0)


def write_shortstr(value: str) -> bytes:
    """A short string; `EncodeError` over 255 bytes of UTF-8."""
    text = value.encode("utf-8", "surrogateescape")
    if len(text) > 255:
        raise EncodeError(f"the short string {value[:20]!r}… has {len(text)} bytes, at most 255 fit")
    return bytes((len(text),)) + text


def read_shortstr(data: bytes, position: int, errors: str) -> tuple[str, int]:
    """A short string and where it ends."""
    start = position + 1
    end = start + data[position]
    if end > len(data):
        raise DecodeError("a short string is longer than the frame it is in")
    return data[start:end].decode("utf-8", errors), end


_U32 = Struct(">I")


def _write_longstr(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def _read_longstr(data: bytes, position: int, _errors: str) -> tuple[bytes, int]:
    start = position + 4
    end = start + _U32.unpack_from(data, position)[0]
    if end > len(data):
        raise DecodeError("a long string is longer than the frame it is in")
    return data[start:end], end


TAG_BYTES: Final = 8


def _write_tags(value: Sequence[int]) -> bytes:
    return _write_longstr(Struct(f">{len(value)}Q").pack(*value))


def _read_tags(data: bytes, position: int, errors: str) -> tuple[tuple[int, ...], int]:
    packed, end = _read_longstr(data, position, errors)
    count, rest = divmod(len(packed), TAG_BYTES)
    if rest:
        raise DecodeError(f"{len(packed)} bytes hold no whole number of delivery tags")
    return Struct(f">{count}Q").unpack(packed), end


def _no_bits(*_: object) -> Any:
    raise AssertionError("bits are packed by the method, eight to an octet")


BIT: Final = FieldType("bit", _no_bits, _no_bits, False)

Octet: TypeAlias = Annotated[int, _number("octet", ">B")]
Short: TypeAlias = Annotated[int, _number("short", ">H")]
Long: TypeAlias = Annotated[int, _number("long", ">I")]
LongLong: TypeAlias = Annotated[int, _number("longlong", ">Q")]
ShortStr: TypeAlias = Annotated[str, FieldType("shortstr", write_shortstr, read_shortstr, "")]
LongStr: TypeAlias = Annotated[bytes, FieldType("longstr", _write_longstr, _read_longstr, b"")]
Bit: TypeAlias = Annotated[bool, BIT]
TableField: TypeAlias = Annotated[
    tables.Table, FieldType("table", tables.encode_table, tables.read_table, {})
]
Tags: TypeAlias = Annotated[Sequence[int], FieldType("tags", _write_tags, _read_tags, ())]
"""Delivery tags, in a long string of 64-bit numbers: no type of AMQP's, for LBG's own methods."""
