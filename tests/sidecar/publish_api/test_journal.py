"""The journal of the endpoint: what an application was told is published is in it, whatever ends the sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbg_core.group import PublishedRecord, decode
from lbg_core.journal import JournalReader
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.publish_endpoint import SPEC, contents, event, serving

pytestmark = pytest.mark.process

Place = tuple[str, str, int, int]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)
        yield broker


def places(group: str, answer: dict[str, Any]) -> list[Place]:
    return [(group, each["publisher"], each["hash"], each["seq"]) for each in answer["published"]]


def recorded(records: Iterable[object]) -> list[Place]:
    """In their order; all are of what was published."""
    found = []
    for record in records:
        assert isinstance(record, PublishedRecord)
        found.append((str(record.group), record.publisher, record.hash_, record.seq))
    return found


def being_written(directory: Path) -> list[Place]:
    return recorded(
        decode(line) for file in directory.glob(".*.open") for line in file.read_bytes().splitlines()
    )


async def test_an_answered_event_is_in_the_file_already_and_the_file_is_closed_at_the_end(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    async with serving(broker.url, journal=journal) as endpoint:
        _, one = await endpoint.batch([event(7)])
        assert being_written(journal) == places("orders", one)
        _, all_ = await endpoint.batch([event(n, data="x" * n) for n in range(100) if n != 7])
        told = sorted([*places("orders", one), *places("orders", all_)])
        assert sorted(being_written(journal)) == told
    assert sorted(recorded(JournalReader(journal))) == told
    (file,) = journal.iterdir()
    assert file.name.startswith(f"published-{told[0][1]}-")
    record = next(iter(JournalReader(journal)))
    assert isinstance(record, PublishedRecord)
    assert (record.key, record.body_bytes, record.resends) == ("k2", len("7"), 0)
    assert 0 < record.published_at_us <= record.confirmed_at_us


async def test_an_event_that_is_posted_again_has_one_record(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with serving(broker.url, journal=tmp_path / "journal") as endpoint:
        answers = [(await endpoint.batch([event(1), event(2)]))[1] for _ in range(3)]
    assert recorded(JournalReader(tmp_path / "journal")) == places("orders", answers[0])


async def test_sidecars_and_groups_share_a_directory_with_a_file_for_each_publisher(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await declare_group(broker.url, replace(SPEC, name="bills", hash_prefix="bills"))
    shared = {"journal": tmp_path / "journal", "max_groups": 1, "group_idle_s": 0.01}
    told = []
    async with serving(broker.url, **shared) as one, serving(broker.url, **shared) as two:
        for group in ("orders", "bills", "orders"):
            for endpoint in (one, two):
                _, answer = await endpoint.post("x", group=group)
                told += places(group, {"published": [answer]})
            await asyncio.sleep(0.05)
    assert sorted(recorded(JournalReader(tmp_path / "journal"))) == sorted(told)
    assert len(list((tmp_path / "journal").iterdir())) == len({place[1] for place in told}) == 6


async def test_what_a_broker_that_dies_confirms_late_has_one_record_each(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with serving(broker.url, journal=tmp_path / "journal") as endpoint:
        assert (await endpoint.batch([event(0)]))[0] == 200
        sending = [
            asyncio.create_task(endpoint.batch([event(n) for n in range(first, first + 20)]))
            for first in range(1, 201, 20)
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        assert {status for status, _ in await asyncio.gather(*sending)} == {200}
    found = {
        ("orders", str(each.headers["lbg-publisher"]), int(str(each.routing_key).split(".")[1]), seq)
        for each in await contents(broker.url)
        if isinstance(seq := each.headers["lbg-seq"], int)
    }
    assert len(found) == 201
    assert sorted(recorded(JournalReader(tmp_path / "journal"))) == sorted(found)


async def test_a_directory_that_cannot_be_used_is_503_with_the_reason_and_nothing_is_published(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "journal").write_text("no directory")
    async with serving(broker.url, journal=tmp_path / "journal") as endpoint:
        status, problem = await endpoint.post("x")
        assert status == 503
        assert f"the journal directory {tmp_path}/journal cannot be used" in problem["detail"]
    assert await contents(broker.url) == []
