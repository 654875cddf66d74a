"""A queue of message groups in a core without sockets, and publishing to it."""

from __future__ import annotations

from typing import Any

from lbg_broker.core.queue_types.group_backlog import GroupBacklog
from lbg_core.amqp import BasicProperties
from testing.broker_core.world import Client, World

HEADER = "cart"


def properties(group: object = None, *, header: str = HEADER) -> bytes:
    """Encoded properties of a message of this group; None: of none."""
    return BasicProperties(headers={} if group is None else {header: group}).encode()


def declare(client: Client, name: str = "q", *, durable: bool = True, **arguments: Any) -> None:
    """A queue of message groups, with further arguments (dashes as underscores)."""
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.queue(name, durable=durable, arguments={"x-group-header": HEADER, **named})


def publish(client: Client, text: str, *, key: str = "q") -> None:
    """Messages by their bodies, "a1 a2 b1": the group is the letters in front; "-1" has none."""
    for body in text.split():
        group = body.rstrip("0123456789")
        client.publish(body.encode(), key=key, header=properties(None if group == "-" else group))


def bodies(client: Client) -> str:
    """Deliveries since the last call, as "a1 b1"."""
    return b" ".join(client.bodies()).decode()


def line(world: World, name: str = "q") -> GroupBacklog:
    """The queue's line."""
    found = world.queue(name).spool
    assert isinstance(found, GroupBacklog)
    return found
