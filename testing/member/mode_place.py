"""A group in one of the modes on an embedded broker, and what is told of its one queue."""

from __future__ import annotations

from lbg_core.group import GroupSpec
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.place import Place

PARTITIONS = 8
DELAY_S = 0.5
HASHES = 4096
"""So many that each key of `group_load` has a hash to itself."""


async def place_in(mode: str, broker: EmbeddedBroker, name: str) -> Place:
    is_partitioned = mode == "Partitioned"
    spec = GroupSpec(
        name,
        name,
        hash_count=HASHES,
        queue_count=PARTITIONS if is_partitioned else 1,
        queue_size_mb=100,
        client_username="guest",
        mode=mode,
        **({"rebalance_delay_s": DELAY_S, "max_handoff_s": 10.0} if is_partitioned else {}),
    )
    await declare_group(broker.url, spec)
    return Place("embedded", broker.url, spec)
