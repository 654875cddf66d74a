"""Members in mode Sessions on a broker that is restored from a backup: they get what it has, whatever its numbers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_sidecar import Member, Message
from testing.broker.embedded import EmbeddedBroker
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker


async def publish(place: Place, *bodies: bytes) -> None:
    """Without a publisher's identity: nothing but the session's number tells one from another."""
    connection = await connect(place.url)
    publisher = await ConfirmingPublisher.open(connection)
    name = place.spec.name
    for body in bodies:
        properties = BasicProperties(delivery_mode=2)
        await publisher.publish(f"lbg.{name}", f"{name}.0.t", body, properties=properties)
    await connection.close()


@dataclass
class Handled:
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, message: Message) -> None:
        self.bodies.append(bytes(message.data))


@dataclass
class Table(Handled):
    """Commits its position, and the epoch, with its rows."""

    position: tuple[int, str | None] = (0, None)

    async def __call__(self, message: Message) -> None:
        await super().__call__(message)
        assert message.sequence is not None
        self.position = message.sequence, message.session_epoch

    async def committed(self, session: str) -> tuple[int, str | None]:
        return self.position


@pytest.mark.parametrize("kept_by", ["the member's file", "the application"])
async def test_messages_with_numbers_that_were_given_before_are_processed(
    broker: EmbeddedBroker, tmp_path: Path, kept_by: str
) -> None:
    place = await place_in("Sessions", broker, "restored")
    in_file = kept_by == "the member's file"
    handled = Handled() if in_file else Table()
    settings = place.settings("a", commits=tmp_path / "commits" if in_file else None)

    async def work(count: int) -> None:
        async with Member(settings, handled):
            await until(lambda: len(handled.bodies) >= count)

    first, lost = [b"first %d" % n for n in range(5)], [b"lost %d" % n for n in range(5)]
    await publish(place, *first)
    await work(5)
    assert broker.stop() == 0  # not killed: its acks are on disk
    shutil.copytree(broker.data_dir, tmp_path / "backup")
    broker.start()
    await publish(place, *lost)
    await work(10)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    shutil.copytree(tmp_path / "backup", broker.data_dir)
    broker.start()
    new = [b"new %d" % n for n in range(20)]
    await publish(place, *new)
    await work(30)
    assert handled.bodies == [*first, *lost, *new]
