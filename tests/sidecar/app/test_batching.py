"""Errors of batches over HTTP alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lbg_sidecar import ACK, MemberSettings, Message, drop, retry
from lbg_sidecar.app import http_push
from lbg_sidecar.app.http_client import Reply, verdicts_of_reply
from lbg_sidecar.app.http_push import BatchChannel, BatchSettings
from lbg_sidecar.message import INTERRUPTED, Kind, Verdict, unreadable
from lbg_sidecar.settings import processing_rules
from testing.app.application_channel import Offering, offering_to
from testing.member.group_load import group_spec
from testing.waiting import until

Answer = Callable[[list[dict[str, Any]]], Awaitable[web.Response]]
NOW_S = 1_700_000_000.0


@dataclass
class App:
    """Answers batches as told; `batches` are the bodies of each, in order. `cut`: connections closed on it."""

    answer: Answer
    base: str = ""
    batches: list[list[str]] = field(default_factory=list)
    cut: int = 0

    def channel(self, **settings: Any) -> BatchChannel:
        return BatchChannel(f"{self.base}/batch", settings=BatchSettings(**settings))

    async def handle(self, request: web.Request) -> web.Response:
        events = await request.json()
        self.batches.append([event["data"] for event in events])
        try:
            return await self.answer(events)
        except asyncio.CancelledError:
            self.cut += 1
            raise


@asynccontextmanager
async def app_that(answer: Answer) -> AsyncIterator[App]:
    app = App(answer)
    application = web.Application()
    application.router.add_post("/batch", app.handle)
    server = TestServer(application)
    await server.start_server()
    app.base = f"http://127.0.0.1:{server.port}"
    try:
        yield app
    finally:
        await server.close()


async def accepts(events: list[dict[str, Any]]) -> web.Response:
    return web.Response(status=204)


def holding(gate: asyncio.Event) -> Answer:
    async def answer(events: list[dict[str, Any]]) -> web.Response:
        await gate.wait()
        return web.Response()

    return answer


def said(*verdicts: tuple[str, str]) -> bytes:
    return json.dumps({"verdicts": [{"id": name, "verdict": word} for name, word in verdicts]}).encode()


# What a reply says


@pytest.mark.parametrize("body", [b"", b" \n", b"null"])
def test_a_success_with_nothing_to_say_acknowledges_all(body: bytes) -> None:
    assert verdicts_of_reply(Reply(200, body, None), now_s=NOW_S).of("a") == ACK


def test_a_message_without_a_verdict_is_tried_again_and_the_others_have_theirs() -> None:
    refused = {"id": "a", "verdict": "drop", "reason": "no"}
    later = {"id": "b", "verdict": "retry", "after_s": 2}
    body = json.dumps({"verdicts": [refused, later]}).encode()
    verdicts = verdicts_of_reply(Reply(200, body, None), now_s=NOW_S)
    assert verdicts.of("a") == drop("no")
    assert verdicts.of("b") == retry(after_s=2.0)
    assert verdicts.of("c") == retry("the reply has no verdict for it")


@pytest.mark.parametrize(
    "body",
    [
        b"OK",
        b"[]",
        b"{}",
        b'{"verdict": "drop"}',
        b'{"verdicts": {}}',
        b'{"verdicts": [{"verdict": "drop"}]}',
        b'{"verdicts": [{"id": 7, "verdict": "drop"}]}',
        b'{"verdicts": [{"id": "a", "verdict": "ack"}',
        b'{"verdicts": ' + b"[" * 100_000,
    ],
)
def test_a_reply_that_cannot_be_read_acknowledges_and_drops_nothing(body: bytes) -> None:
    verdict = verdicts_of_reply(Reply(200, body, None), now_s=NOW_S).of("a")
    assert verdict.kind is Kind.RETRY
    assert 'must be empty or {"verdicts"' in verdict.reason
    assert len(verdict.reason) < 300


@pytest.mark.parametrize(
    ("status", "retry_after", "verdict"),
    [
        (422, None, retry("HTTP 422: no")),
        (503, "5", retry("HTTP 503: no", after_s=5.0)),
        (302, None, retry("HTTP 302: no")),
    ],
)
def test_a_batch_that_is_refused_is_tried_again_whole(
    status: int, retry_after: str | None, verdict: Verdict
) -> None:
    assert verdicts_of_reply(Reply(status, b"no", retry_after), now_s=NOW_S).of("a") == verdict


def test_two_different_verdicts_on_a_message_are_none() -> None:
    verdicts = verdicts_of_reply(
        Reply(200, said(("a", "ack"), ("a", "drop"), ("b", "ack"), ("b", "ack")), None), now_s=NOW_S
    )
    assert verdicts.of("a") == unreadable("the reply has two verdicts for it")
    assert verdicts.of("b") == ACK


async def test_a_verdict_may_name_the_event_by_its_publishers_id_unless_two_have_it() -> None:
    async def answer(events: list[dict[str, Any]]) -> web.Response:
        return web.json_response({"verdicts": [{"id": event["id"], "verdict": "ack"} for event in events]})

    def event(name: str) -> dict[str, Any]:
        of = {"specversion": "1.0", "id": name, "source": "/shop", "type": "order"}
        return {f"cloudEvents:{attribute}": value for attribute, value in of.items()}

    async with app_that(answer) as app:
        offering = Offering()
        for key, name in (("a", "e1"), ("b", "same"), ("c", "same")):
            offering.offer(key, key.encode(), headers=event(name))
        async with offering_to(app.channel(), offering):
            await until(lambda: len(offering.ended) >= 3)
    assert [verdict.kind for _, verdict in offering.ended[:3]] == ["ack", "retry", "retry"]
    assert offering.ended[1][1].reason == "the reply has no verdict for it"


# What goes into a batch


async def test_a_batch_has_at_most_one_message_of_a_key_and_no_more_than_the_size() -> None:
    async with app_that(accepts) as app:
        offering = Offering(concurrency=100)
        for number in range(60):
            key = f"k{number % 10}"
            offering.offer(key, key.encode())
        async with offering_to(app.channel(size=7), offering):
            await until(lambda: len(offering.acked()) == 60)
    assert max(map(len, app.batches)) == 7
    assert all(len(set(batch)) == len(batch) for batch in app.batches)


async def test_a_message_is_sent_at_once_when_nothing_is_on_its_way() -> None:
    async with app_that(accepts) as app:
        channel = app.channel(linger_ms=3_600_000)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            await until(lambda: offering.acked() == [0])
            offering.offer("b", b"b")
            await until(lambda: offering.acked() == [0, 1])
    assert app.batches == [["a"], ["b"]]


async def test_what_comes_while_a_request_is_on_its_way_is_gathered_until_the_reply() -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(linger_ms=3_600_000)
        async with offering_to(channel, Offering(concurrency=10)) as offering:
            offering.offer("a", b"a")
            await until(lambda: app.batches)
            for key in "bcd":
                offering.offer(key, key.encode())
            await until(lambda: channel.describe()["gathered"] == 3)
            gate.set()
            await until(lambda: len(offering.acked()) == 4)
    assert app.batches == [["a"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    "settings", [{"linger_ms": 1}, {"linger_ms": 3_600_000, "size": 2}], ids=["time", "size"]
)
async def test_a_second_request_goes_when_it_is_full_or_has_waited(settings: dict[str, Any]) -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app, offering_to(app.channel(**settings), Offering()) as offering:
        offering.offer("a", b"a")
        await until(lambda: app.batches)
        offering.offer("b", b"b")
        offering.offer("c", b"c")
        await until(lambda: len(app.batches) == 2)
        gate.set()
        await until(lambda: len(offering.acked()) == 3)
    assert app.batches == [["a"], ["b", "c"]]


async def test_bodies_above_the_limit_of_bytes_are_not_put_together() -> None:
    async with app_that(accepts) as app:
        offering = Offering(concurrency=10)
        for key in "abc":
            offering.offer(key, key.encode() * 60)
        async with offering_to(app.channel(max_bytes=100, linger_ms=0), offering):
            await until(lambda: len(offering.acked()) == 3)
    assert list(map(len, app.batches)) == [1, 1, 1]


async def test_one_message_that_fails_every_batch_does_not_keep_failing_the_others() -> None:
    async def answer(events: list[dict[str, Any]]) -> web.Response:
        return web.Response(status=500 if any(event["data"] == "poison" for event in events) else 200)

    async with app_that(answer) as app:
        offering = Offering(concurrency=20)
        for number in range(10):
            offering.offer(f"k{number}", b"poison" if number == 5 else b"sound")
        async with offering_to(app.channel(), offering):
            await until(lambda: len(offering.acked()) == 9)
    assert max(message.attempt for message, verdict in offering.ended if verdict == ACK) <= 3


async def test_what_cannot_be_sent_for_a_bug_of_ours_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Message) -> str:
        raise RuntimeError("a bug")

    async with app_that(accepts) as app:
        offering = Offering()
        monkeypatch.setattr(http_push, "batch_item", broken)
        offering.offer("a", b"sound")
        async with offering_to(app.channel(), offering):
            await until(lambda: len(offering.ended) == 1)
            monkeypatch.undo()
            await until(lambda: len(offering.acked()) == 1)
    assert offering.ended[0][1].reason == "the sidecar could not send it: RuntimeError: a bug"
    assert "a batch could not be sent" in caplog.text


# Aborts


async def test_a_request_is_closed_when_all_of_it_is_aborted() -> None:
    async with (
        app_that(holding(asyncio.Event())) as app,
        offering_to(app.channel(abort_wait_s=3600), Offering()) as offering,
    ):
        offering.offer("a", b"a")
        offering.offer("b", b"b")
        await until(lambda: app.batches)
        offering.lose()
        await until(lambda: len(offering.ended) == 2)
        await until(lambda: app.cut == 1)
    assert {verdict for _, verdict in offering.ended} == {INTERRUPTED}


async def test_an_aborted_message_is_over_only_with_its_request_and_the_others_keep_their_verdicts() -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(abort_wait_s=3600)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            offering.offer("b", b"b")
            await until(lambda: app.batches)
            aborted = offering.taken[0]
            channel.abort([aborted])
            await asyncio.sleep(0.05)  # time enough for what must not be
            assert offering.ended == []
            gate.set()
            await until(lambda: len(offering.ended) >= 2)
    assert offering.ended[:2] == [(aborted, INTERRUPTED), (offering.taken[1], ACK)]


async def test_a_request_with_an_aborted_message_is_closed_in_the_end_and_the_others_have_not_failed() -> (
    None
):
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(abort_wait_s=0.05)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            offering.offer("b", b"b")
            await until(lambda: app.batches)
            channel.abort([offering.taken[0]])
            await until(lambda: app.cut == 1)
            gate.set()
            await until(lambda: len(offering.acked()) == 2)
    assert [verdict for _, verdict in offering.ended[:2]] == [INTERRUPTED, INTERRUPTED]
    assert [message.attempt for message in offering.taken] == [1, 1, 1, 1]


async def test_an_aborted_message_that_was_not_sent_yet_never_is() -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(linger_ms=3_600_000)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            await until(lambda: app.batches)
            offering.offer("b", b"b")
            await until(lambda: channel.describe()["gathered"] == 1)
            offering.lose()
            await until(lambda: len(offering.ended) == 2)
            assert channel.describe()["gathered"] == 0
    assert app.batches == [["a"]]


async def test_what_the_broker_wants_back_and_is_not_sent_yet_ends_at_once() -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(linger_ms=3_600_000)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            await until(lambda: app.batches)
            offering.offer("b", b"b")
            await until(lambda: channel.describe()["gathered"] == 1)
            offering.revoke(*(Message(one.in_flight, "g") for one in offering.taken), taken=False)
            assert offering.ended == [(offering.taken[1], INTERRUPTED)], "the one with its span"
            gate.set()
            await until(lambda: len(offering.ended) == 2)
    assert offering.ended[1] == (offering.taken[0], ACK)
    assert app.batches == [["a"]]


async def test_a_request_of_which_some_was_taken_is_not_closed_and_the_others_keep_their_verdicts() -> None:
    gate = asyncio.Event()
    async with app_that(holding(gate)) as app:
        channel = app.channel(abort_wait_s=0.0)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            offering.offer("b", b"b")
            await until(lambda: app.batches)
            offering.revoke(offering.taken[0], taken=True)
            await asyncio.sleep(0.05)  # time enough for what must not be
            assert app.cut == 0
            gate.set()
            await until(lambda: len(offering.ended) == 2)
    assert offering.ended == [(offering.taken[0], INTERRUPTED), (offering.taken[1], ACK)]


async def test_a_request_that_was_taken_whole_is_closed() -> None:
    async with app_that(holding(asyncio.Event())) as app:
        channel = app.channel(abort_wait_s=3600)
        async with offering_to(channel, Offering()) as offering:
            offering.offer("a", b"a")
            await until(lambda: app.batches)
            offering.revoke(*offering.taken, taken=True)
            await until(lambda: app.cut == 1)
            await until(lambda: offering.ended == [(offering.taken[0], INTERRUPTED)])


@pytest.mark.parametrize(("told", "counts"), [(None, 150), (8, 8)])
def test_a_member_makes_room_for_full_batches_unless_it_is_told_a_number(
    told: int | None, counts: int
) -> None:
    channel = BatchChannel("http://127.0.0.1:1/", settings=BatchSettings(size=50, requests=3))
    settings = MemberSettings(group="orders", concurrency=told)
    rules = processing_rules(settings, group_spec("orders"), concurrency=channel.concurrency)
    assert rules.concurrency == counts
