"""docs/operations.md says of the operator what the operator and the chart say of themselves."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import lbg_operator.settings
from lbg_operator.status.conditions import Reason
from testing import ROOT
from testing.operator.metrics import series_of_operator

DOCS = ROOT / "docs"
PAGE = (DOCS / "operations.md").read_text()


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("operations_reference", DOCS / "operations_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_tables_are_made_from_the_reasons_and_the_alerts() -> None:
    assert reference().filled(PAGE) == PAGE, "run python docs/operations_reference.py"
    assert all(f"| `{reason.word}` |" in PAGE for reason in Reason)


def test_it_names_every_setting_of_the_operator() -> None:
    source = Path(lbg_operator.settings.__file__).read_text()
    told = re.findall(r"^\| `(LBG_OPERATOR_\w+)` \|", PAGE, re.M)
    assert sorted(told) == sorted(set(re.findall(r'"(LBG_OPERATOR_\w+)"', source)))


def test_it_names_every_metric_of_the_operator() -> None:
    told = {
        name: (kind, labels, about)
        for name, kind, labels, about in re.findall(
            r"^\| `(lbg_operator_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE, re.M
        )
    }
    assert told == {
        name: (one.kind, ", ".join(one.labels), one.about) for name, one in series_of_operator().items()
    }


def test_every_page_that_it_leads_to_is_there() -> None:
    for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", PAGE):
        assert (DOCS / link).is_file(), link
