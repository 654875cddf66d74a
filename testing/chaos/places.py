"""Broker of a run: the embedded one, a RabbitMQ node, or a cluster of three nodes.

Everything blocks for as long as a broker takes, so it happens in one thread that stays: the kernel kills RabbitMQ's
nodes when the thread that started them ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import RabbitNode

Node = EmbeddedBroker | RabbitNode

ENOUGH_MEMORY = "0.6"
NO_MEMORY = "0.00001"


class Place:
    """`nodes` of one broker. Raises what the broker's own start raises when it does not come up."""

    def __init__(self, nodes: list[Node], cluster: RabbitCluster | None = None) -> None:
        self.nodes = nodes
        self._cluster = cluster
        self._thread = ThreadPoolExecutor(1, "lbg chaos place")

    async def start(self) -> None:
        await self._do(self.nodes[0].start if self._cluster is None else self._cluster.start)

    async def close(self) -> None:
        def close() -> None:
            if self._cluster is not None:
                self._cluster.close()
                return
            for node in self.nodes:
                node.close() if isinstance(node, RabbitNode) else node.kill()

        await self._do(close)
        self._thread.shutdown()

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    @property
    def management_url(self) -> str:
        return self.nodes[0].management_url

    async def kill(self, node: int) -> None:
        await self._do(self.nodes[node].kill)

    async def stop(self, node: int) -> None:
        await self._do(self.nodes[node].stop)

    async def start_again(self, node: int) -> None:
        await self._do(self.nodes[node].start)
        await self._whole()

    async def freeze(self, node: int) -> None:
        await self._do(self.nodes[node].freeze)

    async def thaw(self, node: int) -> None:
        await self._do(self.nodes[node].thaw)
        await self._whole()

    async def part(self, node: int) -> None:
        assert self._cluster is not None
        await self._do(self._cluster.cut, self._cluster.nodes[node])

    async def heal(self) -> None:
        assert self._cluster is not None
        await self._do(self._cluster.heal)
        await self._whole()

    async def alarm(self, node: int, *, on: bool) -> None:
        """RabbitMQ only: a node that has less memory than it wants blocks publishers of the whole cluster."""
        rabbit = self.nodes[node]
        assert isinstance(rabbit, RabbitNode)
        await self._do(rabbit.control, "set_vm_memory_high_watermark", NO_MEMORY if on else ENOUGH_MEMORY)

    async def _whole(self) -> None:
        if self._cluster is not None:
            await self._do(self._cluster.wait_whole, 120)

    async def _do(self, work: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*arguments))


def place_of(engine: str, directory: Path) -> Place:
    """Raises KeyError for an unknown engine."""
    if engine == "cluster":
        cluster = RabbitCluster()
        return Place(list(cluster.nodes), cluster)
    if engine == "rabbitmq":
        return Place([RabbitNode()])
    if engine == "embedded":
        return Place([EmbeddedBroker(directory / "broker")])
    raise KeyError(engine)
