"""`lbg top`: the groups of a broker, or one of them, as they are now.

`lbg_core.admin.observations` has what it shows: rates, changes, ages. The screens are those of `live_map`, drawn with
rich.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

import click

from lbg_core.admin.errors import RecordUnavailable, Unreachable
from lbg_core.admin.group_reader import EVERY_S, GroupReader, Watching
from lbg_core.admin.observations import SORTS, GroupRow, Observations, age_text
from lbg_core.admin.pace_text import PACE_HEADER, key_text, pace_cells, slow_text
from lbg_core.admin.problems import lines_of, marked_lines
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.command_output import output_option, text_table
from lbg_core.counted_nouns import counted
from lbg_core.peers import printable
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options, count_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from lbg_core.admin.describe import Description
    from lbg_core.admin.live import LiveAdmin
    from lbg_core.admin.rows import ServiceRow
    from lbg_core.client import BrokerAddress
    from lbg_core.group.members_protocol import Beat

MANY_GROUPS = 50
MANY_EVERY_S = 5.0
"""For more than `MANY_GROUPS`: a look at 100 groups costs the broker some 35 ms of CPU."""

HEADER = (
    "GROUP",
    "MODE",
    "SERVED",
    "MEMBERS",
    "IN/S",
    "RATE/S",
    "READY",
    "UNACKED",
    "OLDEST",
    "CLEARS",
    "DEAD",
    "STATE",
    "PROBLEMS",
)
LEFT_OUT = ("MODE", "IN/S", "UNACKED", "CLEARS", "DEAD", "OLDEST", "MEMBERS", "SERVED", "RATE/S", "READY")
"""Columns that a narrow terminal has no room for, in the order in which they go: names, states and problems stay."""


def columns_of(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Places of the columns of `HEADER` that fit a terminal with these rows, their texts whole."""
    widths = [2 + max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    places = list(range(len(HEADER)))
    for name in LEFT_OUT:
        if sum(widths[place] for place in places) <= width:
            break
        places.remove(HEADER.index(name))
    return places


def cells(row: GroupRow) -> tuple[str, ...]:
    """Texts of a group, one for each name of `HEADER`."""
    one = row.description
    spec, services = one.spec, one.reported_services
    served = f"{sum(row.is_served for row in services)}/{len(services)}" if services else "-"
    return (
        one.group,
        spec.mode if spec is not None else "no readable record",
        served,
        "unknown" if one.members is UNKNOWN else str(len(one.members)),
        "unknown" if row.published_hz is None else f"{row.published_hz:,.0f}",
        f"{row.rate:,.0f}",
        count_text(one.ready),
        count_text(one.unacked),
        row.oldest_text,
        row.clears_text,
        count_text(one.dead_letters),
        one.pause_text,
        str(len(one.faults) or ""),
    )


def text_lines(seen: Observations, sort: str, chosen: str) -> Iterator[str]:
    """For output that is no terminal."""
    rows = seen.ordered(sort, chosen)
    yield from (printable(line, max_chars=None) for line in text_table(HEADER, [cells(row) for row in rows]))
    for row in rows:
        if text := row.description.sequences_text:
            yield printable(f"{row.description.group}: {text}", max_chars=None)
        for line in lines_of(row.description.faults):
            yield printable(f"! {row.description.group}: {line}", max_chars=None)


@dataclass
class View:
    """Choices made by keys."""

    sort: str = next(iter(SORTS))
    chosen: str = ""
    selected: int = 0
    opened: str | None = None
    queue: int = 0
    """Place of the selected queue in the opened group."""
    is_queue_opened: bool = False
    is_filtering: bool = False
    is_help: bool = False
    """The keys are shown."""
    has_ended: bool = False

    def press(self, key: str, rows: Sequence[GroupRow], *, is_one: bool) -> None:
        """Effect of a key, or of an escape sequence."""
        if self.is_filtering:
            self._edit(key)
        elif self.is_help and key not in ("\x03", "\x04"):
            self.is_help = False
        elif key in ("q", "\x03", "\x04"):
            self.has_ended = True
        elif key == "?":
            self.is_help = True
        elif self.opened is not None:
            self._press_in_group(key, rows, is_one=is_one)
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
            self.queue, self.is_queue_opened = 0, False

    def opened_queue(self, row: GroupRow) -> ServiceRow | None:
        """The selected queue or partition of the opened group; None in modes that have none."""
        services = row.description.reported_services
        return services[min(self.queue, len(services) - 1)] if services else None

    def _press_in_group(self, key: str, rows: Sequence[GroupRow], *, is_one: bool) -> None:
        opened = next((row for row in rows if row.description.group == self.opened), None)
        count = 0 if opened is None else len(opened.description.reported_services)
        if key in ("\x1b", "\x7f", "\x1b[D"):
            if self.is_queue_opened:
                self.is_queue_opened = False
            elif not is_one:
                self.opened = None
        elif key in ("\x1b[A", "k"):
            self.queue = max(0, min(self.queue, count - 1) - 1)
        elif key in ("\x1b[B", "j"):
            self.queue = max(0, min(count - 1, self.queue + 1))
        elif key in ("\r", "\n", "\x1b[C") and count:
            self.is_queue_opened = True

    def _edit(self, key: str) -> None:
        if key in ("\r", "\n", "\x1b", "\x03"):
            self.is_filtering = False
            if key in ("\x1b", "\x03"):
                self.chosen = ""
        elif key == "\x7f":
            self.chosen = self.chosen[:-1]
        elif key.isprintable() and len(key) == 1:
            self.chosen += key


KEYS_OF_ALL = "? keys   q quit   s sort   / filter   ↑↓ select   Enter open"
KEYS_OF_GROUP = "? keys   q quit   ↑↓ select   Enter open"
KEYS_OF_ONE = f"{KEYS_OF_GROUP}   Esc all groups"
KEYS_OF_QUEUE = "? keys   q quit   ↑↓ other queue   Esc group"
KEYS = (
    ("?", "these keys; any key closes them"),
    ("q, Ctrl-C", "quit"),
    ("↑ ↓, k j", "select a group, or a queue of it"),
    ("Enter, →", "open what is selected"),
    ("Esc, ←", "back to the group, or to all groups"),
    ("s", "next order of groups, as of --sort"),
    ("/", "only groups with a text in their names"),
    ("", "Enter keeps the choice, Esc ends it"),
)


def screen(seen: Observations, view: View, *, width: int, height: int, is_one: bool) -> RenderableType:
    """The screen, `width` by `height` characters: of the opened group, or of all."""
    if view.is_help:
        return _keys(height)
    opened = next((row for row in seen.rows if row.description.group == view.opened), None)
    if opened is not None:
        queue = view.opened_queue(opened)
        if queue is not None and view.is_queue_opened:
            return _one_queue(seen, opened, queue, width=width, height=height)
        return _one_group(seen, opened, queue, width=width, height=height, is_one=is_one)
    return _all_groups(seen, view, width=width, height=height)


def _keys(height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines = [Text("Keys", style="bold"), *(Text(f"  {key:<10} {effect}") for key, effect in KEYS)]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines[:height])


def _all_groups(seen: Observations, view: View, *, width: int, height: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from lbgroup.live_map import severity_style

    rows = seen.ordered(view.sort, view.chosen)
    head = f"{counted(len(seen.rows), 'group')}, by {view.sort}"
    if view.chosen or view.is_filtering:
        head += f", filter: {view.chosen}{'_' if view.is_filtering else ''}"
    room = max(1, height - 4)
    selected = min(view.selected, max(0, len(rows) - 1))
    first = max(0, min(selected - room + 1, len(rows) - room)) if selected >= room else 0
    texts = [[printable(text, max_chars=None) for text in cells(row)] for row in rows]
    columns = columns_of(texts, width)
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
        description = row.description
        style = (
            "reverse"
            if place == selected
            else severity_style(description.severity)
            if description.faults
            else ""
        )
        table.add_row(*(texts[place][one] for one in columns), style=style)
    return Group(
        Text(head, style="bold", no_wrap=True, overflow="ellipsis"),
        table,
        Text(KEYS_OF_ALL, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def _one_queue(
    seen: Observations, row: GroupRow, queue: ServiceRow, *, width: int, height: int
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from lbg_core.admin.member_requests import unread_lines
    from lbgroup.live_map import last_chars, progress_text, service_word

    one = row.description
    observed = next((each for each in one.queues if each.number == queue.number), None)
    full = "" if observed is None or observed.full_percent is None else f"   {observed.full_percent} % full"
    lines = [
        f"{one.group}   {service_word(one)} {queue.number}   {queue.status}   served by {queue.server or 'nobody'}   "
        f"{count_text(queue.ready)} ready   {count_text(queue.unacked)} unacked{full}",
        "",
    ]
    if queue.bindings:
        table = [
            (
                member.name,
                one.role,
                "active" if one.active else "unbound" if one.status == "Unbound" else "waits",
                progress_text(one, seen.queue_rates.get(queue.number, 0.0)),
                str(one.in_flight),
            )
            for member, one in queue.bindings
        ]
        lines += [*text_table(("MEMBER", "ROLE", "", "PROGRESS", "IN FLIGHT"), table), ""]
    about = [change for change in seen.changes if (change.group, change.number) == (one.group, queue.number)]
    now_s = time.monotonic()
    lines += [f"{now_s - change.at_s:>5.0f} s ago  {change.text}" for change in about[-3:]]
    if isinstance(seen.peeked, str):
        lines.append(seen.peeked or "its messages are read")
    else:
        now_us = time.time_ns() // 1000
        # Beside state, age and attempts.
        id_chars, key_chars = (48, 32) if width >= 120 else ((width - 36) // 2, (width - 36) // 2)
        messages = [
            (
                last_chars(printable(message.id, max_chars=None), id_chars),
                printable(message.key or "-", max_chars=key_chars),
                message.state,
                "-" if (age_s := message.age_s(now_us)) is None else age_text(age_s),
                str(message.attempts),
                printable(message.reason, max_chars=80),
            )
            for message in seen.peeked.messages
            if message.queue == queue.number
        ]
        notes = [f"! {line}" for line in unread_lines(seen.peeked)]
        room = max(1, height - len(lines) - len(notes) - 2)
        lines += list(text_table(("MESSAGE", "KEY", "STATE", "AGE", "ATTEMPTS", "ERROR"), messages))[:room]
        lines += notes
    shown = [Text(printable(line, max_chars=None), no_wrap=True, overflow="ellipsis") for line in lines]
    shown[0].stylize("bold")
    return Group(*shown[: height - 1], Text(KEYS_OF_QUEUE, style="dim"))


def _one_group(
    seen: Observations, row: GroupRow, queue: ServiceRow | None, *, width: int, height: int, is_one: bool
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from lbgroup.live_map import (
        MapMember,
        colours_of,
        live_map,
        map_lines,
        severity_style,
        short_names,
    )

    one = row.description
    known = () if one.members is UNKNOWN else one.members
    colours = colours_of(member.name for member in known)
    labels = short_names([member.name for member in known])
    members = [
        MapMember(
            member.name,
            colours[member.name],
            label=labels[member.name],
            delivered=member.counts.get("delivered", 0),
        )
        for member in known
    ]
    # Above the map, of which a part may have no room.
    problems = [Text(line, style=severity_style(severity)) for severity, line in marked_lines(one.problems)]
    height_of_problems = sum(1 + len(line) // width for line in problems)
    is_compact = map_lines(one, members, is_compact=False, width=width) > height - height_of_problems - 8
    state = f"   {one.pause_text.upper()}" if one.pause_text else ""
    clears = "" if row.clears_s is None else f"   clears in {row.clears_text}"
    if row.clears_s == inf:
        clears = "   does not clear"
    head = (
        f"{one.group}{state}   {row.rate:,.0f}/s   {count_text(one.ready)} ready   {count_text(one.unacked)} unacked   "
        f"oldest {row.oldest_text}{clears}   {count_text(one.dead_letters)} dead"
    )
    lines = [Text(row.flow_text)]
    if one.sequences_text:
        lines.append(Text(printable(one.sequences_text, max_chars=None)))
    now_s = time.monotonic()
    changes = [change for change in seen.changes if change.group == one.group]
    room = height - map_lines(one, members, is_compact=is_compact, width=width) - height_of_problems - 3
    lines += _pace_lines(seen, one, now_s, room=room - len(lines) - min(2, len(changes)))
    room = max(2, room - len(lines))
    for change in changes[-room:]:
        text = printable(change.text)
        lines.append(Text(f"{now_s - change.at_s:>5.0f} s ago  {text}", style="cyan"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    keys = KEYS_OF_GROUP if is_one else KEYS_OF_ONE
    selected = None if queue is None else queue.number
    return Group(
        Text(head, style="bold", no_wrap=True, overflow="ellipsis"),
        *problems,
        live_map(one, members, seen.queue_rates, is_compact=is_compact, selected=selected, width=width),
        *lines,
        Text(keys, style="dim"),
    )


def _pace_lines(seen: Observations, one: Description, now_s: float, *, room: int) -> list[Text]:
    """Members and the hottest keys: a table of each in so many lines, or what there is room for."""
    from rich.text import Text

    hot = [(printable(key.key), key_text(key)) for key in seen.hot_keys(one.group, now_s)]
    # Those that need attention, if not all have a place.
    members = [] if one.members is UNKNOWN else list(one.members)
    known, place = members, max(0, room - 1 - bool(hot))
    if len(members) > place:
        members.sort(key=lambda each: (each.name not in one.slow_members, -_busy(each)))
        known = members[: max(0, place - 1)]
    rows = [
        (
            printable(member.name),
            *pace_cells(member.pace),
            f"{seen.member_rate(one.group, member):,.0f}",
            slow_text(one.slow_members[member.name]) if member.name in one.slow_members else "",
        )
        for member in known
    ]
    lines = list[Text]()
    if rows:
        header, *texts = text_table(("MEMBER", *PACE_HEADER, "RATE/S", ""), rows)
        lines.append(Text(header, style="dim"))
        slow = (member.name in one.slow_members for member in known)
        lines += [
            Text(text, style="yellow" if is_slow else "") for text, is_slow in zip(texts, slow, strict=True)
        ]
        if len(known) < len(members):
            lines.append(Text(f"and {counted(len(members) - len(known), 'member')} more", style="dim"))
    if hot and len(hot) < room - len(lines):
        header, *texts = text_table(("HOTTEST KEY", ""), hot)
        lines += [Text(header, style="dim"), *map(Text, texts)]
    elif hot:
        lines.append(Text(f"hottest keys: {'   '.join(f'{key} {text}' for key, text in hot)}"))
    return lines


def _busy(member: Beat) -> float:
    return 0.0 if member.pace is None else member.pace.busy


KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
"""An escape sequence of a key (ECMA-48, CSI), or a character: several may be read at once."""


@contextmanager
def keys_of(terminal: int, on_key: Callable[[str], None]) -> Iterator[None]:
    """Keys as they are pressed, for the length of the block; the terminal is as before after it. A terminal that goes
    away ends the process."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        try:
            text = os.read(terminal, 64).decode(errors="ignore")
        except OSError:  # EIO: the other side of the terminal is closed
            text = ""
        if not text:
            loop.remove_reader(terminal)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who started it may have it ignored
            signal.raise_signal(signal.SIGHUP)  # which a terminal sends to processes that it controls
        for key in KEY.findall(text):
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
@output_option("one object a line for each look.", has_flag=True)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help=f"Seconds between two looks.  [default: {EVERY_S:g}; {MANY_EVERY_S:g} for more than {MANY_GROUPS} groups]",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default=next(iter(SORTS)),
    show_default=True,
    help="Order of groups; `problems`: the worst one first, then by lag.",
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
        reader, seen = GroupReader(admin, name), Observations()
        async with Watching(admin, seen) as watching:
            await watching.watch(name)
            if (
                as_json
                or once
                or not (console.is_terminal and sys.stdin.isatty())
                or console.is_dumb_terminal
            ):
                await _print(
                    reader, seen, view, as_json=as_json, is_once=once or not as_json, every_s=every_s
                )
            else:
                await _draw(reader, watching, seen, view, console, is_one=name is not None, every_s=every_s)

    with_admin(address, work)


async def _print(
    reader: GroupReader,
    seen: Observations,
    view: View,
    *,
    as_json: bool,
    is_once: bool,
    every_s: float | None,
) -> None:
    await _look(reader, seen)
    await asyncio.sleep(every_s or EVERY_S)  # a rate takes two looks
    while True:
        await _look(reader, seen)
        if as_json:
            looked = seen.to_json(datetime.now(UTC), watched=view.opened, now_s=time.monotonic())
            click.echo(json.dumps(looked))
        elif view.opened is not None:
            from lbgroup.group.show import description_lines

            (row,) = seen.rows
            click.echo(f"{row.rate:,.0f} messages/s, oldest message {row.oldest_text}")
            hot = seen.hot_keys(view.opened, time.monotonic())
            click.echo("\n".join(description_lines(row.description, row, hot)))
        else:
            click.echo("\n".join(text_lines(seen, view.sort, view.chosen)))
        sys.stdout.flush()
        if is_once:
            return
        await asyncio.sleep(every_s or _interval(seen))


async def _look(reader: GroupReader, seen: Observations, view: View | None = None) -> None:
    """`view`: its opened queue is read, too."""
    found = await reader.look()
    seen.look(found, time.monotonic(), now_us=time.time_ns() // 1000, waiting_us=reader.waiting_us)
    if view is None or not view.is_queue_opened:
        seen.peeked = ""
        return
    opened = next((row for row in seen.rows if row.description.group == view.opened), None)
    queue = None if opened is None else view.opened_queue(opened)
    if opened is not None and queue is not None:
        seen.peeked = await reader.peek(opened.description.group, queue.number)


async def _draw(
    reader: GroupReader,
    watching: Watching,
    seen: Observations,
    view: View,
    console: Console,
    *,
    is_one: bool,
    every_s: float | None,
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

    await _look(reader, seen)  # an error of the first look ends the command
    with FullScreen(console) as full, keys_of(sys.stdin.fileno(), on_key):
        draw()
        while True:
            began = time.monotonic()
            await watching.watch(view.opened)
            looking = asyncio.ensure_future(_look(reader, seen, view))
            await _until_ended(looking, pressed, view)
            if view.has_ended:
                looking.cancel()
                break
            try:
                looking.result()
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
