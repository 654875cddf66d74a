"""`lbg group show` of mode Partitioned while members come and go, on both engines: the broker's word on the embedded
one, the members' on RabbitMQ, and the same words."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from testing.command_line import Lbg, Where, end_started, start_lbg

TIMEOUT_S = 40.0


@pytest.fixture(autouse=True)
def _nothing_left() -> Any:
    yield
    end_started()


def test_partitions_are_shown_at_the_members_that_have_them(lbg: Lbg, broker: Where, unique: str) -> None:
    sharing = ("--mode", "Partitioned", "--queue-count", "4", "--rebalance-delay", "0.3")
    assert lbg("group", "create", unique, *sharing, *broker.options).status == 0

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(lbg("group", "show", unique, "--json", *broker.options).out)
        return found

    def shown_when(is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while not is_so(found := shown()):
            assert time.monotonic() < until, found["partitions"]
        return found

    def by_member(found: dict[str, Any]) -> list[int]:
        names = [one["member"] for one in found["partitions"]]
        return sorted(names.count(name) for name in set(names) - {None})

    members = [
        start_lbg("consume", "--group", unique, "--name", name, environment={"LBG_BROKER": broker.broker})
        for name in ("m1", "m2")
    ]
    found = shown_when(lambda found: by_member(found) == [2, 2] and found["rebalance_status"] == "Ready")
    assert [one["partition"] for one in found["partitions"]] == [0, 1, 2, 3]
    assert {one["status"] for one in found["partitions"]} == {"Ready"}
    assert {one["member"] for one in found["partitions"]} == {"m1", "m2"}
    assert found["problems"] == []

    os.kill(members[0].pid, signal.SIGTERM)
    assert members[0].wait(timeout=TIMEOUT_S) == 0
    found = shown_when(lambda found: by_member(found) == [4])
    assert {one["member"] for one in found["partitions"]} == {"m2"}

    os.kill(members[1].pid, signal.SIGTERM)
    assert members[1].wait(timeout=TIMEOUT_S) == 0
    shown_when(lambda found: {one["status"] for one in found["partitions"]} <= {"Unassigned", "Unbound"})
