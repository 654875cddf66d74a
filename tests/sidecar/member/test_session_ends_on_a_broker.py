"""The end of a session over sockets: late confirms, and a connection or a broker that goes with the last ack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lbg_core.client import connect
from lbg_sidecar import Member, Message
from lbg_sidecar.commit_log import PositionFile
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import Ack, Effect
from lbg_sidecar.io.driver import Driver
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import Load, load_on
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.waiting import GUARD_S, until


@pytest.fixture
async def place(own_broker: EmbeddedBroker, unique: str) -> Place:
    return await place_in("Sessions", own_broker, unique)


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load


class Handler:
    """`ending` is called once, when the ack of the End-of-Session is about to be written."""

    def __init__(self, ending: Callable[[Member], None] = lambda _: None) -> None:
        self.got: list[int | None] = []
        self.member: Member | None = None
        self._ending: Callable[[Member], None] | None = ending

    async def __call__(self, message: Message) -> None:
        self.got.append(message.sequence)

    def observe(self, effect: Effect) -> None:
        member, ending = self.member, self._ending
        if not isinstance(effect, Ack) or ending is None or member is None:
            return
        if member.state()["session"]["ended"]:
            self._ending = None
            ending(member)


def cut(member: Member) -> None:
    """Before anything more is written."""
    member.drop_connection()


async def leaves(member: Member) -> None:
    """By itself."""
    async with asyncio.timeout(GUARD_S):
        await member.run()


def nothing_is_left(place: Place, broker: EmbeddedBroker, directory: Path) -> None:
    assert broker.queue(place.names.parent)["sessions"] == []
    path = directory / f"{place.spec.name}-a.position"
    file = PositionFile(path, group=place.spec.name, session="a")
    file.close()
    assert (file.committed, file.is_over) == (0, False)


async def test_confirms_that_come_late_do_not_bring_the_session_to_life_again(
    place: Place,
    load: Load,
    own_broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirmed = Driver.on_confirmed

    def late(driver: Driver, held: InFlight) -> None:
        asyncio.get_running_loop().call_later(0.1, confirmed, driver, held)

    monkeypatch.setattr(Driver, "on_confirmed", late)
    connection = await connect(place.url)
    channel = await connection.open_channel()
    await channel.queue_declare(place.names.validation, durable=True)
    await channel.queue_bind(place.names.validation, place.names.validate, "")
    handler = Handler()
    async with Member(place.settings("a", commits=tmp_path, republish=True), handler) as member:
        await load.publish(20)
        await load.publisher.flush()  # what comes after the end is another session's
        await until(lambda: len(handler.got) > 5)
        own_broker.perform(place.names.parent, "close-session", session="a")
        await leaves(member)
    await connection.close()
    nothing_is_left(place, own_broker, tmp_path)
    assert handler.got == list(range(1, 21))
    assert "the position file says" not in caplog.text
    assert "no consumer" not in caplog.text


@pytest.mark.parametrize("goes", ["connection", "broker"])
async def test_what_goes_with_the_last_ack_is_waited_for_and_told(
    goes: str,
    place: Place,
    load: Load,
    own_broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="lbg.member")
    lost = asyncio.Event()

    def lose(member: Member) -> None:
        cut(member)
        if goes == "broker":
            own_broker.kill()
        lost.set()

    handler = Handler(lose)
    async with Member(place.settings("a", commits=tmp_path), handler, observer=handler.observe) as member:
        handler.member = member
        await load.publish(20)
        await until(lambda: len(handler.got) == 20)
        own_broker.perform(place.names.parent, "close-session", session="a")
        async with asyncio.timeout(GUARD_S):
            await lost.wait()
        if goes == "broker":
            own_broker.start()
        await leaves(member)
    nothing_is_left(place, own_broker, tmp_path)
    assert handler.got == list(range(1, 21))
    assert caplog.text.count("session 'a' ended after 20 messages") == 1
    assert "the position file says" not in caplog.text
