"""A member whose driver is at hand: for what a member does on its own account and nobody asks it to."""

from __future__ import annotations

from typing import Any

from lbg_sidecar import Member
from lbg_sidecar.io.driver import Driver


class DrivenMember(Member):
    """`driver` is the one that its application's channel starts with."""

    driver: Driver

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        start = self.app.start

        async def started(driver: Driver) -> None:
            self.driver = driver
            await start(driver)

        self.app.start = started
