"""Health and metrics of the operator over HTTP, for the kubelet and Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

PORT = 8080

Ailment = Callable[[], str]
"""Problem in one line; empty for none."""


@asynccontextmanager
async def health_server(
    registry: CollectorRegistry, *, dead: Ailment, unready: Ailment, host: str = "0.0.0.0", port: int = PORT
) -> AsyncIterator[int]:
    """Serve until the end of the block; the port that it listens at."""
    app = web.Application()
    app.router.add_get("/healthz", _answering(dead))
    app.router.add_get("/readyz", _answering(unready))

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


def _answering(ailment: Ailment) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        wrong = ailment()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    return answer
