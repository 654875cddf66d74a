"""`lbg top`: the groups of a broker, or one of them, as they are now.

`Observations` is pure: descriptions in, rates and changes out. The screens are those of `live_map`, drawn with rich.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from lbg_broker.admin.describe import Description
from lbg_broker.admin.errors import RecordUnavailable, Unreachable
from lbg_broker.admin.snapshot import UNKNOWN
from lbg_broker.peers import printable
from lbg_broker.text_table import text_table
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options, count_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lbg_broker.admin.live import LiveAdmin
    from lbg_broker.client import BrokerAddress

EVERY_S = 2.0
MANY_GROUPS = 50
MANY_EVERY_S = 5.0
"""For more than `MANY_GROUPS`: a look at 100 groups costs the broker some 35 ms of CPU."""

RATE_OVER_S = 6.0
"""A rate is the mean of so long: members report their counts once a second."""

FORGET_AFTER_S = 60.0

LIST_EVERY = 6
"""Looks between two readings of the records, which show new and deleted groups."""

CHANGES_MAX = 200
SORTS: dict[str, Callable[[GroupRow], Any]] = {
    "lag": lambda row: -row.waiting,
    "rate": lambda row: -row.rate,
    "problems": lambda row: -len(row.description.problems),
    "name": lambda row: row.description.group,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A queue or partition that another member serves since a look."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, and the messages per second that its members have finished lately."""

    description: Description
    rate: float

    @property
    def waiting(self) -> int:
        """The lag, or the ready messages alone where the others could not be counted."""
        ready = self.description.ready
        return self.description.lag or (ready if isinstance(ready, int) else 0)

    @property
    def cells(self) -> tuple[str, ...]:
        one = self.description
        spec, services = one.spec, one.reported_services
        served = f"{len(services) - len(one.unserved)}/{len(services)}" if services else "-"
        return (
            one.group,
            spec.mode if spec is not None else "no readable record",
            served,
            "unknown" if one.members is UNKNOWN else str(len(one.members)),
            f"{self.rate:,.0f}",
            count_text(one.ready),
            count_text(one.unacked),
            count_text(one.dead_letters),
            "paused" if one.is_paused else "",
            str(len(one.problems) or ""),
        )


HEADER = ("GROUP", "MODE", "SERVED", "MEMBERS", "RATE/S", "READY", "UNACKED", "DEAD", "STATE", "PROBLEMS")


