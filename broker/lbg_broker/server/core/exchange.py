"""Exchanges, bindings, and topic patterns: the queues that a routing key leads to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from lbg_broker.amqp import FieldValue, Table

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.here: dict[T, None] = {}


class TopicTree(Generic[T]):
    """Things filed under patterns, found by routing key."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, destination: T) -> None:
        node = self._root
        for word in _words(pattern):
            node = node.below.setdefault(word, _Node())
        node.here[destination] = None

    def remove(self, pattern: str, destination: T) -> None:
        """Take a thing out; branches that hold nothing any more go too."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(path[-1].below[word])
        del path[-1].here[destination]
        for word, node, above in zip(reversed(words), reversed(path), reversed(path[:-1]), strict=False):
            if node.here or node.below:
                break
            del above.below[word]

    def match(self, routing_key: str) -> Iterator[T]:
        """Everything whose pattern matches; a thing under two matching patterns comes twice."""
        words = _words(routing_key)
        end = len(words)
        visited: set[tuple[int, int]] = set()  # "#.#.#" would else visit the same place in ever more ways
        todo: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while todo:
            node, index = todo.pop()
            if (id(node), index) in visited:
                continue
            visited.add((id(node), index))
            if index == end:
                yield from node.here
            else:
                for word in (words[index], "*") if words[index] != "*" else ("*",):
                    if word != "#" and (below := node.below.get(word)) is not None:
                        todo.append((below, index + 1))
            if (many := node.below.get("#")) is not None:
                first = index if many.below else end  # at a pattern's end it swallows all that is left
                todo.extend((many, later) for later in range(first, end + 1))


def _words(text: str) -> list[str]:
    """The empty text has no words: `#` matches it and `*` does not."""
    return text.split(".") if text else []


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
