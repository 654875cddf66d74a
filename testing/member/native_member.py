"""A machine of a native mode with somebody to run its effects by hand: no broker, no clock."""

from __future__ import annotations

from typing import Any, TypeVar

from lbg_sidecar.core.broker_assigned import BrokerAssignedMember
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Order, Rules
from lbg_sidecar.core.effects import Attach, Effect
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.session import SessionPosition
from testing.member.bare_member import setup_of

E = TypeVar("E")


class NativeMember:
    """`told` are effects that were not looked at yet."""

    def __init__(
        self,
        *,
        session: SessionPosition | None = None,
        moves: bool = False,
        prefetch: int | None = 64,
        keys_at_once: int | None = None,
        limit: CallLimit | None = None,
        **rules: Any,
    ) -> None:
        self.attachment: Attachment
        """The last one."""
        order = Order.KEY if session is None else Order.QUEUE
        self.machine = BrokerAssignedMember(
            setup_of(
                BalancingRules(queue_count=1, client_count=4, prefetch=prefetch),
                Rules(**{"concurrency": 4, "order": order, **rules}),
            ),
            partitions=1 if session is not None else 8,
            moves=moves,
            session=session,
            keys_at_once=keys_at_once,
            limit=limit,
        )
        self.told: list[Effect] = []

    def run(self) -> None:
        self.told += self.machine.effects
        self.machine.effects.clear()

    def took(self, kind: type[E]) -> list[E]:
        """The effects of this kind so far; they count as looked at."""
        self.run()
        found = [effect for effect in self.told if isinstance(effect, kind)]
        self.told = [effect for effect in self.told if not isinstance(effect, kind)]
        return found

    def join(self, now: float = 0.0, *, index: int = 0) -> Attachment:
        """Connected, and attached to the one queue."""
        self.machine.connected(index, now)
        return self.attach(now)

    def attach(self, now: float = 0.0) -> Attachment:
        (asked,) = self.took(Attach)
        self.machine.attached(asked.attachment, now)
        self.attachment = asked.attachment
        return asked.attachment

    def deliver(
        self, attachment: Attachment, *names: Any, now: float = 0.0, sequence: int | None = None
    ) -> None:
        """A message for each of `names`, which are (key, hash, number) or numbers; `sequence` is of the first."""
        arrivals = []
        for offset, name in enumerate(names):
            key, hash_, number = name if isinstance(name, tuple) else (f"k{name}", name, name)
            held = InFlight(
                attachment, attachment.delivered + offset + 1, key=key, identity=("p", hash_, number)
            )
            held.sequence = None if sequence is None else sequence + offset
            arrivals.append(held)
        self.machine.deliver(attachment, arrivals, now)

    def take_all(self, now: float = 0.0) -> list[InFlight]:
        taken = []
        while (held := self.machine.take(now)) is not None:
            taken.append(held)
        return taken
