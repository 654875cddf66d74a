"""The live map draws the rows of a description, whatever view it is part of."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import GroupSpec
from lbgroup.live_group import running
from lbgroup.live_map import MapMember, MemberState, live_map, map_lines, sharing_line, timeline
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import SESSIONS, made

MEMBERS = (
    MapMember("m1", "cyan"),
    MapMember("m2", "magenta"),
    MapMember("m3", "yellow", MemberState.WAITING),
)


def drawn(picture: RenderableType, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def queue(
    number: int, role: str, *, active: bool, status: str = "Ready", in_flight: int = 0
) -> dict[str, Any]:
    return {
        "queue": number,
        "role": role,
        "active": active,
        "status": status,
        "in_flight": in_flight,
        "delivered": 0,
    }


def beat(index: int, *queues: dict[str, Any], rebalance: str = "Ready") -> dict[str, Any]:
    return {
        "v": 1,
        "index": index,
        "name": f"m{index + 1}",
        "incarnation": "a",
        "rebalance": rebalance,
        "queues": queues,
        "counts": {},
    }


async def two_queues(*beats: dict[str, Any]) -> Description:
    admin = FakeAdmin()
    spec = GroupSpec("orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, client_username="app")
    await create_group(admin, spec)
    admin.beats = list(beats)
    for name, one in admin.queues.items():
        admin.queues[name] = type(one)(ready=1234, consumers=2, native=None)
    return await show_group(admin, "orders")


async def test_each_queue_has_a_line_to_each_member_that_consumes_it() -> None:
    description = await two_queues(
        beat(0, queue(0, "primary", active=True, in_flight=3), queue(1, "secondary", active=True)),
        beat(1, queue(0, "secondary", active=False), queue(1, "primary", active=False), rebalance="HoldDown"),
    )
    text = drawn(live_map(description, MEMBERS, {0: 120.4}))
    first = next(line for line in text.splitlines() if "queue 0" in line)
    second = next(line for line in text.splitlines() if "queue 1" in line)
    assert first.split()[1:] == ["queue", "0", "━━━━━━━▶", "┄┄┄┄┄┄┄┄", "1,234", "│"]
    assert second.split()[1:] == ["queue", "1", "┅┅┅┅┅┅┅▶", "────────", "1,234", "│"]
    assert "120/s +3" in text
    assert "index 0" in text
    assert "holding" in text
    assert "not started" in text
    assert sharing_line(description) == "queues 0:m1 1:m1"


@pytest.mark.parametrize("is_compact", [True, False])
@pytest.mark.parametrize(("progress", "word"), [("Blocked", "blocked"), ("Stalled", "stalled")])
async def test_a_queue_that_stands_still_is_marked_at_the_member_that_should_serve_it(
    progress: str, word: str, is_compact: bool
) -> None:
    description = await two_queues(
        beat(
            0,
            {**queue(0, "primary", active=progress == "Blocked", in_flight=8), "progress": progress},
            queue(1, "primary", active=True),
        )
    )
    text = drawn(live_map(description, MEMBERS, {}, is_compact=is_compact))
    first, second = (
        next(line for line in text.splitlines() if f"queue {number}" in line) for number in (0, 1)
    )
    assert "!" in first
    assert "!" not in second
    assert (word in text) is not is_compact
    assert ("+8" in text) is (progress == "Blocked" and not is_compact)


@pytest.mark.parametrize(("progress", "is_red"), [("Working", False), ("Stalled", True)])
async def test_only_a_queue_with_a_problem_has_its_colour(progress: str, is_red: bool) -> None:
    serving = {**queue(0, "primary", active=True, in_flight=8), "progress": progress}
    description = await two_queues(beat(0, serving, queue(1, "primary", active=True)))
    console = Console(width=110, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(live_map(description, MEMBERS[:2], {}))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    coloured = [line for line in lines if re.search(r"\x1b\[[0-9;]*3[13]m", line)]
    assert any("queue 0" in line for line in coloured) is is_red
    assert not any("queue 1" in line for line in coloured)


async def test_a_paused_queue_has_no_arrow_and_a_member_that_is_not_bound_no_line() -> None:
    description = await two_queues(
        beat(
            0,
            queue(0, "primary", active=True, status="Paused"),
            queue(1, "primary", active=False, status="Unbound"),
        )
    )
    lines = drawn(live_map(description, MEMBERS, {}, is_compact=True)).splitlines()
    assert next(line.split()[3] for line in lines if "queue 0" in line) == "━━━━━━━‖"
    assert next(line.split()[3] for line in lines if "queue 1" in line) == "1,234"


async def test_a_queue_has_no_line_to_a_member_that_does_not_report_it() -> None:
    description = await two_queues(
        beat(0, queue(0, "primary", active=True)), beat(1, queue(1, "primary", active=True)), beat(2)
    )
    lines = drawn(live_map(description, MEMBERS, {}, is_compact=True)).splitlines()
    for number in (0, 1):
        line = next(line for line in lines if f"queue {number}" in line)
        assert line.split()[1:] == ["queue", str(number), "━━━━━━━▶", "1,234", "│"]
    assert sharing_line(description) == "queues 0:m1 1:m2"


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned", "MessageGroups", "Sessions"])
async def test_the_map_is_as_high_as_it_says(mode: str, is_compact: bool) -> None:
    description = await (two_queues() if mode == "Exclusive" else show_group(await made(mode), "orders"))
    text = drawn(live_map(description, MEMBERS, {}, is_compact=is_compact))
    assert len(text.splitlines()) <= map_lines(description, MEMBERS, is_compact=is_compact)


async def test_partitions_that_could_not_be_read_are_unknown() -> None:
    admin = await made("Partitioned")
    admin.amqp_only = True
    description = await show_group(admin, "orders")
    assert description.services is UNKNOWN
    assert "partitions unknown" in drawn(live_map(description, MEMBERS, {}))
    assert sharing_line(description) == "partitions unknown"


async def test_a_session_whose_member_is_not_on_the_map_is_shown_too() -> None:
    description = await show_group(await made("Sessions"), "orders")
    text = drawn(live_map(description, MEMBERS[:1], {}))
    for session in SESSIONS["sessions"]:
        line = next(line for line in text.splitlines() if session["session"] in line)
        assert session["state"] in line
    assert "12 messages without a session yet" in text


def test_a_timeline_has_a_block_for_each_member_and_a_cross_for_a_crash() -> None:
    picture = timeline("queue", {0: [(5.0, "m1"), (7.5, "m2")], 1: []}, {}, now_s=10, width=57, crashes=[7.5])
    first, second, crosses = drawn(picture, width=57).splitlines()[1:4]
    assert first[15:55] == "░" * 20 + "m1".ljust(10) + "m2".ljust(10)
    assert second[15:55] == "░" * 40
    assert crosses[15:55].index("✖") == 30


async def test_what_a_task_beside_a_block_raises_is_not_lost() -> None:
    async def broken() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        async with running(broken()):
            await asyncio.sleep(0)
    async with running(asyncio.sleep(3600)):
        pass
