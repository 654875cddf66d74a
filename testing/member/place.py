"""Broker of a test's members, with one empty group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lbg_core.client import connect
from lbg_core.group import GroupSpec, Names
from lbg_sidecar import MemberSettings
from testing.waiting import GUARD_S


@dataclass(frozen=True)
class Place:
    engine: str
    url: str
    spec: GroupSpec

    @property
    def names(self) -> Names:
        return Names(self.spec.name)

    def told(self, **more: Any) -> dict[str, Any]:
        """Settings for a member: quick ones, with half a second of rebalance delay. Handlers wait for what a test does
        next, which takes long on a busy machine: no call ends before the test."""
        quick = {"rebalance_delay_s": 0.5, "release_interval_s": 1.0, "call_timeout_s": GUARD_S}
        return {"broker": self.url, "group": self.spec.name, **quick, **more}

    def settings(self, name: str, **more: Any) -> MemberSettings:
        return MemberSettings(**self.told(name=name, **more))

    async def count(self, queue: str) -> int:
        """Messages that are ready in a queue."""
        connection = await connect(self.url)
        try:
            channel = await connection.open_channel()
            return (await channel.queue_declare(queue, passive=True)).message_count
        finally:
            await connection.close()
