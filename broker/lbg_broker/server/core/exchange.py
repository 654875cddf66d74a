"""Exchanges and bindings: which queues (and further exchanges) a routing key leads to."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from lbg_broker.amqp import FieldValue, Table
from lbg_broker.server.core.matching import TopicTree

__all__ = ["EXCHANGE_TYPES", "PREDECLARED", "Binding", "Exchange"]

EXCHANGE_TYPES: Final = ("direct", "fanout", "topic")

PREDECLARED: Final = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
)


@dataclass(slots=True, frozen=True)
class Binding:
    """From an exchange to a queue or an exchange. Two are the same if all of this is."""

    source: str
    kind: Literal["queue", "exchange"]
    destination: str
    routing_key: str
    arguments: str = "{}"
    """As JSON with sorted keys. No kind of exchange here reads them, but they are part of what a binding is."""

    @staticmethod
    def arguments_text(arguments: Mapping[str, object]) -> str:
        """The form in which a binding keeps its arguments."""
        return json.dumps(arguments, sort_keys=True, default=repr)


class Exchange:
    """A named place to publish to."""

    __slots__ = (
        "_by_key",
        "_tree",
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "durable",
        "feeders",
        "internal",
        "name",
        "type",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.name = name
        self.type = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: dict[str, FieldValue] = dict(arguments or {})
        alternate = self.arguments.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None
        self.bindings: dict[Binding, None] = {}
        self.feeders: dict[Binding, None] = {}  # bindings of other exchanges that lead here
        self._by_key: dict[str, dict[Binding, None]] = {}
        self._tree: TopicTree[Binding] = TopicTree()

    def bind(self, binding: Binding) -> bool:
        """Add a binding; False if it is there already."""
        if binding in self.bindings:
            return False
        self.bindings[binding] = None
        if self.type == "topic":
            self._tree.add(binding.routing_key, binding)
        else:
            self._by_key.setdefault(binding.routing_key, {})[binding] = None
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if there is none."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        if self.type == "topic":
            self._tree.remove(binding.routing_key, binding)
        else:
            same_key = self._by_key[binding.routing_key]
            del same_key[binding]
            if not same_key:
                del self._by_key[binding.routing_key]
        return True

    def match(self, routing_key: str) -> Iterator[Binding]:
        """The bindings a message with this key follows."""
        if self.type == "topic":
            return self._tree.match(routing_key)
        if self.type == "fanout":
            return iter(self.bindings)
        return iter(self._by_key.get(routing_key, ()))
