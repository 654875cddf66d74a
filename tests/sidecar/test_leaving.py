"""How the real process ends: on signals and drains, under load, with somebody to take over."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.command_line import end_started, start_lbg
from support.embedded import EmbeddedBroker
from support.notes import Notes, missing
from support.sidecar_load import new_group, publish
from support.sidecar_process import NotingApp, Sidecar
from support.waiting import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    end_started()


class Pair:
    """Two members of a group, each with an application of its own that is a command."""

    def __init__(self, broker: EmbeddedBroker, directory: Path, *, work_s: float, **settings: str) -> None:
        self.group = "g" + directory.name.replace("_", "-")[-30:].strip("-")
        self.url = broker.url
        self.apps = [NotingApp(directory, name, work_s=work_s) for name in "ab"]
        self.notes = Notes(*(app.notes_file for app in self.apps))
        self._directory = directory
        self._settings = settings

    async def start(self, *, queue_count: int = 4) -> tuple[Sidecar, Sidecar]:
        await new_group(self.url, self.group, queue_count=queue_count)
        a, b = (self.sidecar(number) for number in (0, 1))
        await asyncio.gather(a.ready(), b.ready())
        return a, b

    def sidecar(self, number: int) -> Sidecar:
        app = self.apps[number]
        return Sidecar(
            self.url, self.group, self._directory, "ab"[number], LBG_COMMAND=app.command, **self._settings
        )

    async def all_ended(self, count: int) -> None:
        with suppress(TimeoutError):
            await until(lambda: len(self.notes.ended()) == count, timeout_s=30)
        assert missing(self.notes, range(count)) == set()


def again(sidecar: Sidecar) -> int:
    """How many messages it says are delivered again."""
    found = re.search(r"left the group: (\d+|nothing)", sidecar.text)
    assert found is not None, sidecar.text
    return 0 if found[1] == "nothing" else int(found[1])


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "drain"])
async def test_a_planned_leave_under_load_loses_repeats_and_reorders_nothing(
    broker: EmbeddedBroker, tmp_path: Path, way: str
) -> None:
    pair = Pair(broker, tmp_path, work_s=0.01)
    a, b = await pair.start()
    loading = asyncio.create_task(publish(pair.url, pair.group, 1500, per_s=600))
    await a.until(lambda: len(pair.apps[0].notes.ended()) >= 100)
    if way == "drain":
        hook = start_lbg("drain", "--local", f"unix:{a.local}")
        out, err = await asyncio.to_thread(hook.communicate)
        assert (hook.returncode, out) == (0, "drained: nothing is delivered again\n"), err
        assert a.process.poll() is None
        a.process.send_signal(signal.SIGTERM)
    else:
        a.process.send_signal(getattr(signal, way))
    assert await a.ended() == 0
    assert again(a) == 0
    await loading
    await pair.all_ended(1500)
    assert pair.notes.repeated() == set()
    assert pair.notes.inversions() == []
    assert pair.notes.overlaps() == []
    assert b.process.poll() is None


async def test_a_call_longer_than_a_handoff_ends_within_the_grace_and_holds_up_no_other_queue(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pair = Pair(broker, tmp_path, work_s=2.0, LBG_MAX_HANDOFF_S="0.3", LBG_MOVES_AT_ONCE="1")
    a, _ = await pair.start()
    await publish(pair.url, pair.group, 12)
    await a.until(lambda: len(pair.notes.begun()) == 12)
    a.process.send_signal(signal.SIGTERM)
    assert await a.ended() == 0, a.text
    await pair.all_ended(12)
    assert pair.notes.repeated() == set()
