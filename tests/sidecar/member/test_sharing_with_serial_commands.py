"""Mode MessageGroups with a command that works on one line at a time, judged by its own starts and finishes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member
from lbg_sidecar.app.command import CommandChannel
from testing.broker.embedded import EmbeddedBroker
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.promises.judge import Call, calls_of, judge
from testing.waiting import until, whole_lines

pytestmark = pytest.mark.process

CONCURRENCY = 16


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


class Serial:
    """A member with the application of `make promises` that takes all lines and works on one."""

    def __init__(self, place: Place, name: str, directory: Path, time_ms: int) -> None:
        self.name = name
        self._lines = directory / f"{name}.lines"
        application = ("-m", "testing.promises.application", "serial-command", str(self._lines), str(time_ms))
        channel = CommandChannel([sys.executable, *application], concurrency=CONCURRENCY)
        self.member = Member(place.settings(name, rebalance_delay_s=None), channel)

    def calls(self) -> list[Call]:
        return calls_of(self.name, whole_lines(self._lines))

    @property
    def finished(self) -> int:
        return sum(call.finished for call in self.calls())


async def published(place: Place, *, keys: int, each: int) -> dict[int, str]:
    """A backlog in which the keys take turns: number -> key."""
    sent = {number: f"key-{number % keys}" for number in range(keys * each)}
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for number, key in sent.items():
            await publisher.publish(
                key=key, body=json.dumps({"n": number, "key": key}).encode(), topic="load"
            )
        await publisher.flush()
    return sent


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def test_a_joiner_is_at_work_long_before_the_other_one_is_done(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    place = await place_in("MessageGroups", embedded, unique)
    sent = await published(place, keys=12, each=100)
    first, second = (Serial(place, name, tmp_path, 50) for name in ("a", "b"))
    async with first.member:
        await until(lambda: first.finished >= 20)
        async with second.member:
            joined_ns = now_ns()
            await until(lambda: second.finished >= 60)
    calls = [*first.calls(), *second.calls()]
    began_ns = min(call.start_ns for call in second.calls())
    meanwhile = [call for call in first.calls() if joined_ns < call.start_ns < began_ns]
    assert len(meanwhile) < len(sent) / 4
    counts = judge(sent, calls).counts
    del counts["lost"]  # it ends before all is done
    assert set(counts.values()) == {0}, counts


async def test_a_key_that_a_member_has_not_begun_goes_to_an_idle_one(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    """Of one message each, so that nothing but what runs could tell the broker which of them are at work."""
    place = await place_in("MessageGroups", embedded, unique)
    sent = await published(place, keys=CONCURRENCY, each=1)
    first, second = (Serial(place, name, tmp_path, 500) for name in ("a", "b"))
    async with first.member, second.member:
        await until(lambda: first.calls() or second.calls())
        await until(lambda: first.finished + second.finished == len(sent))
    assert set(judge(sent, [*first.calls(), *second.calls()]).counts.values()) == {0}
    shares = sorted(len(each.calls()) for each in (first, second))
    assert shares[0] >= CONCURRENCY // 4, shares


async def test_a_member_that_becomes_idle_gets_what_another_one_has_in_store(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    place = await place_in("MessageGroups", embedded, unique)
    first, second = (Serial(place, name, tmp_path, 500) for name in ("a", "b"))
    async with first.member:
        sent = await published(place, keys=CONCURRENCY, each=1)
        await until(lambda: first.finished >= 2)
        async with second.member:
            await until(lambda: first.finished + second.finished == len(sent))
    assert set(judge(sent, [*first.calls(), *second.calls()]).counts.values()) == {0}
    assert len(second.calls()) >= 3
    began_ns = min(call.start_ns for call in second.calls())
    ends = [max(call.ran_until_ns for call in each.calls()) for each in (first, second)]
    assert abs(ends[0] - ends[1]) < max(ends) - began_ns, "one worked alone for all that time"
