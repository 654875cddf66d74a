"""The page of a profile: right for much, for little and for nothing, and whatever things are called."""

from __future__ import annotations

from typing import Any

import pytest

from testing.journal.rows import START_US
from testing.needs import repeated
from testing.pipeline.html_page import Read


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Digest, PICTURED, Row, grain_us, interval_us, report
    from pyspark.sql import Row

    from lbg_pipeline.profile.digest import PICTURED, Digest, grain_us, interval_us
    from lbg_pipeline.profile.page import report


SECOND_US = 1_000_000
HOSTILE = "<script>alert('1')</script>$\\frac{\u202e\x00"
METRICS = ("confirm", "age", "wait", "service", "settle", "size")
PERCENTILES = {"p50": 300, "p90": 400, "p95": 500, "p99": 600, "p999": 700}


def total_published(**more: Any) -> Row:
    told = {"messages": 100, "bytes": 1000, "publishers": 1, "resends": 0}
    return Row(**{**told, "first_us": START_US, "last_us": START_US + SECOND_US, **more})


def total_delivered(**more: Any) -> Row:
    told = {"deliveries": 100, "ack": 99, "dead": 1, "repeat": 0, "released": 0, "redelivered": 2, "early": 0}
    span = {"first_us": START_US, "last_us": START_US + SECOND_US, "mode": "Exclusive"}
    return Row(**{**told, **span, **more})


def digest(
    *, members: int = 1, queues: int = 1, intervals: int = 1, name: str = "a", group: str = "g"
) -> Digest:
    """As many of everything, each busy in each interval; queues went to the next member half way."""
    at = [START_US + number * SECOND_US for number in range(intervals)]
    last = START_US + intervals * SECOND_US
    told = Digest(group, SECOND_US, START_US, last - 1, total_published(), total_delivered())
    told.latencies = [
        Row(metric=metric, unit="us", messages=9, least=-5, mean=310.0, greatest=800, **PERCENTILES)
        for metric in METRICS
    ]
    told.latencies_over_time = [
        Row(metric=metric, at_us=one, **PERCENTILES) for metric in METRICS for one in at
    ]
    told.densities = [Row(metric=metric, bin=one, messages=one) for metric in METRICS for one in (24, 25, 30)]
    told.published_over_time = [Row(at_us=one, messages=50) for one in at]
    told.done_over_time = [Row(at_us=one, messages=10 * members) for one in at]
    told.members_over_time = [
        Row(member=member, at_us=one, messages=10, busy_us=member * 10_000)
        for member in range(members)
        for one in at
    ]
    told.queues_over_time = [
        Row(queue=queue, at_us=one, messages=queue) for queue in range(queues) for one in at
    ]
    told.queues = [Row(queue=queue, messages=9, hottest="1", hottest_messages=3) for queue in range(queues)]
    told.hashes = [
        Row(hash=queue, messages=9, hottest=name, hottest_messages=3) for queue in range(min(queues, 40))
    ]
    key = {"busy_us": 5, "peak_minute_messages": 1, "peak_minute_busy_us": 5}
    told.keys = [Row(key=f"{name}{queue}", hash=queue, messages=9, **key) for queue in range(min(queues, 20))]
    skew = {
        "messages": 9,
        "busy_us": 5,
        "hottest": name,
        "hottest_share": 0.5,
        "busiest": name,
        "busiest_share": 0.5,
    }
    told.skew = [
        Row(unit=unit, count=queues, gini_messages=0.2, gini_busy=0.3, **skew)
        for unit in ("key", "hash", "queue", "member")
    ]
    told.lorenz = [Row(unit=unit, share_of_count=1.0, share_of_load=1.0) for unit in ("key", "hash", "queue")]
    if members > 1:
        waits = {
            f"{kind}_{at}": 7 for kind in ("pause", "waited") for at in ("p50", "p90", "p99", "greatest")
        }
        told.pauses = [Row(unit=unit, count=queues, **waits) for unit in ("hash", "queue")]
        half = at[len(at) // 2]
        told.handoffs = [
            Row(
                queue=queue,
                from_member=queue % members,
                from_member_name=name,
                to_member=(queue + 1) % members,
                to_member_name=name,
                at_us=half,
                pause_us=900,
                idle_us=queue,
            )
            for queue in range(queues)
        ]
    run = {
        "member_name": name,
        "presence_us": 900,
        "ack": 9,
        "dead": 0,
        "repeat": 0,
        "released": 0,
        "queues": 1,
    }
    busy = {"busy_us": 1200, "utilisation": 1.3, "occupied_share": 0.9}
    told.runs = [
        Row(member=member, first_us=START_US, last_us=last, **run, **busy) for member in range(members)
    ]
    return told


def page(*digests: Digest, broken: int = 0) -> str:
    sent = {one.group: one.published for one in digests if one.published is not None}
    got = {one.group: one.delivered for one in digests if one.delivered is not None}
    return report(digests, sent, got, journals=["journal/"], broken=broken, made_by="a test")


def test_no_record_makes_a_page_that_says_so() -> None:
    assert "These journals have no records." in Read(page()).text


@pytest.mark.long
def test_one_record_makes_every_section_but_handoffs() -> None:
    text = Read(page(digest())).text
    for said in (
        "Profile of g",
        "Load",
        "Latency and size",
        "Skew",
        "Members",
        "No queue and no hash moved.",
    ):
        assert said in text


@pytest.mark.long
def test_without_a_journal_of_members_there_is_what_was_published() -> None:
    told = digest()
    told.delivered = None
    for rows in (
        told.done_over_time,
        told.members_over_time,
        told.queues,
        told.hashes,
        told.keys,
        told.skew,
        told.runs,
    ):
        rows.clear()
    text = Read(page(told)).text
    assert "The journals have no deliveries of this group" in text
    assert "Handoffs" not in text
    assert "Members" not in text


@pytest.mark.long
@pytest.mark.parametrize(("queues", "intervals"), repeated([(80, 20), (200, 120)]))
def test_fifty_members_and_many_queues_are_one_page_of_bounded_size(queues: int, intervals: int) -> None:
    assert intervals <= PICTURED
    text = page(digest(members=50, queues=queues, intervals=intervals))
    read = Read(text)
    assert "other members" in read.text
    assert "The 60 hottest queues." in read.text
    assert "Which member served each queue that moved" not in read.text
    assert len(text) < 2_000_000


@pytest.mark.long
def test_whatever_things_are_called_they_stay_text_and_nothing_is_loaded() -> None:
    text = page(
        digest(members=2, queues=3, intervals=3, name=HOSTILE, group=HOSTILE), digest(members=2), broken=2
    )
    read = Read(text)
    assert "script" not in read.tags()
    assert read.text.count("<script>alert(") > 5
    assert "2 lines are not records" in read.text
    assert all(value.startswith("#") for value in read.values("href", "src"))
    assert "\x00" not in text


@pytest.mark.long
def test_clocks_that_differ_are_told_of() -> None:
    told = digest()
    told.delivered = total_delivered(early=3)
    assert "3 messages were delivered before they were published" in Read(page(told)).text


def test_an_interval_is_one_that_people_count_in_and_adds_up_to_minutes() -> None:
    for span_us in (0, 1, 119 * SECOND_US, 3600 * SECOND_US, 86_400 * SECOND_US, 10**16):
        interval = interval_us(START_US, START_US + span_us)
        assert span_us // interval < PICTURED
        assert interval % SECOND_US == 0
        assert 60 * SECOND_US % grain_us(interval) == 0
        assert interval % grain_us(interval) == 0
