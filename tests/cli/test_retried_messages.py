"""`lbg group show` names messages whose retry the application has to mend."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestServer

from lbg_core.admin import connect_admin
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.app.http_push import PushChannel
from testing.admin.problem_lines import problem_lines
from testing.command_line import Where
from testing.waiting import until_answer


async def test_unreadable_verdicts_and_long_waits_are_problems_until_they_are_over(
    broker: Where, group: str
) -> None:
    is_mended = False
    seen: set[str] = set()

    async def application(request: web.Request) -> web.Response:
        key = request.headers["ce-partitionkey"]
        if key == "waits":
            return web.Response(status=503, text="maintenance", headers={"Retry-After": "99999999"})
        seen.add(key)
        word = "processed" if key == "unknown" and not is_mended else "Ok"
        return web.json_response({"status": word})

    async def problems(count: int) -> list[str]:
        async with connect_admin(broker.broker, broker.management) as admin:
            shown = await until_answer(
                lambda: admin.show_group(group), lambda one: len(problem_lines(one)) == count
            )
        return sorted(problem_lines(shown))

    app = web.Application()
    app.router.add_post("/", application)
    async with TestServer(app) as server:
        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, PushChannel(str(server.make_url("/")), concurrency=4)) as member:
            async with GroupPublisher(broker.broker, group=group) as publisher:
                for key in ("waits", "unknown", "fine"):
                    await publisher.publish(key=key, body=b"")
            unknown, waits = sorted(await problems(2), key=lambda line: "waits until" in line)
            assert "is retried, because the application's reply is no verdict" in unknown
            assert "key: 'unknown'; reason: the reply's verdict is 'processed'" in unknown
            assert "because the application asked for it" in waits
            assert "key: 'waits'; reason: HTTP 503: maintenance" in waits
            assert " UTC" in waits
            is_mended = True
            assert await problems(1) == [waits]
            assert seen == {"unknown", "fine"}
            assert member.state()["counts"]["acked"] == 2
