"""Words of listeners: metrics and HTTP paths."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lbg_broker.management import server as broker_metrics
from lbg_broker.management import server as management
from lbg_operator.metrics_api import server as metrics_api
from lbg_operator.runtime import metrics as operator_metrics
from lbg_sidecar.app import websocket as sidecar_stream
from lbg_sidecar.app import websocket_protocol as stream_protocol
from lbg_sidecar.process import http as sidecar_routes
from lbg_sidecar.process import metrics as sidecar_metrics
from lbg_sidecar.publish_api import http as publish_api
from testing.frozen_words.words import Words
from testing.operator import metrics as operator_series


def metrics(place: Path) -> Words:
    """Names, kinds and labels."""
    operator = operator_series.series_of_operator()
    return {
        part: {f"{name} {kind} {{{', '.join(labels)}}}" for name, (kind, _, labels) in series.items()}
        for part, series in (("sidecar", sidecar_metrics.SERIES), ("operator", operator))
    } | {"embedded broker": set(broker_metrics.METRICS)}


def http_paths(place: Path) -> Words:
    """Methods and paths of every listener."""
    nothing: Any = None
    defined = {
        "sidecar, local": sidecar_routes.local_routes(nothing, nothing, nothing),
        "sidecar, observed": sidecar_routes.observed_routes(nothing, nothing, nothing),
        "sidecar, publish": publish_api.routes(nothing),
    }
    found = {part: {f"{one.method} {one.path}" for one in routes} for part, routes in defined.items()}
    found["sidecar, local"].add(f"GET {sidecar_stream.PATH} {stream_protocol.SUBPROTOCOL}")
    found["embedded broker, management"] = served(management.application(nothing))
    api = metrics_api.application(nothing, nothing, within_s=1.0, now=nothing)
    found["operator, external metrics"] = served(api)
    found["operator, probes"] = asyncio.run(probes_of_operator())
    return found


async def probes_of_operator() -> set[str]:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    made: list[web.Application] = []

    class Recorded(web.AppRunner):
        def __init__(self, app: web.Application, **settings: Any) -> None:
            made.append(app)
            super().__init__(app, **settings)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(web, "AppRunner", Recorded)
        serving = operator_metrics.health_server(
            CollectorRegistry(), dead=lambda: "", unready=lambda: "", host="127.0.0.1", port=0
        )
        async with serving:
            (app,) = made
            return served(app)


def served(app: Any) -> set[str]:
    """A path with a slash at its end is the same one without."""
    return {
        f"{route.method} {route.resource.canonical.rstrip('/') or '/'}"
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
