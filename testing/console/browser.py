"""Chromium for tests, drills and pictures: a person's page, who counts what it takes to find something.

Only `make test-browser` installs Playwright, so nothing here imports it before it is needed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testing.waiting import GUARD_S

if TYPE_CHECKING:
    from playwright.async_api import Browser, Dialog, Locator, Page

VIOLATIONS = (
    "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective, e.blockedURI))"
)
SEES = """texts => {
    const found = new Set();
    const isSeen = range => [...range.getClientRects()].some(box => {
        if (box.width < 1 || box.height < 1) return false;
        let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
        const middle = () => left < right - 1 && top < bottom - 1;
        for (let node = range.startContainer.parentElement; node; node = node.parentElement) {
            const style = getComputedStyle(node);
            if (style.visibility !== "visible" || style.opacity === "0") return false;
            if (style.overflowX !== "hidden" && style.overflowX !== "clip") continue;
            const frame = node.getBoundingClientRect();
            left = Math.max(left, frame.left), right = Math.min(right, frame.right);
            top = Math.max(top, frame.top), bottom = Math.min(bottom, frame.bottom);
        }
        return middle();
    });
    const kinds = "h1, h2, p, li, td, th, dd, dt, code, pre, figcaption, summary, caption, button, a, div";
    for (const block of document.querySelectorAll(kinds)) {
        if (!block.checkVisibility()) continue;
        for (const text of texts) {
            if (found.has(text)) continue;
            const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
            const parts = [];
            let whole = "";
            while (walker.nextNode()) {
                parts.push([whole.length, walker.currentNode]);
                whole += walker.currentNode.data;
            }
            const at = whole.indexOf(text);
            if (at < 0) continue;
            const place = offset => {
                const [from, node] = parts.findLast(([from]) => from <= offset);
                return [node, offset - from];
            };
            const range = document.createRange();
            range.setStart(...place(at));
            const [node, end] = place(at + text.length - 1);
            range.setEnd(node, end + 1);
            const last = document.createRange();
            last.setStart(node, end), last.setEnd(node, end + 1);
            if (isSeen(range) && isSeen(last)) found.add(text);
        }
    }
    return texts.filter(text => !found.has(text));
}"""
"""Those of the texts that a person cannot read on the page, scrolling down: they are not there, hidden, or cut off."""


def expect(place: Any) -> Any:
    """Playwright's assertions about a place of a page."""
    from playwright.async_api import expect as expected

    expected.set_options(timeout=60_000)
    return expected(place)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Debian's Chromium."""
    executable = shutil.which("chromium")
    assert executable is not None, "chromium is missing: `make test-browser` installs it"
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable)
        try:
            yield browser
        finally:
            await browser.close()


async def sign_in(page: Page, url: str, username: str = "guest", password: str = "guest") -> None:
    await page.goto(f"{url}/login")
    await fill_in_login(page, username, password)
    await page.wait_for_url(f"{url}/")


async def fill_in_login(page: Page, username: str = "guest", password: str = "guest") -> None:
    """On the sign-in page, which leads on."""
    await page.get_by_label("User").fill(username)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()


@dataclass
class Person:
    """Somebody at a page. `clicks`: what was clicked since the overview was opened; a choice in a list and a text that
    is typed count as one each, a glance down the page as none. `errors`: what the page's console has of them."""

    page: Page
    url: str
    clicks: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._on_dialog)

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.errors.append(dialog.message)
        await dialog.dismiss()

    async def open_overview(self) -> None:
        """As an operator begins: the stopwatch is at 0."""
        await self.page.goto(self.url)
        await expect(self.page.locator("#groups tbody tr").first).to_be_visible()
        self.clicks.clear()

    async def click(self, place: Locator) -> None:
        await expect(place).to_be_visible()
        self.clicks.append(f"click {(await place.inner_text()).strip() or await place.get_attribute('id')}")
        await place.click()

    async def choose(self, place: Locator, value: str) -> None:
        self.clicks.append(f"choose {value}")
        await place.select_option(value)

    async def type(self, place: Locator, text: str) -> None:
        self.clicks.append(f"type {text}")
        await place.fill(text)

    async def open_group(self, name: str) -> None:
        await self.click(self.page.locator("#groups").get_by_role("link", name=name, exact=True))

    async def read(self, *texts: str, timeout_s: float = GUARD_S / 3) -> None:
        """Until all of them can be read on the page. Raises TimeoutError with those that cannot, and the page."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while missing := await self.missing(*texts):
            if loop.time() > deadline:
                seen = await self.page.locator("body").inner_text()
                raise TimeoutError(f"not on {self.page.url}: {missing}\n{seen}")
            await asyncio.sleep(0.1)

    async def missing(self, *texts: str) -> list[str]:
        """Those that cannot be read on the page as it is."""
        from playwright.async_api import Error

        try:
            return list(await self.page.evaluate(SEES, list(texts)))
        except Error as error:
            if "context was destroyed" not in str(error):
                raise
            return list(texts)  # the page is on its way to another one

    def expect_errors(self, *texts: str) -> None:
        """Errors so far, which the test has brought about, have one of these texts."""
        assert [one for one in self.errors if not any(text in one for text in texts)] == []
        self.errors.clear()


@asynccontextmanager
async def person(
    browser: Browser, url: str, username: str = "guest", password: str = "guest", **settings: Any
) -> AsyncIterator[Person]:
    """Somebody with a browser of their own, who has signed in."""
    context = await browser.new_context(**settings)
    await context.add_init_script(VIOLATIONS)
    async with context:
        one = Person(await context.new_page(), url)
        await sign_in(one.page, url, username, password)
        yield one
