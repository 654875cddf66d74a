"""The console as it is looked at for a night: many groups, a broker that goes away, a session that ends, two people."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from lbg_console.sessions import SESSION_S
from lbg_core.group import GroupSpec
from lbg_sidecar import Message, Verdict, retry
from testing.broker.embedded import EmbeddedBroker
from testing.console.browser import Person, chromium, expect, fill_in_login, person
from testing.console.world import HASHES, QUEUES, World, refusing, taking, world_of
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until

pytestmark = pytest.mark.browser

GROUPS = 200
QUEUES_OF_MANY = 16
CREATED_AT_ONCE = 8
KEY, REASON = "account-13", "no such account: 13"
PASSWORD = "a password"
AWAY = re.compile(r"the broker cannot be read, last read at \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Broker:
    """Addresses of an empty broker, and what can happen to it."""

    engine: str
    url: str
    management_url: str
    kill: Callable[[], None]
    start: Callable[[], None]
    freeze: Callable[[], None]
    thaw: Callable[[], None]


ENGINES = pytest.mark.parametrize("engine", ["embedded", "rabbitmq"])


@pytest.fixture
def broker(engine: str, request: pytest.FixtureRequest, process: None) -> Iterator[Broker]:
    """One of the test's own: a node that stood still serves the next test badly."""
    if engine == "embedded":
        own: EmbeddedBroker = request.getfixturevalue("own_broker")
        yield Broker(engine, own.url, own.management_url, own.kill, own.start, own.freeze, own.thaw)
        return
    with RabbitNode(statistics_s=1) as node:
        url, management_url = node.amqp_url, node.management_url
        yield Broker(engine, url, management_url, node.kill, node.start, node.freeze, node.thaw)


@asynccontextmanager
async def embedded_world(broker: EmbeddedBroker) -> AsyncIterator[World]:
    async with world_of("embedded", broker.url, broker.management_url) as world:
        yield world


async def test_a_fault_among_200_groups_of_16_queues_is_two_clicks_away(own_broker: EmbeddedBroker) -> None:
    room = asyncio.Semaphore(CREATED_AT_ONCE)
    async with embedded_world(own_broker) as world:

        async def create(number: int) -> None:
            async with room:
                await world.group(
                    f"group-{number:03}",
                    queue_count=QUEUES_OF_MANY,
                    hash_count=QUEUES_OF_MANY,
                    queue_size_mb=2,
                )

        await asyncio.gather(*map(create, range(GROUPS)))
        for number in range(0, GROUPS, 25):
            await world.member(f"group-{number:03}", "m1", taking(0.5))
            await world.publish(f"group-{number:03}", 400)
        await world.member("group-137", "m1", refusing(KEY, REASON), max_attempts=1)
        await world.publish("group-137", 30)
        console = await world.console()
        async with chromium() as browser, person(browser, console.url) as operator:
            page = operator.page
            await operator.open_overview()
            await expect(page.locator("#shown")).to_have_text(f"{GROUPS}")
            first = page.locator("#groups tbody tr:nth-child(1)")
            await expect(first.locator("th a")).to_have_text("group-137", timeout=120_000)
            await operator.read(f"keys: '{KEY}'")
            await operator.open_group("group-137")
            await operator.click(page.locator("#problems .keys").get_by_role("link", name=KEY))
            await operator.read(f"Key {KEY}", REASON, "poisoned")
            assert len(operator.clicks) == 2, operator.clicks

            await operator.open_overview()
            await operator.type(page.get_by_label("Filter"), "199")
            await expect(page.locator("#groups tbody tr")).to_have_count(1)
            await operator.open_group("group-199")
            await expect(page.locator("#map li")).to_have_count(QUEUES_OF_MANY)
            assert len(operator.clicks) == 2, operator.clicks
            assert operator.errors == []


@ENGINES
async def test_a_broker_that_is_away_and_comes_back(broker: Broker) -> None:
    """It is killed and started, then it stands still and goes on. The pages say so, and are not loaded again."""
    async with world_of(broker.engine, broker.url, broker.management_url) as world:
        await world.group("orders")
        await world.publish("orders", 7)
        console = await world.console()
        async with chromium() as browser, person(browser, console.url) as operator:
            pages = [operator.page, await operator.page.context.new_page()]
            await pages[0].goto(f"{console.url}/groups/orders")
            await pages[1].goto(console.url)
            waiting = 7
            for one in pages:
                await one.evaluate("window.isSame = true")
            for goes, returns in ((broker.kill, broker.start), (broker.freeze, broker.thaw)):
                for one in pages:
                    await expect(one.locator("main")).to_contain_text(f"{waiting} messages wait")
                    await expect(one.locator("#connection")).to_have_text("live")
                await asyncio.to_thread(goes)
                for one in pages:
                    line = one.locator("#connection")
                    await expect(line).to_have_text(
                        re.compile(r"the broker cannot be read, last read at \d\d:\d\d:\d\d")
                    )
                    await expect(one.locator("#survey")).not_to_be_empty()
                    await expect(one.locator("body.old")).to_have_count(1)
                    await expect(one.locator("main")).to_contain_text(f"{waiting} messages wait")
                await asyncio.to_thread(returns)
                await world.publish("orders", 3)
                waiting += 3
            for one in pages:
                await expect(one.locator("#connection")).to_have_text("live")
                await expect(one.locator("main")).to_contain_text(f"{waiting} messages wait")
                await expect(one.locator("body.old")).to_have_count(0)
                await expect(one.locator("#survey")).to_be_hidden()
                assert await one.evaluate("window.isSame") is True, "it was loaded again"
            assert operator.errors == []


