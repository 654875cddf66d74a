"""Running a plan: everything or nothing when it creates, as far as it goes when it deletes."""

from __future__ import annotations

from collections.abc import Sequence

from .actions import Action, Bind, undo_of
from .admin import BrokerAdmin
from .errors import ApplyFailed, Refused


async def apply(admin: BrokerAdmin, actions: Sequence[Action]) -> None:
    """Perform `actions` in order. When one fails, take back all before it, last first, and raise ApplyFailed.

    A cancelled apply is taken back as well, and ends with the cancellation.
    """
    done: list[Action] = []
    for action in actions:
        try:
            await admin.perform(action)
        except BaseException as error:
            # Unless the broker said no, nobody knows whether the last one happened: it is taken back too. Of many
            # bindings it may have refused only one.
            is_refused = isinstance(error, Refused) and not isinstance(action, Bind)
            doubtful = [] if is_refused else [action]
            left_behind = await _take_back(admin, [*done, *doubtful])
            if isinstance(error, Exception):
                raise ApplyFailed(str(action), error, left_behind=left_behind) from error
            raise
        done.append(action)


async def apply_all(admin: BrokerAdmin, actions: Sequence[Action]) -> None:
    """Perform `actions` in order and stop at the first failure: what a delete removed stays removed."""
    for action in actions:
        await admin.perform(action)


async def _take_back(admin: BrokerAdmin, done: Sequence[Action]) -> list[str]:
    left_behind = []
    for action in reversed(done):
        undo = undo_of(action)
        if undo is None:
            continue
        try:
            await admin.perform(undo)
        except Exception as error:
            left_behind.append(f"{undo} failed: {error}")
    return left_behind
