"""Topic patterns: `*` stands for one word, `#` for any number of them (AMQP 0-9-1 section 3.1.3.3)."""

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["TopicTree"]

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

    def add(self, pattern: str, thing: T) -> None:
        node = self._root
        for word in _words(pattern):
            node = node.below.setdefault(word, _Node())
        node.here[thing] = None

    def remove(self, pattern: str, thing: T) -> None:
        """Take a thing out; branches that hold nothing any more go too."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(path[-1].below[word])
        del path[-1].here[thing]
        for word, node, above in zip(reversed(words), reversed(path), reversed(path[:-1]), strict=False):
            if node.here or node.below:
                break
            del above.below[word]

    def match(self, routing_key: str) -> Iterator[T]:
        """Everything whose pattern matches; a thing under two matching patterns comes twice."""
        words = _words(routing_key)
        end = len(words)
        seen: set[tuple[int, int]] = set()  # "#.#.#" would else visit the same place in ever more ways
        todo: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while todo:
            node, index = todo.pop()
            if (id(node), index) in seen:
                continue
            seen.add((id(node), index))
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
