"""The key of a message: the header that has it, and its canonical text.

Broker, members, publishers, journals and tools decide here, so that the messages of a key are those of one partition
or message group, of one lane, and of one text in journals and views. docs/publishing.md has the rules for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias

from lbg_core.group.names import HEADER_KEY

KEY_HEADERS: Final = (
    HEADER_KEY,
    "x-group-id",
    "group-id",
    "JMSXGroupID",
    "QUEUE_PARTITION_KEY",
    "partitionkey",
    "ce-partitionkey",
    "cloudEvents:partitionkey",
    "cloudEvents_partitionkey",
)
"""Headers in which a key may be; the first that has one counts. The names are those of our publishers, of AMQP 1.0 and
JMS, of Solace ("Message Distribution With Partitioned Queues"), and of CloudEvents over HTTP and AMQP."""

Key: TypeAlias = str | bytes | int | float | Decimal
"""A value that can be a key; bool is an int to Python."""

KEY_MAX_BYTES: Final = 16 * 1024
"""Of the keys of our publishers. All headers of a message have to fit in one frame, of 128 KiB as a rule (AMQP 0-9-1,
section 4.2.6)."""

KEY_RULE: Final = "must be text without unpaired surrogates, a finite number or a boolean"


def key_text(value: object) -> str | None:
    """The canonical text of a key; None for what is no key: null, an empty text, and whatever else is not a `Key`.

    Keys with the same text are the same key, whatever their types: 1, 1.0, "1" and b"1".
    """
    if isinstance(value, str):
        return value if value and (value.isascii() or is_unicode(value)) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace") or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _decimal_text(value) if isfinite(value) else None
    return None


def is_unicode(text: str) -> bool:
    """False for text with half of a character, an unpaired surrogate: JSON can have it, and AMQP cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decimal_text(number: float | Decimal) -> str:
    """Decimal digits without an exponent or zeros at the end; of a double the fewest that give it again."""
    text = format(Decimal(repr(number)) if isinstance(number, float) else number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def key_of(headers: Mapping[str, object], names: Sequence[str] = KEY_HEADERS) -> str | None:
    """The key in decoded headers."""
    for name in names:
        if name in headers and (key := key_text(headers[name])) is not None:
            return key
    return None


# Encoded headers. The key is read of every message, so the wire format is decoded by hand (AMQP 0-9-1 sections 4.2.5.5
# and 4.2.6.1, with RabbitMQ's types): measured, a tenth of what decoding takes.

_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20
"""In the first octet of the property flags, in the order in which the properties follow."""

_TEXTS = frozenset(b"Sx")
_SIZED = frozenset(b"SxFA")
_NUMBERS = {
    ord(letter): Struct(layout)
    for letter, layout in zip(
        "bBsUuIilLfdt", (">b", ">B", ">h", ">h", ">H", ">i", ">I", ">q", ">q", ">f", ">d", ">?"), strict=True
    )
}
_DECIMAL = Struct(">Bi")
_FIXED = {**{kind: layout.size for kind, layout in _NUMBERS.items()}, ord("T"): 8, ord("D"): 5, ord("V"): 0}
_length_at = Struct(">I").unpack_from

KeyReader: TypeAlias = Callable[[bytes], bytes | None]
"""A function from encoded properties to the key in their headers, as UTF-8; None without one, and from properties that
cannot be read."""


def key_reader(names: Sequence[str] = KEY_HEADERS) -> KeyReader:
    """The function that finds in encoded headers what `key_of` finds in the decoded ones. Of two headers of one name it
    takes the first."""
    ranks = {name.encode(): rank for rank, name in enumerate(names)}
    first = names[0].encode()
    expected = bytes((len(first),)) + first + b"S\0\0\0"  # and the last octet of its length
    length_at = len(expected)

    def read(header: bytes) -> bytes | None:
        flags = header[0]
        if not flags & _HEADERS:
            return None
        try:
            at = 2
            if flags & _CONTENT_TYPE:
                at += 1 + header[at]
            if flags & _CONTENT_ENCODING:
                at += 1 + header[at]
            table_end = at + 4 + _length_at(header, at)[0]
            at += 4
            if header.startswith(expected, at):  # where our own publishers have it
                start = at + length_at + 1
                end = start + header[start - 1]
                if start < end <= table_end <= len(header):
                    return _canonical(header[start:end])
            return _walk(header, at, table_end, ranks)
        except (IndexError, StructError, KeyError):
            return None

    return read


_read = key_reader()


def key_in(header: bytes) -> str | None:
    """The key in encoded headers."""
    key = _read(header)
    return None if key is None else key.decode()


def _canonical(text: bytes) -> bytes:
    return text if text.isascii() else text.decode("utf-8", "backslashreplace").encode()


def _walk(header: bytes, at: int, end: int, ranks: dict[bytes, int]) -> bytes | None:
    """Raises IndexError, struct.error or KeyError where the table ends in the middle or has an unknown type."""
    if end > len(header):
        return None
    key: bytes | None = None
    best = len(ranks)
    while at < end:
        start = at + 1
        at = start + header[at]
        rank = ranks.get(header[start:at], best)
        kind = header[at]
        at += 1
        begin = at
        if kind in _SIZED:
            begin += 4
            at = begin + _length_at(header, at)[0]
        else:
            at += _FIXED[kind]
        if rank >= best or at > end:
            continue
        if kind in _TEXTS:
            found = _canonical(header[begin:at])
        elif kind in _NUMBERS:
            found = (key_text(_NUMBERS[kind].unpack_from(header, begin)[0]) or "").encode()
        elif kind == ord("D"):
            scale, digits = _DECIMAL.unpack_from(header, begin)
            found = _decimal_text(Decimal(digits).scaleb(-scale)).encode()
        else:
            continue
        if found:
            key, best = found, rank
        if not best:
            break
    return key
