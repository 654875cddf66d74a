"""Confirms of a group's publisher around its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_core.publisher import MessageOptions, PublisherClosed
from lbg_sidecar.publish_api import EndpointSettings, PublishService, service
from lbg_sidecar.publish_api.request import Event, Refused
from testing.waiting import GUARD_S, until


class Publisher:
    """Accepts every message, and confirms and ends when a test does."""

    identity = SimpleNamespace(publisher="p")
    has_room = True
    unrouted_count = 0

    def __init__(self) -> None:
        self.confirms: list[Callable[[], None]] = []
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None: ...

    async def failed(self) -> Exception:
        return await self.ended

    async def flush(self) -> None:
        await self.flushed

    async def close(self) -> None: ...

    def require_usable(self, *_: object) -> None: ...

    def publish_soon(self, *, on_confirmed: Callable[[], None], **_: object) -> Any:
        self.confirms.append(on_confirmed)
        return SimpleNamespace(hash=1, seq=len(self.confirms))


async def test_a_confirm_after_the_end_of_its_group_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher()
    publisher.flushed.set_result(None)
    monkeypatch.setattr(service, "GroupPublisher", lambda *_, **__: publisher)
    publishing = PublishService(EndpointSettings(broker=["amqp://localhost/"]))
    event = Event("k", "", topic_is_explicit=False, body=b"x", extra=MessageOptions())
    publish = asyncio.create_task(publishing.publish("orders", [event]))
    await until(lambda: publisher.confirms)
    publisher.ended.set_result(ConnectionError("gone"))
    with pytest.raises(Refused):
        await publish
    publisher.confirms[0]()
    counts = publishing.describe()
    assert (counts["in_flight"], counts["published"]) == (0, 0)
    await publishing.stop(1.0)


@pytest.mark.long
async def test_a_group_that_ends_at_the_stop_ends_no_wait_for_another_ones_confirms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publishers = {"deleted": Publisher(), "orders": Publisher()}
    monkeypatch.setattr(service, "GroupPublisher", lambda *_, group, **__: publishers[group])
    publishing = PublishService(EndpointSettings(broker=["amqp://localhost/"]))
    event = Event("k", "", topic_is_explicit=False, body=b"x", extra=MessageOptions())
    deleted, orders = (asyncio.create_task(publishing.publish(group, [event])) for group in publishers)
    await until(lambda: all(one.confirms for one in publishers.values()))
    stopping = asyncio.create_task(publishing.stop(GUARD_S))
    await asyncio.sleep(0)
    gone = PublisherClosed("the group was deleted")
    publishers["deleted"].flushed.set_exception(gone)
    publishers["deleted"].ended.set_result(gone)
    with pytest.raises(Refused):
        await deleted
    publishers["orders"].confirms[0]()
    publishers["orders"].flushed.set_result(None)
    assert await stopping == 0
    assert len(await orders) == 1
