"""Digests of texts in columns."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lbg_pipeline.columns import digests

TEXTS = st.lists(st.none() | st.text(max_size=20) | st.text("ab", max_size=17), max_size=30)


@given(TEXTS, TEXTS)
def test_digests_are_equal_for_equal_texts_alone_wherever_they_lie(
    before: list[str | None], texts: list[str | None]
) -> None:
    there = digests(pa.array([*before, *texts], pa.string()).slice(len(before))).tolist()
    alone = [digests(pa.array([text], pa.string())).tolist()[0] for text in texts]
    assert there == alone
    assert len(set(there)) == len(set(texts))
    assert all((digest == 0) == (text is None) for digest, text in zip(there, texts, strict=True))
