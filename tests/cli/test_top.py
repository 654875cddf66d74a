"""`lbg top`: rates and changes from one look to the next, its screens, and what it prints."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lbg_core.admin.describe import Description
from lbg_core.admin.group_reader import GroupReader
from lbg_core.admin.groups import create_group, delete_group, show_group
from lbg_core.admin.member_requests import PeekResult
from lbg_core.admin.observations import Observations
from lbg_core.admin.problems import Problem
from lbg_core.admin.snapshot import UNKNOWN, PartitionStatus, QueueStatus
from lbg_core.group import GroupSpec
from lbg_core.group.held_messages import HeldState, PeekedMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Activity, Takeover
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from lbgroup.top import HEADER, KEYS, LEFT_OUT, View, screen, text_lines
from testing.admin.fake_admin import FakeAdmin
from testing.command_line import Lbg, Where, end_started, start_lbg
from testing.output_documents import checked
from testing.rabbitmq.node import wait_until
from testing.waiting import GUARD_S


def member(name: str) -> Identity:
    return Identity(0, name, "a")


def beat(index: int, *, active: set[int], acked: int = 0, delivered: int = 0) -> dict[str, Any]:
    """Of member m1, m2, …, in a group of two queues."""
    queues = [
        {
            "queue": number,
            "role": "primary" if number in active else "secondary",
            "active": number in active,
            "status": "Ready",
            "in_flight": 0,
            "delivered": delivered,
        }
        for number in range(2)
    ]
    return {
        "v": 1,
        "index": index,
        "name": f"m{index + 1}",
        "incarnation": "a",
        "rebalance": "Ready",
        "queues": queues,
        "counts": {"acked": acked},
    }


async def described(name: str = "orders", *beats: dict[str, Any], ready: int = 0) -> Description:
    admin = FakeAdmin()
    spec = GroupSpec(name, name, hash_count=4, queue_count=2, queue_size_mb=1, client_username="app")
    await create_group(admin, spec)
    admin.beats = list(beats)
    for queue, one in admin.queues.items():
        admin.queues[queue] = type(one)(ready=ready, unacked=0, consumers=2, native=None)
    return await show_group(admin, name)


def drawn(seen: Observations, view: View, width: int, height: int, *, is_one: bool = False) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(screen(seen, view, width=width, height=height, is_one=is_one))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


async def test_a_rate_is_the_growth_of_what_members_acknowledged_over_six_seconds() -> None:
    seen = Observations()
    rates = []
    for second in range(0, 12, 2):
        acked = 100 * second if second < 8 else 800
        seen.look([await described("orders", beat(0, active={0, 1}, acked=acked, delivered=acked))], second)
        rates.append(round(seen.rows[0].rate))
    assert rates == [0, 100, 100, 100, 100, 67]
    assert seen.queue_rates == {0: pytest.approx(66.7, abs=0.1), 1: pytest.approx(66.7, abs=0.1)}


async def test_a_partition_has_the_rate_of_what_left_it_over_a_restart_of_the_broker() -> None:
    seen, admin = Observations(), FakeAdmin()
    spec = GroupSpec("orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, mode="Partitioned")
    await create_group(admin, spec)
    admin.beats = [beat(0, active={0}, acked=10, delivered=10)]
    ((name, queue),) = [(name, one) for name, one in admin.queues.items() if one.native is not None]
    rates = []
    for second, settled in ((0, 500), (2, 520), (4, 540), (6, 0), (8, 30)):
        partitions = (
            PartitionStatus(0, "Ready", "lbg.orders.member.0", 0, 0, settled=settled),
            PartitionStatus(1, "Ready", "lbg.orders.member.0", 0, 0),
        )
        native = replace(queue.native, partitions=partitions)
        admin.queues[name] = replace(queue, native=native)
        seen.look([await show_group(admin, "orders")], second)
        rates.append(seen.queue_rates)
    assert [one[0] for one in rates] == [0, 10, 10, 0, 15]
    assert all(one[1] == 0 for one in rates)


@pytest.mark.parametrize(
    ("lags", "text"),
    [
        ((1000, 950, 900, 850), "102 s"),
        ((1000, 1000, 1000, 1000), "never"),
        ((1000, 1100, 1200, 1300), "never"),
        ((1300, 1000, 700, 29), "-"),
        ((1300,), "-"),
        ((10_000, 9_994, 9_988, 9_982), "3 h"),
    ],
)
async def test_a_backlog_clears_by_how_it_changed(lags: tuple[int, ...], text: str) -> None:
    """Rate 10/s: what is processed in three seconds is no backlog."""
    seen = Observations()
    for look, lag in enumerate(lags):
        second = 6 * look
        seen.look(
            [await described("orders", beat(0, active={0, 1}, acked=10 * second), ready=lag // 2)], second
        )
    assert seen.rows[0].clears_text == text


async def test_a_member_that_began_anew_has_no_negative_rate() -> None:
    seen = Observations()
    for second, acked in enumerate([1000, 1100, 5, 10]):
        seen.look([await described("orders", beat(0, active={0, 1}, acked=acked))], second)
        assert seen.rows[0].rate >= 0


async def test_members_that_left_are_forgotten() -> None:
    seen = Observations()
    seen.look([await described("orders", beat(0, active={0, 1}, acked=1))], 0)
    seen.look([await described("orders")], 100)
    seen.look([await described("orders", beat(0, active={0, 1}, acked=1001))], 101)
    assert seen.rows[0].rate == 0, "its former count is not compared with this one"


async def test_a_queue_that_another_member_serves_is_a_change() -> None:
    seen = Observations()
    seen.look([await described("orders", beat(0, active={0, 1}), beat(1, active=set()))], 0)
    seen.look([await described("orders", beat(0, active={0}), beat(1, active={1}))], 2)
    seen.look([await described("orders", beat(0, active={0}), beat(1, active={1}))], 4)
    assert [(one.at_s, one.text) for one in seen.changes] == [(2, "queue 1 from m1 to m2")]


@pytest.mark.parametrize("is_seen_first", [True, False])
@pytest.mark.parametrize(
    ("takeover", "text"),
    [
        (Takeover(1, 0, "why", True, 0.0042), "queue 1 from m1 to m2 in 4.2 ms"),
        (Takeover(1, 0, "why", True, None), "queue 1 from m1 to m2"),
        (Takeover(1, 0, "why", False, None), "queue 1 from m1 to m2, not planned"),
        (Takeover(1, None, "why", False, None), "queue 1 to m2"),
        (Takeover(1, 7, "why", False, None), "queue 1 from member 7 to m2, not planned"),
    ],
)
async def test_a_reported_takeover_is_one_change_whoever_sees_it_first(
    is_seen_first: bool, takeover: Takeover, text: str
) -> None:
    seen = Observations()
    before = await described("orders", beat(0, active={0, 1}), beat(1, active=set()))
    after = await described("orders", beat(0, active={0}), beat(1, active={1}))
    seen.look([before], 0)
    if is_seen_first:
        seen.look([after], 2)
    seen.report("orders", Activity(member("m2"), takeover=takeover), 2.5)
    seen.look([before], 3)  # a broker that has the former consumer still
    seen.look([after], 5)
    seen.look([after], 50)
    assert [one.text for one in seen.changes] == [text]
    seen.look([before], 60)
    assert [one.text for one in seen.changes] == [text, "queue 1 from m2 to m1"]


def test_without_times_the_hottest_keys_are_those_with_most_messages_over_six_seconds() -> None:
    seen = Observations()

    def shown(now_s: float) -> list[tuple[str, float]]:
        return [(one.key, round(one.rate or 0.0, 3)) for one in seen.hot_keys("orders", now_s)]

    assert shown(0) == []
    for second in range(10):
        seen.report("orders", Activity(member("m1"), (("a", 10), ("b", 1))), second)
        seen.report("orders", Activity(member("m2"), (("c", 4), ("a", 2))), second)
    assert shown(9) == [("a", 12), ("c", 4), ("b", 1)]
    assert shown(13) == [("a", 4), ("c", 1.333), ("b", 0.333)]
    seen.forget_keys()
    assert shown(13) == []


def paced(
    index: int, *, p50_s: float, busy: float, keys: tuple[str, ...] = (), **fields: Any
) -> dict[str, Any]:
    """A member with calls that take so long."""
    of_keys = [{"key": key, "busy": busy, "calls": 90, "p50_s": p50_s, "p99_s": 2 * p50_s} for key in keys]
    pace = {
        "busy": busy,
        "finished_hz": 10.0,
        "calls": 100,
        "p50_s": p50_s,
        "p99_s": 2 * p50_s,
        "keys": of_keys,
    }
    return {**beat(index, active=fields.pop("active", {index}), **fields), "pace": pace}


SLOW = paced(1, p50_s=0.25, busy=0.97, keys=("acct-hot",))
FAST = paced(0, p50_s=0.012, busy=0.3, keys=("acct-1",))


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (100, 24), (160, 50)])
async def test_a_slow_member_and_a_hot_key_are_seen_in_an_opened_group(width: int, height: int) -> None:
    seen, view = Observations(), View(opened="orders")
    seen.look([await described("orders", FAST, SLOW)], 0)
    seen.report("orders", Activity(member("m2"), (("acct-hot", 4), ("acct-2", 9))), 1)
    lines = drawn(seen, view, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    slow = next(line for line in lines if line.startswith("m2 "))
    assert slow.split()[:8] == ["m2", "250", "ms", "500", "ms", "97", "%", "0"]
    assert "21 times the 12 ms" in slow
    assert next(line for line in lines if line.startswith("m1 ")).split()[-1] == "0"
    hot = next(line for line in lines if "acct-hot" in line)
    assert "97 % busy, p50 250 ms" in hot
    assert any(line.startswith("published unknown, finished 0/s, trend of lag unknown") for line in lines)


async def test_of_many_members_the_slow_and_the_busy_have_a_place_in_a_small_terminal() -> None:
    seen, view = Observations(), View(opened="orders")
    many = [paced(one, p50_s=0.01, busy=one / 100, active=set()) for one in range(2, 20)]
    seen.look([await described("orders", FAST, *many, SLOW)], 0)
    for height in (16, 20, 24, 50):
        lines = drawn(seen, view, 80, height)
        assert len(lines) <= max(height, 18)
        shown = [line.split()[0] for line in lines if "% " in line and line.startswith("m")]
        assert shown[:1] in ([], ["m2"]) if height < 50 else len(shown) == 20
    assert "and 17 more" not in "\n".join(drawn(seen, view, 80, 50))


async def test_what_is_published_is_what_left_and_the_growth_of_the_lag() -> None:
    seen, found = Observations(), []
    for look in range(6):
        second = 2 * look
        waits = 500 + 30 * look
        seen.look(
            [await described("orders", beat(0, active={0, 1}, acked=100 * second), ready=waits)], second
        )
        row = seen.rows[0]
        found.append((row.published_hz, row.lag_per_min, row.trend_text))
    assert found[:3] == [(None, None, "unknown")] * 3, "less than five seconds are chance"
    assert found[3:] == [(130.0, 1800.0, "rises by 1,800/min")] * 3
    assert seen.rows[0].flow_text == "published 130/s, finished 100/s, lag rises by 1,800/min"


async def test_messages_that_leave_in_other_ways_were_published_too() -> None:
    seen = Observations()
    for second in (0, 10):
        report = beat(0, active={0, 1})
        report["counts"] = dict.fromkeys(("acked", "dead_lettered", "parked", "repeats_dropped"), second)
        seen.look([replace(await described("orders", report), parked=second)], second)
    assert seen.rows[0].published_hz == 4
    assert seen.rows[0].lag_per_min == 0


async def test_messages_that_are_released_from_parking_were_published_before() -> None:
    seen = Observations()
    for second in (0, 10):
        one = await described("orders", beat(0, active={0, 1}), ready=10 * second)
        seen.look([replace(one, parked=500 - 20 * second)], second)
    assert (seen.rows[0].published_hz, seen.rows[0].lag_per_min) == (0, 1200)
    seen.look([replace(one, parked=UNKNOWN)], 20)
    assert seen.rows[0].published_hz is None


async def test_a_member_that_comes_or_goes_is_no_message_that_was_published() -> None:
    seen = Observations()
    for second, beats in (
        (0, [beat(0, active={0}, acked=50)]),
        (8, [beat(1, active={1}, acked=1000)]),
        (16, []),
    ):
        seen.look([await described("orders", *beats)], second)
        assert seen.rows[0].published_hz in (None, 0)


async def test_what_is_published_is_unknown_without_reports_and_the_trend_is_not() -> None:
    seen = Observations()
    for second in (0, 10):
        one = await described("orders", ready=100 + second)
        seen.look([replace(one, members=UNKNOWN)], second)
    assert (seen.rows[0].published_hz, seen.rows[0].lag_per_min) == (None, 120)


async def test_the_trend_is_known_without_a_management_api() -> None:
    seen = Observations()
    for second in (0, 10):
        held = beat(0, active={0, 1})
        held["queues"][0]["in_flight"] = 5 + second
        one = await described("orders", held, ready=100)
        queues = tuple(
            replace(each, status=replace(each.status, unacked=UNKNOWN))
            for each in one.queues
            if isinstance(each.status, QueueStatus)
        )
        seen.look([replace(one, queues=queues)], second)
        assert seen.rows[0].description.lag is None
    assert (seen.rows[0].published_hz, seen.rows[0].lag_per_min) == (1.0, 60.0)


async def test_json_has_pace_and_null_where_it_is_unknown() -> None:
    seen = Observations()
    seen.look([await described("orders", FAST, SLOW, beat(2, active=set()))], 0)
    look = checked("top", json.dumps(seen.to_json(datetime.now(UTC), watched="orders", now_s=0)))
    (one,) = look["groups"]
    assert [each["pace"] and each["pace"]["p50_s"] for each in one["members"]] == [0.012, 0.25, None]
    assert (one["publish_rate"], one["lag_per_min"], one["finish_rate"]) == (None, None, None)
    assert look["hot_keys"] == one["hot_keys"]
    assert look["hot_keys"][0] == {"key": "acct-hot", "rate": None, "busy": 0.97, "p50_s": 0.25, "p99_s": 0.5}


async def test_the_oldest_message_is_a_members_or_one_that_waits_for_none() -> None:
    now_us = 1_000_000_000

    async def shown(*beats: dict[str, Any], ready: int = 0, waiting_us: int | None = None) -> str:
        seen = Observations()
        found = await described("orders", *beats, ready=ready)
        seen.look([found], 0, now_us=now_us, waiting_us={} if waiting_us is None else {"orders": waiting_us})
        return seen.rows[0].oldest_text

    held = {**beat(0, active={0, 1}), "oldest_us": now_us - 5_000_000}
    assert await shown() == "-"
    assert await shown(beat(0, active={0, 1}), ready=1) == "-"
    assert await shown(held, ready=1) == "5 s"
    assert await shown({**held, "queues": beat(0, active={0})["queues"]}, ready=1) == ">5 s"
    assert await shown(ready=1) == "unknown"
    assert await shown(held, ready=1, waiting_us=now_us - 600_000_000) == "10 min"


async def test_groups_are_sorted_and_filtered() -> None:
    seen = Observations()
    for second in (0, 2):
        seen.look(
            [
                await described("flights", beat(0, active={0, 1}, acked=second), ready=1),
                await described("orders", beat(0, active={0, 1}, acked=9 * second), ready=7),
                await described("payments", ready=3),
            ],
            second,
        )

    def names(sort: str, chosen: str = "") -> list[str]:
        return [row.description.group for row in seen.ordered(sort, chosen)]

    assert names("lag") == ["orders", "payments", "flights"]
    assert names("rate") == ["orders", "flights", "payments"]
    assert names("name") == ["flights", "orders", "payments"]
    assert names("lag", "T") == ["payments", "flights"]
    assert next(iter(text_lines(seen, "lag", ""))).split() == list(HEADER)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 8)])
async def test_every_screen_fits_the_terminal(width: int, height: int) -> None:
    seen, view = Observations(), View()
    groups = [await described(f"group-{number}", ready=number) for number in range(60)]
    seen.look(groups, 0)
    for selected in (0, 30, 59):
        view.selected = selected
        lines = drawn(seen, view, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        name = seen.ordered(view.sort, "")[selected].description.group
        assert any(name in line for line in lines), "what is selected is seen"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
async def test_an_opened_group_shows_its_map_its_problems_and_its_changes(width: int, height: int) -> None:
    seen, view = Observations(), View(opened="orders")
    seen.look([await described("orders", beat(0, active={0, 1}), beat(1, active=set()))], 0)
    seen.look([await described("orders", beat(0, active={0}), beat(1, active={1}), ready=7)], 2)
    lines = drawn(seen, view, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.startswith("orders   0/s   14 ready   0 unacked   oldest -   does not clear   7 dead")
    assert "● m1" in text
    assert "● m2" in text
    assert "queue 1 from m1 to m2" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
async def test_a_queue_of_an_opened_group_is_opened_with_its_members_and_messages(
    width: int, height: int
) -> None:
    seen, view = Observations(), View(opened="orders")
    seen.look([await described("orders", beat(0, active={0, 1}), beat(1, active=set()), ready=30)], 0)

    def press(*keys: str) -> None:
        for key in keys:
            view.press(key, seen.ordered(view.sort, view.chosen), is_one=True)

    press("\x1b[B", "\x1b[B", "\x1b[B")
    (row,) = seen.rows
    queue = view.opened_queue(row)
    assert queue is not None
    assert queue.number == 1, "the last one"
    press("\r")
    text = "\n".join(drawn(seen, view, width, height, is_one=True))
    assert text.startswith("orders   queue 1   Ready   served by m1   30 ready   0 unacked")
    assert "its messages are read" in text
    held = PeekedMessage(
        *(
            "p-1-0",
            "acme",
            1,
            HeldState.RETRYING,
            3,
            "no database\n",
            False,
            1,
            "orders.1.t",
            None,
            "x",
            None,
            1,
            "m1",
            0,
        )
    )
    other = replace(held, id="p-2-0", queue=0)
    seen.peeked = PeekResult("orders", (held, *[replace(held, id="next")] * 60, other), 2, {}, (), False)
    lines = drawn(seen, view, width, height, is_one=True)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "p-1-0    acme  retrying" in "\n".join(lines)
    assert "p-2-0" not in "\n".join(lines)
    assert "no database\\n" in "\n".join(lines)
    seen.peeked = "an administrator's login shows its messages"
    assert seen.peeked in "\n".join(drawn(seen, view, width, height, is_one=True))
    press("\x1b")
    assert (view.is_queue_opened, view.opened) == (False, "orders")
    press("\x1b")
    assert view.opened == "orders", "there is no list to go back to"


@pytest.mark.parametrize(
    ("record", "queue", "shown"),
    [
        (None, 0, "cannot be read: it is missing"),
        ('{"x":', 0, "cannot be read: record"),
        ('{"V":99}', 0, "is of version 99"),
        ("unfinished", 0, "group 'orders' is not made to its end"),
        ("gone", 0, "no group 'orders'"),
        ("whole", 2, "must be below 2"),
    ],
)
async def test_an_opened_queue_of_a_group_without_a_usable_record_shows_the_cause(
    record: str | None, queue: int, shown: str
) -> None:
    admin: Any = FakeAdmin()
    spec = GroupSpec("orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, client_username="app")
    await create_group(admin, spec)
    if record == "gone":
        await delete_group(admin, "orders")
    elif record is None:
        del admin.records["orders"]
    elif record != "whole":
        admin.records["orders"] = spec.to_unfinished() if record == "unfinished" else record
    peeked = await GroupReader(admin, None).peek("orders", queue)
    assert isinstance(peeked, str)
    assert shown in peeked


async def test_a_narrow_terminal_keeps_names_states_and_problems() -> None:
    seen = Observations()
    name = "flights-of-the-northern-region"
    paused = replace(await described(name, ready=7), is_paused=True)
    seen.look([paused, await described("orders", ready=12_345)], 0)
    left_out: list[set[str]] = []
    for width in (160, 90, 80, 60):
        header, *lines = drawn(seen, View(), width, 20)[1:]
        left_out.append(set(HEADER) - set(header.split()))
        (line,) = (line for line in lines if name in line)
        assert "paused" in line
        assert {"GROUP", "STATE", "PROBLEMS"} <= set(header.split())
        assert "…" not in line
    assert left_out == sorted(left_out, key=len), "the narrower, the fewer columns"
    assert all(one == set(LEFT_OUT[: len(one)]) for one in left_out)
    assert not left_out[0]
    assert left_out[-1]


@pytest.mark.parametrize("width", [60, 80, 120])
async def test_an_opened_group_has_its_members_and_their_states_in_every_width(width: int) -> None:
    seen = Observations()
    beats = [
        {**beat(index, active={index} if index < 2 else set()), "name": f"orders-7d4f9c-pod{index}"}
        for index in range(4)
    ]
    seen.look([replace(await described("orders", *beats, ready=7), is_paused=True)], 0)
    view = View(opened="orders")
    lines = drawn(seen, view, width, 24)
    assert len(lines) <= 24
    assert lines[0].startswith("orders   PAUSED   ")
    text = "\n".join(lines).replace("\u00a0", " ")
    for index in range(4):
        assert f"● …pod{index}" in text
        assert f"index {index}" in text
    view.is_queue_opened = True
    held = PeekedMessage(
        f"a1b2c3d4-1764546000000000-0-{10**6}",
        "a key of a customer with a long name",
        0,
        HeldState.POISONED,
        3,
        "no such account",
        False,
        1,
        "orders.1.t",
        None,
        "x",
        None,
        1,
    )
    seen.peeked = PeekResult("orders", (held,), 1, {}, (), False)
    text = "\n".join(drawn(seen, view, width, 24))
    assert "orders-7d4f9c-pod3" in text
    assert "0-1000000" in text, "ids differ at their ends"
    assert "poisoned" in text
    assert "ATTEMPTS" in text


async def test_a_queue_that_had_messages_is_not_idle() -> None:
    seen = Observations()
    for second in (0, 2):
        beats = beat(0, active={0, 1}, acked=48 * second, delivered=48 * second)
        seen.look([await described("orders", beats)], second)
    view = View(opened="orders", is_queue_opened=True)
    assert "Working" in "\n".join(drawn(seen, view, 80, 24))
    seen.look([await described("orders", beats)], 60)
    seen.look([await described("orders", beats)], 62)
    assert "Idle" in "\n".join(drawn(seen, view, 80, 24))


@pytest.mark.parametrize("opened", [None, "orders"])
async def test_a_question_mark_shows_the_keys_until_any_key(opened: str | None) -> None:
    seen, view = Observations(), View(opened=opened)
    seen.look([await described("orders", beat(0, active={0, 1}))], 0)
    before = drawn(seen, view, 60, 20)
    assert "? keys" in before[-1]
    view.press("?", seen.rows, is_one=False)
    lines = drawn(seen, view, 60, 20)
    assert lines[0] == "Keys"
    assert all(key in "\n".join(lines) for key, _ in KEYS)
    assert not any("…" in line for line in lines)
    assert len(drawn(seen, view, 60, 4)) == 4
    view.press("q", seen.rows, is_one=False)
    assert (view.is_help, view.has_ended, view.opened) == (False, False, opened)
    assert drawn(seen, view, 60, 20) == before
    view.press("?", seen.rows, is_one=False)
    view.press("\x03", seen.rows, is_one=False)
    assert view.has_ended


def _of_members(one: Description) -> Iterator[Problem]:
    """The fake broker has as many messages in each queue, among the dead letters too."""
    return (problem for problem in one.problems if problem.subject.members)


async def test_the_worst_problem_is_first_and_then_the_lag() -> None:
    seen = Observations()
    at_work = beat(0, active={0, 1})
    poisoned = beat(0, active={0, 1})
    poisoned["queues"][0] |= {"poisoned": 1, "poisoned_ids": ["p-1"], "poisoned_keys": ["k"]}
    groups = {"busy": (at_work, 900), "quiet": (at_work, 1), "stuck": (poisoned, 3)}
    described_ = [await described(name, one, ready=ready) for name, (one, ready) in groups.items()]
    seen.look([replace(one, problems=tuple(_of_members(one))) for one in described_], 0)
    assert [row.description.group for row in seen.ordered(View().sort, "")] == ["stuck", "busy", "quiet"]


async def test_keys_sort_filter_open_and_end() -> None:
    seen, view = Observations(), View()
    seen.look([await described("flights", ready=2), await described("orders", ready=1)], 0)

    def press(*keys: str) -> None:
        for key in keys:
            view.press(key, seen.ordered(view.sort, view.chosen), is_one=False)

    press("s", "s")
    assert view.sort == "rate"
    press("\x1b[B", "\r")
    assert view.opened == "orders"
    press("\x1b")
    assert view.opened is None
    press("/", "f", "q", "\x7f", "\r")
    assert (view.chosen, view.is_filtering, view.has_ended) == ("f", False, False)
    press("/", "\x1b")
    assert view.chosen == ""
    press("q")
    assert view.has_ended


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    end_started()


@pytest.fixture
def group(lbg: Lbg, broker: Where, unique: str) -> str:
    assert lbg("group", "create", unique, "--no-user", *broker.options).status == 0
    return unique


@pytest.mark.process
def test_without_a_terminal_it_prints_once(lbg: Lbg, broker: Where, group: str) -> None:
    every = lbg("top", *broker.options)
    assert every.status == 0, every.err
    header, *rows = every.out.splitlines()
    assert header.split() == list(HEADER)
    assert any(row.split()[:2] == [group, "Exclusive"] for row in rows)
    one = lbg("top", group, "--once", *broker.options)
    assert one.status == 0, one.err
    assert one.out.startswith(f"0 messages/s, oldest message -\ngroup {group}\n")


@pytest.mark.process
def test_json_has_what_show_has_and_the_rate(lbg: Lbg, broker: Where, group: str) -> None:
    found = lbg("top", group, "--json", "--once", *broker.options)
    assert found.status == 0, found.err
    look = json.loads(found.out)
    assert set(look) == {"at", "groups", "changes", "hot_keys"}
    (one,) = look["groups"]
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    unknown = dict.fromkeys(("oldest_s", "clears_s", "publish_rate", "lag_per_min"))
    assert one == {**shown, "rate": 0.0, **unknown}


@pytest.mark.process
@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned"])
def test_a_watched_group_shows_its_hottest_keys_its_oldest_message_and_its_moves(
    lbg: Lbg, broker: Where, unique: str, mode: str
) -> None:
    made = lbg("group", "create", unique, "--queue-count", "4", "--mode", mode, "--no-user", *broker.options)
    assert made.status == 0, made.err
    looking = start_lbg("top", unique, "--json", "--every", "0.3", *broker.options)

    def look() -> dict[str, Any]:
        assert looking.stdout is not None
        found: dict[str, Any] = checked("top", looking.stdout.readline())
        return found

    shown = json.loads(lbg("group", "show", unique, "--json", *broker.options).out)
    # The embedded broker moves partitions itself, and measures how long that takes.
    words = (
        r"partition \d from a to b in [\d.]+ ms"
        if "handoffs" in shown
        else r"queue \d from a to b in [\d.]+ ms"
    )

    async def handle(message: Message) -> None:
        if message.key == "stuck":
            await asyncio.Event().wait()
        await asyncio.sleep(0.005 if message.key == "hot" else 0.02)

    def settings(name: str) -> MemberSettings:
        return MemberSettings(
            broker=broker.broker, group=unique, name=name, rebalance_delay_s=0.2, shutdown_grace_s=0.1
        )

    async def run() -> None:
        async with GroupPublisher(broker.broker, group=unique) as publisher:
            await publisher.publish(key="stuck", body=b"", topic="t")
            for _ in range(300):
                for key in (*["hot"] * 10, *(f"warm{number}" for number in range(12))):
                    await publisher.publish(key=key, body=b"", topic="t")
        async with Member(settings("a"), handle):
            await look_until(lambda one: are_busiest(one["hot_keys"][:2]))
            found = await look_until(lambda one: one["groups"][0]["oldest_s"] is not None)
            oldest_s = found["groups"][0]["oldest_s"]
            await look_until(lambda one: one["groups"][0]["oldest_s"] > oldest_s + 1)
            async with Member(settings("b"), handle):
                await look_until(lambda one: any(moved(text) for text in one["changes"]))

    def moved(text: str) -> bool:
        return re.fullmatch(rf"{unique}: {words}", text) is not None

    def are_busiest(keys: list[dict[str, Any]]) -> bool:
        """`stuck` has no call that has ended, and all others have less time than `hot`."""
        times = {one["key"]: (one["busy"], one["p50_s"]) for one in keys}
        return times.keys() == {"hot", "stuck"} and times["stuck"][1] is None and times["hot"][1] is not None

    async def look_until(is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not is_wanted(found := await asyncio.to_thread(look)):
            pass
        return found

    asyncio.run(asyncio.wait_for(run(), GUARD_S))
    looking.send_signal(signal.SIGINT)
    assert looking.wait(GUARD_S) == 128 + signal.SIGINT


@pytest.mark.process
def test_the_login_of_the_group_sees_its_members_without_a_management_api(
    lbg: Lbg, broker: Where, unique: str
) -> None:
    made = lbg("group", "create", unique, "--queue-count", "2", *broker.options)
    shown = re.search(r"password (\S+) ", made.out + made.err)
    assert shown is not None, made
    login = broker.broker.replace("guest:guest@", f"{unique}:{shown[1]}@")
    nowhere = ("--broker", login, "--management", "http://127.0.0.1:1")

    async def acknowledge(message: Message) -> None:
        pass

    async def run() -> None:
        async with Member(MemberSettings(broker=login, group=unique, name="a"), acknowledge):
            looked = await asyncio.to_thread(lbg, "top", unique, "--json", "--once", *nowhere)
            (one,) = json.loads(looked.out)["groups"]
            assert [member["name"] for member in one["members"]] == ["a"]
            assert one["queues"][0]["consumers"] == 1

    asyncio.run(run())


@pytest.mark.process
def test_the_oldest_message_of_a_group_without_members_is_read_at_the_broker(
    lbg: Lbg, broker: Where, group: str
) -> None:
    async def publish() -> None:
        async with GroupPublisher(broker.broker, group=group) as publisher:
            await publisher.publish(key="a", body=b"", topic="t")

    asyncio.run(publish())
    wait_until(lambda: "1" in lbg("group", "show", group, *broker.options).out.split(), timeout_s=GUARD_S)
    (one,) = json.loads(lbg("top", group, "--json", "--once", *broker.options).out)["groups"]
    shown = lbg("top", group, *broker.options).out.splitlines()[0]
    if one["oldest_s"] is None:
        assert shown == "0 messages/s, oldest message unknown", "RabbitMQ does not show it"
    else:
        assert one["oldest_s"] > 0
        assert re.fullmatch(r"0 messages/s, oldest message \d+ s", shown)


@pytest.mark.process
def test_a_group_that_is_not_there_is_one_line(lbg: Lbg, broker: Where) -> None:
    missing = lbg("top", "nobody", *broker.options)
    assert missing.status == 1
    assert missing.last_line.startswith("lbg: error: there is no group 'nobody' on this broker: ")


@pytest.mark.process
def test_on_a_terminal_keys_work_and_the_terminal_is_as_before(broker: Where, group: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = start_lbg("top", *broker.options, terminal=theirs)
    os.set_blocking(ours, False)
    said = bytearray()

    def read() -> bytes:
        with suppress(BlockingIOError):
            said.extend(os.read(ours, 1 << 16))
        return bytes(said)

    try:
        # Groups of other tests on the same broker can be more than a terminal has rows: ours is seen by its filter.
        wait_until(lambda: re.search(rb"[1-9]\d* groups, by", read()) is not None, timeout_s=GUARD_S)
        for key in group:
            os.write(ours, (b"/" if key == group[0] else b"") + key.encode())
        os.write(ours, b"\r\r")
        wait_until(lambda: "queues × members".encode() in read(), timeout_s=GUARD_S)
        os.write(ours, b"\x1b[B")
        os.write(ours, b"\r")
        wait_until(lambda: b"queue 1   Unbound   served by nobody" in read(), timeout_s=GUARD_S)
        os.write(ours, b"q")
        wait_until(lambda: read() is not None and process.poll() is not None, timeout_s=GUARD_S)
        assert process.returncode == 0, said
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.process
@pytest.mark.parametrize("under", [(), ("env", "--ignore-signal=HUP")], ids=["at a terminal", "HUP ignored"])
def test_it_ends_with_its_terminal(broker: Where, group: str, under: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    process = start_lbg("top", group, *broker.options, under=under, terminal=theirs)
    os.close(theirs)
    said = b""
    while "queues × members".encode() not in said:
        said += os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(GUARD_S) == -signal.SIGHUP


@pytest.mark.process
def test_json_goes_on_until_it_is_ended(broker: Where, group: str, tmp_path: Path) -> None:
    process = start_lbg(*("top", group, "--json", "--every", "0.1", *broker.options))
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait(GUARD_S) == 128 + signal.SIGINT
    assert looks[0]["at"] < looks[1]["at"]
