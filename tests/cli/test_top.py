"""`lbg top`: rates and changes from one look to the next, its screens, and what it prints."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lbg_broker.admin.describe import Description
from lbg_broker.admin.groups import create_group, show_group
from lbg_broker.group import GroupSpec
from lbgroup.top import HEADER, Observations, View, screen, text_lines
from support.admin.fake_admin import FakeAdmin
from support.command_line import Lbg, Where, clean_environment, start_lbg
from support.rabbitmq.node import wait_until
from support.waiting import GUARD_S


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
        "type": "beat",
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
    assert [(one.at_s, one.text) for one in seen.changes] == [(2, "orders: queue 1 from m1 to m2")]


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
    assert text.startswith("orders   0/s   14 ready   0 unacknowledged")
    assert "● m1" in text
    assert "● m2" in text
    assert "queue 1 from m1 to m2" in text


async def test_keys_sort_filter_open_and_end() -> None:
    seen, view = Observations(), View()
    seen.look([await described("flights", ready=2), await described("orders", ready=1)], 0)

    def press(*keys: str) -> None:
        for key in keys:
            view.press(key, seen.ordered(view.sort, view.chosen), is_one=False)

    press("s")
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
    assert one.out.startswith(f"0 messages/s\ngroup {group}\n")


@pytest.mark.process
def test_json_has_what_show_has_and_the_rate(lbg: Lbg, broker: Where, group: str) -> None:
    found = lbg("top", group, "--json", "--once", *broker.options)
    assert found.status == 0, found.err
    look = json.loads(found.out)
    assert set(look) == {"at", "groups", "changes"}
    (one,) = look["groups"]
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert one == {**shown, "rate": 0.0}


@pytest.mark.process
def test_a_group_that_is_not_there_is_one_line(lbg: Lbg, broker: Where) -> None:
    missing = lbg("top", "nobody", *broker.options)
    assert missing.status == 1
    assert missing.last_line.startswith("lbg: error: there is no group 'nobody' on this broker: ")


@pytest.mark.process
def test_on_a_terminal_keys_work_and_the_terminal_is_as_before(broker: Where, group: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "lbgroup", "top", *broker.options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean_environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
    )
    os.set_blocking(ours, False)
    said = bytearray()

    def read() -> bytes:
        with suppress(BlockingIOError):
            said.extend(os.read(ours, 1 << 16))
        return bytes(said)

    try:
        wait_until(lambda: group.encode() in read(), timeout_s=GUARD_S)
        for key in group:
            os.write(ours, (b"/" if key == group[0] else b"") + key.encode())
        os.write(ours, b"\r\r")
        wait_until(lambda: "queues × members".encode() in read(), timeout_s=GUARD_S)
        os.write(ours, b"q")
        wait_until(lambda: read() is not None and process.poll() is not None, timeout_s=GUARD_S)
        assert process.returncode == 0, said
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.process
def test_json_goes_on_until_it_is_ended(broker: Where, group: str, tmp_path: Path) -> None:
    process = start_lbg("top", group, "--json", "--every", "0.1", *broker.options)
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait(GUARD_S) == 128 + signal.SIGINT
    assert looks[0]["at"] < looks[1]["at"]
