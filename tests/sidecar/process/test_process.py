"""The real process on the embedded broker: how it waits, joins, drains and ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lbg_sidecar.stream_client import consume
from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import start_lbg
from testing.output_documents import checked
from testing.sidecar.process import PROMPT, Sidecar, create, publish
from testing.waiting import GUARD_S, until

STUCK = "import sys\nfor line in sys.stdin: pass"


def test_it_waits_for_a_group_and_says_so_then_serves_and_leaves_at_sigterm(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    sidecar = Sidecar(broker, tmp_path, "late", PROMPT)
    sidecar.until(lambda: "late" in sidecar.get("/readyz")[1])
    assert sidecar.get("/readyz")[0] == 503
    assert sidecar.get("/healthz")[0] == 200
    create(broker, "late")
    sidecar.until(sidecar.ready)
    publish(broker, "late", 300)
    sidecar.until(lambda: sidecar.acked() == 300)
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0
    assert "nothing is delivered again" in sidecar.text


def test_drain_hands_over_and_the_process_stays_unready_until_sigterm(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "drained")
    sidecar = Sidecar(broker, tmp_path, "drained", PROMPT)
    sidecar.until(sidecar.ready)
    hook = start_lbg("drain", "--local", f"unix:{sidecar.socket}")
    out, err = hook.communicate(timeout=GUARD_S)
    assert (hook.returncode, out) == (0, "drained: nothing is delivered again\n"), err
    assert sidecar.process.poll() is None
    assert sidecar.get("/readyz")[0] == 503
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0


def test_the_observed_listener_tells_when_the_member_has_left_and_makes_nobody_leave(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "awaited")
    sidecar = Sidecar(broker, tmp_path, "awaited", PROMPT)
    sidecar.until(sidecar.ready)
    assert sidecar.get("/drained?wait=0.1")[0] == 503
    assert sidecar.get("/drained?wait=soon")[0] == 400
    assert sidecar.ready()
    with ThreadPoolExecutor() as threads:
        hook = threads.submit(sidecar.get, "/drained?wait=60", timeout_s=GUARD_S)
        start_lbg("drain", "--local", f"unix:{sidecar.socket}")
        assert hook.result() == (200, '{"left": true}\n')
    assert sidecar.get("/drained")[0] == 200
    asked_again = start_lbg("drain", "--local", f"unix:{sidecar.socket}", "--wait", "0", "-o", "json")
    out, err = asked_again.communicate(timeout=GUARD_S)
    assert asked_again.returncode == 0, err
    assert checked("drain", out) == {"action": "drained", "delivered_again": 0}


def test_a_stuck_application_is_cut_off_after_the_grace_and_counted(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "stuck")
    sidecar = Sidecar(broker, tmp_path, "stuck", STUCK, LBG_SHUTDOWN_GRACE_S="0.5", LBG_CONCURRENCY="3")
    sidecar.until(sidecar.ready)
    publish(broker, "stuck", 40)
    sidecar.until(lambda: re.search(r"^lbg_calls_running{.*} 3.0$", sidecar.get("/metrics")[1], re.M))
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 1
    assert "3 messages with running calls are delivered again" in sidecar.text


def test_sigterm_ends_it_while_it_waits_for_the_group(broker: EmbeddedBroker, tmp_path: Path) -> None:
    sidecar = Sidecar(broker, tmp_path, "never", PROMPT)
    sidecar.until(lambda: "never" in sidecar.get("/readyz")[1])
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0


def test_the_local_endpoints_are_not_on_the_observed_listener(broker: EmbeddedBroker, tmp_path: Path) -> None:
    sidecar = Sidecar(broker, tmp_path, "apart", PROMPT)
    assert sidecar.get("/v1/state")[0] == 404


@pytest.mark.process
def test_a_bad_setting_ends_it_with_one_line_and_status_2() -> None:
    process = start_lbg("sidecar", environment={"LBG_GROUP": "g", "LBG_COMMAND": "x", "LBG_PREFETCH": "few"})
    _, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 2
    assert err == "lbg: error: LBG_PREFETCH is 'few', but must be a whole number from 1 to 65535\n"


@pytest.mark.process
def test_drain_says_that_no_sidecar_is_there(tmp_path: Path) -> None:
    process = start_lbg("drain", "--local", f"unix:{tmp_path}/none.sock", environment=dict(os.environ))
    _, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 1
    assert "no sidecar answers at unix:" in err
    assert len(err.splitlines()) == 1


async def test_an_application_publishes_through_it_and_gets_its_messages_over_the_stream(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "streamed")
    sidecar = Sidecar(broker, tmp_path, "streamed", "", LBG_APP="stream", LBG_COMMAND="")
    sidecar.until(lambda: "no application is connected" in sidecar.get("/readyz")[1])
    got: list[str] = []

    async def handle(message: dict[str, Any]) -> None:
        got.append(message["data"])

    connector = aiohttp.UnixConnector(str(sidecar.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        for number in range(20):
            url = f"http://sidecar/v1/publish/streamed?key=k{number % 3}"
            async with session.post(url, data=f"message {number}") as answer:
                assert answer.status == 200, await answer.text()
        application = asyncio.create_task(
            consume("http://sidecar/v1/stream", handle, unix_socket=str(sidecar.socket))
        )
        await until(lambda: len(got) == 20)
        async with session.get("http://sidecar/v1/state") as answer:
            assert (await answer.json())["publishing"]["published"] == 20
    for key in range(3):
        of_key = [int(text.split()[1]) for text in got if int(text.split()[1]) % 3 == key]
        assert of_key == sorted(of_key)
    assert sidecar.ready()
    sidecar.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(sidecar.process.wait, 20) == 0
    application.cancel()
    await asyncio.gather(application, return_exceptions=True)


@pytest.mark.parametrize(("app", "path"), [("http", "/"), ("http-batch", "/batch")])
def test_an_application_gets_its_messages_over_http(
    broker: EmbeddedBroker, tmp_path: Path, app: str, path: str
) -> None:
    create(broker, app)
    at, calls = tmp_path / "app.sock", tmp_path / "calls"
    argv = [sys.executable, "-m", "testing.app.http_app", str(calls), f"unix:{at}"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) as application:
        try:
            sidecar = Sidecar(broker, tmp_path, app, "", LBG_APP=app, LBG_TARGET=f"unix:{at}:{path}")
            sidecar.until(sidecar.ready)
            publish(broker, app, 300)
            sidecar.until(lambda: sidecar.acked() == 300)
            sidecar.process.send_signal(signal.SIGTERM)
            assert sidecar.process.wait(timeout=GUARD_S) == 0
            assert calls.read_text().count("end") == 300
        finally:
            application.kill()
