from __future__ import annotations

import pytest

from lbg_sidecar.app.channel import parse_processed


def test_streams_and_runs_are_read() -> None:
    assert parse_processed([["p", 3, [[0, 4], [6, 6]]], ["q", 0, []]]) == (
        ("p", 3, ((0, 4), (6, 6))),
        ("q", 0, ()),
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "not a list"),
        ([["p", 1, []], ["p", 1]], "entry 1 .* is not"),
        ([["p", True, []]], "entry 0 .* is not"),
        ([[1, 1, []]], "entry 0 .* is not"),
        ([["p", 1, {}]], "entry 0 .* is not"),
        ([["p", 1, [[5, 4]]]], r"run that is not \[first, last\]: \[5, 4\]"),
        ([["p", 1, [[0]]]], "run that is not"),
        ([["p", 1, [[0, 2**63]]]], "run that is not"),
        ([["p", 1, [[-1, 2]]]], "run that is not"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_processed(value)
