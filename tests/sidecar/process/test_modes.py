"""A sidecar's process in the modes where the broker shares the messages out."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from testing.broker.embedded import EmbeddedBroker
from testing.member.mode_place import place_in
from testing.sidecar.process import PROMPT, Sidecar, SidecarProcess
from testing.waiting import GUARD_S, until

WITHIN_S = 20.0


@pytest.mark.parametrize("mode", ["Partitioned", "MessageGroups", "Sessions"])
async def test_it_consumes_counts_what_waits_and_leaves_with_nothing_to_repeat(
    mode: str, broker: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    await place_in(mode, broker, unique)
    sidecar = Sidecar(broker, tmp_path, unique, PROMPT, LBG_NAME="a", LBG_COMMITS=str(tmp_path))
    sidecar.publish(unique, 60)
    await until(lambda: sidecar.acked() == 60)
    state = json.loads(sidecar.ask("GET", "/v1/state")[1])
    assert [queue["status"] for queue in state["queues"]] == ["Ready"]
    await until(lambda: re.search(r"^lbg_messages_lag{.*} 0.0$", sidecar.get("/metrics")[1], re.M))
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(GUARD_S) == 0


async def test_a_taken_session_is_waited_for_and_an_ended_one_leaves_it_idle_until_it_is_stopped(
    broker: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    place = await place_in("Sessions", broker, unique)
    (tmp_path / "other").mkdir()
    first = Sidecar(broker, tmp_path, unique, PROMPT, LBG_NAME="a")
    second = Sidecar(broker, tmp_path / "other", unique, PROMPT, LBG_NAME="a")
    await until(lambda: _reasons(second) == ["session 'a' belongs to another live consumer"])
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(GUARD_S) == 0
    await until(second.ready)
    second.publish(unique, 10)
    await until(lambda: second.acked() == 10)
    broker.perform(place.names.parent, "close")
    await until(lambda: "the member has left the group" in str(_reasons(second)))
    assert "End-of-Session: session 'a' ended after 10 messages" in second.text
    assert second.process.poll() is None, "in a pod it would only be started again"
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(GUARD_S) == 0


def _reasons(sidecar: SidecarProcess) -> list[str]:
    status, text = sidecar.get("/readyz")
    return [] if status == 200 else json.loads(text)["reasons"]


async def test_a_session_without_a_name_ends_it_with_one_line(
    broker: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    await place_in("Sessions", broker, unique)
    sidecar = SidecarProcess(broker.url, tmp_path, unique, LBG_COMMAND="cat")
    assert sidecar.process.wait(GUARD_S) == 2
    last = sidecar.text.strip().splitlines()[-1]
    assert "in mode Sessions it is the session's" in last
    assert "Traceback" not in sidecar.text
