"""The publishing endpoint on a port of its own, and a group's queues read back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from aiohttp import ClientSession, web

from lbg_core.client import Delivery, connect
from lbg_core.group import GroupSpec, Names
from lbg_sidecar.publish_api import EndpointSettings, PublishService, routes
from testing.waiting import GUARD_S

SPEC = GroupSpec("orders", "orders", hash_count=16, queue_count=2, queue_size_mb=1, client_username="guest")
BATCH = {"Content-Type": "application/cloudevents-batch+json"}


@dataclass
class Endpoint:
    publishing: PublishService
    session: ClientSession
    url: str

    def answers_within(self, seconds: float) -> None:
        """Sets how long later requests wait for the broker: short only where no answer is to come."""
        settings = replace(self.publishing.settings, answer_within_s=seconds)
        self.publishing.settings = settings

    async def post(
        self,
        body: bytes | str,
        headers: dict[str, str] | None = None,
        *,
        group: str = "orders",
        query: str = "",
    ) -> tuple[int, dict[str, Any]]:
        url = f"{self.url}/v1/publish/{group}{query}"
        data = BytesIO(body.encode() if isinstance(body, str) else body)
        async with self.session.post(url, data=data, headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def batch(self, events: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        return await self.post(json.dumps(events), BATCH)


@asynccontextmanager
async def serving(broker_url: str, **settings: Any) -> AsyncIterator[Endpoint]:
    publishing = PublishService(
        EndpointSettings(**{"broker": [broker_url], "answer_within_s": GUARD_S, **settings})
    )
    app = web.Application()
    app.add_routes(routes(publishing))
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ClientSession() as session:
            host, port = runner.addresses[0][:2]
            yield Endpoint(publishing, session, f"http://{host}:{port}")
    finally:
        await publishing.stop(0.2)
        await runner.cleanup()


def event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"e{number}",
        "source": "/shop",
        "type": "order",
        "partitionkey": f"k{number % 5}",
        "data": number,
        **more,
    }


def ce(number: int, **more: str) -> dict[str, str]:
    given = {"specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": "order", **more}
    return {f"ce-{name}": value for name, value in given.items()}


async def contents(url: str, spec: GroupSpec = SPEC) -> list[Delivery]:
    """Messages in the queues of a group, removed from them."""
    found = []
    connection = await connect(url)
    channel = await connection.open_channel()
    for queue in range(spec.queue_count):
        while (delivery := await channel.basic_get(Names(spec.name).queue(queue))) is not None:
            found.append(delivery)
            channel.ack(delivery.delivery_tag)
    await connection.close()
    return found


def ids(found: list[Delivery]) -> list[object]:
    return [each.headers["cloudEvents:id"] for each in found]
