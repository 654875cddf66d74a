"""The four questions of a night, as an operator looks for their answers: from the overview, with at most two clicks.

Which key is stuck, which member is at fault, was anything lost or out of order, and what is to be done: in each mode of
both engines, with faults that are planted (`testing.console.night`). An answer is what can be read on the page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from testing.broker.embedded import EmbeddedBroker
from testing.console.browser import Person, chromium, expect, person
from testing.console.night import (
    AUDITED,
    BALANCED,
    MISSING,
    PARKING,
    POISONED_KEY,
    QUEUES_WANTED,
    REASON,
    REPARTITIONED,
    SLOW,
    VICTIM,
    WAITING,
    Night,
    named,
    night_of,
    start_victim,
)
from testing.console.world import MODES
from testing.rabbitmq.node import RabbitNode
from testing.waiting import stop

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

CLICKS_MAX = 2
PLACES = [(engine, mode) for engine, modes in MODES.items() for mode in modes]


@pytest.fixture(scope="module", params=list(MODES))
def engine(request: pytest.FixtureRequest, process: None) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broker(
    engine: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Addresses of an empty broker and of its management API."""
    if engine == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("rabbitmq")
        yield node.new_vhost(), node.management_url
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("night") / "data") as embedded:
        yield embedded.url, embedded.management_url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def night(engine: str, broker: tuple[str, str]) -> AsyncIterator[Night]:
    async with night_of(engine, *broker) as night:
        yield night


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(night: Night) -> AsyncIterator[Person]:
    console = await night.world.console()
    async with chromium() as browser, person(browser, console.url) as operator:
        yield operator


async def test_which_key_is_stuck(night: Night, operator: Person) -> None:
    for mode in night.world.modes:
        name = named("key", mode)
        await operator.open_overview()
        await operator.read(f"keys: '{POISONED_KEY}'")
        await operator.open_group(name)
        await operator.read(f"keys: '{POISONED_KEY}'")
        await operator.click(operator.page.locator("#problems .keys").get_by_role("link", name=POISONED_KEY))
        await operator.read(f"Key {POISONED_KEY}", REASON, "poisoned")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_which_key_is_parked(night: Night, operator: Person) -> None:
    for mode in PARKING[night.engine]:
        await operator.open_overview()
        row = operator.page.locator("#groups tr", has_text=named("parked", mode))
        await operator.click(row.get_by_role("link", name="1 key parked"))
        await operator.read(POISONED_KEY)
        await operator.click(operator.page.get_by_role("link", name=POISONED_KEY))
        await operator.read(f"Key {POISONED_KEY}", REASON, "parked")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_which_member_is_dead_or_stands_still(night: Night, operator: Person) -> None:
    for mode in night.world.modes:
        name, victim = named("dead", mode), await start_victim(night, mode)
        await operator.open_overview()
        row = operator.page.locator(
            "#groups tr", has=operator.page.get_by_role("link", name=name, exact=True)
        )
        await expect(row.locator("td").nth(2)).to_have_text("2")
        stop(victim.pid)
        await expect(row).to_contain_text("1 silent")
        await operator.open_group(name)
        of_victim = operator.page.locator("#members tr", has_text=VICTIM)
        await expect(of_victim.locator("td.bad")).to_contain_text("silent")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks

        victim.kill()
        await operator.open_overview()
        await expect(row).to_contain_text("crash")
        await operator.open_group(name)
        await operator.read(f"{VICTIM} is gone: it was killed, or its connection was lost")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_which_member_is_slow(night: Night, operator: Person) -> None:
    """Its calls are marked in every mode; where members have an assignment, it is a problem that names it, too."""
    for mode in night.world.modes:
        await operator.open_overview()
        await operator.open_group(named("slow", mode))
        of_slow = operator.page.locator("#members tbody tr", has=operator.page.get_by_text(SLOW, exact=True))
        await expect(of_slow).to_contain_text("of its peers")
        if mode in BALANCED[night.engine]:
            await operator.read(f"{SLOW} is about")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_whether_anything_was_lost(night: Night, operator: Person) -> None:
    for mode in night.world.modes:
        await operator.open_overview()
        if mode in AUDITED[night.engine]:
            await operator.read(f"{MISSING} messages are missing in 1 stream")
            await operator.open_group(named("lost", mode))
            await operator.read(f"the first is {night.first_missing[mode]}", "0 out of order")
        else:
            await operator.open_group(named("lost", mode))
            await operator.read(f"gaps and order are not audited in mode {mode}", "lbg pipeline validate")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_whether_nothing_was_lost(night: Night, operator: Person) -> None:
    for mode in AUDITED[night.engine]:
        await operator.open_overview()
        await operator.open_group(named("key", mode))
        await operator.read("no gap open in", "0 out of order")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks


async def test_what_is_to_be_done_for_a_group_that_nobody_serves(night: Night, operator: Person) -> None:
    for mode in night.world.modes:
        name = named("idle", mode)
        await operator.open_overview()
        await operator.open_group(name)
        await operator.read(
            f"{WAITING} messages wait", "the group has no member", f"lbg consume --group {name} …"
        )
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_what_is_to_be_done_about_a_key(night: Night, operator: Person) -> None:
    """The act is on the page, and begins with a confirmation that says what it does."""
    for mode in night.world.modes:
        name = named("key", mode)
        await operator.open_overview()
        await operator.open_group(name)
        await operator.click(operator.page.get_by_role("link", name="Skip it"))
        await operator.read(
            f"lbg group skip {name} shop-", "It becomes a dead letter, and its key goes on without it."
        )
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    for mode in PARKING[night.engine]:
        name = named("parked", mode)
        await operator.open_overview()
        await operator.open_group(name)
        await operator.read(f"lbg park release {name} --all")
        await operator.click(operator.page.get_by_role("link", name="Release parked keys"))
        await operator.read(f"lbg park release {name} --all", "given back in order")
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_what_is_to_be_done_about_a_change_that_stands(night: Night, operator: Person) -> None:
    for mode in REPARTITIONED[night.engine]:
        name = named("change", mode)
        await operator.open_overview()
        await operator.open_group(name)
        command = f"lbg group repartition {name} --queues {QUEUES_WANTED}"
        await operator.read(f"a change to {QUEUES_WANTED} queues stands", command)
        assert len(operator.clicks) <= CLICKS_MAX, operator.clicks
    assert operator.errors == []


async def test_the_worst_group_is_the_first(night: Night, operator: Person) -> None:
    await operator.open_overview()
    lost = {named("lost", mode) for mode in AUDITED[night.engine]}
    first = operator.page.locator("#groups tbody tr:nth-child(1) th a")
    await expect(first).to_have_text(sorted(lost)[0])
