"""A publisher in a process of its own: what `lbg publish --state` does, at a pace that is one for all its lives.

`python -m testing.chaos.publisher '{"brokers": […], "group": …, "file": …, "state": …, "report": …, "name": …,
"strict": …, "from_ns": …, "rate": …}'`. Message n is due n / rate seconds after `from_ns` (CLOCK_MONOTONIC): what an
outage held up is made up for afterwards as fast as it goes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from lbg_core.publisher import (
    GroupPublisher,
    Identity,
    PublishingSettings,
    RowOptions,
    open_source,
    publish_rows,
)

MARGIN_S = 0.005


class PacedPublisher(GroupPublisher):
    from_ns = 0
    interval_ns = 0.0

    async def publish(self, *, key: str | None, body: bytes, topic: str = "") -> None:
        due_ns = self.from_ns + self.accepted_count * self.interval_ns
        wait_s = (due_ns - time.monotonic_ns()) / 1e9
        if wait_s > MARGIN_S:
            await asyncio.sleep(wait_s)
        await super().publish(key=key, body=body, topic=topic)


async def run(told: dict[str, Any]) -> str:
    """The report, as JSON."""
    publisher = PacedPublisher(
        told["brokers"],
        group=told["group"],
        identity=Identity(told["name"]),
        settings=PublishingSettings(one_per_key=told["strict"]),
        content_type="application/json",
        state=told["state"],
        on_event=lambda event: logging.info("%s", event),
    )
    publisher.from_ns, publisher.interval_ns = told["from_ns"], 1e9 / told["rate"]
    with open_source(told["file"]) as source:
        async with publisher:
            await publish_rows(publisher, source, RowOptions(key_field="key"))
            return publisher.report().to_json()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    settings = json.loads(sys.argv[1])
    Path(settings["report"]).write_text(asyncio.run(run(settings)))
