"""Numbered messages into a group at a steady pace, as `noting_app` reads them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group

KEYS = 12


async def new_group(url: str, name: str, *, queue_count: int = 4) -> None:
    spec = GroupSpec(
        "x", "x", hash_count=16, queue_count=queue_count, queue_size_mb=16, client_username="guest"
    )
    await declare_group(url, replace(spec, name=name, hash_prefix=name))


async def publish(url: str, group: str, count: int, *, first: int = 0, per_s: float = 0.0) -> None:
    """Message `n` has key `k{n % KEYS}`; `per_s` 0: as fast as it goes."""
    loop = asyncio.get_running_loop()
    async with GroupPublisher(url, group=group) as publisher:
        began_at = loop.time()
        for number in range(first, first + count):
            key = f"k{number % KEYS}"
            body = json.dumps({"n": number, "k": key}).encode()
            await publisher.publish(key=key, body=body)
            if per_s and number % 10 == 0:
                await asyncio.sleep(max(0.0, began_at + (number - first) / per_s - loop.time()))
