"""Groups in one queue of a special type on an embedded broker, and such groups in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbg_core.admin.groups import create_group
from lbg_core.admin.snapshot import native_of
from lbg_core.group import UNCOUNTED_MODES, GroupSpec

from .fake_admin import FakeAdmin

PARTITIONS: dict[str, Any] = {
    "rebalance_status": "HoldDown",
    "ingress": True,
    "handoffs": {"total": 5, "forced": 1, "messages_forced": 2},
    "partitions": [
        {
            "partition": 0,
            "status": "Ready",
            "consumer_tag": "lbg.orders.member.1",
            "messages_ready": 7,
            "messages_unacknowledged": 2,
            "messages_settled": 0,
            "last_handoff_seconds": None,
        },
        {
            "partition": 1,
            "status": "Unassigned",
            "consumer_tag": None,
            "messages_ready": 4,
            "messages_unacknowledged": 0,
            "messages_settled": 0,
            "last_handoff_seconds": None,
        },
    ],
}
MESSAGE_GROUPS: dict[str, Any] = {"message_groups": {"known": 1_200, "busy": 3}}
SESSIONS: dict[str, Any] = {
    "closed": False,
    "pool": 12,
    "sessions": [
        {
            "session": "m1",
            "state": "live",
            "consumer_tag": "lbg.orders.member.1",
            "last_sequence": 100,
            "acknowledged": 90,
            "messages": 10,
            "away_since": None,
        },
        {
            "session": "m2",
            "state": "stranded",
            "consumer_tag": None,
            "last_sequence": 40,
            "acknowledged": 12,
            "messages": 28,
            "away_since": 1_700_000_000.5,
        },
        {
            "session": "m3",
            "state": "closing",
            "consumer_tag": None,
            "last_sequence": 3,
            "acknowledged": 3,
            "messages": 0,
            "away_since": 1_700_000_000.5,
        },
    ],
}
SAID = {"Partitioned": PARTITIONS, "MessageGroups": MESSAGE_GROUPS, "Sessions": SESSIONS}


def spec_in(mode: str, name: str = "orders", *, username: str | None = None, **attributes: Any) -> GroupSpec:
    return GroupSpec(
        name,
        name,
        hash_count=8,
        queue_size_mb=10,
        client_username=username or f"{name}-app",
        mode=mode,
        queue_count=1 if mode in UNCOUNTED_MODES else 2,
        **attributes,
    )


async def made(mode: str, *, said: dict[str, Any] | None = None, consumers: int = 1) -> FakeAdmin:
    """An embedded broker with group `orders` in this mode, which says this of its queue."""
    admin = FakeAdmin()
    await create_group(admin, spec_in(mode))
    queue = "lbg.orders.q"
    admin.queues[queue] = replace(
        admin.queues[queue], ready=11, unacked=2, consumers=consumers, native=native_of(said or SAID[mode])
    )
    return admin
