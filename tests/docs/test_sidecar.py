"""docs/sidecar.md names every setting and every metric, with default and kind as in the code."""

from __future__ import annotations

import re
from pathlib import Path

from lbg_sidecar.process.metrics import SERIES
from lbg_sidecar.process.settings import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sidecar.md").read_text()


def test_the_table_of_settings_is_that_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(LBG_\w+)` \| (.*?) ?\|$", PAGE, re.M))
    assert told.keys() == {row.variable for row in table().values()}
    for row in table().values():
        if row.required:
            assert told[row.variable] == "required"
        elif row.name != "broker":
            assert told[row.variable] == ("" if row.default in (None, "") else f"`{row.default}`")


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    told = {
        name: (kind, about)
        for name, kind, about in re.findall(r"^\| `(lbg_\w+)` \| (\w+) \|.*\| (.*) \|$", PAGE, re.M)
    }
    assert told == {name: (series.kind, series.about) for name, series in SERIES.items()}
