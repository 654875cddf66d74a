"""A partitioned queue on the core, seen as its document sees it: consumers by name, partitions, statuses."""

from __future__ import annotations

from typing import Any

from lbg_broker.core.arguments import PartitionedArguments
from lbg_broker.core.queue_types.partition_routes import placing
from lbg_core.amqp import BasicProperties
from testing.broker_core.world import Client, World

DELAY_S = 5.0
HANDOFF_S = 3.0


def header(key: str | bytes | None = None, *, name: str = "lbg-key", **headers: Any) -> bytes:
    """Encoded properties with a key in a header."""
    if key is not None:
        headers[name] = key
    return BasicProperties(headers=headers, delivery_mode=2).encode()


class PartitionedWorld(World):
    """`names` maps the consumers that are there to their clients; each has a connection of its own."""

    def __init__(self, count: int = 4, *, durable: bool = True, **arguments: Any) -> None:
        super().__init__()
        self.names: dict[str, Client] = {}
        self.publisher = self.client().confirms()
        asked = {"x-queue-type": "partitioned", "x-partition-count": count, **arguments}
        self.publisher.queue(durable=durable, arguments=asked)

    # --- consumers ---------------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        claim: list[int] | None = None,
        prefetch: int = 0,
        no_ack: bool = False,
        revocable: bool = False,
    ) -> Client:
        """A consumer with this tag; `claim`: the partitions it says it had; `revocable`: it knows basic.revoke."""
        client = self.names[name] = self.client(lbg__revoke=revocable)
        arguments = {} if claim is None else {"x-partitions": claim}
        client.consume(tag=name, prefetch=prefetch, arguments=arguments, no_ack=no_ack)
        return client

    def lose(self, name: str) -> None:
        """Its connection is gone."""
        self.names.pop(name).lose()

    def start(self, *names: str, **how: Any) -> list[Client]:
        """Consumers that have joined and among whom the partitions are shared out."""
        clients = [self.join(name, **how) for name in names]
        self.pass_time(DELAY_S)
        assert self.status == "Ready"
        return clients

    # --- what the management API says --------------------------------------------------------------------------

    @property
    def described(self) -> dict[str, Any]:
        return dict(self.queue().policy.describe())

    @property
    def status(self) -> str:
        return str(self.described["rebalance_status"])

    @property
    def statuses(self) -> list[str]:
        return [partition["status"] for partition in self.described["partitions"]]

    @property
    def tags(self) -> list[str | None]:
        """For each partition whose it is."""
        return [partition["consumer_tag"] for partition in self.described["partitions"]]

    @property
    def loads(self) -> dict[str, int]:
        """Number of partitions of each live consumer."""
        return {name: self.tags.count(name) for name in self.names}

    def partitions_of(self, name: str) -> list[int]:
        return [number for number, tag in enumerate(self.tags) if tag == name]

    @property
    def handoffs(self) -> dict[str, int]:
        return dict(self.described["handoffs"])

    @property
    def waiting(self) -> list[int]:
        """For each partition how many messages wait in it."""
        return [partition["messages_ready"] for partition in self.described["partitions"]]

    # --- messages ----------------------------------------------------------------------------------------------

    def key_of(self, partition: int, *, number: int = 0) -> str:
        """A key of this partition; others by `number`."""
        place = placing(PartitionedArguments(count=len(self.queue().lines)))
        keys = (key for key in map("key-{}".format, range(100_000)) if place(header(key)) == partition)
        for _ in range(number):
            next(keys)
        return next(keys)

    def send(self, partition: int, *bodies: bytes) -> None:
        """Publish to a partition, all with one key."""
        self.publisher.publish(*bodies, header=header(self.key_of(partition)))

    def send_each(self, *bodies: bytes) -> None:
        """The same bodies to every partition."""
        for partition in range(len(self.queue().lines)):
            self.send(partition, *bodies)
