"""Pictures of every page of the console, and of `lbg top`: each in light, in dark and as on a phone.

`python -m testing.console.pictures DIRECTORY` draws a broker with ten groups, real members, messages and faults, and
writes one PNG for each page and look. `--docs` writes those that the documentation shows, to docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbg_core.admin.group_reader import GroupReader, Watching
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.observations import Observations
from lbg_core.client import BrokerAddress
from lbg_sidecar import Message, Verdict, drop
from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.console.browser import chromium, sign_in
from testing.console.world import KEYS, World, end, refusing, taking, world_of

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

POISON, REASON = "account-13", "no such account: 13"
WIDTH, PHONE_WIDTH = 1280, 390
HEIGHT, PHONE_HEIGHT = 860, 844
COLUMNS, LINES = 118, 30
"""Of the terminal of `lbg top`."""

LIVED_S = 45.0
"""Time of the groups before the first picture: what is on the timeline."""

BYTES_MAX = 100_000
COLOURS = 256
"""Of a picture in the documentation."""

TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #14181d; color: #dfe5ec; }}
pre {{ margin: 0; padding: 14px 18px; display: inline-block; font: 14px/1.35 "DejaVu Sans Mono", monospace; }}
{stylesheet}
</style><pre>{code}</pre>"""


@dataclass(frozen=True)
class Look:
    name: str
    width: int
    height: int
    scheme: str


LOOKS = (
    Look("light", WIDTH, HEIGHT, "light"),
    Look("dark", WIDTH, HEIGHT, "dark"),
    Look("phone", PHONE_WIDTH, PHONE_HEIGHT, "light"),
)
PAGES = {
    "overview": "/",
    "group": "/groups/orders",
    "blocked": "/groups/payments",
    "unserved": "/groups/shipments",
    "missing": "/groups/tills",
    "message-groups": "/groups/sensors",
    "sessions": "/groups/ledger",
    "partitions": "/groups/flights",
    "key": f"/groups/payments/key?key={POISON}",
    "key-empty": "/groups/orders/key",
    "parked": "/groups/invoices/parked",
    "parked-none": "/groups/orders/parked",
    "dead": "/groups/refunds/dead",
    "act": "/groups/orders/acts/repartition?queues=16",
    "act-final": "/groups/invoices/acts/discard-parked",
    "not-found": "/groups/nowhere",
}
IN_DOCS = {
    "console": ("overview", "light", ".legend"),
    "console-group": ("group", "light", ".charts"),
    "console-blocked": ("blocked", "light", "#map"),
    "console-missing": ("missing", "light", "#problems"),
    "console-key": ("key", "light", "main"),
    "console-parked": ("parked", "light", ".table"),
    "console-act": ("act", "light", "section"),
    "console-past": ("past", "dark", ".timeline"),
    "console-phone": ("overview", "phone", "#groups tbody tr:nth-child(4)"),
}
"""Pictures of the documentation beside that of `lbg top`: page, look, and the element with which each ends."""


async def _drops(message: Message) -> Verdict | None:
    return drop("the amount is negative") if message.key == KEYS[3] else None


@asynccontextmanager
async def pictured(broker: EmbeddedBroker) -> AsyncIterator[World]:
    """Ten groups, most of them at work and well."""
    async with world_of("embedded", broker.url, broker.management_url) as world:
        await world.group("orders", queue_count=8, hash_count=64)
        for name in ("orders-7d4f9-x2k4q", "orders-7d4f9-9b6mz", "orders-7d4f9-tt8wd"):
            await world.member("orders", name, taking(0.01))
        await world.group("payments")
        for name in ("payments-0", "payments-1"):
            await world.member("payments", name, refusing(POISON, REASON), max_attempts=3)
        await world.group("invoices")
        await world.admin.enable_parking("invoices")
        refuses = refusing(POISON, REASON)
        await world.member("invoices", "invoices-0", refuses, max_attempts=2, when_exhausted="park")
        await world.group("refunds")
        await world.member("refunds", "refunds-0", _drops)
        await world.group("shipments")
        tills = await world.group("tills")
        await world.member("tills", "tills-0")
        for group, mode in (("flights", "Partitioned"), ("sensors", "MessageGroups"), ("ledger", "Sessions")):
            await world.group(group, mode)
            for name in (f"{group}-0", f"{group}-1"):
                await world.member(group, name, taking(0.02))
        await world.group("reports")
        await world.member("reports", "reports-0")
        await world.admin.pause_group("reports")
        for group, count in (
            ("payments", 72),
            ("invoices", 96),
            ("refunds", 72),
            ("shipments", 40),
            ("reports", 25),
        ):
            await world.publish(group, count)
        await world.publish_by_hand(tills, "account-0", "till-7", [*range(12), *range(17, 40)])
        for group, rate in (
            ("orders", 60.0),
            ("flights", 30.0),
            ("sensors", 30.0),
            ("ledger", 10.0),
            ("tills", 5.0),
        ):
            world.in_background(world.publish_steadily(group, rate))
        yield world


