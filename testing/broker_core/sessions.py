"""A sessions queue, in a broker's core or in one that is a process, and who consumes from it."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from lbg_broker.core.queue_types.session_headers import END, SEQUENCE
from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.world import Client, Delivery, World
from testing.waiting import GUARD_S

__all__ = ["Given", "act_on", "attach", "given", "queue_json", "sessions_queue", "shown"]

Given = list[tuple[int, bytes]]
"""Sequence numbers and bodies, as they came."""


def sessions_queue(name: str = "q", *, durable: bool = True, **arguments: Any) -> World:
    """A world with a sessions queue. Arguments have their dashes as underscores."""
    world = World()
    client = world.client()
    asked = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.queue(name, durable=durable, arguments={"x-queue-type": "sessions", **asked})
    client.lose()
    return world


def attach(
    world: World,
    session: str,
    *,
    committed: int | None = None,
    prefetch: int = 100,
    queue: str = "q",
    client: Client | None = None,
) -> Client:
    """A client that consumes from a session, once the disk has caught up."""
    client = client or world.client()
    arguments: dict[str, Any] = {"x-session": session}
    if committed is not None:
        arguments["x-session-committed"] = committed
    client.consume(queue, tag=session, prefetch=prefetch, arguments=arguments)
    world.commit()
    return client


def given(client: Client) -> Given:
    """Messages since the last call; an End-of-Session has the body END here."""
    return [(delivery.headers[SEQUENCE], _body(delivery)) for delivery in client.take()]


def _body(delivery: Delivery) -> bytes:
    if delivery.headers.get(END):
        assert delivery.body == b""
        return b"END"
    return delivery.body


def shown(world: World, session: str, queue: str = "q") -> dict[str, Any]:
    """A session as the management API shows it."""
    sessions = world.queue(queue).policy.describe()["sessions"]
    (found,) = [one for one in sessions if one["session"] == session]
    return dict(found)


def act_on(broker: EmbeddedBroker, action: str, queue: str = "q", **arguments: Any) -> dict[str, Any]:
    """An action on a queue of a broker that is a process."""
    return _api(broker, f"lbg/queues/%2F/{queue}/{action}", arguments)


def queue_json(broker: EmbeddedBroker, queue: str = "q") -> dict[str, Any]:
    """A queue as the management API shows it."""
    return _api(broker, f"queues/%2F/{queue}", None)


def _api(broker: EmbeddedBroker, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.management_port}/api/{path}",
        data=None if body is None else json.dumps(body).encode(),
        method="GET" if body is None else "POST",
        headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
        return dict(json.load(answer))