async def test_a_session_of_eight_hours_that_ends(
    own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_world(own_broker) as world:
        await world.group("orders")
        await world.member("orders", "m1")
        console = await world.console()
        async with chromium() as browser, person(browser, console.url) as operator:
            page, confirming = operator.page, await operator.page.context.new_page()
            await page.goto(f"{console.url}/groups/orders")
            await expect(page.locator("#connection")).to_have_text("live")
            await confirming.goto(f"{console.url}/groups/orders/acts/repartition?queues=8")
            now_s = console.survey.now_s
            monkeypatch.setattr(console.survey, "now_s", lambda: now_s() + SESSION_S)

            await page.wait_for_url("**/login?**")
            await operator.read("Your session is over. Sign in, and the same page opens again.")
            await confirming.get_by_role("button", name="Change the number of queues").click()
            await expect(confirming.locator("main")).to_contain_text(
                "Your session was over, and nothing was done."
            )

            await fill_in_login(page)
            await page.wait_for_url(f"{console.url}/groups/orders")
            await expect(page.locator("#connection")).to_have_text("live")
            await expect(page.locator("#about")).to_contain_text(f"{QUEUES} queues")

            await fill_in_login(confirming)
            await expect(confirming.get_by_label("Queues")).to_have_value("8")
            await confirming.get_by_role("button", name="Change the number of queues").click()
            await confirming.wait_for_url(f"{console.url}/groups/orders")
            await expect(page.locator("#acts")).to_contain_text(
                "guest: repartition 8 queues: 8 queues now, 4 before"
            )
            await expect(page.locator("#about")).to_contain_text("8 queues")
            operator.expect_errors("401")


@ENGINES
async def test_two_people_act_on_a_group(broker: Broker, unique: str) -> None:
    """The second one sees what runs and by whom; a change is made once, and a message is tried once."""
    calls = {"count": 0}

    async def handle(message: Message) -> Verdict | None:
        if message.key != KEY:
            return None
        calls["count"] += 1
        return retry(REASON)

    async with world_of(broker.engine, broker.url, broker.management_url) as world:
        world.specs[unique] = spec = GroupSpec(unique, hash_count=HASHES, queue_count=QUEUES, queue_size_mb=8)
        await world.admin.create_group(spec, password=PASSWORD)
        await world.admin.enable_parking(unique)
        await world.member(unique, "m1", handle, max_attempts=1, when_exhausted="park")
        await world.publish(unique, 4, keys=(KEY,))
        console = await world.console()
        path = f"{console.url}/groups/{unique}"
        async with (
            chromium() as browser,
            person(browser, console.url) as first,
            person(browser, f"{console.url}", unique, PASSWORD) as second,
        ):
            await first.page.goto(path)
            await expect(first.page.locator("#facts")).to_contain_text("1 key")
            assert calls["count"] == 1
            for one in (first, second):
                await one.page.goto(f"{path}/acts/replay-one?key={KEY}")
            await _confirm(first, "Try the first parked message")
            await first.page.wait_for_url(path)
            await expect(first.page.locator("#acts li.done")).to_contain_text(f"guest: replay-one key {KEY}")
            await _confirm(second, "Try the first parked message")
            await second.read("meanwhile guest: replay-one", "Confirm this again if it is still wanted")
            await until(lambda: calls["count"] == 2, what="the call of the message that was given back")

            await world.admin.pause_group(unique)
            await world.publish(unique, 20)
            for one in (first, second):
                await one.page.goto(f"{path}/acts/repartition?queues=8")
            await _confirm(first, "Change the number of queues")
            await second.page.goto(path)
            await second.read("guest: repartition 8 queues: running")
            await second.page.goto(f"{path}/acts/pause-ingress")
            await second.read("guest: repartition 8 queues: running")
            await _confirm(second, "Pause ingress")
            await second.read(
                "another act on this group runs (guest: repartition 8 queues: running): wait for its end"
            )
            await world.admin.resume_group(unique)
            await second.page.goto(path)
            await second.read("guest: repartition 8 queues: 8 queues now, 4 before")
            assert await second.page.locator("#acts li", has_text="repartition").count() == 1
            assert await second.page.locator("#acts li", has_text="ingress").count() == 0
            assert calls["count"] == 2
            for one in (first, second):
                one.expect_errors("409")


async def _confirm(one: Person, title: str) -> None:
    await one.page.get_by_role("button", name=title).click()
