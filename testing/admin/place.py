"""Broker of a test's groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectionSettings


@dataclass(frozen=True)
class Place:
    """A broker with nothing of a group on it."""

    settings: ConnectionSettings
    management: ManagementSettings

    def admin(self) -> LiveAdmin:
        return LiveAdmin(self.settings, ManagementApi(self.management))

    @asynccontextmanager
    async def administered(self) -> AsyncIterator[LiveAdmin]:
        admin = self.admin()
        try:
            yield admin
        finally:
            await admin.close()