@dataclass
class Observations:
    """Rates and changes of groups, from one look to the next. No I/O; `now_s` rises."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))
    rows: list[GroupRow] = field(default_factory=list)
    queue_rates: dict[int, float] = field(default_factory=dict)
    """Messages per second delivered from each queue, of the only group."""

    _counts: dict[tuple[str, ...], deque[tuple[float, int]]] = field(default_factory=dict)
    _servers: dict[tuple[str, int], str] = field(default_factory=dict)

    def look(self, descriptions: Sequence[Description], now_s: float) -> None:
        self.rows = [GroupRow(one, self._rate(one, now_s)) for one in descriptions]
        self.queue_rates = {}
        for one in descriptions:
            self._look_at_queues(one, now_s)
        for name in [
            name for name, samples in self._counts.items() if samples[-1][0] < now_s - FORGET_AFTER_S
        ]:
            del self._counts[name]  # a member that has left

    def _rate(self, one: Description, now_s: float) -> float:
        members = () if one.members is UNKNOWN else one.members
        return sum(
            self._growth((one.group, member.name, member.incarnation), member.counts.get("acked", 0), now_s)
            for member in members
        )

    def _growth(self, name: tuple[str, ...], count: int, now_s: float) -> float:
        """Growth of a count per second; 0 for the first look and after a count that fell."""
        samples = self._counts.setdefault(name, deque())
        if samples and samples[-1][1] > count:
            samples.clear()
        samples.append((now_s, count))
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_OVER_S:
            samples.popleft()
        (first_s, first), (last_s, last) = samples[0], samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _look_at_queues(self, one: Description, now_s: float) -> None:
        for row in one.reported_services:
            place = (one.group, row.number)
            server = row.server or ""
            before = self._servers.get(place)
            if server and before is not None and before != server:
                word = "partition" if one.has_partitions else "queue"
                self.changes.append(
                    Change(now_s, f"{one.group}: {word} {row.number} from {before} to {server}")
                )
            if server:
                self._servers[place] = server
            if row.member is None:
                continue
            count = next((queue.delivered for queue in row.member.queues if queue.queue == row.number), 0)
            name = (one.group, str(row.number), row.member.name, row.member.incarnation)
            self.queue_rates[row.number] = self._growth(name, count, now_s)

    def ordered(self, sort: str, chosen: str) -> list[GroupRow]:
        """Rows whose group has `chosen` in its name."""
        rows = [row for row in self.rows if chosen.lower() in row.description.group.lower()]
        return sorted(rows, key=lambda row: (SORTS[sort](row), row.description.group))

    def to_json(self, at: datetime) -> dict[str, Any]:
        """One object a look: docs/cli.md."""
        return {
            "at": at.isoformat(timespec="milliseconds"),
            "groups": [{**row.description.to_json(), "rate": round(row.rate, 1)} for row in self.rows],
            "changes": [one.text for one in self.changes],
        }


def text_lines(seen: Observations, sort: str, chosen: str) -> Iterator[str]:
    """For output that is no terminal."""
    rows = seen.ordered(sort, chosen)
    yield from (printable(line, max_chars=None) for line in text_table(HEADER, [row.cells for row in rows]))
    for row in rows:
        for problem in row.description.problems:
            yield printable(f"! {row.description.group}: {problem}", max_chars=None)


@dataclass
class View:
    """Choices made by keys."""

    sort: str = "lag"
    chosen: str = ""
    selected: int = 0
    opened: str | None = None
    is_filtering: bool = False
    has_ended: bool = False

    def press(self, key: str, rows: Sequence[GroupRow], *, is_one: bool) -> None:
        """Effect of a key, or of an escape sequence."""
        if self.is_filtering:
            self._edit(key)
        elif key in ("q", "\x03", "\x04"):
            self.has_ended = True
        elif key in ("\x1b", "\x7f", "\x1b[D") and not is_one:
            self.opened = None
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "/":
            self.is_filtering = True
        elif key in ("\x1b[A", "k"):
            self.selected = max(0, self.selected - 1)
        elif key in ("\x1b[B", "j"):
            self.selected = min(max(0, len(rows) - 1), self.selected + 1)
        elif key in ("\r", "\n", "\x1b[C") and rows:
            self.opened = rows[min(self.selected, len(rows) - 1)].description.group

    def _edit(self, key: str) -> None:
        if key in ("\r", "\n", "\x1b", "\x03"):
            self.is_filtering = False
            if key in ("\x1b", "\x03"):
                self.chosen = ""
        elif key == "\x7f":
            self.chosen = self.chosen[:-1]
        elif key.isprintable() and len(key) == 1:
            self.chosen += key


NARROW = ("GROUP", "RATE/S", "READY", "PROBLEMS")
KEYS_OF_ALL = "q quit   s sort   / filter   ↑↓ select   Enter open"
KEYS_OF_ONE = "q quit   Esc all groups"


def screen(seen: Observations, view: View, *, width: int, height: int, is_one: bool) -> RenderableType:
    """The screen, `width` by `height` characters: of the opened group, or of all."""
    opened = next((row for row in seen.rows if row.description.group == view.opened), None)
    if opened is not None:
        return _one_group(seen, opened, height=height, is_one=is_one)
    return _all_groups(seen, view, width=width, height=height)


def _all_groups(seen: Observations, view: View, *, width: int, height: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = seen.ordered(view.sort, view.chosen)
    head = f"{len(seen.rows)} groups, by {view.sort}"
    if view.chosen or view.is_filtering:
        head += f", filter: {view.chosen}{'_' if view.is_filtering else ''}"
    room = max(1, height - 4)
    selected = min(view.selected, max(0, len(rows) - 1))
    first = max(0, min(selected - room + 1, len(rows) - room)) if selected >= room else 0
    # Columns that a narrow terminal has no room for are left out, the least important ones first.
    columns = [
        place
        for place, name in enumerate(HEADER)
        if width >= 100 or (name not in ("MODE", "UNACKED") and (width >= 72 or name in NARROW))
    ]
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    for place in columns:
        is_name = HEADER[place] in ("GROUP", "MODE", "STATE")
        table.add_column(
            HEADER[place],
            justify="left" if is_name else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if place == 0 else None,
        )
    for place, row in enumerate(rows[first : first + room], first):
        style = "reverse" if place == selected else "red" if row.description.problems else ""
        table.add_row(*(printable(row.cells[one], max_chars=None) for one in columns), style=style)
    return Group(
        Text(head, style="bold", no_wrap=True, overflow="ellipsis"),
        table,
        Text(KEYS_OF_ALL, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def _one_group(seen: Observations, row: GroupRow, *, height: int, is_one: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from lbgroup.live_map import MapMember, colours_of, live_map, map_lines

    one = row.description
    known = () if one.members is UNKNOWN else one.members
    colours = colours_of(member.name for member in known)
    members = [
        MapMember(
            member.name,
            colours[member.name],
            delivered=member.delivered if isinstance(member.delivered, int) else 0,
        )
        for member in known
    ]
    is_compact = map_lines(one, members, is_compact=False) > height - 8
    state = "   PAUSED" if one.is_paused else ""
    head = (
        f"{one.group}   {row.rate:,.0f}/s   {count_text(one.ready)} ready   {count_text(one.unacked)} unacknowledged   "
        f"{count_text(one.dead_letters)} dead letters{state}"
    )
    lines = [Text(f"! {problem}", style="yellow") for problem in one.problems]
    now_s = time.monotonic()
    changes = [change for change in seen.changes if change.text.startswith(f"{one.group}: ")]
    room = max(2, height - map_lines(one, members, is_compact=is_compact) - len(lines) - 3)
    for change in list(changes)[-room:]:
        text = change.text.removeprefix(f"{one.group}: ")
        lines.append(Text(f"{now_s - change.at_s:>5.0f} s ago  {text}", style="cyan"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    keys = "q quit" if is_one else KEYS_OF_ONE
    return Group(
        Text(head, style="bold", no_wrap=True, overflow="ellipsis"),
        live_map(one, members, seen.queue_rates, is_compact=is_compact),
        *lines,
        Text(keys, style="dim"),
    )


class Looker:
    """Descriptions of one group, or of all: the latter by the survey that the operator uses."""

    def __init__(self, admin: LiveAdmin, group: str | None) -> None:
        self._admin = admin
        self._group = group
        self._specs: dict[str, Any] = {}
        self._without_record: dict[str, Description] = {}
        self._looks = 0
        self._cache: dict[str, Any] = {}

    async def look(self) -> list[Description]:
        """Raises ProvisioningError."""
        from lbg_broker.admin.groups import list_groups, show_group
        from lbg_broker.admin.survey import survey

        if self._group is not None:
            return [await show_group(self._admin, self._group)]
        if self._looks % LIST_EVERY == 0:
            listed = await list_groups(self._admin)
            self._specs = {one.group: one.spec for one in listed if one.spec is not None}
            self._without_record = {one.group: one for one in listed if one.spec is None}
        self._looks += 1
        found = await survey(self._admin, self._specs, cache=self._cache)
        described = [one for one in found.values() if isinstance(one, Description)]
        return [*described, *self._without_record.values()]


@contextmanager
def keys_of(terminal: int, on_key: Callable[[str], None]) -> Iterator[None]:
    """Keys as they are pressed, for the length of the block; the terminal is as before after it."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        text = os.read(terminal, 64).decode(errors="ignore")
        keys = [text] if text.startswith("\x1b") else list(text)
        for key in keys:
            on_key(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@click.command(epilog="Example: lbg top orders")
@click.argument("name", required=False)
@click.option("--once", is_flag=True, help="Print it once and end, as where the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each look.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help=f"Seconds between two looks.  [default: {EVERY_S:g}; {MANY_EVERY_S:g} for more than {MANY_GROUPS} groups]",
)
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="lag", show_default=True, help="Order of groups."
)
@click.option("--filter", "chosen", default="", metavar="TEXT", help="Only groups with TEXT in their names.")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR in the environment.")
@broker_options(login=True, management=True)
def top(
    name: str | None,
    address: BrokerAddress,
    once: bool,
    as_json: bool,
    every_s: float | None,
    sort: str,
    chosen: str,
    no_color: bool,
) -> None:
    """Watch all groups of a broker, or group NAME: rates, lag, members, problems, and who serves each queue.

    For all groups it takes an administrator's login. A rate is the number of messages that members finished per second,
    over the last 6 seconds.
    """
    from rich.console import Console

    console = Console(no_color=True if no_color else None, highlight=False)
    view = View(sort=sort, chosen=chosen, opened=name)

    async def work(admin: LiveAdmin) -> None:
        looker, seen = Looker(admin, name), Observations()
        if as_json or once or not (console.is_terminal and sys.stdin.isatty()) or console.is_dumb_terminal:
            await _print(looker, seen, view, as_json=as_json, is_once=once or not as_json, every_s=every_s)
        else:
            await _draw(looker, seen, view, console, is_one=name is not None, every_s=every_s)

    with_admin(address, work)


