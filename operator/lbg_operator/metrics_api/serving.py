"""The listener: routes, who may ask what, and the answers in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from ..errors import GroupNotFound, LagUnknown
from .answers import API_PATH, DOCUMENTS, Answer, failed, refused
from .doors import Door, shown
from .providing import PORT
from .reading import READ_WITHIN_S, LagReader, lag_within, metric_values
from .tokens import is_bearer

log = logging.getLogger("lbg.operator.metrics_api")

KEDA_PATH = "/v1/lag/{namespace}/{group}"
HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
HEADER_MAX_BYTES = 8190
IDLE_S = 45.0
"""Longer than the 30 s between the API server's looks at us, which keeps its connection; the silent lose theirs."""
SHUTDOWN_S = 1.0

Now = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def listening(
    reader: LagReader,
    door: Door,
    *,
    host: str | None = None,
    port: int = PORT,
    within_s: float = READ_WITHIN_S,
    now: Now = _utc_now,
) -> AsyncIterator[int]:
    """Answer for as long as the block lasts; gives the port, which the system chooses when asked for 0.

    Raises OSError when it cannot listen there. `host` None: on every address.
    """
    runner = web.AppRunner(
        application(reader, door, within_s=within_s, now=now),
        access_log=None,
        handle_signals=False,
        keepalive_timeout=IDLE_S,
        max_line_size=HEADER_MAX_BYTES,
        max_field_size=HEADER_MAX_BYTES,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=door.listening).start()
        bound: int = runner.addresses[0][1]
        log.info("external metrics API on port %d", bound)
        yield bound
    finally:
        await runner.cleanup()


def application(reader: LagReader, door: Door, *, within_s: float, now: Now) -> web.Application:
    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def document(request: web.Request) -> web.Response:
        return _sent(Answer(HTTPStatus.OK, DOCUMENTS[request.path]))

    async def values(request: web.Request) -> web.Response:
        answer = await metric_values(
            reader,
            request.match_info["namespace"],
            request.match_info["metric"],
            request.query.get("labelSelector", ""),
            now=now(),
            within_s=within_s,
        )
        return _sent(answer)

    async def keda(request: web.Request) -> web.Response:
        """One sample, as Prometheus' HTTP API says it ("Instant queries"), whatever the query: see ADR 24."""
        place = request.match_info["namespace"], request.match_info["group"]
        lag = await lag_within(reader, *place, within_s=within_s)
        sample = {"metric": {}, "value": [now().timestamp(), str(lag)]}
        told = {"status": "success", "data": {"resultType": "vector", "result": [sample]}}
        return _sent(Answer(HTTPStatus.OK, told))

    def may(request: web.Request) -> bool:
        if request.path in HEALTH_PATHS:
            return True
        if request.transport is None or door.standing is None:
            return False
        if "group" in (place := request.match_info):
            authorization = request.headers.get("Authorization", "")
            return is_bearer(authorization, door.standing.token_key, place["namespace"], place["group"])
        return door.admits(shown(request.transport))

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not may(request):
            response = _sent(failed(HTTPStatus.UNAUTHORIZED, "only the API server of this cluster may ask"))
            response.force_close()
            return response
        try:
            return await handler(request)
        except (GroupNotFound, LagUnknown) as error:
            return _sent(refused(error))
        except web.HTTPNotFound:
            return _sent(failed(HTTPStatus.NOT_FOUND, f"there is no {request.path} here"))
        except web.HTTPMethodNotAllowed:
            return _sent(failed(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not for this API"))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _sent(
                failed(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a fault of the operator: see its log")
            )

    app = web.Application(middlewares=[guarded])
    app.add_routes([web.get(path, healthy) for path in HEALTH_PATHS])
    app.add_routes([web.get(path, document) for path in DOCUMENTS])
    app.add_routes(
        [
            web.get(API_PATH + "/namespaces/{namespace}/{metric}", values),
            web.get(KEDA_PATH + "/api/v1/query", keda),
        ]
    )
    return app


def _sent(answer: Answer) -> web.Response:
    return web.Response(
        text=json.dumps(answer.body) + "\n", status=answer.status, content_type="application/json"
    )
