"""Dead letters and parked messages on the pages, and acts on them, as of `lbg dead`, `lbg park`, `lbg group skip`."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lbg_core.admin import GroupAdmin
from lbg_core.admin.dead_letters import Selection, list_letters, open_dead_queue
from lbg_core.admin.groups import create_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop, retry
from testing.admin.place import Place
from testing.console import Answer, Client, address_of, client_of, console_of
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until
from tests.console.conftest import PASSWORD

LONG = b"x" * 2000
Run = Callable[..., Awaitable[str]]


class App:
    """Fails for good on what begins with `drop`, and until it is repaired on what begins with `bad`."""

    def __init__(self) -> None:
        self.is_repaired = False
        self.done: list[bytes] = []

    async def __call__(self, message: Message) -> Verdict | None:
        data = bytes(message.data)
        if data.startswith(b"drop") and not self.is_repaired:
            return drop(f"no such account: <{data[5:].decode()}>")
        if data.startswith(b"bad") and not self.is_repaired:
            return retry("it is poison")
        self.done.append(data)
        return None


@asynccontextmanager
async def member_of(place: Place, group: str, app: App, when_exhausted: str) -> AsyncIterator[Member]:
    settings = MemberSettings(
        broker=address_of(place).urls[0],
        group=group,
        name="m",
        rebalance_delay_s=0.1,
        max_attempts=2,
        retry_first_s=0.02,
        when_exhausted=when_exhausted,
    )
    async with Member(settings, app) as member:
        yield member


async def publish(place: Place, group: str, key: str, *bodies: bytes) -> None:
    async with GroupPublisher(address_of(place).urls[0], group=group) as publisher:
        for body in bodies:
            await publisher.publish(key=key, body=body)


async def dead_letters(place: Place, group: str) -> list[str | None]:
    async with open_dead_queue(address_of(place).places(), group) as queue:
        return [one.key for one in (await list_letters(queue, Selection(), limit=100)).letters]


@asynccontextmanager
async def acting(client: Client, group: str) -> AsyncIterator[Run]:
    """A function that does an act as the forms of the pages do, and returns its state and text."""
    async with client.events(f"/groups/{group}/events") as events:
        await events.next("group")
        seen: set[str] = set()

        async def run(href: str) -> str:
            page = await client.get(href)
            assert page.status == 200
            hidden = dict(re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', page.text))
            fields = {name: html.unescape(value) for name, value in hidden.items() if name != "csrf"}
            answer = await client.act(href.partition("?")[0], **fields)
            assert (answer.status, answer.headers["Location"]) == (303, f"/groups/{group}"), answer.text

            def ended(data: Any) -> bool:
                return bool(data["acts"]) and data["acts"][0]["id"] not in seen | {""} and _is_over(data)

            act = (await events.next("group", ended))["acts"][0]
            seen.add(act["id"])
            return f"{act['state']}: {act['text']}"

        yield run


def _is_over(data: Any) -> bool:
    return data["acts"][0]["state"] != "running"


def hrefs_of(page: Answer, act: str) -> list[str]:
    return [html.unescape(href) for href in re.findall(rf'href="([^"]+/acts/{act}(?:\?[^"]*)?)"', page.text)]


def commands_of(page: Answer) -> list[str]:
    return [html.unescape(one) for one in re.findall(r"<code>(lbg [^<]+)</code>", page.text)]


@pytest.mark.long
async def test_dead_letters_are_shown_replayed_and_discarded_by_key_id_and_reason(
    place: Place, groups: tuple[GroupSpec, GroupSpec], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lbg.console.audit")
    app = App()
    await client.sign_in()
    async with member_of(place, "orders", app, "block"), acting(client, "orders") as run:
        for key in ("a", "b", "c"):
            await publish(place, "orders", key, b"drop %s1" % key.encode(), b"drop %s2" % key.encode())
        await publish(place, "orders", "d", b"drop \xff"[:5] + LONG)
        await until(lambda: client.console.survey.groups["orders"].row["dead_letters"] == 7)

        page = await client.get("/groups/orders/dead")
        assert page.text.count("<article") == 7
        assert "no such account: &lt;a1&gt;" in page.text
        assert "2,005 bytes, the first 1,000 are shown" in page.text
        assert hrefs_of(page, "discard")[0] == "/groups/orders/acts/discard"
        chosen = await client.get("/groups/orders/dead?reason=b&key=")
        assert chosen.text.count("<article") == 2
        assert (await client.get("/groups/orders/dead?key=nobody")).text.count("<article") == 0

        (every, first, *_) = hrefs_of(chosen, "discard")
        assert every == "/groups/orders/acts/discard?reason=b"
        page = await client.get(every)
        assert "whose reason contains b" in page.text
        assert commands_of(page) == ["lbg dead discard orders --reason b"]
        assert commands_of(await client.get("/groups/orders/acts/replay")) == ["lbg dead replay orders --all"]
        assert await run(first) == "done: 1 of 7 dead letters discarded"
        assert (await run(first)).startswith("failed: no dead letter has id ")
        assert await run("/groups/orders/acts/discard?key=b") == "done: 1 of 6 dead letters discarded"

        app.is_repaired = True
        assert await run("/groups/orders/acts/replay?limit=1") == "done: 1 of 5 dead letters replayed"
        await until(lambda: app.done == [b"drop a1"])
        assert await run("/groups/orders/acts/replay?reason=c1&key=c") == "done: 1 of 4 dead letters replayed"
        await until(lambda: app.done == [b"drop a1", b"drop c1"])
        assert await run("/groups/orders/acts/discard?key=d") == "done: 1 of 3 dead letters discarded"
        assert await dead_letters(place, "orders") == ["a", "c"]
        assert await run("/groups/orders/acts/replay") == "done: 2 of 2 dead letters replayed"
    lines = [one.getMessage() for one in caplog.records if 'act="discard"' in one.getMessage()]
    assert [re.search(r"result=(\w+)", line)[1] for line in lines] == ["done", "failed", "done", "done"]
    assert 'detail="key b"' in lines[2]


@pytest.mark.long
async def test_parked_messages_are_shown_tried_released_and_discarded(
    place: Place, groups: tuple[GroupSpec, GroupSpec], client: Client
) -> None:
    app, group = App(), "orders"
    await client.sign_in()
    assert "has no parking queue" in (await client.get("/groups/orders/parked")).text
    async with place.administered() as admin:
        await GroupAdmin(admin).enable_parking(group)
    async with member_of(place, group, app, "park") as member, acting(client, group) as run:
        await publish(place, group, "a", b"bad a0", b"a1 \xff" + LONG, b"a2")
        await publish(place, group, "b", b"bad b0", b"b1")
        await publish(place, group, "<i>", b"bad i0", b"i1")
        await until(lambda: member.state()["counts"]["parked"] == 7)
        shown = client.console.survey.groups[group]
        await until(
            lambda: shown.row is not None and (shown.row["parked"], shown.row["parked_keys"]) == (7, 3),
            what="the overview to have it, without a page of the group",
        )

        page = await client.get("/groups/orders/parked")
        assert page.text.count('<th scope="row">') == 3
        assert "&lt;i&gt;" in page.text
        assert page.text.count("it is poison") == 3
        assert len(re.findall(r'<td class="number">\d+ s</td>', page.text)) == 3
        assert "<i>" not in page.text
        page = await client.get("/groups/orders/key?key=a")
        assert "3 messages of this key: 3 parked" in page.text
        assert len(re.findall(r">parked[^<]*</bdi>", page.text)) == 3
        assert "in all: it is poison</bdi>" in page.text
        assert "history: the last messages of all keys at m 7 since " in page.text
        folds = re.findall(r'<details class="fold" name="message"( open)?', page.text)
        assert folds == ["", " open", "", ""], "the acts on all, and the messages"
        assert page.text.count("<article") == 3
        assert "it is poison" in page.text
        assert ">bad a0</bdi>" in page.text
        assert "2,004 bytes, the first 1,000 are shown" in page.text
        assert "Not text, shown as base64" in page.text
        assert commands_of(await client.get(hrefs_of(page, "replay-one")[0])) == [
            "lbg park replay-one orders a"
        ]

        release = hrefs_of(page, "release")[0]
        assert (await run(release)).startswith("failed: 0 keys released, 3 messages; parked again")
        app.is_repaired = True
        assert (await run(hrefs_of(page, "replay-one")[0])).startswith("done: message ")
        await until(lambda: app.done == [b"bad a0"])
        page = await client.get("/groups/orders/key?key=a")
        second = hrefs_of(page, "discard-parked")[1]
        assert await run(second) == "done: 1 parked message discarded"
        assert await run(release) == "done: 1 key released, 1 message"
        await until(lambda: app.done == [b"bad a0", b"a2"])
        assert (await run(release)).startswith("failed: not parked in group orders: a")
        assert await run("/groups/orders/acts/discard-parked?key=b") == "done: 2 parked messages discarded"
        assert await run("/groups/orders/acts/discard-parked") == "done: 2 parked messages discarded"
        assert "No key is parked" in (await client.get("/groups/orders/parked")).text


@pytest.mark.process
@pytest.mark.rabbitmq
async def test_parked_messages_of_rabbitmq_are_acts_of_an_administrator(
    rabbitmq: RabbitNode, rabbit_vhost: str, unique: str
) -> None:
    place = Place(ConnectionSettings.parse(rabbit_vhost), ManagementSettings.parse(rabbitmq.management_url))
    spec = GroupSpec(unique, unique, hash_count=8, queue_count=2, queue_size_mb=10, client_username=unique)
    async with place.administered() as admin:
        await create_group(admin, spec, password=PASSWORD)
    async with console_of(place) as console, client_of(console) as client, client_of(console) as own:
        await until(lambda: unique in console.survey.groups, what="the survey")
        await client.sign_in()
        async with place.administered() as admin:
            await GroupAdmin(admin).enable_parking(unique)
        async with member_of(place, unique, App(), "park") as member:
            await publish(place, unique, "a", b"bad a0", b"a1")
            await publish(place, unique, "c", b"drop c0")
            await until(
                lambda: (counts := member.state()["counts"])["parked"] == 2 and counts["dead_lettered"] == 1
            )
            shown = console.survey.groups[unique]
            await until(lambda: shown.row is not None and shown.row["parked"] == 2, what="the survey")
            page = await client.get(f"/groups/{unique}/key?key=a")
            assert (page.text.count("<article"), ">bad a0</bdi>" in page.text) == (2, True)
        await own.sign_in(unique, PASSWORD)
        page = await own.get(f"/groups/{unique}/dead")
        assert re.search(
            "only an administrator may read them: ACCESS_REFUSED - (read )?access to queue .* refused for user",
            page.text,
        )
        assert "<article" not in page.text
        async with acting(own, unique) as run:
            assert (await run(f"/groups/{unique}/acts/discard")).startswith("failed: ")
        assert await dead_letters(place, unique) == ["c"]


@pytest.mark.long
async def test_a_poisoned_message_is_skipped_from_its_key(
    place: Place, groups: tuple[GroupSpec, GroupSpec], client: Client
) -> None:
    app = App()
    await client.sign_in()
    async with member_of(place, "orders", app, "block") as member, acting(client, "orders") as run:
        await publish(place, "orders", "a", b"bad a0", b"a1")
        await until(lambda: member.state()["counts"]["poisoned"] == 1)
        page = await client.get("/groups/orders/key?key=a")
        (skip,) = hrefs_of(page, "skip")
        assert (await run(skip)).startswith("done: a dead letter after ")
        await until(lambda: app.done == [b"a1"])
        assert (await run(skip)).startswith("failed: ")
    assert await dead_letters(place, "orders") == ["a"]


async def test_the_selection_of_an_act_is_checked(client: Client) -> None:
    await client.sign_in()
    for act, fields in (
        ("skip", {}),
        ("skip", {"id": ""}),
        ("replay-one", {}),
        ("replay", {"limit": "0"}),
        ("replay", {"limit": "x"}),
        ("discard", {"key": "k" * 5000}),
        ("discard", {"reason": "r" * 5000}),
    ):
        assert (await client.act(f"/groups/orders/acts/{act}", **fields)).status == 400, (act, fields)
    assert "autofocus" in (await client.get("/groups/orders/acts/replay-one")).text
    page = await client.get("/groups/orders/acts/replay-one?key=-x%20y")
    assert commands_of(page) == ["lbg park replay-one orders -- '-x y'"]
    assert (
        "Discard all dead letters in group orders?"
        in (await client.get("/groups/orders/acts/discard?reason=&id=")).text
    )
    for path in ("dead?key=" + "k" * 5000, "acts/discard?id=" + "i" * 5000):
        assert (await client.get(f"/groups/orders/{path}")).status == 400


@pytest.mark.long
async def test_a_queue_has_one_reader_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_console.messages.READ_S", 0.2)
    await client.sign_in()
    async with client.console.survey.groups["orders"].reading:
        for path in ("dead", "parked"):
            assert "read again later" in (await client.get(f"/groups/orders/{path}")).text
    assert "read again later" not in (await client.get("/groups/orders/dead")).text
