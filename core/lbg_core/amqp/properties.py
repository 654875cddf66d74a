"""Properties of a message: flags and values of a content header (AMQP 0-9-1 section 4.2.6)."""

from dataclasses import dataclass, fields
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Self

from lbg_core.amqp.errors import DecodeError, EncodeError
from lbg_core.amqp.field_table import FieldType, LongLong, Octet, ShortStr, TableField, read_flat_table
from lbg_core.counted_nouns import counted

_FLAGS = Struct(">H")
_STRICT_UNUSED: Final = 0x0003  # bit 0 announces more flags, bit 1 has no property: class basic has neither

NO_PROPERTIES: Final = b"\x00\x00"
"""The encoded header of a message without properties."""


@dataclass(slots=True)
class BasicProperties:
    """The 14 properties of class basic. None: absent.

    `delivery_mode` is 2 for a persistent message, `expiration` a number of milliseconds as text, `timestamp`
    whole seconds since the epoch.
    """

    content_type: ShortStr | None = None
    content_encoding: ShortStr | None = None
    headers: TableField | None = None
    delivery_mode: Octet | None = None
    priority: Octet | None = None
    correlation_id: ShortStr | None = None
    reply_to: ShortStr | None = None
    expiration: ShortStr | None = None
    message_id: ShortStr | None = None
    timestamp: LongLong | None = None
    type: ShortStr | None = None
    user_id: ShortStr | None = None
    app_id: ShortStr | None = None
    cluster_id: ShortStr | None = None

    def encode(self) -> bytes:
        """Flags and values, as `Connection.send_content` takes them. Raises `EncodeError`."""
        flags = 0
        parts = [b""]
        for flag, name, kind in _PROPERTIES:
            value = getattr(self, name)
            if value is not None:
                flags |= flag
                try:
                    parts.append(kind.write(value))
                except (StructError, TypeError, ValueError, AttributeError, EncodeError) as error:
                    raise EncodeError(f"property {name}: {value!r} is no {kind.name}: {error}") from None
        parts[0] = _FLAGS.pack(flags)
        return b"".join(parts)

    @classmethod
    def decode(cls, header: bytes, *, is_flat: bool = False) -> Self:
        """The reverse of `encode`; `is_flat`: without the tables and arrays in the headers. Raises `DecodeError`."""
        properties = cls()
        try:
            (flags,) = _FLAGS.unpack_from(header)
            if flags & _STRICT_UNUSED:
                raise DecodeError(f"the property flags 0x{flags:04x} name a property that does not exist")
            position = 2
            for flag, name, kind in _PROPERTIES:
                if flags & flag:
                    read = read_flat_table if is_flat and name == "headers" else kind.read
                    value, position = read(header, position, "surrogateescape")
                    setattr(properties, name, value)
        except (StructError, IndexError):
            raise DecodeError("the properties end in the middle of a value") from None
        if position != len(header):
            raise DecodeError(
                f"{counted(len(header) - position, 'byte follows', 'bytes follow')} the properties"
            )
        return properties


def _properties() -> tuple[tuple[int, str, FieldType], ...]:
    hints: dict[str, Any] = BasicProperties.__annotations__
    # An optional property is a union of the annotated type and None: its first member is the wire type.
    kinds = [(item.name, hints[item.name].__args__[0].__metadata__[0]) for item in fields(BasicProperties)]
    return tuple((0x8000 >> index, name, kind) for index, (name, kind) in enumerate(kinds))


_PROPERTIES: Final = _properties()
