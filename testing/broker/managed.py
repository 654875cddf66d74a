"""A broker for tests of the management API: the real core, and a store that commits at once and keeps nothing."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from lbg_broker.core.commands import Command, Committed, ConnectionOpened, Received
from lbg_broker.core.effects import Definition
from lbg_broker.core.entities import Peer
from lbg_broker.core.machine import Broker, Output
from lbg_broker.core.permissions import Grant, User, Users
from lbg_broker.core.state import State
from lbg_broker.logins import Logins
from lbg_core.amqp import BasicProperties, MethodEvent, PublishEvent
from lbg_core.amqp.methods import BasicConsume, BasicPublish, ChannelOpen, Method
from lbg_core.passwords import hash_password

Ask = Callable[..., Awaitable[tuple[int, Any]]]
NOW = 1_700_000_000.0
EVERYTHING = (".*", ".*", ".*")


class FakeManagedBroker:
    """Stand-in for a `ManagedBroker`. `stored` lists the rows to keep."""

    address = "127.0.0.1:5672"
    unready_because: str | None = None
    is_short_of_memory = False

    def __init__(self) -> None:
        self.users = Users(
            [User("guest", hash_password("guest"), ("administrator",))], [Grant("guest", "/", *EVERYTHING)]
        )
        self.logins = Logins(self.users)
        tokens = itertools.count()
        self._core = Broker(self.users, new_token=lambda: f"token-{next(tokens)}")
        self.stored: list[Definition] = []
        self.sent: Output = []

    @property
    def state(self) -> State:
        return self._core.state

    async def administer(self, user: str, vhost: str, method: Method) -> Method:
        answer, output = self._core.administer(user, vhost, method, NOW)
        self._carry_out(output)
        return answer

    async def define(self, definition: Definition) -> None:
        self._core.define(definition.kind, definition.key, definition.value)
        self._commit()

    def apply(self, command: Command) -> None:
        self._carry_out(self._core.apply(command, NOW))

    # --- what clients do -------------------------------------------------------------------------------------

    def connect(self, number: int, user: str = "guest") -> None:
        """A client logs in and opens channel 1."""
        peer = Peer(f"127.0.0.1:{number} -> 127.0.0.1:5672", "127.0.0.1", number)
        self.apply(ConnectionOpened(number, user, "/", peer))
        self.apply(Received(number, [MethodEvent(1, ChannelOpen())]))

    def publish(self, number: int, queue: str, body: bytes) -> None:
        event = PublishEvent(1, BasicPublish("", queue), BasicProperties().encode(), body)
        event.exchange, event.routing_key, event.mandatory, event.immediate = "", queue, False, False
        self.apply(Received(number, [event]))

    def consume(self, number: int, queue: str, tag: str) -> None:
        self.apply(Received(number, [MethodEvent(1, BasicConsume(queue=queue, consumer_tag=tag))]))

    def _carry_out(self, output: Output) -> None:
        self.sent += output
        self._commit()

    def _commit(self) -> None:
        while (batch := self._core.seal()) is not None:
            self.stored += batch.definitions
            self.sent += self._core.apply(Committed(batch.number), NOW)
