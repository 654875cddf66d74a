"""External metrics API: routes, rights, and its listener."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from lbg_operator.errors import GroupNotFound, MetricUnknown
from lbg_operator.kube.api import Cluster, ClusterError
from lbg_operator.metrics_api.metrics import (
    API_PATH,
    DOCUMENTS,
    PORT,
    READ_WITHIN_S,
    Answer,
    MetricReader,
    Service,
    failed,
    metric_values,
    refused,
    value_within,
)
from lbg_operator.metrics_api.tls import ServingConfig, TlsContextSwitch, ensure_serving_config, tls_side
from lbg_operator.resources.autoscaler import METRICS


def token_for(key: bytes, namespace: str, group: str) -> str:
    """Token for a group's metrics: who may read a namespace's Secrets may read those of its groups alone."""
    return hmac.new(key, f"{namespace}/{group}".encode(), hashlib.sha256).hexdigest()


def is_bearer(authorization: str, key: bytes, namespace: str, group: str) -> bool:
    """True if the header `authorization` (RFC 6750) bears it, found out in the same time whether it does or not."""
    scheme, _, token = authorization.partition(" ")
    expected = token_for(key, namespace, group)
    is_token = hmac.compare_digest(token.strip().encode(errors="replace"), expected.encode())
    return scheme.lower() == "bearer" and is_token


log = logging.getLogger("lbg.operator.metrics_api")

KEDA_PATH = "/v1/metrics/{namespace}/{group}"
HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
HEADER_MAX_BYTES = 8190
IDLE_S = 45.0
"""Longer than the 30 s between the API server's checks of us, so it keeps its connection; idle clients lose theirs."""
SHUTDOWN_S = 1.0

Now = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def listening(
    reader: MetricReader,
    tls: TlsContextSwitch,
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
        application(reader, tls, within_s=within_s, now=now),
        access_log=None,
        handle_signals=False,
        keepalive_timeout=IDLE_S,
        max_line_size=HEADER_MAX_BYTES,
        max_field_size=HEADER_MAX_BYTES,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls.listening).start()
        bound: int = runner.addresses[0][1]
        log.info("external metrics API on port %d", bound)
        yield bound
    finally:
        await runner.cleanup()


def application(reader: MetricReader, tls: TlsContextSwitch, *, within_s: float, now: Now) -> web.Application:
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
        """One sample, as Prometheus' HTTP API says it ("Instant queries"). The query is one of METRICS: ADR 24."""
        metric = request.query.get("query", "")
        if metric not in METRICS:
            return _sent(failed(HTTPStatus.BAD_REQUEST, f"the query is not one of {', '.join(METRICS)}"))
        place = request.match_info["namespace"], request.match_info["group"]
        value = await value_within(reader, metric, *place, within_s=within_s)
        sample = {"metric": {}, "value": [now().timestamp(), str(value)]}
        result = {"status": "success", "data": {"resultType": "vector", "result": [sample]}}
        return _sent(Answer(HTTPStatus.OK, result))

    def is_allowed(request: web.Request) -> bool:
        if request.path in HEALTH_PATHS:
            return True
        if request.transport is None or tls.serving_config is None:
            return False
        if "group" in (place := request.match_info):
            authorization = request.headers.get("Authorization", "")
            return is_bearer(authorization, tls.serving_config.token_key, place["namespace"], place["group"])
        return tls.admits(tls_side(request.transport))

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_allowed(request):
            response = _sent(
                failed(HTTPStatus.UNAUTHORIZED, "only the API server of this cluster has access")
            )
            response.force_close()
            return response
        try:
            return await handler(request)
        except (GroupNotFound, MetricUnknown) as error:
            return _sent(refused(error))
        except web.HTTPNotFound:
            return _sent(failed(HTTPStatus.NOT_FOUND, f"there is no {request.path} here"))
        except web.HTTPMethodNotAllowed:
            return _sent(
                failed(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not a method of this API")
            )
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _sent(failed(HTTPStatus.INTERNAL_SERVER_ERROR, "an error of the operator: see its log"))

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


CHECK_INTERVAL_S = 60.0
"""For another certificate of the API server, and for our own that is due: both are changed days before it matters."""
RETRY_S = 5.0


class MetricsApi:
    """Metrics server, as the rest of the operator sees it."""

    def __init__(self, port: int, tls: TlsContextSwitch) -> None:
        self.port = port
        self._tls = tls

    @property
    def serving_config(self) -> ServingConfig | None:
        """None until the certificate is there: KEDA's objects need its authority and the tokens' key."""
        return self._tls.serving_config


@asynccontextmanager
async def serve(
    reader: MetricReader,
    cluster: Cluster,
    service: Service,
    *,
    host: str | None = None,
    port: int = PORT,
    read_within_s: float = READ_WITHIN_S,
    check_interval_s: float = CHECK_INTERVAL_S,
    retry_s: float = RETRY_S,
) -> AsyncIterator[MetricsApi]:
    """Raises OSError when it cannot listen. Whatever Kubernetes does not give yet is waited for in the background."""
    tls = TlsContextSwitch()
    async with listening(reader, tls, host=host, port=port, within_s=read_within_s) as bound:
        renewal = asyncio.create_task(_renew_serving_config(cluster, service, tls, check_interval_s, retry_s))
        try:
            yield MetricsApi(bound, tls)
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])


async def _renew_serving_config(
    cluster: Cluster, service: Service, tls: TlsContextSwitch, check_interval_s: float, retry_s: float
) -> None:
    while True:
        pause_s = retry_s
        try:
            config = await ensure_serving_config(cluster, service, now=datetime.now(UTC))
            if config.callers is None:
                log.error(
                    "the API server publishes no certificate for aggregated APIs: no client can read external metrics"
                )
            tls.switch_to(config)
            pause_s = check_interval_s
        except ClusterError as error:
            log.warning("external metrics API: %s; again in %g s", error, retry_s)
        except (ssl.SSLError, ValueError) as error:
            log.error("external metrics API: a certificate cannot be read: %s; again in %g s", error, retry_s)
        await asyncio.sleep(pause_s)
