"""The content header of a stamped message, encoded by hand: it is most of what publishing a small message
costs.

Measured (bench/publish_group.py): a template takes a fifth of the time of BasicProperties with a table of
headers.
"""

from __future__ import annotations

from struct import Struct

from lbg_broker.amqp import BasicProperties
from lbg_broker.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS

from .message import Extra, Stamped

# Property flags (AMQP 0-9-1, section 4.2.6.1): content-type, headers, delivery-mode, message-id.
_FLAGS = Struct(">H").pack(0x8000 | 0x2000 | 0x1000 | 0x0080)
_PERSISTENT = b"\x02"
_LONG = Struct(">I").pack
_SEQ_AND_TS = Struct(f">q{2 + len(HEADER_TS)}sq").pack

# With hash and sequence it is a message id, which has 255 bytes (AMQP 0-9-1, section 4.2.5.3).
_TEXT_MAX_BYTES = 180

_OURS = frozenset({HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS})


def _name(field: str, kind: bytes) -> bytes:
    name = field.encode()
    return bytes([len(name)]) + name + kind


class Heading:
    """Headers of one publisher: lbg-key, lbg-publisher, lbg-seq, lbg-ts; persistent; message-id from the
    sequence.

    `publisher` and `content_type` take at most 255 bytes of UTF-8 each; ValueError else.
    """

    def __init__(self, publisher: str, content_type: str) -> None:
        texts = [text.encode() for text in (publisher, content_type)]
        if any(len(text) > _TEXT_MAX_BYTES for text in texts):
            raise ValueError(
                f"a publisher's name and a content type take at most {_TEXT_MAX_BYTES} bytes each"
            )
        self.publisher = publisher
        self._content_type = content_type
        self._start = _start_with(texts[1])
        self._key = _name(HEADER_KEY, b"S")
        # Everything between the key's text and the sequence number.
        self._middle = (
            _name(HEADER_PUBLISHER, b"S") + _LONG(len(texts[0])) + texts[0] + _name(HEADER_SEQ, b"l")
        )
        self._ts = _name(HEADER_TS, b"l")
        self._fixed_bytes = len(self._middle) + 8 + len(self._ts) + 8

    def of_epoch(self, publisher: str) -> Heading:
        """The same for another epoch of the publisher."""
        return Heading(publisher, self._content_type)

    def of(self, message: Stamped) -> bytes:
        """The header; `lbg-ts` is the time at which the message was first sent. Raises EncodeError for headers or a
        content type that do not fit into AMQP."""
        start, more = self._start, b""
        extra = message.extra
        if extra is not None:
            properties_of(message, self.publisher, self._content_type).encode()  # it judges what fits
            start = _start_with((extra.content_type or self._content_type).encode())
            more = b"".join(_text(name, value) for name, value in extra.headers.items() if name not in _OURS)
        numbers = _SEQ_AND_TS(message.seq, self._ts, message.sent_at_us)
        message_id = f"{self.publisher}-{message.hash}-{message.seq}".encode()
        tail = more + _PERSISTENT + bytes((len(message_id),)) + message_id
        size = self._fixed_bytes + len(more)
        if message.key is None:
            return b"".join((start, _LONG(size), self._middle, numbers, tail))
        key = message.key.encode()
        size += len(self._key) + 4 + len(key)
        return b"".join((start, _LONG(size), self._key, _LONG(len(key)), key, self._middle, numbers, tail))


def _start_with(content_type: bytes) -> bytes:
    return _FLAGS + bytes([len(content_type)]) + content_type


def _text(name: str, value: str) -> bytes:
    text = value.encode()
    return _name(name, b"S") + _LONG(len(text)) + text


def properties_of(message: Stamped, publisher: str, content_type: str) -> BasicProperties:
    """The same as an object: what `Heading` has to agree with. Ours come first, where members look for them."""
    extra = message.extra or Extra()
    ours: dict[str, str | int] = {
        **({} if message.key is None else {HEADER_KEY: message.key}),
        HEADER_PUBLISHER: publisher,
        HEADER_SEQ: message.seq,
        HEADER_TS: message.sent_at_us,
    }
    message_id = f"{publisher}-{message.hash}-{message.seq}"
    return BasicProperties(
        content_type=extra.content_type or content_type,
        headers={**ours, **extra.headers, **ours},
        delivery_mode=2,
        message_id=message_id,
    )
