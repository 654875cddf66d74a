"""Lists of many objects: in turns with the rest of the broker, and only what was asked for."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestServer

from lbg_broker.management import application, request
from testing.broker.managed import Ask, FakeManagedBroker


async def declared(ask: Ask, count: int) -> None:
    for number in range(count):
        await ask("PUT", f"/queues/%2F/q{number:03}", {"arguments": {"k": 1}})


@pytest.mark.parametrize("path", ["/queues", "/bindings", "/queues?page=1&name=q&page_size=500"])
async def test_others_have_their_turn_while_a_long_list_is_made(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await declared(ask, 200)
    _, expected = await ask("GET", path)
    monkeypatch.setattr(request, "TURN_S", 0.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    status, listed = await ask("GET", path)
    counting.cancel()
    assert (status, listed) == (200, expected)
    assert turns > 200


async def test_only_one_list_is_made_in_a_turn(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    await declared(ask, 50)
    monkeypatch.setattr(request, "TURN_S", 0.0)
    answers = await asyncio.gather(*(ask("GET", "/queues") for _ in range(5)))
    assert [(status, len(listed)) for status, listed in answers] == [(200, 50)] * 5


@pytest.mark.parametrize("pattern", ["(a)\\1", "(?<=a)b", "[", "^(?!a)b|c"])
async def test_a_pattern_that_re2_does_not_have_is_refused_in_one_line(ask: Ask, pattern: str) -> None:
    status, answer = await ask("GET", f"/queues?page=1&use_regex=true&name={quote(pattern)}")
    assert status == 400
    assert answer["reason"].startswith(f"name: {pattern!r} is not a pattern")
    assert "\n" not in answer["reason"]


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 100_000,
        '{"arguments": {"a": "\\ud800"}}',
        '{"arguments": ' + '{"a":' * 50 + "1" + "}" * 51,
    ],
    ids=["arrays", "objects", "digits", "surrogate", "table"],
)
async def test_a_body_that_cannot_be_read_is_refused(ask: Ask, body: str) -> None:
    status, answer = await ask("PUT", "/queues/%2F/q", body)
    assert status == 400
    assert answer["reason"]


@pytest.mark.parametrize("query", ["page=" + "9" * 5000, "page=1&page_size=" + "9" * 5000, "page=\u00b2"])
async def test_a_number_that_is_none_is_refused(ask: Ask, query: str) -> None:
    assert (await ask("GET", f"/queues?{quote(query, safe='=&')}"))[0] == 400


async def test_an_argument_that_json_does_not_have_is_text_in_lists(
    ask: Ask, broker: FakeManagedBroker
) -> None:
    await ask("PUT", "/queues/%2F/q", '{"arguments": {"k": 1e400}}')
    _, queue = await ask("GET", "/queues/%2F/q")
    assert queue["arguments"] == {"k": "inf"}


@pytest.mark.parametrize("path", ["/connections/", "/queues/%2F/", "/queues/%2F/q/", "/overview/"])
async def test_a_slash_at_the_end_of_a_path_changes_nothing(ask: Ask, path: str) -> None:
    """Go's client lists connections so."""
    await ask("PUT", "/queues/%2F/q/", {})
    assert await ask("GET", path) == await ask("GET", path[:-1])


@pytest.mark.parametrize(
    ("verb", "path"), [("PUT", "/vhosts/orders"), ("GET", "/queues/orders"), ("PUT", "/queues/orders/q")]
)
async def test_another_virtual_host_is_refused_by_name(ask: Ask, verb: str, path: str) -> None:
    status, answer = await ask(verb, path, {})
    assert status in (400, 404)
    assert "virtual host 'orders'" in answer["reason"]
    assert "use RabbitMQ" in answer["reason"]


async def test_a_login_that_is_not_base64_is_refused(broker: FakeManagedBroker) -> None:
    async with TestServer(application(broker)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
