"""Taking one exchange out of a permission's pattern, and giving it back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.admin.ingress_permissions import allows, is_without, restored, without

ORDERS, BILLS = "lbg.orders", "lbg.bills-2"
PATTERNS = [".*", "^(lbg\\.orders|lbg\\.orders\\.dlx)$", "lbg", "^lbg", "a|lbg.*", "(?:x)|.+"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_names_but_the_exchange_match_as_before(pattern: str) -> None:
    closed = without(pattern, ORDERS)
    assert not allows(closed, ORDERS)
    for name in ("lbg.orders.dlx", "lbg.order", "xlbg.orders", "lbg.orders2", "lbg-orders", "amq.default"):
        assert allows(closed, name) == allows(pattern, name)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_exchanges_of_several_groups_are_given_back_in_any_order(pattern: str) -> None:
    both = without(without(pattern, ORDERS), BILLS)
    assert not allows(both, ORDERS)
    assert not allows(both, BILLS)
    assert restored(restored(both, ORDERS), BILLS) == pattern
    assert restored(restored(both, BILLS), ORDERS) == pattern
    assert restored(both, BILLS) == without(pattern, ORDERS)
    assert allows(both, BILLS) is False


@pytest.mark.parametrize("pattern", ["", "^$", "^lbg\\.orders\\.dlx$"])
def test_nothing_is_taken_from_who_may_not_publish_anyway(pattern: str) -> None:
    assert without(pattern, ORDERS) == pattern


def test_taking_it_out_twice_is_taking_it_out_once() -> None:
    once = without(".*", ORDERS)
    assert without(once, ORDERS) == once
    assert is_without(once, ORDERS)
    assert not is_without(once, BILLS)


@pytest.mark.long
@given(st.text(max_size=30))
def test_what_was_never_taken_from_stays_as_it_is(pattern: str) -> None:
    assert restored(pattern, ORDERS) == pattern
    assert not is_without(pattern, ORDERS)


@given(st.from_regex(re.compile(r"[a-z.*|()^$\\]{0,12}"), fullmatch=True))
def test_whatever_was_there_comes_back(pattern: str) -> None:
    assert restored(without(pattern, ORDERS), ORDERS) == pattern


def test_a_pattern_that_only_the_broker_can_read_is_taken_to_allow() -> None:
    assert allows("(?|a|b)", ORDERS)
