"""A password file that cannot be read, at the start or while the real process runs: one clear line, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testing.app.noting_process import NotingApp, exit_status, until_so
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker
from testing.sidecar.load import new_group, publish
from testing.sidecar.process import SidecarProcess

ADVICE = "correct LBG_USERNAME_FILE or LBG_PASSWORD_FILE, or mount the Secret there"


def gone(_: Path) -> None:
    """There is none."""


def no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\n")


@pytest.mark.parametrize(
    ("put", "why"),
    [(gone, "No such file or directory"), (no_text, "can't decode")],
    ids=["gone", "no-text"],
)
async def test_one_that_cannot_be_read_while_it_runs_keeps_it_out_with_one_line_until_it_is_back(
    own_broker: EmbeddedBroker, tmp_path: Path, put: Callable[[Path], None], why: str
) -> None:
    await new_group(own_broker.url, "g")
    app, file = NotingApp(tmp_path), tmp_path / "password"
    file.write_text(PASSWORD)
    told = {"LBG_COMMAND": app.command, "LBG_USERNAME": USER, "LBG_PASSWORD_FILE": str(file)}
    sidecar = SidecarProcess(f"amqp://127.0.0.1:{own_broker.port}/", tmp_path, "g", **told)
    await until_so(sidecar, sidecar.ready)
    await publish(own_broker.url, "g", 100)
    file.unlink()
    put(file)
    await publish(own_broker.url, "g", 100, first=100)
    await until_so(sidecar, lambda: app.notes.ended() == set(range(200)))
    assert sidecar.ready(), "a connection that lives needs no password"
    before = len(sidecar.text)
    own_broker.kill()
    own_broker.start()
    await until_so(sidecar, lambda: ADVICE in sidecar.get("/readyz")[1])
    assert why in sidecar.get("/readyz")[1]
    assert not sidecar.ready()
    said = [line for line in sidecar.text[before:].splitlines() if "cannot be read" in line]
    assert said, "and in the log"
    assert all(why in line and ADVICE in line for line in said), "each attempt is one line that says it all"
    assert "Traceback" not in sidecar.text
    await publish(own_broker.url, "g", 100, first=200)
    file.write_text(PASSWORD)
    await until_so(sidecar, sidecar.ready)
    await until_so(sidecar, lambda: app.notes.ended() == set(range(300)))
    sidecar.process.terminate()
    assert await exit_status(sidecar) == 0
    assert app.notes.inversions() == []


async def test_one_that_is_not_there_yet_at_the_start_is_waited_for(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(own_broker.url, "g")
    app, file = NotingApp(tmp_path), tmp_path / "password"
    told = {"LBG_COMMAND": app.command, "LBG_USERNAME": USER, "LBG_PASSWORD_FILE": str(file)}
    sidecar = SidecarProcess(f"amqp://127.0.0.1:{own_broker.port}/", tmp_path, "g", **told)
    await until_so(sidecar, lambda: sidecar.observed and ADVICE in sidecar.get("/readyz")[1])
    file.write_text(PASSWORD)
    await until_so(sidecar, sidecar.ready)
