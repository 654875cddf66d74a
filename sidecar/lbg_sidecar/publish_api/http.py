"""`POST /v1/publish/{group}` for aiohttp; errors as RFC 9457 problem details."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus

from aiohttp import web

from lbg_sidecar.app.cloudevents import BATCH_CONTENT_TYPE
from lbg_sidecar.publish_api.request import Refused, read_events
from lbg_sidecar.publish_api.service import PublishService

BODY_WITHIN_S = 30.0
"""A client that sends its body more slowly is refused (408)."""


def routes(publishing: PublishService) -> list[web.RouteDef]:
    async def publish(request: web.Request) -> web.Response:
        try:
            body = await _body(request, publishing.settings.max_body_bytes)
            events = read_events(body, _joined(request.headers), request.query)
            receipts = [
                asdict(receipt) for receipt in await publishing.publish(request.match_info["group"], events)
            ]
        except Refused as refused:
            return _problem(refused)
        is_batch = request.content_type == BATCH_CONTENT_TYPE
        return web.json_response({"published": receipts} if is_batch else receipts[0])

    return [web.post("/v1/publish/{group}", publish)]


def _joined(headers: Mapping[str, str]) -> dict[str, str]:
    """Names in lower case; one that comes several times is a list (RFC 9110, section 5.3), as baggage may."""
    joined: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


async def _body(request: web.Request, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise Refused(413, f"the body takes more than {max_bytes} bytes: nothing was published")
    except TimeoutError:
        raise Refused(408, f"no whole body within {BODY_WITHIN_S:g} s: nothing was published") from None
    return bytes(body)


def _problem(refused: Refused) -> web.Response:
    problem: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
    }
    if refused.index is not None:
        problem["index"] = refused.index
    headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
    return web.Response(
        status=refused.status,
        headers=headers,
        content_type="application/problem+json",
        text=json.dumps(problem),
    )
