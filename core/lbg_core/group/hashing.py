"""Key to hash, and hash to queue.

Every function here is fixed for ever: a change would send a key to another queue and break its order. The
vectors in docs/hash-vectors.json hold them, for ports to other languages too.
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

from lbg_core.group.errors import SpecError

# Keys repeat, and these two cost a Python loop over the key: remembering this many costs a few MB at most.
_REMEMBERED_KEYS = 16_384
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_U32 = 0xFFFFFFFF
_NATIVE_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise SpecError("key", key, "must be Unicode text without unpaired surrogates") from None


def crc32(key: str) -> int:
    """CRC-32 (ISO-HDLC, zlib's) of the key's UTF-8."""
    return zlib.crc32(_utf8(key))


@lru_cache(_REMEMBERED_KEYS)
def java(key: str) -> int:
    """The absolute value of Java's String.hashCode, which runs over UTF-16 code units.

    `java(key) % n` is Math.abs(key.hashCode() % n) of "Sticky Load Balancing", for the most negative hash too: Java's
    remainder truncates toward zero, so its absolute value is the remainder of the absolute value.
    """
    code = 0
    if key.isascii():
        for unit in key.encode("ascii"):
            code = code * 31 + unit & _U32
    else:
        for unit in array("H", key.encode(_NATIVE_UTF_16, "surrogatepass")):
            code = code * 31 + unit & _U32
    return code if code < 0x80000000 else 0x100000000 - code


@lru_cache(_REMEMBERED_KEYS)
def murmur2(key: str) -> int:
    """MurmurHash2 of the key's UTF-8, made positive by a mask, as Kafka's default partitioner does it."""
    return murmur2_of_bytes(_utf8(key)) & 0x7FFFFFFF


def murmur2_of_bytes(data: bytes) -> int:
    """32-bit MurmurHash2, unsigned, with Kafka's seed 0x9747b28c."""
    m = 0x5BD1E995
    size = len(data)
    whole = size & ~3
    h = 0x9747B28C ^ size
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & _U32
        k = (k ^ k >> 24) * m & _U32
        h = h * m & _U32 ^ k
    if size != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & _U32
    h = (h ^ h >> 13) * m & _U32
    return h ^ h >> 15


def modulo(key: str) -> int:
    """The key itself, an integer in decimal digits with an optional sign.

    `modulo(key) % n` lies between 0 and n - 1 for negative keys too: -1 goes where n - 1 goes.
    """
    if _INTEGER.fullmatch(key) is None:
        raise SpecError("key", key, "must be an integer in decimal digits, as hash function modulo needs")
    return int(key)


HashFunction: TypeAlias = Literal["crc32", "java", "murmur2", "modulo"]

HASH_FUNCTIONS: Mapping[str, Callable[[str], int]] = MappingProxyType(
    {"crc32": crc32, "java": java, "murmur2": murmur2, "modulo": modulo}
)
"""By name; each gives an integer of which `hash_of` takes the remainder."""


def hash_of(key: str, hash_count: int, function: str = "crc32") -> int:
    """The hash of `key`, from 0 to `hash_count` - 1; raises SpecError for what `function` cannot take."""
    try:
        whole = HASH_FUNCTIONS[function]
    except KeyError:
        raise SpecError("hash_function", function, f"must be one of {', '.join(HASH_FUNCTIONS)}") from None
    return whole(key) % hash_count


def queue_of(hash_: int, queue_count: int) -> int:
    """The number of the queue that takes `hash_`: the hashes are striped over the queues."""
    return hash_ % queue_count
