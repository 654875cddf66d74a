"""Checking encoded properties without decoding them: what a server does to every message it takes in.

A header that passes here decodes; the server then stores and forwards it as it came.
"""

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

from lbg_broker.amqp.errors import DecodeError
from lbg_broker.amqp.tables import DEPTH_MAX

__all__ = ["check_header", "is_valid_header"]

_U32 = Struct(">I").unpack_from

# What follows each type letter of a table's value: so many bytes, or (negative) something with its own length.
_TEXT, _TABLE, _ARRAY = -1, -2, -3
_SIZES: Final[dict[int, int]] = {
    **{ord(letter): 1 for letter in "tbB"},
    **{ord(letter): 2 for letter in "sUu"},
    **{ord(letter): 4 for letter in "Iif"},
    **{ord(letter): 8 for letter in "lLdT"},
    ord("D"): 5,
    ord("V"): 0,
    ord("S"): _TEXT,
    ord("x"): _TEXT,
    ord("F"): _TABLE,
    ord("A"): _ARRAY,
}

# The 14 properties in the order of their flags: short string, table, octet, or 64-bit number.
_KINDS: Final = "sstoosssslssss"
_UNUSED_FLAGS: Final = 0x0003


def check_header(header: bytes) -> None:
    """Raises `DecodeError` unless `BasicProperties.decode` would take the header."""
    if not is_valid_header(header):
        raise DecodeError("the content header's properties are malformed")


def is_valid_header(header: bytes) -> bool:
    """Whether the flags and values are well formed."""
    end = len(header)
    try:
        flags = header[0] << 8 | header[1]
        if flags & _UNUSED_FLAGS:
            return False
        position = 2
        for kind in _kinds_of(flags):
            if kind == "o":
                position += 1
            elif kind == "s":
                position += 1 + header[position]
            elif kind == "t":
                position = _end_of_table(header, position, 1)
            else:
                position += 8
        return position == end
    except (IndexError, StructError, KeyError, ValueError):
        return False


@lru_cache(maxsize=256)
def _kinds_of(flags: int) -> str:
    return "".join(kind for index, kind in enumerate(_KINDS) if flags & 0x8000 >> index)


def _end_of_table(data: bytes, position: int, depth: int, *, named: bool = True) -> int:
    end: int = position + 4 + _U32(data, position)[0]
    if end > len(data) or depth > DEPTH_MAX:
        raise ValueError
    position += 4
    sizes = _SIZES
    while position < end:
        if named:
            position += 1 + data[position]
        size = sizes[data[position]]
        position += 1
        if size >= 0:
            position += size
        elif size == _TEXT:
            position += 4 + _U32(data, position)[0]
        else:
            position = _end_of_table(data, position, depth + 1, named=size == _TABLE)
    if position != end:
        raise ValueError
    return end
