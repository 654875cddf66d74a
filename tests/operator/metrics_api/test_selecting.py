"""Label selectors, as Kubernetes' own parser takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_operator.errors import SelectorError
from lbg_operator.metrics_api.selector import Requirement, groups_asked, parse

EDGES = st.text("aZ09", min_size=1, max_size=3)
NAMES = st.one_of(
    EDGES,
    st.sampled_from(["in", "notin"]),
    st.tuples(EDGES, st.text("aZ0-_.", max_size=6), EDGES).map("".join),
)
PREFIXES = st.sampled_from(["", "lbg.dev/", "a/", "0.b-c.d/"])
KEYS = st.one_of(st.builds(str.__add__, PREFIXES, NAMES), st.just("group"))
VALUES = st.one_of(NAMES, st.just(""))
SPACES = st.text(" \t\r\n", max_size=2)


@st.composite
def requirements(draw: st.DrawFn) -> tuple[str, Requirement]:
    """A requirement, and a way to write it."""
    key, space = draw(KEYS), lambda: draw(SPACES)
    match draw(st.sampled_from(["exists", "!", "=", "==", "!=", "in", "notin", "<", ">"])):
        case "exists":
            return f"{space()}{key}{space()}", Requirement(key, "exists")
        case "!":
            return f"{space()}!{space()}{key}{space()}", Requirement(key, "!")
        case "in" | "notin" as operator:
            values = draw(st.lists(VALUES, min_size=1, max_size=4))
            listed = ",".join(f"{space()}{value}{space()}" for value in values)
            return f"{space()}{key} {operator}{space()}({listed})", Requirement(
                key, operator, frozenset(values)
            )
        case "<" | ">" as operator:
            limit = str(draw(st.integers(0, 10**9)))
            return f"{space()}{key}{space()}{operator}{space()}{limit}", Requirement(
                key, operator, frozenset({limit})
            )
        case sign:
            value = draw(VALUES)
            operator = "notin" if sign == "!=" else "in"
            return f"{space()}{key}{space()}{sign}{space()}{value}", Requirement(
                key, operator, frozenset({value})
            )


@given(st.lists(requirements(), max_size=5))
def test_whatever_is_written_is_read_back(written: list[tuple[str, Requirement]]) -> None:
    assert parse(",".join(text for text, _ in written)) == [meant for _, meant in written]


@given(st.text("group=!<>(), \tinotab1./-", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except SelectorError:
        return
    assert all(one.key for one in found)


@pytest.mark.parametrize(
    ("selector", "groups"),
    [
        ("group=orders", ["orders"]),
        (" group == orders ", ["orders"]),
        ("group in (orders, refunds)", ["orders", "refunds"]),
        ("group in (orders,refunds),group!=refunds", ["orders"]),
        ("group in (orders,refunds),group notin (orders)", ["refunds"]),
        ("group in (a,b),group in (b,c)", ["b"]),
        ("group=orders,!team", ["orders"]),
        ("group=orders,team!=red", ["orders"]),
        ("group=orders,group", ["orders"]),
        ("group=orders,team=red", []),
        ("group=orders,team", []),
        ("group=orders,!group", []),
        ("group in (3,30,x),group>10", ["30"]),
        ("group in (3,30,x),group<10", ["3"]),
        ("group in (in,notin)", ["in", "notin"]),
    ],
)
def test_a_selector_asks_for_the_groups_that_it_names_and_lets_pass(selector: str, groups: list[str]) -> None:
    assert groups_asked(selector) == groups


@pytest.mark.parametrize(
    "selector", ["", "group", "group!=orders", "group notin (orders)", "team=red", "group>3", "!group"]
)
def test_a_selector_that_names_no_group_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError, match="names no group: ask with group=NAME"):
        groups_asked(selector)


@pytest.mark.parametrize(
    "selector",
    [
        ",",
        "a,",
        ",a",
        "a,,b",
        "a b",
        "a=b c",
        "a in",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b))",
        "a in ((b))",
        "!a=b",
        "!!a",
        "!",
        "a===b",
        "a=!b",
        "a>",
        "a>b",
        "a<-1",
        "=b",
        "-a=b",
        "a/=b",
        "/a=b",
        "A.b/c=d",
        "a/b/c=d",
        "a=b/c",
        "a=-b",
        "a=ä",
        "a" * 64,
        "a=" + "b" * 64,
        "a" * 254 + "/b",
    ],
)
def test_what_kubernetes_does_not_take_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        parse(selector)
