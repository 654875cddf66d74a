"""Base of all methods: number, sender, and the encoding of arguments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import groupby
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, dataclass_transform, get_origin

from lbg_core.amqp.errors import DecodeError, EncodeError
from lbg_core.amqp.field_table import BIT, FieldType
from lbg_core.counted_nouns import counted


class Role(Enum):
    """End of the connection: client or server."""

    CLIENT = "client"
    SERVER = "server"


Sender = Role | None
"""The only role that sends a method; None: both do."""

METHODS: Final[dict[int, type["Method"]]] = {}
"""Every method by ``class_id << 16 | method_id``."""

_MethodT = TypeVar("_MethodT", bound="Method")
_Step = tuple[FieldType, tuple[str, ...]]
_IDS = Struct(">HH")


class Method:
    """A method of AMQP 0-9-1. Reserved arguments are written as zeros and never shown."""

    __slots__ = ()

    NAME: ClassVar[str]
    class_id: ClassVar[int]
    method_id: ClassVar[int]
    SENDER: ClassVar[Sender]
    CARRIES_CONTENT: ClassVar[bool]
    _PREFIX: ClassVar[bytes]
    _STEPS: ClassVar[tuple[_Step, ...]]

    def encode(self) -> bytes:
        """The payload of the method frame. Raises `EncodeError` naming the argument that does not fit."""
        parts = [self._PREFIX]
        for kind, names in self._STEPS:
            try:
                if kind is BIT:
                    parts.append(_pack_bits([bool(getattr(self, name, False)) for name in names]))
                else:
                    parts.append(kind.write(getattr(self, names[0], kind.zero)))
            except EncodeError as error:
                raise EncodeError(f"{self.NAME}, {names[0]}: {error}") from None
            except (StructError, TypeError, ValueError, AttributeError) as error:
                value = getattr(self, names[0], None)
                raise EncodeError(f"{self.NAME}, {names[0]}: {value!r} is no {kind.name}: {error}") from None
        return b"".join(parts)

    @classmethod
    def decode_arguments(cls, data: bytes, position: int, errors: str = "surrogateescape") -> Self:
        """The method from the bytes after its number. `errors` is the rule for text that is not UTF-8.

        Raises `DecodeError`.
        """
        values: dict[str, Any] = {}
        try:
            for kind, names in cls._STEPS:
                if kind is BIT:
                    octet = data[position]
                    position += 1
                    values.update((name, bool(octet >> bit & 1)) for bit, name in enumerate(names))
                else:
                    values[names[0]], position = kind.read(data, position, errors)
        except (StructError, IndexError):
            raise DecodeError(f"{cls.NAME} ends in the middle of its arguments") from None
        except UnicodeDecodeError:
            raise DecodeError(f"{cls.NAME} holds text that is not UTF-8") from None
        if position != len(data):
            raise DecodeError(
                f"{counted(len(data) - position, 'byte follows', 'bytes follow')} the arguments of {cls.NAME}"
            )
        return cls(**{name: value for name, value in values.items() if not name.startswith(_RESERVED)})


_RESERVED: Final = "reserved_"


@dataclass_transform(eq_default=True, field_specifiers=(field,))
def method(
    class_id: int,
    method_id: int,
    name: str,
    sender: Sender = None,
    *,
    content: bool = False,
    before: tuple[Any, ...] = (),
    after: tuple[Any, ...] = (),
) -> Callable[[type[_MethodT]], type[_MethodT]]:
    """Make a class a method: a dataclass with slots, entered in `METHODS`.

    `before` and `after` are the wire types of reserved arguments around the declared ones.
    """

    def made(declared: type[_MethodT]) -> type[_MethodT]:
        cls: type[_MethodT] = dataclass(slots=True)(declared)
        arguments = [
            *_reserved("before", before),
            *((item.name, _type_of(item.type)) for item in fields(cls)),  # type: ignore[arg-type]  # made from a class
            *_reserved("after", after),
        ]
        cls.NAME = name
        cls.class_id = class_id
        cls.method_id = method_id
        cls.SENDER = sender
        cls.CARRIES_CONTENT = content
        cls._PREFIX = _IDS.pack(class_id, method_id)
        cls._STEPS = tuple(_steps(arguments))
        METHODS[class_id << 16 | method_id] = cls
        return cls

    return made


def _reserved(where: str, kinds: tuple[Any, ...]) -> Iterator[tuple[str, FieldType]]:
    for index, kind in enumerate(kinds):
        yield f"{_RESERVED}{where}_{index}", _type_of(kind)


def _type_of(hint: Any) -> FieldType:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint} is no wire type")
    kind = hint.__metadata__[0]
    assert isinstance(kind, FieldType)
    return kind


def _steps(arguments: list[tuple[str, FieldType]]) -> Iterator[_Step]:
    # Bits next to each other share an octet, lowest bit first (section 4.2.5.2).
    for is_bit, run in groupby(arguments, key=lambda argument: argument[1] is BIT):
        items = list(run)
        if is_bit:
            for start in range(0, len(items), 8):
                yield BIT, tuple(name for name, _ in items[start : start + 8])
        else:
            for name, kind in items:
                yield kind, (name,)


def _pack_bits(bits: list[bool]) -> bytes:
    return bytes((sum(bit << index for index, bit in enumerate(bits)),))
