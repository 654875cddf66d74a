"""Cost of the console's pages: script in Chromium, and CPU of the console, the broker and the members.

The groups are real ones of the embedded broker: members in one process, a message now and then to each group, `lbg
console` as a process of its own. Chromium is driven by Playwright, which `make test-browser` installs.
`python -m bench.console --groups 200 --queues 16`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measurement import Measurement
from bench.workers import Worker, cpu_s, say
from lbg_core.admin import connect_admin
from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker

if TYPE_CHECKING:
    from playwright.async_api import Page

HASHES = 64
KEYS = 16
SERVED_S = 300.0
"""Longest wait for all queues to be served, and for the rate of the messages."""

MEASURED_S = 30.0
STARTED_AT_ONCE = 4
UNDER_WAY = """([members, rate]) => {
    const numbers = {};
    for (const { children: [label, value] } of document.querySelectorAll("#facts div"))
        numbers[label.textContent] = parseInt(value.textContent.replaceAll(",", ""));
    return numbers["Members"] === members && !numbers["Queues unserved"] && numbers["Rate"] >= 0.8 * rate;
}"""
"""True if the overview shows that all queues are served, and at least 0.8 of the rate."""

METRICS = ("ScriptDuration", "TaskDuration")
"""Seconds, of the Chrome DevTools Protocol (Performance.getMetrics): in script, and in all tasks of the page."""


def name_of(number: int) -> str:
    return f"group-{number:03}"


async def run_members(url: str, groups: int, members: int, rate: float) -> None:
    """Worker: real members of all groups, and `rate` messages a second to all of them, in turn."""

    async def handle(message: Message) -> None:
        return None

    room = asyncio.Semaphore(STARTED_AT_ONCE)
    publishers: list[GroupPublisher] = []
    async with AsyncExitStack() as stack:

        async def start(number: int) -> None:
            async with room:
                for index in range(members):
                    settings = MemberSettings(broker=url, group=name_of(number), name=f"m{index}")
                    await stack.enter_async_context(Member(settings, handle))
                publishers.append(await stack.enter_async_context(GroupPublisher(url, group=name_of(number))))

        await asyncio.gather(*map(start, range(groups)))
        say("ready")
        loop = asyncio.get_running_loop()
        begun, sent = loop.time(), 0
        while True:
            publisher = publishers[sent % len(publishers)]
            await publisher.publish(key=f"key-{sent // len(publishers) % KEYS}", body=b"{}")
            sent += 1
            await asyncio.sleep(max(0.0, begun + sent / rate - loop.time()))


async def measure(groups: int, queues: int, members: int, rate: float) -> list[str]:
    from playwright.async_api import async_playwright

    lines = []
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(EmbeddedBroker(Path(directory) / "data"))
        async with connect_admin(broker.url, broker.management_url) as admin:
            for number in range(groups):
                name = name_of(number)
                spec = GroupSpec(name, name, hash_count=HASHES, queue_count=queues, queue_size_mb=8)
                await admin.create_group(spec, with_user=False)
        worker = await Worker.start(
            "console", role="members", url=broker.url, groups=groups, members=members, rate=rate
        )
        stack.push_async_callback(worker.kill)
        await worker.answer("ready", timeout_s=600)
        console = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lbgroup", "console", "--listen", "127.0.0.1:0"),
            *("--broker", broker.url, "--management", broker.management_url),
            stderr=asyncio.subprocess.PIPE,
        )
        stack.callback(console.kill)
        assert console.stderr is not None
        url = (await console.stderr.readline()).decode().split()[4].rstrip("/")
        reading = asyncio.create_task(console.stderr.read())
        stack.callback(reading.cancel)
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"))
        stack.push_async_callback(browser.close)
        page = await browser.new_page()
        await page.goto(f"{url}/login")
        await page.get_by_label("User").fill(USER)
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"{url}/")
        pids = {"console": console.pid, "broker": broker.pid, "members": worker.pid}
        expected = [groups * members, rate]
        await page.wait_for_function(UNDER_WAY, arg=expected, timeout=SERVED_S * 1000)
        lines.append(await line_of(page, "all groups", pids))
        if not await page.evaluate(UNDER_WAY, expected):
            raise RuntimeError("the page shows less than the members and the rate by the end")
        await page.goto(f"{url}/groups/{name_of(0)}")
        await page.locator("#members tbody tr").first.wait_for()
        lines.append(await line_of(page, "one group", pids))
    return lines


async def line_of(page: Page, what: str, pids: dict[str, int]) -> str:
    client = await page.context.new_cdp_session(page)
    await client.send("Performance.enable")

    async def seen() -> dict[str, float]:
        found: Any = await client.send("Performance.getMetrics")
        in_page = {one["name"]: one["value"] for one in found["metrics"] if one["name"] in METRICS}
        return in_page | {name: cpu_s(pid) for name, pid in pids.items()}

    before = await seen()
    await asyncio.sleep(MEASURED_S)
    after = await seen()
    each = [f"{(after[name] - before[name]) / MEASURED_S * 1e3:.0f}" for name in (*METRICS, *pids)]
    return f"| {what} | {' | '.join(each)} |"


def main() -> None:
    parser = Measurement(__doc__, workers={"members": run_members})
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--members", type=int, default=1, help="of each group")
    parser.add_argument("--rate", type=float, default=400, help="messages a second, of all groups")
    told = parser.asked()
    lines = asyncio.run(measure(told.groups, told.queues, told.members, told.rate))
    print(
        f"{told.groups} groups of {told.queues} queues, {told.members} members each, {told.rate:g} messages/s\n"
    )
    print("ms a second:\n\n| page | script | all of the page | console, CPU | broker, CPU | members, CPU |")
    print("\n".join(["|---|---|---|---|---|---|", *lines]))


if __name__ == "__main__":
    main()