async def _print(
    looker: Looker, seen: Observations, view: View, *, as_json: bool, is_once: bool, every_s: float | None
) -> None:
    seen.look(await looker.look(), time.monotonic())
    await asyncio.sleep(every_s or EVERY_S)  # a rate takes two looks
    while True:
        seen.look(await looker.look(), time.monotonic())
        if as_json:
            click.echo(json.dumps(seen.to_json(datetime.now(UTC))))
        elif view.opened is not None:
            from lbgroup.group.show import description_lines

            (row,) = seen.rows
            click.echo(f"{row.rate:,.0f} messages/s")
            click.echo("\n".join(description_lines(row.description)))
        else:
            click.echo("\n".join(text_lines(seen, view.sort, view.chosen)))
        sys.stdout.flush()
        if is_once:
            return
        await asyncio.sleep(every_s or _interval(seen))


async def _draw(
    looker: Looker, seen: Observations, view: View, console: Console, *, is_one: bool, every_s: float | None
) -> None:
    from lbgroup.live_map import FullScreen

    error = ""
    pressed = asyncio.Event()

    def draw() -> None:
        full.draw(lambda width, height: _with_error(seen, view, error, width, height, is_one=is_one))

    def on_key(key: str) -> None:
        view.press(key, seen.ordered(view.sort, view.chosen), is_one=is_one)
        pressed.set()
        draw()

    seen.look(await looker.look(), time.monotonic())  # an error of the first look ends the command
    with FullScreen(console) as full, keys_of(sys.stdin.fileno(), on_key):
        draw()
        while True:
            began = time.monotonic()
            looking = asyncio.ensure_future(looker.look())
            await _until_ended(looking, pressed, view)
            if view.has_ended:
                looking.cancel()
                break
            try:
                seen.look(looking.result(), time.monotonic())
                error = ""
            except (Unreachable, RecordUnavailable) as failed:
                error = f"{failed}; trying again"
            draw()
            left_s = (every_s or _interval(seen)) - (time.monotonic() - began)
            await _until_ended(asyncio.ensure_future(asyncio.sleep(max(0.0, left_s))), pressed, view)


async def _until_ended(work: asyncio.Future[Any], pressed: asyncio.Event, view: View) -> None:
    """Return when the work has ended, or the user."""
    while not work.done() and not view.has_ended:
        pressed.clear()
        key = asyncio.ensure_future(pressed.wait())
        await asyncio.wait({work, key}, return_when=asyncio.FIRST_COMPLETED)
        key.cancel()
        with suppress(asyncio.CancelledError):
            await key


def _with_error(
    seen: Observations, view: View, error: str, width: int, height: int, *, is_one: bool
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not error:
        return screen(seen, view, width=width, height=height, is_one=is_one)
    line = Text(f"lbg: {error}", style="red", no_wrap=True, overflow="ellipsis")
    return Group(line, screen(seen, view, width=width, height=height - 1, is_one=is_one))


def _interval(seen: Observations) -> float:
    return MANY_EVERY_S if len(seen.rows) > MANY_GROUPS else EVERY_S
