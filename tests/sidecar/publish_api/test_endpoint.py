"""The endpoint over HTTP on an embedded broker."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker, free_port
from testing.sidecar.publish_endpoint import SPEC, Endpoint, ce, contents, event, ids, serving
from testing.waiting import GUARD_S, until, until_answer

pytestmark = pytest.mark.process


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)
        yield broker


def in_flight(endpoint: Endpoint) -> int:
    """Events that were accepted and are not confirmed."""
    found = endpoint.publishing.describe()["in_flight"]
    assert isinstance(found, int)
    return found


async def test_an_event_is_answered_with_its_place_and_carries_its_attributes(broker: EmbeddedBroker) -> None:
    async with serving(broker.url) as endpoint:
        headers = ce(1, partitionkey="k", subject="a.b", tenant="t") | {"traceparent": "00-1-2-01"}
        status, answer = await endpoint.post("body", headers | {"Content-Type": "text/csv"})
        assert (status, answer["id"], answer["seq"], answer["deduplicated"]) == (200, "e1", 0, False)
    (found,) = await contents(broker.url)
    assert found.routing_key == f"orders.{answer['hash']}.a.b"
    assert bytes(found.body) == b"body"
    assert found.properties.content_type == "text/csv"
    assert {
        "cloudEvents:tenant": "t",
        "traceparent": "00-1-2-01",
        "lbg-key": "k",
    }.items() <= found.headers.items()
    assert (found.headers["lbg-publisher"], found.headers["lbg-seq"]) == (answer["publisher"], 0)


async def test_a_batch_keeps_its_order_and_posts_one_after_another_keep_theirs(
    broker: EmbeddedBroker,
) -> None:
    async with serving(broker.url) as endpoint:
        status, answer = await endpoint.batch([event(number, partitionkey="k") for number in range(300)])
        assert status == 200
        assert [each["seq"] for each in answer["published"]] == list(range(300))
        for number in range(20):
            status, one = await endpoint.post(b"%d" % number, query="?key=k")
            assert (status, one["seq"], one["id"]) == (200, 300 + number, None)
    assert [each.headers["lbg-seq"] for each in await contents(broker.url)] == list(range(320))


async def test_a_retry_is_published_once_also_when_it_races_and_within_a_batch(
    broker: EmbeddedBroker,
) -> None:
    async with serving(broker.url) as endpoint:
        answers = await asyncio.gather(*(endpoint.post("x", ce(1, partitionkey="k")) for _ in range(20)))
        assert {status for status, _ in answers} == {200}
        assert len({(each["hash"], each["seq"]) for _, each in answers}) == 1
        assert sum(not each["deduplicated"] for _, each in answers) == 1
        _, batch = await endpoint.batch([event(2), event(2), event(3)])
        assert [each["deduplicated"] for each in batch["published"]] == [False, True, False]
        status, problem = await endpoint.post("y", ce(1, partitionkey="k"))
        assert status == 409
        assert "'e1'" in problem["detail"]
        assert endpoint.publishing.describe()["deduplicated"] == 20
    assert sorted(map(str, ids(await contents(broker.url)))) == ["e1", "e2", "e3"]


async def test_a_bad_event_leaves_the_whole_batch_unpublished_and_says_which(broker: EmbeddedBroker) -> None:
    async with serving(broker.url) as endpoint:
        assert (await endpoint.batch([event(1), {"id": "2"}]))[1]["index"] == 1
        status, problem = await endpoint.batch([event(1), event(2, partitionkey="x" * 20_000)])
        assert (status, problem["index"]) == (400, 1)
        assert (await endpoint.batch([event(1), event(1, data=2)]))[0] == 409
        assert (await endpoint.post("x", query="?topic=" + "t" * 300))[0] == 400
        assert (await endpoint.post("x", ce(9, subject="t" * 300)))[0] == 200
        assert (await endpoint.post(b"x" * 5_000_000))[0] == 413
        assert (await endpoint.post("x", group="nope"))[0] == 404
        assert (await endpoint.post("x", group="No.Group"))[0] == 404
    assert ids(await contents(broker.url)) == ["e9"]


async def test_a_refused_login_is_403_and_no_broker_503(broker: EmbeddedBroker) -> None:
    async with serving(broker.url.replace("guest:guest", "guest:wrong")) as endpoint:
        assert (await endpoint.post("x"))[0] == 403
    async with serving(f"amqp://guest:guest@127.0.0.1:{free_port()}/", answer_within_s=0.2) as endpoint:
        assert (await endpoint.post("x"))[0] == 503


async def test_a_broker_killed_while_requests_wait_loses_nothing_and_doubles_no_sequence(
    broker: EmbeddedBroker,
) -> None:
    async with serving(broker.url) as endpoint:
        assert (await endpoint.batch([event(number) for number in range(50)]))[0] == 200
        endpoint.answers_within(0.3)

        async def send(first: int) -> None:
            events = [event(number) for number in range(first, first + 20)]
            await until_answer(lambda: endpoint.batch(events), lambda answer: answer[0] == 200)

        sending = [asyncio.create_task(send(first)) for first in range(50, 450, 20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.kill)
        late = asyncio.create_task(endpoint.batch([event(450)]))
        assert (await late)[0] == 503
        endpoint.answers_within(GUARD_S)
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*sending)
        status, answer = await endpoint.batch([event(450)])
        assert (status, answer["published"][0]["deduplicated"]) == (200, True)
    places: dict[object, set[tuple[object, ...]]] = {}
    for each in await contents(broker.url):
        headers = each.headers
        place = (headers["lbg-publisher"], str(each.routing_key), headers["lbg-seq"])
        places.setdefault(headers["cloudEvents:id"], set()).add(place)
    assert places.keys() == {f"e{number}" for number in range(451)}
    assert {len(each) for each in places.values()} == {1}, "a copy has the sequence of its first"
    assert max(Counter(place for each in places.values() for place in each).values()) == 1


async def test_a_full_queue_is_waited_for_then_503_and_what_waits_is_bounded(broker: EmbeddedBroker) -> None:
    async with serving(broker.url, max_in_flight=60) as endpoint:
        assert (await endpoint.post("x", query="?key=another"))[0] == 200
        assert len(await contents(broker.url)) == 1
        endpoint.answers_within(0.3)
        body = "x" * 30_000
        status, problem = await endpoint.batch([event(n, partitionkey="k", data=body) for n in range(60)])
        assert status == 503
        assert "may still be published" in problem["detail"]
        await until(lambda: 0 < in_flight(endpoint) < 60, what="as many confirms as there is room for")
        status, problem = await endpoint.batch([event(n) for n in range(100, 160)])
        assert status == 503
        assert "none of these was published" in problem["detail"]
        found = ids(await contents(broker.url))
        await until(lambda: in_flight(endpoint) == 0)
        endpoint.answers_within(GUARD_S)
        status, answer = await endpoint.batch([event(n, partitionkey="k", data=body) for n in range(60)])
        assert status == 200
        assert {each["deduplicated"] for each in answer["published"]} == {True}
        assert [each["seq"] for each in answer["published"]] == list(range(60))
    found += ids(await contents(broker.url))
    assert found == [f"e{n}" for n in range(60)]


async def test_a_client_that_goes_away_leaves_its_event_on_its_way(broker: EmbeddedBroker) -> None:
    async with serving(broker.url) as endpoint:
        assert (await endpoint.post("x", ce(0)))[0] == 200
        broker.freeze()
        sending = asyncio.create_task(endpoint.post("x", ce(1)))
        await until(lambda: in_flight(endpoint) == 1)
        sending.cancel()
        broker.thaw()
        status, answer = await endpoint.post("x", ce(1))
        assert (status, answer["deduplicated"]) == (200, True)
    assert sorted(map(str, ids(await contents(broker.url)))) == ["e0", "e1"]


async def test_stopping_waits_for_what_is_under_way_and_takes_nothing_more(broker: EmbeddedBroker) -> None:
    async with serving(broker.url) as endpoint:
        assert (await endpoint.post("x", ce(0)))[0] == 200
        broker.freeze()
        sending = asyncio.create_task(endpoint.post("x", ce(1)))
        await until(lambda: in_flight(endpoint) == 1)
        stopping = asyncio.create_task(endpoint.publishing.stop(10))
        await asyncio.sleep(0)
        assert (await endpoint.post("x", ce(2)))[0] == 503
        broker.thaw()
        assert await stopping == 0
        assert (await sending)[0] == 200


async def test_the_examples_in_the_docs_are_published(broker: EmbeddedBroker) -> None:
    section = (ROOT / "docs/publishing.md").read_text().partition("## Through the sidecar")[2]
    examples = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    async with serving(broker.url) as endpoint:
        running = await asyncio.create_subprocess_exec(
            "bash",
            "-ec",
            examples[0],
            env=os.environ | {"SIDECAR": endpoint.url},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await running.communicate()
        assert running.returncode == 0
        assert output.count(b'"deduplicated": false') == 4
    found = await contents(broker.url)
    assert [bytes(each.body) for each in found] == [b"hello", b'{"n": 1}', b'{"n":2}', b"3"]
    assert [each.headers.get("cloudEvents:id") for each in found] == [None, "1", "2", "3"]
    assert {each.headers["lbg-key"] for each in found} == {"N14228"}


async def test_a_group_that_nobody_publishes_to_gives_its_place_up_and_comes_back_in_order(
    broker: EmbeddedBroker,
) -> None:
    others = [replace(SPEC, name=name, hash_prefix=name) for name in ("bills", "carts")]
    for other in others:
        await declare_group(broker.url, other)
    async with serving(broker.url, max_groups=2, group_idle_s=0.05) as endpoint:
        assert (await endpoint.post("1", ce(1, partitionkey="k")))[0] == 200
        for group in ("bills", "carts"):
            await asyncio.sleep(0.1)
            assert (await endpoint.post("x", group=group))[0] == 200
        assert endpoint.publishing.describe()["groups"] == ["bills", "carts"]
        _, again = await endpoint.post("1", ce(1, partitionkey="k"))
        assert again["deduplicated"], "the window outlives the place"
        status, second = await endpoint.post("2", ce(2, partitionkey="k"))
        assert (status, second["seq"]) == (200, 0)
        assert second["publisher"] != again["publisher"]
    assert [bytes(each.body) for each in await contents(broker.url)] == [b"1", b"2"]


async def test_groups_beyond_the_limit_are_429_with_a_time_while_all_are_in_use(
    broker: EmbeddedBroker,
) -> None:
    async with serving(broker.url, max_groups=1, group_idle_s=0.05) as endpoint:
        assert (await endpoint.post("x"))[0] == 200
        endpoint.answers_within(0.3)
        broker.freeze()
        assert (await endpoint.post("x"))[0] == 503
        async with endpoint.session.post(f"{endpoint.url}/v1/publish/bills", data="x") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        broker.thaw()


async def test_an_event_over_the_brokers_limit_is_refused_and_nothing_of_its_batch_is_published(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker(tmp_path / "limited", settings={"message_max_bytes": 70_000}) as broker:
        await declare_group(broker.url, SPEC)
        async with serving(broker.url) as endpoint:
            status, problem = await endpoint.post(b"x" * 70_001)
            assert (status, problem["title"]) == (413, "Request Entity Too Large")
            assert "message size 70001 is larger than max size 70000" in problem["detail"]
            status, problem = await endpoint.batch([event(1), event(2, data="x" * 70_001)])
            assert (status, problem["index"]) == (413, 1)
            assert (await endpoint.post(b"x" * 70_000))[0] == 200
        assert [len(each.body) for each in await contents(broker.url)] == [70_000]


@pytest.mark.parametrize("header", [b"lbg-key: \xff", b"lbg-key: \xed\xa0\x80", b"ce-partitionkey: %FF"])
async def test_a_key_that_is_no_text_is_refused(broker: EmbeddedBroker, header: bytes) -> None:
    async with serving(broker.url) as endpoint:
        address = urlsplit(endpoint.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = b"POST /v1/publish/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n"
        writer.write(head + header + b"\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert in_flight(endpoint) == 0
    assert answer.startswith(b"HTTP/1.1 400 "), answer
