"""Axes of time, of any length."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Canvas, drawn, time_axis
    from lbg_pipeline.html import Canvas, drawn
    from lbg_pipeline.html.charts import time_axis


START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0, 1, 155, 179, 9_500, 230_000, 5_000_000, 80_000_000])
def test_time_of_any_length_has_steps_that_fit_on_wide_and_narrow_pages(seconds: int) -> None:
    """Warnings are errors: matplotlib warns of a span for which it has no step."""
    ticks = []

    def draw(canvas: Canvas) -> None:
        axes = canvas.sheet.subplots()
        time_axis(canvas, axes, START_US, START_US + seconds * SECOND_US)
        ticks.append(len(axes.get_xticks()))

    drawn(draw, title="t", caption="c")
    assert all(2 <= count <= 12 for count in ticks), ticks
