"""What the management API needs of the broker it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lbg_broker.amqp.methods import Method
from lbg_broker.server.core.changes import Definition
from lbg_broker.server.core.commands import Command
from lbg_broker.server.core.state import State
from lbg_broker.server.core.users import Users

__all__ = ["ManagedBroker"]


class ManagedBroker(Protocol):
    """The broker as the API sees it: a state to read, never to write, and three ways to have it changed."""

    users: Users

    @property
    def state(self) -> State:
        """The broker's state as of now."""

    @property
    def address(self) -> str:
        """HOST:PORT of the AMQP listener."""

    @property
    def unready_because(self) -> str | None:
        """Why what is published now may not be confirmed soon; None if it will be."""

    async def administer(self, user: str, vhost: str, method: Method) -> Method:
        """Carry out a declare, bind, delete or purge for a user; durable when this returns.

        Raises `core.errors.Refusal`, and KeyError for an unknown virtual host.
        """

    async def act(
        self, user: str, vhost: str, queue: str, action: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Have a queue do what only its kind can, and give its answer; durable when this returns.

        Raises `core.errors.Refusal`, and KeyError for an unknown virtual host.
        """

    async def define(self, definition: Definition) -> None:
        """Keep the row of a user or a permission; durable when this returns."""

    def apply(self, command: Command) -> None:
        """Give the core a command."""
