"""Exchanges, bindings, and topic patterns: the queues that a routing key leads to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from lbg_core.amqp import FieldValue, Table

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("below", "here", "is_many")

    def __init__(self, *, is_many: bool = False) -> None:
        self.is_many = is_many
        """A `#`, which stands for any number of words."""
        self.below: dict[str, _Node[T]] = {}
        self.here: dict[T, None] = {}


class TopicTree(Generic[T]):
    """Things filed under patterns, found by routing key.

    `searched_words`: words of patterns that stand behind a `#`, each of which may have to be compared with every word
    of a key.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self.searched_words = 0

    def add(self, pattern: str, destination: T) -> None:
        node, words = self._root, _steps(pattern)
        for word in words:
            node = node.below.setdefault(word, _Node(is_many=word == "#"))
        if not node.here:
            self.searched_words += searched_words(pattern)
        node.here[destination] = None

    def remove(self, pattern: str, destination: T) -> None:
        """Take a thing out; branches that hold nothing any more go too."""
        path = [self._root]
        words = _steps(pattern)
        for word in words:
            path.append(path[-1].below[word])
        del path[-1].here[destination]
        if not path[-1].here:
            self.searched_words -= searched_words(pattern)
        for word, node, above in zip(reversed(words), reversed(path), reversed(path[:-1]), strict=False):
            if node.here or node.below:
                break
            del above.below[word]

    def match(self, routing_key: str) -> Iterator[T]:
        """Everything whose pattern matches; a thing under two matching patterns comes twice.

        Each place is visited once with each word of the key: only a `#` can be reached twice with the same word, and
        goes on one by one.
        """
        words = _words(routing_key)
        end = len(words)
        visited: set[tuple[int, int]] = set()
        todo: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while todo:
            node, index = todo.pop()
            if node.is_many:
                if not node.below:  # at a pattern's end it swallows all that is left
                    index = end
                if (id(node), index) in visited:
                    continue
                visited.add((id(node), index))
                if index < end:
                    todo.append((node, index + 1))
            if index == end:
                yield from node.here
            else:
                for word in (words[index], "*") if words[index] != "*" else ("*",):
                    if word != "#" and (below := node.below.get(word)) is not None:
                        todo.append((below, index + 1))
            if (many := node.below.get("#")) is not None:
                todo.append((many, index))


def _words(text: str) -> list[str]:
    """The empty text has no words: `#` matches it and `*` does not."""
    return text.split(".") if text else []


def searched_words(pattern: str) -> int:
    """Words of a topic pattern that stand behind a `#`."""
    steps = _steps(pattern)
    return len(steps) - 1 - steps.index("#") if "#" in steps else 0


def _is_general(pattern: str) -> bool:
    """True for a topic pattern with a wildcard before its last word: a key may match any number of those."""
    steps = _steps(pattern)
    return "*" in steps or "#" in steps[:1] or "#" in steps[:-1]


def _steps(pattern: str) -> list[str]:
    """The words of a pattern, with one `#` at the end of wildcards in a row: `#.*.#` and `*.#` are the same."""
    steps: list[str] = []
    for word in _words(pattern):
        if steps and steps[-1] == "#":
            if word == "#":
                continue
            if word == "*":
                steps[-1:] = ["*", "#"]
                continue
        steps.append(word)
    return steps


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


WIDE_MIN: Final = 100
"""Bindings that one message may follow from which on a publish may take a millisecond; of patterns, a third as many
words behind a `#`."""


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
        if self.type != "topic" or not _is_general(binding.routing_key):
            self._by_key.setdefault(binding.routing_key, {})[binding] = None
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if there is none."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        if self.type == "topic":
            self._tree.remove(binding.routing_key, binding)
        same_key = self._by_key.get(binding.routing_key)
        if same_key is not None:
            del same_key[binding]
            if not same_key:
                del self._by_key[binding.routing_key]
        return True

    @property
    def is_wide(self) -> bool:
        """True if one message may take long: to many queues, or past many patterns."""
        alike = len(self.bindings) - (0 if self.type == "fanout" else len(self._by_key))
        return alike > (WIDE_MIN // 10 if self.feeders else WIDE_MIN) or self.searched_words > WIDE_MIN // 3

    @property
    def searched_words(self) -> int:
        """Words behind a `#` in the patterns of its bindings: a publish may compare each with every word of its key."""
        return self._tree.searched_words

    def match(self, routing_key: str) -> Iterator[Binding]:
        """The bindings a message with this key follows."""
        if self.type == "topic":
            return self._tree.match(routing_key)
        if self.type == "fanout":
            return iter(self.bindings)
        return iter(self._by_key.get(routing_key, ()))
