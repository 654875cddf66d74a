"""The arguments of a partitioned queue."""

from dataclasses import dataclass
from typing import Final

from lbg_broker.server.core.reading_arguments import ArgumentReader

__all__ = ["ARGUMENTS", "PARTITIONS_MAX", "PartitionedRules", "read_partitioned"]

QUEUE_TYPE: Final = "partitioned"
PARTITIONS_MAX: Final = 4096
HASHES: Final = ("crc32", "java", "murmur2", "modulo")
COUNT, DELAY, HANDOFF, HASH, HASH_COUNT = ARGUMENTS = (
    "x-partition-count",
    "x-rebalance-delay",
    "x-max-handoff-time",
    "x-partition-hash",
    "x-partition-hash-count",
)


@dataclass(slots=True, frozen=True)
class PartitionedRules:
    """`hash_count` None: partition = hash mod count; else (hash mod hash_count) mod count. The times' defaults are the
    document's."""

    count: int
    rebalance_delay_ms: int = 5000
    max_handoff_ms: int = 3000
    hash: str = "crc32"
    hash_count: int | None = None

    kind: str = "partitioned"


def read_partitioned(reader: ArgumentReader, queue_type: str) -> PartitionedRules | None:
    """The rules of a partitioned queue; None for one of another type. Raises `ChannelRefusal` 406."""
    if queue_type != QUEUE_TYPE:
        return None
    count = reader.number(COUNT, least=1)
    if count is None:
        raise reader.refused(f"a partitioned queue needs {COUNT}, from 1 to {PARTITIONS_MAX}")
    if count > PARTITIONS_MAX:
        raise reader.invalid(COUNT, f"{count} is more than {PARTITIONS_MAX}")
    delay, handoff = reader.number(DELAY), reader.number(HANDOFF)
    return PartitionedRules(
        count=count,
        rebalance_delay_ms=5000 if delay is None else delay,
        max_handoff_ms=3000 if handoff is None else handoff,
        hash=reader.choice(HASH, HASHES) or "crc32",
        hash_count=reader.number(HASH_COUNT, least=1),
    )
