"""Publishing over one connection after another, through changes of the group's number of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from lbg_broker.client import ClientConnection
from lbg_broker.group import GroupSpec, Names

from . import events
from .carrying import Carrying
from .errors import BrokerRefused
from .serving import Changing, Forbidden, serve_channels
from .waiting import is_changing, until_open


class Outlasting:
    """`on_attached` is called whenever there may be something new for who waits on the publisher."""

    def __init__(
        self,
        carrying: Carrying,
        names: Names,
        *,
        on_attached: Callable[[], None],
        tell: Callable[[events.PublisherEvent], None],
    ) -> None:
        self._carrying = carrying
        self._names = names
        self._on_attached = on_attached
        self._tell = tell
        self._refused_at: int | None = None
        """How much was confirmed when the broker last refused for no reason that the group's record has."""

    async def over(self, connection: ClientConnection) -> NoReturn:
        """Raises ConnectionLost when the connection is gone; every other error is final."""
        carrying = self._carrying
        while True:
            spec = carrying.machine.stamper.spec
            found = await until_open(connection, spec, tell=self._on_ingress)
            if found.queue_count != spec.queue_count:
                carrying.repartition(found)
            try:
                await serve_channels(
                    connection, carrying, self._names, on_attached=self._on_attached, tell=self._tell
                )
            except Changing:
                continue
            except Forbidden as refusal:
                await self._judge(connection, found, refusal)

    async def _judge(self, connection: ClientConnection, spec: GroupSpec, refusal: Forbidden) -> None:
        """Raise BrokerRefused unless the group takes nothing on purpose, or did so a moment ago: who is refused again,
        with nothing confirmed in between and no word of it in the record, may not publish."""
        confirmed = self._carrying.machine.counts.confirmed
        if await is_changing(connection, spec):
            self._refused_at = None
        elif self._refused_at == confirmed:
            raise BrokerRefused(str(refusal))
        else:
            self._refused_at = confirmed

    def _on_ingress(self, event: events.IngressClosed | events.IngressOpen) -> None:
        self._carrying.machine.full_queues.clear()  # what refuses is the group, and for another reason
        self._tell(event)
        self._on_attached()  # who opens a publisher need not wait for the group
