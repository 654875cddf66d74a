"""Status reports of idle members on real brokers: who asks for them gets them, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import Refused
from lbg_core.admin.rows import members_of
from lbg_core.admin.status_reports import ReportQueue, collect_reports
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import TO_OBSERVERS
from lbg_sidecar import Member, Message
from lbg_sidecar.core.timings import Timings
from testing.member.place import Place
from testing.waiting import GUARD_S, until

NEVER_S = 10 * GUARD_S
QUIET_S = 2.0
"""Members that are watched report every second."""


@pytest.fixture(autouse=True)
def no_report_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_sidecar.io.startup.Timings", lambda: Timings(same_report_s=NEVER_S))
    monkeypatch.setattr("lbg_sidecar.core.report_schedule.JOINED_S", 0.0)


async def nothing(message: Message) -> None:
    raise AssertionError("a group without messages")


@asynccontextmanager
async def silent_members(place: Place) -> AsyncIterator[AmqpAdmin]:
    """Two members that have reported what they do, and report nothing more."""
    loop = asyncio.get_running_loop()
    listener = await connect(place.url)
    reported_at = [loop.time()]
    channel = await listener.open_channel()
    queue = (await channel.queue_declare("", exclusive=True)).queue
    await channel.queue_bind(queue, place.names.members, TO_OBSERVERS)
    await channel.consume(queue, lambda reports: reported_at.append(loop.time()), no_ack=True)
    admin = AmqpAdmin((ConnectionSettings.parse(place.url),))
    try:
        async with Member(place.settings("a"), nothing) as a, Member(place.settings("b"), nothing) as b:
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1], what="two members")
            await until(lambda: loop.time() > reported_at[-1] + QUIET_S, what="silent members")
            yield admin
    finally:
        await admin.close()
        await listener.close()


async def test_an_observer_gets_the_reports_of_idle_members_in_its_time(place: Place) -> None:
    async with silent_members(place) as admin:
        beats = (await collect_reports(admin, [place.spec.name], seconds=1.0))[place.spec.name]
        assert not isinstance(beats, Refused)
        assert {one.name for one in members_of(beats.beats)} == {"a", "b"}


async def test_an_observer_that_stays_gets_them_every_second(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_members(place) as admin:
        observer = ReportQueue(admin)

        def seen() -> set[str]:
            return {one.name for one in members_of(observer.latest(place.spec.name))}

        await observer.attend(place.spec.name)
        await until(lambda: seen() == {"a", "b"}, what="both reports")
        monkeypatch.setattr("lbg_core.admin.status_reports.FRESH_S", 1.5)
        for _ in range(4):
            await asyncio.sleep(1.0)
            assert seen() == {"a", "b"}
