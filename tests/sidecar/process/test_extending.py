"""More time for a call, asked for over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any, cast

import aiohttp
import pytest

from lbg_core.peers import PeerLog
from lbg_sidecar.process.http import address_of, listen, local_bounds, local_routes
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.settings import Listener
from lbg_sidecar.publish_api import PublishService


class Life:
    """One call runs, of message `p a/b-5-0`."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str | None]] = []

    def extend(self, message_id: str, seconds: float, progress: str | None) -> float | None:
        if message_id != "p a/b-5-0":
            return None
        self.asked.append((seconds, progress))
        return min(seconds, 900.0)


async def asked(life: Life, name: str, body: str) -> tuple[int, Any]:
    routes = local_routes(cast(MemberLifecycle, life), cast(PublishService, None), cast(LagWatch, None))
    listener = Listener("127.0.0.1", 0)
    runner = await listen(
        listener,
        routes,
        body_max_bytes=1000,
        setting="LBG_LOCAL",
        bounds=local_bounds(),
        peer_log=PeerLog(logging.getLogger("test")),
    )
    try:
        url = f"http://{address_of(listener, runner)}/v1/calls/{name}/extend"
        async with aiohttp.ClientSession() as session, session.post(url, data=body) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text
    finally:
        await runner.cleanup()


async def test_the_answer_has_the_seconds_that_are_left() -> None:
    life = Life()
    assert await asked(life, "p%20a%2Fb-5-0", '{"seconds": 3600, "progress": "half"}') == (
        200,
        {"seconds": 900.0},
    )
    assert life.asked == [(3600, "half")]


async def test_a_call_that_does_not_run_here_is_not_found() -> None:
    status, body = await asked(Life(), "p-5-1", '{"seconds": 60}')
    assert (status, body["seconds"]) == (404, 0)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"seconds": 0}', '{"seconds": 60, "progress": 1}'])
async def test_a_request_without_seconds_is_refused(body: str) -> None:
    life = Life()
    status, text = await asked(life, "p%20a%2Fb-5-0", body)
    assert status == 400
    assert 'the body is {"seconds": 60' in text
    assert not life.asked
