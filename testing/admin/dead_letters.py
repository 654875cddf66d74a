"""A group's dead letters in tests: made as a member makes them, and listed by `lbg dead`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_core.group import Names
from testing.command_line import Lbg, Where

Letter = tuple[str, dict[str, Any], bytes]


async def put(broker: Where, exchange: str, messages: Sequence[Letter]) -> None:
    connection = await connect(broker.broker)
    publisher = await ConfirmingPublisher.open(connection)
    for routing_key, headers, body in messages:
        properties = BasicProperties(headers=headers, delivery_mode=2)
        publisher.publish_soon(exchange, routing_key, body, properties=properties)
    await publisher.flush()
    await connection.close()


def refused(group: str, count: int, *, hash_: int = 3, body: bytes = b"") -> list[Letter]:
    """Dead letters of three keys, as a member makes them."""
    return [
        (
            f"{group}.{hash_}.t",
            {
                "lbg-key": f"k{number % 3}",
                "lbg-publisher": "p",
                "lbg-seq": number,
                "lbg-reason": "odd number" if number % 2 else "even number",
                "lbg-attempts": 1,
                "lbg-queue": hash_ % 2,
                "lbg-member": 0,
                "lbg-member-name": "m",
            },
            body or str(number).encode(),
        )
        for number in range(count)
    ]


def dead(broker: Where, group: str, count: int, **more: Any) -> None:
    messages = refused(group, count, **more)
    asyncio.run(put(broker, Names(group).dlx, messages))


def listed(lbg: Lbg, broker: Where, group: str, *options: str) -> dict[str, Any]:
    said = lbg("dead", "list", group, "--json", "--limit", "1000", *options, "--broker", broker.broker)
    assert said.status == 0, said.err
    return json.loads(said.out)


def ids(shown: dict[str, Any]) -> list[str]:
    return [letter["id"] for letter in shown["letters"]]
