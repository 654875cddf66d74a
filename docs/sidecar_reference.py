"""Fills in the rows of settings in docs/sidecar.md: `python docs/sidecar_reference.py`.

A row is of the declaration of its setting; its place in the page is chosen by hand. A test compares the file with what
this makes.
"""

from __future__ import annotations

import re
from pathlib import Path

from lbg_sidecar.process.settings import table, variable_of

PAGE = Path(__file__).resolve().parent / "sidecar.md"


def filled(page: str) -> str:
    """`page` with each row anew, and those that it does not have at its end."""
    for name, row in table().items():
        variable = variable_of(name)
        default = "required" if row.is_required else "" if row.default in (None, "") else f"`{row.default}`"
        if row.is_secret:
            default = "`amqp://guest:…@127.0.0.1:5672/`"
        text = row.help_for(lambda other: f"`{variable_of(other)}`")
        line = f"| `{variable}` | {default} | {text} |".replace("|  |", "| |")
        page, places = re.subn(rf"^\| `{variable}` \|.*$", lambda _, line=line: line, page, flags=re.M)
        page += "" if places else f"{line}\n"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
