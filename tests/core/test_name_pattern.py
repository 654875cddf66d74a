"""Patterns of names from outside: what `re` finds, in a time that is linear in the name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.admin.ingress_permissions import without
from lbg_core.group import GroupSpec, Names
from lbg_core.group.topology import Engine, permissions_of
from lbg_core.name_pattern import PATTERN_MAX_CHARS, NamePattern, PatternError

NAMES = (
    "",
    "a",
    "b",
    "ab",
    "ba",
    "abc",
    "amq.x",
    "lbg.orders",
    "xlbg.orders",
    "lbg.orders.q.0",
    "é",
    "a)x",
    "(",
)
PARTS = ("(?!", "(?=", ")", "a", "b", ".", "x", "|", "[ab]", "[^])]", "(", "$", r"\.", r"\)", "*")


@pytest.mark.parametrize(
    "pattern", [r"^(?!amq\.).*", r"^(?!lbg\.)(?!amq\.)", r"^(?=a)(?!ab).", r"^(?![)\]])a", "é|^$"]
)
def test_what_guides_recommend_is_found_as_by_re(pattern: str) -> None:
    compiled = NamePattern(pattern)
    assert [compiled.matches(name) for name in NAMES] == [
        re.search(pattern, name) is not None for name in NAMES
    ]


@given(st.lists(st.sampled_from(PARTS), max_size=9).map(lambda parts: "^" + "".join(parts)))
def test_a_pattern_that_is_accepted_finds_what_re_finds(pattern: str) -> None:
    try:
        compiled, expected = NamePattern(pattern), re.compile(pattern)
    except (PatternError, re.error):
        return
    for name in NAMES:
        assert compiled.matches(name) == (expected.search(name) is not None), name


@pytest.mark.parametrize(
    "pattern",
    [
        "(a)\\1",
        "(?<=a)b",
        "^(?!a)b|c",
        "^(?!a)*b",
        "^(?!a",
        "^(?!(",
        "(?>a)",
        "[",
        "\ud800",
        "a{9999}",
        r"\p{L}{500}",
    ],
)
def test_what_takes_long_or_is_none_is_refused_in_one_line(pattern: str) -> None:
    with pytest.raises(PatternError) as refused:
        NamePattern(pattern)
    assert str(refused.value).isprintable()


def test_a_pattern_has_a_longest_length() -> None:
    NamePattern("a" * 1000)
    with pytest.raises(PatternError, match="more than"):
        NamePattern("a" * (PATTERN_MAX_CHARS + 1))


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|a)*$", "^(([a-z])+.)+[A-Z]([a-z])+$", "^((a?){30}){30}$"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    assert NamePattern(pattern).matches("a" * 250 + "!") is False


def test_the_patterns_of_groups_and_of_their_pauses_are_accepted() -> None:
    names = Names(GroupSpec("orders", "orders").name)
    for is_one_queue in (True, False):
        granted = permissions_of(names, Engine("LBG", (0, 1, 0)), is_one_queue=is_one_queue, has_parking=True)
        assert NamePattern(granted.write).matches(names.exchange)
        closed = NamePattern(without(without(granted.write, names.exchange), names.dlx))
        assert not closed.matches(names.exchange)
        assert not closed.matches(names.dlx)
        assert closed.matches(names.members)


def test_a_name_that_is_not_unicode_can_be_matched() -> None:
    assert NamePattern("^a").matches("a\udcff")
    assert not NamePattern("^a$").matches("a\udcff")
