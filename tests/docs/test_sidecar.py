"""docs/sidecar.md names every setting, and docs/reference/member-metrics.md every metric, as in the code."""

from __future__ import annotations

import re
import runpy
import shlex

from lbg_sidecar.process.settings import configure, table, variable_of
from testing import ROOT

PAGE = (ROOT / "docs" / "sidecar.md").read_text()


def test_the_table_of_settings_is_that_of_the_declarations() -> None:
    filled = runpy.run_path(str(ROOT / "docs" / "sidecar_reference.py"))["filled"]
    assert filled(PAGE) == PAGE, "run: python docs/sidecar_reference.py"
    assert set(re.findall(r"^\| `(LBG_\w+)` \|", PAGE, re.M)) == set(map(variable_of, table()))


def test_the_settings_are_in_one_section_that_is_the_first_and_begins_with_a_command() -> None:
    """A reader who looks for a variable finds it there, and what most sidecars need before the rest."""
    section = re.split(r"^## ", PAGE, flags=re.M)[1]
    assert section.startswith("Settings\n")
    assert all(f"| `{variable_of(name)}` |" in section for name in table())
    (command,) = re.findall(r"```sh\n(.*)\n```", section)
    *assigned, program, name = shlex.split(command)
    assert [program, name] == ["lbg", "sidecar"]
    assert configure(dict(one.split("=", 1) for one in assigned)).member.group == "orders"
    pages = (ROOT / "docs" / "README.md").read_text()
    assert re.search(r"\(sidecar\.md\).*`LBG_", pages), "the name to look for is beside the link"


def test_the_page_of_metrics_is_that_of_the_code() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "sidecar_reference.py"))["metrics"]()
    page = ROOT / "docs" / "reference" / "member-metrics.md"
    assert page.read_text() == made, "run: python docs/sidecar_reference.py"
