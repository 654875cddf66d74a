"""What a member publishes of what it received: dead letters, and messages for the validator. Both are confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lbg_broker.group import Names

from ..consuming.consumption import Next
from ..consuming.held import Held
from ..membership.messages import Identity
from ..patience import Patience
from .burying import Burying, DeadPublishers
from .republishing import RepublishedChannels, ToValidator, WallClock

OnConfirmed = Callable[[Held, Next], None]


class Publishing(DeadPublishers, RepublishedChannels, Protocol):
    """The link, as far as it publishes what the member got."""


class Outgoing:
    """Publishing over one connection, as long as it lives."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: Publishing,
        *,
        on_confirmed: OnConfirmed,
        wall_us: WallClock,
        patience: Patience | None = None,
    ) -> None:
        patience = patience or Patience()
        self._burying = Burying(
            names,
            me,
            link,
            on_buried=lambda held: on_confirmed(held, Next.DEAD_LETTER),
            wall_us=wall_us,
            patience=patience,
        )
        self._to_validator = ToValidator(
            names,
            me,
            link,
            on_republished=lambda held: on_confirmed(held, Next.REPUBLISH),
            wall_us=wall_us,
            patience=patience,
        )

    def dead_letter(self, held: Held) -> None:
        self._burying.bury(held)

    def republish(self, held: Held) -> None:
        self._to_validator.republish(held)

    def released(self, held: Held) -> None:
        self._to_validator.released(held)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._burying.close()
        self._to_validator.close()
