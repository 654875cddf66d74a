"""Peers by their address: what the log shows of them, and the places that they occupy."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.peers import FairPlaces, PeerLines, PeerLog, log_accept_errors, network_of, printable

ONE, TWO, THREE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@given(st.text())
def test_text_from_outside_is_one_printable_line(text: str) -> None:
    assert printable(text, max_chars=None).isprintable()


def test_what_can_be_printed_stays_and_a_long_text_is_cut() -> None:
    assert printable("Grüße \\d+ 'x'") == "Grüße \\d+ 'x'"
    assert printable("a\nb\x1b[2J\u2028\u202e") == "a\\nb\\x1b[2J\\u2028\\u202e"
    assert printable("x" * 1000) == "x" * 300 + "…"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::1", "::1"),
        ("unix", "unix"),
    ],
)
def test_a_host_of_ipv6_is_counted_by_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_the_first_line_of_an_address_is_logged_and_each_minute_after_it_is_one() -> None:
    lines = PeerLines()
    assert lines.note(ONE, "a", 0.0) == "a"
    assert [lines.note(ONE, text, 1.0) for text in "bcd"] == [None] * 3
    assert lines.note(TWO, "other", 2.0) == "other"
    assert lines.next_at == 60.0
    assert lines.due(59.0) == []
    assert lines.due(60.0) == [f"{ONE}: 3 more in 60 s, the last: d"]
    assert lines.note(ONE, "e", 61.0) is None
    assert lines.due(120.0) == [f"{ONE}: 1 more in 60 s, the last: e"]
    assert lines.due(180.0) == []
    assert lines.next_at is None
    assert lines.note(ONE, "f", 200.0) == "f"


def test_many_addresses_share_the_lines_of_one() -> None:
    lines = PeerLines(addresses_max=2)
    logged = [lines.note(f"192.0.2.{number}", str(number), 0.0) for number in range(200)]
    assert [line for line in logged if line is not None] == ["0", "1", "2"]
    assert lines.due(60.0) == ["other addresses: 197 more in 60 s, the last: 199"]


async def test_connections_that_cannot_be_accepted_are_one_line_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, log = asyncio.get_running_loop(), PeerLog(logging.getLogger("lbg.test"))
    log_accept_errors(loop, log)
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for _ in range(128):
        loop.call_exception_handler(
            {"message": "socket.accept() out of system resource", "exception": full, "socket": None}
        )
    (record,) = caplog.records
    assert record.getMessage() == "connections cannot be accepted: Too many open files"
    assert record.exc_info is None
    loop.call_exception_handler({"message": "something else", "exception": ValueError("else")})
    assert "something else" in caplog.text
    log.close()
    assert caplog.messages[-1].startswith("accept: 127 more in 60 s")


def test_an_address_has_at_most_its_share() -> None:
    places: FairPlaces[int] = FairPlaces(in_all=10, per_address=2)
    assert [places.enter(ONE, token) for token in range(3)] == [(True, None), (True, None), (False, None)]
    places.leave(ONE, 0)
    assert places.enter(ONE, 3) == (True, None)
    places.leave(ONE, 99)
    assert len(places) == 2


def test_when_all_is_occupied_the_oldest_of_the_address_with_most_gives_way() -> None:
    places: FairPlaces[int] = FairPlaces(in_all=4, per_address=3)
    for token in range(3):
        places.enter(ONE, token)
    places.enter(TWO, 10)
    assert places.enter(THREE, 20) == (True, 0)
    assert places.enter(TWO, 11) == (True, 1)
    assert places.enter(TWO, 12) == (False, None), "it would have most itself"
    assert len(places) == 4


def test_as_many_addresses_as_places_keep_no_newcomer_out() -> None:
    places: FairPlaces[int] = FairPlaces(in_all=2, per_address=2)
    places.enter(ONE, 1)
    places.enter(TWO, 2)
    assert places.enter(THREE, 3) == (True, 1)
