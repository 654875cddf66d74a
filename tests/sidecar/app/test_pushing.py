"""Errors of HTTP push alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_push import BatchChannel, PushChannel
from testing.app.application_channel import Offering, offering_to
from testing.ports import free_port
from testing.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**routes: Handler) -> AsyncIterator[str]:
    app = web.Application()
    for name, handler in routes.items():
        app.router.add_route("*", f"/{name}", handler)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_a_wrong_path_loses_nothing() -> None:
    async with serving() as base:
        channel = PushChannel(f"{base}/nowhere", concurrency=1)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a")
            await until(lambda: len(offering.ended) >= 2)
    assert offering.ended[0][1].reason.startswith("HTTP 404")
    assert offering.acked() == []


async def test_a_redirect_is_not_followed() -> None:
    followed = []

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/there")

    async def there(request: web.Request) -> web.Response:
        followed.append(request)
        return web.Response()

    async with (
        serving(here=moved, there=there) as base,
        offering_to(PushChannel(f"{base}/here", concurrency=1), Offering()) as offering,
    ):
        offering.offer("a")
        await until(lambda: offering.ended)
    assert offering.ended[0][1].reason.startswith("HTTP 307")
    assert followed == []


async def test_an_endless_reply_is_cut_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    async with (
        serving(app=endless) as base,
        offering_to(PushChannel(f"{base}/app", concurrency=1), Offering()) as offering,
    ):
        offering.offer("a")
        await until(lambda: offering.ended)
    assert len(offering.ended[0][1].reason) < 600


async def test_nothing_is_given_before_the_application_is_healthy_and_has_told_its_positions() -> None:
    answers = iter([503, 503, 200])
    seen = []

    async def health(request: web.Request) -> web.Response:
        seen.append("health")
        return web.Response(status=next(answers, 200))

    async def positions(request: web.Request) -> web.Response:
        seen.append("positions")
        return web.Response(text=json.dumps([["p", 5, [[0, 4]]]]))

    async def take(request: web.Request) -> web.Response:
        seen.append("message")
        return web.Response()

    rules = HealthRules(path="/health", interval_s=0.02, positions_path="/positions")
    async with (
        serving(health=health, positions=positions, app=take) as base,
        offering_to(PushChannel(f"{base}/app", concurrency=1, health=rules), Offering()) as offering,
    ):
        offering.offer("a")
        await until(lambda: offering.ended)
    assert seen[:5] == ["health", "health", "health", "positions", "message"]
    assert offering.streams == [("p", 5, ((0, 4),))]


async def test_positions_that_cannot_be_read_keep_it_unready_and_say_why() -> None:
    async def positions(request: web.Request) -> web.Response:
        return web.Response(text='[["p"]]')

    rules = HealthRules(interval_s=0.02, positions_path="/positions")
    async with serving(positions=positions) as base:
        channel = PushChannel(f"{base}/app", concurrency=1, health=rules)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a")
            await until(lambda: "entry 0" in str(channel.describe()["unhealthy_why"]))
    assert offering.taken == []


async def test_a_position_can_be_requested_before_the_start() -> None:
    channel = PushChannel("http://127.0.0.1:1/", concurrency=1)
    assert channel.request_position()
    await channel.stop(1.0)


async def test_an_application_that_cannot_be_reached_is_named_with_its_address_and_the_reason() -> None:
    target = f"http://127.0.0.1:{free_port()}/orders"
    channel = PushChannel(target, concurrency=1, health=HealthRules(interval_s=0.02))
    async with offering_to(channel, Offering()) as offering:
        await until(lambda: len(offering.readiness) >= 3)
    assert offering.readiness[:3] == [
        (False, "not probed yet"),
        (False, f"{target} cannot be reached: Connection refused"),
        (False, f"{target} cannot be reached: Connection refused"),
    ]


@pytest.mark.parametrize("channel_type", [PushChannel, BatchChannel])
async def test_a_message_that_did_not_reach_the_application_has_no_attempt(
    channel_type: type[PushChannel] | type[BatchChannel],
) -> None:
    """Its application goes away, and has not been missed yet."""
    arguments: dict[str, Any] = {"concurrency": 1} if channel_type is PushChannel else {}
    async with AsyncExitStack() as stack:
        async with serving() as base:
            channel = channel_type(base, health=HealthRules(interval_s=3600.0, down_after=100), **arguments)
            offering = await stack.enter_async_context(offering_to(channel, Offering()))
            await until(lambda: offering.is_ready and offering.readiness[-1][0])
        held = offering.offer("a")
        await until(lambda: len(offering.ended) == 2)
        assert held.reason.startswith("the application cannot be reached: ")
        assert held.calls == len(offering.taken) - len(offering.ended)
        assert offering.dispatcher.counts.retried == 0
