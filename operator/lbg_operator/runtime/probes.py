"""Health and metrics of the operator over HTTP, for the kubelet and Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

PORT = 8080

Problem = Callable[[], str]
"""Problem in one line; empty for none."""


@asynccontextmanager
async def health_server(
    registry: CollectorRegistry, *, dead: Problem, unready: Problem, host: str = "0.0.0.0", port: int = PORT
) -> AsyncIterator[int]:
    """Serve until the end of the block; the port that it listens at."""
    app = web.Application()
    app.router.add_get("/healthz", _handler_of(dead))
    app.router.add_get("/readyz", _handler_of(unready))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _handler_of(find_problem: Problem) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        problem = find_problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return answer
