"""Field tables and argument types (AMQP 0-9-1 sections 4.2.5 and 4.2.5.5), as RabbitMQ reads and writes them.

The specification and the brokers disagree on some letters; RabbitMQ's reading ("AMQP 0-9-1 Errata",
section 3) is the one every client follows: ``s`` is a signed short, ``l`` a signed 64-bit number, ``x`` a byte
array.

A method declares its arguments with these names, so the declaration is at once the Python type and the wire
type: ``queue: ShortStr = ""``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, Final, TypeAlias, Union

from lbg_core.amqp.errors import DecodeError, EncodeError
from lbg_core.counted_nouns import counted

FieldValue: TypeAlias = Union[
    bool, int, float, Decimal, str, bytes, bytearray, datetime, "Sequence[FieldValue]", "Table", None
]
"""Value of a field table. Written: int as ``I`` or ``l``, float ``d``, str ``S``, bytes ``x``, datetime ``T``
(whole seconds), Decimal ``D``, list ``A``, mapping ``F``, None ``V``. Read: ``S`` gives bytes when it is not
UTF-8, ``T`` a datetime in UTC, or a `FarTime`."""

Table: TypeAlias = Mapping[str, FieldValue]


class FarTime(int):
    """Seconds of a time that no calendar reaches, written as ``T`` again. Some clients write a time before 1970, which
    is negative, as an unsigned number."""


INTEGER_MAX: Final = (1 << 63) - 1
"""The largest number of a table, of type `l`."""

DEPTH_MAX: Final = 32
"""Tables and arrays nested deeper than this are refused in both directions. RabbitMQ's own deepest is 3
(``x-death``)."""

_U32 = Struct(">I")
_DECIMAL = Struct(">Bi")
_TAGGED_I32 = Struct(">ci")
_TAGGED_I64 = Struct(">cq")
_TAGGED_U64 = Struct(">cQ")
_TAGGED_F64 = Struct(">cd")
_TAGGED_LENGTH = Struct(">cI")
_TAGGED_DECIMAL = Struct(">cBi")

_FIXED: Final[dict[int, Struct]] = {
    ord("b"): Struct(">b"),
    ord("B"): Struct(">B"),
    ord("s"): Struct(">h"),
    ord("U"): Struct(">h"),
    ord("u"): Struct(">H"),
    ord("I"): Struct(">i"),
    ord("i"): Struct(">I"),
    ord("l"): Struct(">q"),
    ord("L"): Struct(">q"),
    ord("f"): Struct(">f"),
    ord("d"): Struct(">d"),
}


def encode_table(table: Table) -> bytes:
    """The table with its 32-bit length in front. Raises `EncodeError` naming the key that does not fit."""
    return _write_table(table, 1)


def decode_table(data: bytes) -> dict[str, FieldValue]:
    """The reverse of `encode_table`. Raises `DecodeError`."""
    table, end = read_table(data, 0)
    if end != len(data):
        raise DecodeError(f"{counted(len(data) - end, 'byte follows', 'bytes follow')} the table")
    return table


def read_table(
    data: bytes, position: int, errors: str = "surrogateescape"
) -> tuple[dict[str, FieldValue], int]:
    """The table at `position` and where it ends. `errors` is the rule for keys that are not UTF-8."""
    try:
        return _read_table(data, position, errors, 1)
    except (StructError, IndexError):
        raise DecodeError("a table ends in the middle of a value") from None
    except UnicodeDecodeError:
        raise DecodeError("a table's key is not UTF-8") from None


def read_flat_table(data: bytes, position: int, errors: str) -> tuple[dict[str, FieldValue], int]:
    """The same with None in place of its tables and arrays, however deeply they are nested."""
    end = _end_of(data, position, 0)
    position += 4
    table: dict[str, FieldValue] = {}
    while position < end:
        start = position + 1
        position = start + data[position]
        key = data[start:position].decode("utf-8", errors)
        if data[position] in b"FA":
            table[key], position = None, _end_of(data, position + 1, 0)
        else:
            table[key], position = _read_value(data, position, errors, 1)
    return table, end


def _write_table(table: Table, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise EncodeError(f"a table is nested deeper than {DEPTH_MAX}")
    parts = [b""]
    for key, value in table.items():
        try:
            name = key.encode("utf-8", "surrogateescape")
            if len(name) > 255:
                raise EncodeError(f"table key {key[:20]!r}… has {len(name)} bytes, at most 255 fit")
            parts += (bytes((len(name),)), name, _write_value(value, depth))
        except (StructError, OverflowError, UnicodeEncodeError, AttributeError) as error:
            raise EncodeError(f"table key {key!r}: {value!r} does not fit: {error}") from None
    parts[0] = _U32.pack(sum(map(len, parts)))
    return b"".join(parts)


def _write_value(value: FieldValue, depth: int) -> bytes:
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value, depth)
    for kind, inherited in _WRITERS.items():  # subclasses: IntEnum, OrderedDict, StrEnum, …
        if isinstance(value, kind):
            return inherited(value, depth)
    if isinstance(value, Mapping):
        return b"F" + _write_table(value, depth + 1)
    if isinstance(value, Sequence):
        return _write_array(value, depth)
    raise EncodeError(f"a table cannot hold {type(value).__name__}")


def _write_int(value: int, _depth: int) -> bytes:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return _TAGGED_I32.pack(b"I", value)
    return _TAGGED_I64.pack(b"l", value)


def _write_decimal(value: Decimal, _depth: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"a table cannot hold the decimal {value}")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return _TAGGED_DECIMAL.pack(b"D", max(-exponent, 0), -number if sign else number)


def _write_timestamp(value: datetime, _depth: int) -> bytes:
    if value.tzinfo is None:
        raise EncodeError(f"the time {value} has no time zone")
    return _TAGGED_U64.pack(b"T", int(value.timestamp()))


def _write_array(value: Sequence[FieldValue], depth: int) -> bytes:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"an array is nested deeper than {DEPTH_MAX}")
    items = b"".join([_write_value(item, depth + 1) for item in value])
    return _TAGGED_LENGTH.pack(b"A", len(items)) + items


def _write_str(value: str, _depth: int) -> bytes:
    text = value.encode("utf-8", "surrogateescape")
    return _TAGGED_LENGTH.pack(b"S", len(text)) + text


# Any: each writer takes the type it stands beside; the dictionary cannot express it.
_WRITERS: Final[dict[type, Callable[..., bytes]]] = {
    str: _write_str,
    bool: lambda value, _depth: b"t\x01" if value else b"t\x00",
    int: _write_int,
    float: lambda value, _depth: _TAGGED_F64.pack(b"d", value),
    dict: lambda value, depth: b"F" + _write_table(value, depth + 1),
    list: _write_array,
    tuple: _write_array,
    type(None): lambda _value, _depth: b"V",
    bytes: lambda value, _depth: _TAGGED_LENGTH.pack(b"x", len(value)) + value,
    bytearray: lambda value, _depth: _TAGGED_LENGTH.pack(b"x", len(value)) + bytes(value),
    datetime: _write_timestamp,
    FarTime: lambda value, _depth: _TAGGED_U64.pack(b"T", value),
    Decimal: _write_decimal,
}


def _read_table(data: bytes, position: int, errors: str, depth: int) -> tuple[dict[str, FieldValue], int]:
    end = _end_of(data, position, depth)
    position += 4
    table: dict[str, FieldValue] = {}
    while position < end:
        start = position + 1
        position = start + data[position]
        key = data[start:position].decode("utf-8", errors)
        table[key], position = _read_value(data, position, errors, depth)
    if position != end:
        raise DecodeError("a table's last value is longer than the table")
    return table, end


def _read_array(data: bytes, position: int, errors: str, depth: int) -> tuple[list[FieldValue], int]:
    end = _end_of(data, position, depth)
    position += 4
    items: list[FieldValue] = []
    while position < end:
        item, position = _read_value(data, position, errors, depth)
        items.append(item)
    if position != end:
        raise DecodeError("an array's last value is longer than the array")
    return items, end


def _end_of(data: bytes, position: int, depth: int) -> int:
    (size,) = _U32.unpack_from(data, position)
    end: int = position + 4 + size
    if end > len(data):
        raise DecodeError("a table or a string is longer than the frame it is in")
    if depth > DEPTH_MAX:
        raise DecodeError(f"a table is nested deeper than {DEPTH_MAX}")
    return end


def _read_value(data: bytes, position: int, errors: str, depth: int) -> tuple[FieldValue, int]:
    kind = data[position]
    position += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, position)[0], position + fixed.size
    match kind:
        case 0x53:  # S
            end = _end_of(data, position, 0)
            raw = data[position + 4 : end]
            try:
                return raw.decode(), end
            except UnicodeDecodeError:
                return raw, end
        case 0x74:  # t
            return data[position] != 0, position + 1
        case 0x46:  # F
            return _read_table(data, position, errors, depth + 1)
        case 0x41:  # A
            return _read_array(data, position, errors, depth + 1)
        case 0x54:  # T
            (seconds,) = _U64.unpack_from(data, position)
            return _time_of(seconds), position + 8
        case 0x44:  # D
            scale, number = _DECIMAL.unpack_from(data, position)
            return Decimal(number).scaleb(-scale), position + 5
        case 0x78:  # x
            end = _end_of(data, position, 0)
            return data[position + 4 : end], end
        case 0x56:  # V
            return None, position
    raise DecodeError(f"a table holds a value of the unknown type 0x{kind:02x}")


_U64 = Struct(">Q")


def _time_of(seconds: int) -> datetime | FarTime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return FarTime(seconds)


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
        raise DecodeError(
            f"{counted(len(packed), 'byte holds', 'bytes hold')} no whole number of delivery tags"
        )
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
TableField: TypeAlias = Annotated[Table, FieldType("table", encode_table, read_table, {})]
Tags: TypeAlias = Annotated[Sequence[int], FieldType("tags", _write_tags, _read_tags, ())]
"""Delivery tags, in a long string of 64-bit numbers: no type of AMQP's, for LBG's own methods."""
