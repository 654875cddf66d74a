"""Brokers of this machine, of each engine, with what a benchmark asks of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import RabbitNode

ENGINES = ("embedded", "rabbitmq", "cluster")


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of this machine, of one engine."""

    node: EmbeddedBroker | RabbitNode | RabbitCluster

    @property
    def urls(self) -> list[str]:
        if isinstance(self.node, RabbitCluster):
            return self.node.urls
        return [self.node.url if isinstance(self.node, EmbeddedBroker) else self.node.amqp_url]

    @property
    def pids(self) -> list[int]:
        return (
            [one.pid for one in self.node.nodes] if isinstance(self.node, RabbitCluster) else [self.node.pid]
        )

    @property
    def _management_url(self) -> str:
        return (
            self.node.nodes[0].management_url
            if isinstance(self.node, RabbitCluster)
            else self.node.management_url
        )

    async def consumers(self) -> list[int]:
        if not isinstance(self.node, RabbitCluster):
            return []
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._management_url}/api/consumers?columns=channel_details.node") as answer,
        ):
            there = Counter(one["channel_details"]["node"] for one in await answer.json())
        return [there[node.name] for node in self.node.nodes]

    async def objects(self) -> dict[str, int]:
        """Numbers of connections, channels, consumers and queues, by the management API."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._management_url}/api/overview") as answer,
        ):
            totals = (await answer.json())["object_totals"]
        return {name: int(totals[name]) for name in ("connections", "channels", "consumers", "queues")}


@contextmanager
def broker(engine: str, directory: Path) -> Iterator[Broker]:
    # RabbitMQ samples statistics every 5 s by default, and this is a considerable part of its cost at rest.
    made: dict[str, Callable[[], EmbeddedBroker | RabbitNode | RabbitCluster]] = {
        "embedded": lambda: EmbeddedBroker(directory / "data"),
        "rabbitmq": lambda: RabbitNode(statistics_s=10),
        "cluster": lambda: RabbitCluster(statistics_s=10),
    }
    with made[engine]() as node:
        yield Broker(node)
