"""An admin that dies in the middle: from a given change on, nothing of it reaches the broker any more."""

from __future__ import annotations

from lbg_core.admin.actions import Action
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from testing.admin.place import Place


class KilledError(BaseException):
    """As SIGKILL: no handler for errors sees it, and what cleaning up does comes to nothing."""


class CutAdmin(LiveAdmin):
    """Performs `changes` changes. With `half` the next one is done as well, and its answer lost. `died_at`: that one;
    what would take changes back after it comes to nothing."""

    def __init__(self, place: Place, *, changes: int, half: bool) -> None:
        super().__init__(place.settings, ManagementApi(place.management))
        self.left = changes
        self.half = half
        self.performed: list[Action] = []
        self.died_at: Action | None = None

    async def perform(self, action: Action) -> None:
        if self.left <= 0:
            if self.left == 0:
                self.died_at = action
                if self.half:
                    await super().perform(action)
            self.left -= 1
            raise KilledError(str(action))
        self.left -= 1
        self.performed.append(action)
        await super().perform(action)
