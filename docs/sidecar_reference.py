"""Settings in docs/sidecar.md, and docs/reference/member-metrics.md: `python docs/sidecar_reference.py`.

A row of settings is of its declaration; its place in the page is chosen by hand. A test compares both files with what
this makes.
"""

from __future__ import annotations

import re
from pathlib import Path

from lbg_sidecar.process.metrics import SERIES
from lbg_sidecar.process.settings import table, variable_of

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "sidecar.md"
METRICS_PAGE = DOCS / "reference" / "member-metrics.md"
METRICS = """# Metrics of a member

[The sidecar](../sidecar.md#metrics) and `lbg consume --metrics HOST:PORT` serve them. What is unknown is absent, not 0.

`lbg_messages_lag` counts what waits in the primary queues of this member, every 5 s, and what is in flight from them.
Where the broker shares one queue out (`Partitioned` on the embedded broker, `MessageGroups`, `Sessions`), the primary
counts what waits, and each member what is in flight to it. The lag is absent if a count failed or is older than 15 s,
and while another member serves one of the queues. Its age is `time() - lbg_messages_lag_timestamp_seconds`.

| name | kind | labels | |
|---|---|---|---|
"""


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


def metrics() -> str:
    rows = (
        f"| `{name}` | {series.kind} | {', '.join(series.labels)} | {series.about} |\n"
        for name, series in SERIES.items()
    )
    return METRICS + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    METRICS_PAGE.write_text(metrics())
