"""Start of the real process with something missing, in use or unreadable."""

from __future__ import annotations

from pathlib import Path

from testing.app.noting_process import NotingApp, exit_status, until_so
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.load import new_group, publish
from testing.sidecar.process import SidecarProcess
from testing.waiting import until


async def test_it_waits_unready_for_its_broker_then_for_its_application_and_begins(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(broker.url, "waits")
    await publish(broker.url, "waits", 50)
    broker.stop()
    app, socket = NotingApp(tmp_path), tmp_path / "app.sock"
    sidecar = SidecarProcess(broker.url, tmp_path, "waits", LBG_APP="http", LBG_TARGET=f"unix:{socket}:/")
    try:
        await until_so(sidecar, lambda: sidecar.observed and "refused" in sidecar.get("/readyz")[1])
        assert sidecar.get("/healthz")[0] == 200
        broker.start()
        await until_so(sidecar, lambda: "the application is not ready" in sidecar.get("/readyz")[1])
        assert not sidecar.ready()
        app.start("http", socket)
        await until_so(sidecar, sidecar.ready)
        await until(lambda: app.notes.ended() == set(range(50)), every_s=0.1)
        assert app.notes.repeated() == set()
        assert app.notes.inversions() == []
    finally:
        app.kill()


async def test_a_second_one_for_an_index_says_so_and_takes_over_when_the_first_is_gone(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(broker.url, "twins")
    app = NotingApp(tmp_path)
    settings = {"LBG_COMMAND": app.command, "LBG_INDEX": "1"}
    first = SidecarProcess(broker.url, tmp_path, "twins", LBG_NAME="first", **settings)
    await until_so(first, first.ready)
    second = SidecarProcess(broker.url, tmp_path, "twins", LBG_NAME="second", **settings)
    await until_so(
        second, lambda: second.observed and "index 1 belongs to another" in second.get("/readyz")[1]
    )
    assert first.ready()
    first.process.kill()
    await until_so(second, second.ready)


async def test_a_second_one_for_a_commit_log_ends_with_one_line(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(broker.url, "namesakes")
    app = NotingApp(tmp_path)
    settings = {"LBG_COMMAND": app.command, "LBG_NAME": "same", "LBG_COMMITS": str(tmp_path)}
    places = [tmp_path / "1", tmp_path / "2"]
    for place in places:
        place.mkdir()
    first = SidecarProcess(broker.url, places[0], "namesakes", **settings)
    await until_so(first, first.ready)
    second = SidecarProcess(broker.url, places[1], "namesakes", **settings)
    assert await exit_status(second) != 0
    (line,) = (line for line in second.text.splitlines() if "INFO" not in line)
    assert line.endswith("is in use by another process: give each member a name of its own")
    assert first.ready()
