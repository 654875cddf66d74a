"""The tables of a profile, of rows few enough to add up by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lbg_core.group import DeliveredRecord
from testing.journal.rows import START_US, delivered, published


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Row, SparkSession, kept_records, profile
    from pyspark.sql import Row, SparkSession

    from lbg_pipeline.profile import profile
    from testing.journal.tables import kept_records


SECOND_US = 1_000_000
NEXT_US = 40 * SECOND_US
"""START_US is 20 seconds after a minute began."""
MINUTES = [datetime.fromtimestamp(START_US // 60_000_000 * 60 + after, UTC) for after in (0, 60)]


def done(seq: int, at_us: int, took_us: int, **fields: Any) -> DeliveredRecord:
    """In the application from 100 µs after delivery, for `took_us`; settled 50 µs later."""
    started = START_US + at_us + 100
    times = {
        "started_at_us": started,
        "finished_at_us": started + took_us,
        "settled_at_us": started + took_us + 50,
    }
    return delivered(seq, at_us=at_us, **{**times, **fields})


def given_back(seq: int, at_us: int, **fields: Any) -> DeliveredRecord:
    times = dict.fromkeys(("started_at_us", "finished_at_us", "settled_at_us"))
    return delivered(seq, at_us=at_us, verdict="released", attempts=0, **times, **fields)


PUBLISHED = [
    published(0, at_us=0, body_bytes=10),
    published(1, at_us=SECOND_US, body_bytes=30),
    published(2, at_us=NEXT_US, body_bytes=7),
    published(0, at_us=0, group="unread"),
]
DELIVERED = [
    done(0, 1000, 200, key="a", body_bytes=10),
    done(1, 2000, 300, key="a", body_bytes=30),
    done(0, 3000, 400, key="b", hash_=4, body_bytes=1),
    done(0, 4000, 100, key="c", hash_=1, queue=1, body_bytes=2, verdict="dead"),
    given_back(0, 5000, key="d", hash_=1, queue=1, body_bytes=3),
    done(0, 9000, 600, key="d", hash_=1, queue=1, member=1, redelivered=True, body_bytes=3),
    done(2, NEXT_US, 500, key="a", body_bytes=7),
    done(1, NEXT_US + 10, 1000, key=None, hash_=1, queue=1, member=1, body_bytes=5),
    # Published 1 ms before it is delivered to another member, when the queue had been empty for 5 ms.
    done(0, 3000, 10, group="idle"),
    done(1, 9000, 10, group="idle", member=1, published_at_us=START_US + 8000),
    # Two lanes, of which the second begins in the middle of the first.
    done(0, 0, 1000, group="lanes"),
    done(1, 500, 1000, group="lanes", key="other"),
    given_back(0, 7, group="brief"),
    # Members that share a queue hand nothing over.
    done(0, 0, 10, group="shared", mode="MessageGroups"),
    done(1, 10, 10, group="shared", mode="MessageGroups", member=1),
]


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, list[Row]]:
    made = profile(kept_records(spark, [*PUBLISHED, *DELIVERED]), SECOND_US)
    for table in made.used_often():
        table.persist()
    return {name: table.collect() for name, table in made.tables.named().items()}


def told(rows: list[Row], *names: str, **where: Any) -> list[tuple[Any, ...]]:
    found = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


def minute(number: int) -> datetime:
    """As Spark gives it to Python: in the zone of this process, and without saying so."""
    return MINUTES[number].astimezone().replace(tzinfo=None)


def test_rates_are_what_was_done_by_queue_member_and_minute(tables: dict[str, list[Row]]) -> None:
    assert told(tables["rates"], "queue", "member", "minute", "messages", "bytes", "busy_us", group="g") == [
        (0, 0, minute(0), 3, 41, 900),
        (0, 0, minute(1), 1, 7, 500),
        (1, 0, minute(0), 1, 2, 100),
        (1, 1, minute(0), 1, 3, 600),
        (1, 1, minute(1), 1, 5, 1000),
    ]


def test_demand_is_what_was_published_by_minute(tables: dict[str, list[Row]]) -> None:
    assert told(tables["demand"], "group", "minute", "messages", "bytes") == [
        ("g", minute(0), 2, 40),
        ("g", minute(1), 1, 7),
        ("unread", minute(0), 1, 100),
    ]


def test_keys_have_their_load_and_that_of_their_busiest_minute(tables: dict[str, list[Row]]) -> None:
    columns = ("key", "hash", "messages", "busy_us", "peak_minute_messages", "peak_minute_busy_us")
    assert told(tables["keys"], *columns, group="g") == [
        ("a", 0, 3, 1000, 2, 500),
        ("b", 4, 1, 400, 1, 400),
        ("c", 1, 1, 100, 1, 100),
        ("d", 1, 1, 600, 1, 600),
        (None, 1, 1, 1000, 1, 1000),
    ]


def test_skew_names_the_hottest_and_the_busiest_and_how_uneven_all_are(tables: dict[str, list[Row]]) -> None:
    by_unit = {row.unit: row for row in tables["skew"] if row.group == "g"}
    assert {unit: (row["count"], row.messages, row.busy_us) for unit, row in by_unit.items()} == {
        "key": (4, 6, 2100),
        "hash": (3, 7, 3100),
        "queue": (2, 7, 3100),
        "member": (2, 7, 3100),
    }
    assert [by_unit[unit].hottest for unit in ("key", "hash", "queue", "member")] == ["a", "0", "0", "0"]
    assert [by_unit[unit].busiest for unit in ("key", "hash", "queue", "member")] == ["a", "1", "1", "1"]
    keys = by_unit["key"]
    assert keys.hottest_share == 3 / 6
    assert keys.busiest_share == pytest.approx(1000 / 2100)
    # Of 1, 1, 1, 3: 2 * (1 + 2 + 3 + 4 * 3) / (4 * 6) - 5 / 4. Of 100, 400, 600, 1000 in the same way.
    assert keys.gini_messages == pytest.approx(0.25)
    assert keys.gini_busy == pytest.approx(2 * 6700 / (4 * 2100) - 5 / 4)
    assert by_unit["queue"].gini_messages == pytest.approx(2 * (3 + 8) / (2 * 7) - 3 / 2)


def test_latencies_of_a_group_are_of_all_that_has_them(tables: dict[str, list[Row]]) -> None:
    columns = ("metric", "unit", "messages", "least", "p50", "p90", "greatest")
    assert told(tables["latencies"], *columns, group="g", scope="group") == [
        ("age", "us", 8, 1000, 4007, 39_976_959, 40_000_010),
        ("confirm", "us", 3, 1000, 1000, 1000, 1000),
        ("service", "us", 7, 100, 400, 1000, 1000),
        ("settle", "us", 7, 50, 50, 50, 50),
        ("size", "bytes", 8, 1, 3, 30, 30),
        ("wait", "us", 7, 100, 100, 100, 100),
    ]
    (mean,) = told(tables["latencies"], "mean", group="g", scope="group", metric="service")
    assert mean == (pytest.approx(3100 / 7),)


def test_latencies_are_told_by_queue_member_and_minute_too(tables: dict[str, list[Row]]) -> None:
    of_service = {"group": "g", "metric": "service"}
    columns = ("queue", "member", "minute", "messages", "least", "greatest")
    assert told(tables["latencies"], *columns, scope="queue", **of_service) == [
        (0, None, None, 4, 200, 500),
        (1, None, None, 3, 100, 1000),
    ]
    assert told(tables["latencies"], *columns, scope="member", **of_service) == [
        (None, 0, None, 5, 100, 500),
        (None, 1, None, 2, 600, 1000),
    ]
    assert told(tables["latencies"], *columns, scope="minute", **of_service) == [
        (None, None, minute(0), 5, 100, 600),
        (None, None, minute(1), 2, 500, 1000),
    ]
    assert len(told(tables["latencies"], *columns, scope="all", **of_service)) == 5
    assert told(tables["latencies"], *columns, scope="member", group="g", metric="confirm") == []


def test_a_handoff_is_a_hash_or_queue_with_another_member(tables: dict[str, list[Row]]) -> None:
    columns = (
        "group",
        "unit",
        "queue",
        "hash",
        "from_member",
        "to_member_name",
        "at_us",
        "pause_us",
        "idle_us",
    )
    assert told(tables["handoffs"], *columns) == [
        ("g", "hash", 1, 1, 0, "m1", START_US + 9000, 4000, 0),
        ("g", "queue", 1, None, 0, "m1", START_US + 9000, 4000, 0),
        ("idle", "hash", 0, 0, 0, "m1", START_US + 9000, 6000, 5000),
        ("idle", "queue", 0, None, 0, "m1", START_US + 9000, 6000, 5000),
    ]


def test_members_are_busy_by_service_time_and_occupied_by_the_clock(tables: dict[str, list[Row]]) -> None:
    columns = (
        "member",
        "deliveries",
        "ack",
        "dead",
        "released",
        "redelivered",
        "queues",
        "busy_us",
        "occupied_us",
    )
    assert told(tables["utilisation"], *columns, group="g") == [
        (0, 6, 4, 1, 1, 0, 2, 1500, 1500),
        (1, 2, 2, 0, 0, 1, 1, 1600, 1600),
    ]
    of_lanes = ("member", "presence_us", "busy_us", "occupied_us", "utilisation", "occupied_share")
    assert told(tables["utilisation"], *of_lanes, group="lanes") == [
        (0, 1650, 2000, 1500, 2000 / 1650, 1500 / 1650),
    ]
    assert told(tables["utilisation"], *of_lanes, group="brief") == [(0, 0, 0, 0, None, None)]
