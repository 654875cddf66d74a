"""Shutdown of the real process within its budget, with every possible obstacle at once."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lbg_sidecar import MemberSettings
from lbg_sidecar.core.presence import MARGIN_S
from testing.app.noting_pair import delivered_again
from testing.app.noting_process import NotingApp, exit_status, until_so
from testing.broker.embedded import EmbeddedBroker
from testing.needs import repeated
from testing.sidecar.load import new_group, publish
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S, until

KUBERNETES_S = 30.0
"""terminationGracePeriodSeconds, where a pod says nothing else (kubernetes.io, "Pod Lifecycle")."""

GRACE_S = 1.0
COUNT = 40
UNCONFIRMED = 5


def test_the_default_grace_and_all_that_comes_after_it_fit_into_what_kubernetes_gives() -> None:
    assert MemberSettings(group="g").shutdown_grace_s + MARGIN_S <= KUBERNETES_S - 4


@pytest.mark.parametrize("channel", repeated(["command", "http", "stream"]))
async def test_with_application_broker_and_confirms_all_stuck_it_ends_in_time_and_says_what_comes_again(
    own_broker: EmbeddedBroker, tmp_path: Path, channel: str
) -> None:
    for group in ("g", "h", "i"):
        await new_group(own_broker.url, group)
    app, socket = NotingApp(tmp_path), tmp_path / "app.sock"
    app.hang()
    app.ignore_the_end()
    told = {"LBG_COMMAND": app.command} if channel == "command" else {"LBG_TARGET": f"unix:{socket}:/"}
    limits = {"LBG_SHUTDOWN_GRACE_S": str(GRACE_S), "LBG_CONCURRENCY": "3"}
    sidecar = SidecarProcess(own_broker.url, tmp_path, "g", LBG_APP=channel, **told, **limits)
    with ThreadPoolExecutor() as threads:
        try:
            if channel != "command":
                app.start(channel, socket if channel == "http" else sidecar.socket)
            await until_so(sidecar, sidecar.ready)
            await publish(own_broker.url, "g", COUNT)
            await until_so(sidecar, lambda: app.notes.size == 3)
            for group in "hi":
                sidecar.publish(group, 1)
            own_broker.freeze()
            asked = [threads.submit(ask, sidecar, group) for group in "hi"]
            await until_so(sidecar, lambda: in_flight(sidecar) == 2 * UNCONFIRMED)
            if channel == "stream":
                app.freeze()
            sidecar.process.send_signal(signal.SIGTERM)
            began_at = time.monotonic()
            assert await exit_status(sidecar, within_s=GUARD_S) == 1
            took_s = time.monotonic() - began_at
        finally:
            app.kill()
            own_broker.thaw()
    loaded_s = KUBERNETES_S - MemberSettings(group="g").shutdown_grace_s - MARGIN_S
    assert took_s < GRACE_S + MARGIN_S + loaded_s, sidecar.text
    assert delivered_again(sidecar) == 3
    assert f"{2 * UNCONFIRMED} published events have no confirm" in sidecar.text
    assert all(one.result() >= 500 for one in asked), "nobody was told that it was published"
    held = {note.number for note in app.notes.all()}
    second = NotingApp(tmp_path, "second")
    SidecarProcess(own_broker.url, tmp_path, "g", LBG_NAME="second", LBG_COMMAND=second.command)
    await until(lambda: second.notes.ended() == set(range(COUNT)), every_s=0.1)
    assert len(held) == 3, "what it had at work, and nothing else, came a second time"


NO_NAME_SERVER = """
import socket, time

def getaddrinfo(*_, **__):
    time.sleep(600)

socket.getaddrinfo = getaddrinfo
"""


@pytest.mark.process
async def test_a_name_that_nobody_answers_for_does_not_hold_it_up(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NAME_SERVER)
    told = {"LBG_COMMAND": "true", "PYTHONPATH": str(tmp_path), "LBG_OBSERVED": f"unix:{tmp_path}/observed"}
    sidecar = SidecarProcess("amqp://broker.example/", tmp_path, "g", **told)
    await until_so(sidecar, lambda: "observed listener" in sidecar.text)
    sidecar.process.send_signal(signal.SIGTERM)
    assert await exit_status(sidecar, within_s=GUARD_S) == 0
    assert delivered_again(sidecar) == 0


def ask(sidecar: SidecarProcess, group: str) -> int:
    """The status; 503 also when the process cut the connection off."""
    events = [
        {"specversion": "1.0", "id": f"{group}{number}", "source": "/t", "type": "t", "partitionkey": "k"}
        for number in range(UNCONFIRMED)
    ]
    kind = "application/cloudevents-batch+json"
    try:
        return sidecar.ask("POST", f"/v1/publish/{group}", json.dumps(events).encode(), kind)[0]
    except ConnectionError:
        return 503


def in_flight(sidecar: SidecarProcess) -> int:
    told = json.loads(sidecar.ask("GET", "/v1/state")[1])
    return int(told["publishing"]["in_flight"])
