"""Topic patterns compared with a direct implementation of their definition."""

import pickle
import re

import hypothesis.strategies as st
from hypothesis import given

from lbg_broker.core.exchange import Binding, Exchange, TopicTree

words = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)


def matches(pattern: str, key: str) -> bool:
    """Each word with its dot in front, so that `#` may take dots along."""
    parts = {"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}
    expression = (
        "".join(parts.get(word, r"\." + re.escape(word)) for word in pattern.split(".")) if pattern else ""
    )
    return re.fullmatch(expression, "." + key if key else "") is not None


@given(st.lists(words, max_size=6), words)
def test_a_key_finds_every_pattern_that_matches_and_no_other(patterns: list[str], key: str) -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    assert set(tree.match(key)) == {pattern for pattern in patterns if matches(pattern, key)}


@given(st.sets(words, max_size=6), words)
def test_what_was_removed_is_found_no_more_and_the_rest_still_is(patterns: set[str], key: str) -> None:
    tree: TopicTree[str] = TopicTree()
    gone = {pattern for index, pattern in enumerate(sorted(patterns)) if index % 2}
    for pattern in patterns:
        tree.add(pattern, pattern)
    for pattern in gone:
        tree.remove(pattern, pattern)
    assert set(tree.match(key)) == {pattern for pattern in patterns - gone if matches(pattern, key)}
    for pattern in patterns - gone:
        tree.remove(pattern, pattern)
    assert pickle.dumps(tree) == pickle.dumps(TopicTree())


def test_wildcards_in_a_row_are_one_pattern_in_any_order() -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in ("#.*.#.*", "*.*.#", "*.#.*"):
        tree.add(pattern, pattern)
    assert len(list(tree.match("a.b"))) == 3
    assert not list(tree.match("a"))
    assert tree.searched_words == 0


def test_many_hashes_do_not_make_matching_slow() -> None:
    tree: TopicTree[str] = TopicTree()
    tree.add(".".join(["#"] * 12 + ["z"]), "never")
    assert list(tree.match(".".join(["a"] * 40))) == []


@given(st.sampled_from(["direct", "fanout", "topic"]), st.sets(words, max_size=6))
def test_an_exchange_keeps_nothing_of_bindings_that_are_gone(kind: str, patterns: set[str]) -> None:
    exchange = Exchange("e", kind, durable=True)
    for pattern in patterns:
        assert exchange.bind(Binding("e", "queue", "q", pattern))
    for pattern in patterns:
        assert exchange.unbind(Binding("e", "queue", "q", pattern))
        assert not exchange.unbind(Binding("e", "queue", "q", pattern))
    assert pickle.dumps(exchange) == pickle.dumps(Exchange("e", kind, durable=True))
