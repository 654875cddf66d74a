"""From a message to its partition."""

import zlib
from collections.abc import Callable
from random import Random
from typing import Final

from lbg_broker.group.hashing import HASH_FUNCTIONS, murmur2_of_bytes
from lbg_broker.server.core.keying import text_reader
from lbg_broker.server.core.kinds.partitioned.rules import PartitionedRules

__all__ = ["KEY_HEADERS", "placing"]

KEY_HEADERS: Final = (
    "lbg-key",
    "x-group-id",
    "group-id",
    "JMSXGroupID",
    "QUEUE_PARTITION_KEY",
    "partitionkey",
    "ce-partitionkey",
    "cloudEvents:partitionkey",
    "cloudEvents_partitionkey",
)
"""Where a partition key may be; the first that is there counts. The names are those of our publishers, of AMQP 1.0 and
JMS, of the document, and of CloudEvents over HTTP and AMQP."""

REMEMBERED_KEYS: Final = 16_384
"""Keys repeat: this many with their partitions cost 2 MB at most where they are short."""
REMEMBERED_BYTES: Final = 64
"""Longer ones are hashed each time."""


def placing(rules: PartitionedRules) -> Callable[[bytes], int]:
    """A function from a message's encoded properties to its partition. Without a key it is a random one."""
    key_of = text_reader(KEY_HEADERS)
    hash_of, hash_count, count = _HASHES[rules.hash], rules.hash_count, rules.count
    remembered: dict[bytes, int] = {}
    random = Random(count).random  # spreads; nobody needs it to be secret

    def place(header: bytes) -> int:
        key = key_of(header)
        if key is None:
            return int(random() * count)
        partition = remembered.get(key)
        if partition is None:
            hashed = hash_of(key)
            partition = (hashed if hash_count is None else hashed % hash_count) % count
            if len(key) <= REMEMBERED_BYTES:
                if len(remembered) >= REMEMBERED_KEYS:
                    remembered.clear()
                remembered[key] = partition
        return partition

    return place


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


def _modulo(key: bytes) -> int:
    """A key that is no number has to go somewhere too, and always to the same partition."""
    try:
        return HASH_FUNCTIONS["modulo"](_text(key))
    except ValueError:
        return zlib.crc32(key)


_HASHES: Final[dict[str, Callable[[bytes], int]]] = {
    "crc32": zlib.crc32,
    "java": lambda key: HASH_FUNCTIONS["java"](_text(key)),
    "murmur2": lambda key: murmur2_of_bytes(key) & 0x7FFFFFFF,
    "modulo": _modulo,
}
