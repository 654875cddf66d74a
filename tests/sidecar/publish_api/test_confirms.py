"""Confirms of a group's publisher around its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_core.publisher import MessageOptions
from lbg_sidecar.publish_api import EndpointSettings, PublishService, service
from lbg_sidecar.publish_api.request import Event, Refused
from testing.waiting import until


class Publisher:
    """Accepts every message, and confirms and ends when a test does."""

    identity = SimpleNamespace(publisher="p")
    has_room = True
    unrouted_count = 0

    def __init__(self) -> None:
        self.confirms: list[Callable[[], None]] = []
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None: ...

    async def failed(self) -> Exception:
        return await self.ended

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def require_usable(self, *_: object) -> None: ...

    def publish_soon(self, *, on_confirmed: Callable[[], None], **_: object) -> Any:
        self.confirms.append(on_confirmed)
        return SimpleNamespace(hash=1, seq=len(self.confirms))


async def test_a_confirm_after_the_end_of_its_group_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher()
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