async def _lives(world: World) -> None:
    """A member of `orders` joins, is killed, and another one comes."""
    told = ("--group", "orders", "--rebalance-delay", "0", "--quiet", "--work", "0.01")
    await asyncio.sleep(LIVED_S / 5)
    killed = await world.process("consume", *told, "--name", "orders-7d4f9-zz5rp")
    await asyncio.sleep(LIVED_S * 2 / 5)
    await end(killed)
    await asyncio.sleep(LIVED_S / 5)
    await world.process("consume", *told, "--name", "orders-7d4f9-hk2vc")
    await asyncio.sleep(LIVED_S / 5)


async def draw(directory: Path, *, for_docs: bool) -> None:
    with tempfile.TemporaryDirectory() as data, EmbeddedBroker(Path(data) / "data") as broker:
        async with pictured(broker) as world, chromium() as browser:
            console = await world.console()
            await _lives(world)
            if for_docs:
                for file, (name, look, last) in IN_DOCS.items():
                    chosen = next(one for one in LOOKS if one.name == look)
                    async with _tab(browser, console.url, chosen) as page:
                        if name == "past":
                            await _past(page, console.url)
                        else:
                            await _open(page, console.url + PAGES[name])
                        await page.evaluate("scrollTo(0, 0)")
                        box = await page.locator(last).first.bounding_box()
                        assert box is not None, f"{last} is not on the page"
                        clip: Any = {
                            "x": 0,
                            "y": 0,
                            "width": chosen.width,
                            "height": box["y"] + box["height"] + 14,
                        }
                        small(await page.screenshot(clip=clip, full_page=True), directory / f"{file}.png")
                small(await _top(browser, world, "orders"), directory / "top.png")
                return
            for look in LOOKS:
                async with _tab(browser, console.url, look) as page:
                    for name, path in PAGES.items():
                        await _open(page, console.url + path)
                        await page.screenshot(path=directory / f"{name}-{look.name}.png", full_page=True)
                    await _past(page, console.url)
                    await page.screenshot(path=directory / f"past-{look.name}.png", full_page=True)
                    await page.context.clear_cookies()
                    await page.goto(f"{console.url}/login?over=act")
                    await page.screenshot(path=directory / f"login-{look.name}.png")
            (directory / "top.png").write_bytes(await _top(browser, world, None))
            (directory / "top-group.png").write_bytes(await _top(browser, world, "orders"))
            tabs = [_tab(browser, console.url, look) for look in LOOKS]
            pages = [await tab.__aenter__() for tab in tabs]
            for page in pages:
                await _open(page, console.url)
            broker.kill()
            for page, look in zip(pages, LOOKS, strict=True):
                await page.locator("body.old").wait_for()
                await page.screenshot(path=directory / f"away-{look.name}.png", full_page=True)


@asynccontextmanager
async def _tab(browser: Browser, url: str, look: Look) -> AsyncIterator[Page]:
    viewport: Any = {"width": look.width, "height": look.height}
    scheme: Any = look.scheme
    context = await browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    async with context:
        page = await context.new_page()
        await sign_in(page, url)
        yield page


async def _open(page: Page, url: str) -> None:
    await page.goto(url)
    if not await page.locator("#connection").count():
        return
    await page.locator('#connection[data-state="live"]').wait_for()
    if (window := page.locator("#window")) and await window.count():
        await window.select_option("0")
        await asyncio.sleep(1.5)  # until members have reported their keys


async def _past(page: Page, url: str) -> None:
    await _open(page, f"{url}/groups/orders")
    await page.locator("#events .crashed button").first.click()
    await page.locator("#moment").wait_for()


async def _top(browser: Browser, world: World, group: str | None) -> bytes:
    """A picture of the screen of `lbg top`, of a group or of all."""
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME

    from lbgroup.top import View, screen

    address = BrokerAddress((world.url,), (world.management_url,))
    admin = LiveAdmin(address.places(), ManagementApi.of_broker(address))
    try:
        reader, seen = GroupReader(admin, group), Observations()
        async with Watching(admin, seen) as watching:
            await watching.watch(group)
            for _ in range(4):
                looked = await reader.look()
                now_us = time.time_ns() // 1000
                seen.look(looked, time.monotonic(), now_us=now_us, waiting_us=reader.waiting_us)
                await asyncio.sleep(2)
    finally:
        await admin.close()
    terminal = Console(
        record=True,
        width=COLUMNS,
        height=LINES,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    view = View(opened=group, selected=-1)  # a selected row has no colour of its problems
    terminal.print(screen(seen, view, width=COLUMNS, height=LINES, is_one=False), end="")
    page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    await page.set_content(terminal.export_html(code_format=TERMINAL, theme=SVG_EXPORT_THEME))
    return await page.locator("pre").screenshot()


def small(png: bytes, path: Path) -> None:
    """Writes the picture with few colours. Raises ValueError if it is too large nevertheless."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, more than {BYTES_MAX:,}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--docs", action="store_true", help="those of the documentation")
    told = parser.parse_args()
    told.directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(told.directory, for_docs=told.docs))


if __name__ == "__main__":
    main()
