"""Screens of the demo: a live frame, plain lines without a terminal, and the summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.align import Align
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.counted_nouns import counted
from lbg_core.group import UNCOUNTED_MODES
from lbgroup.demo.model import COLOURS, DemoModel
from lbgroup.demo.script import SCRIPT
from lbgroup.live_map import live_map, map_lines, rate_text, sharing_line, timeline

HEADER_LINES = 6
TIMELINE_FRAME_LINES = 3
EVENTS_LEAST_LINES = 5

_NOTES = {
    "act": ("▶", "bold white"),
    "life": ("●", "white"),
    "member": ("·", "dim"),
    "move": ("⇄", "cyan"),
    "bad": ("‼", "bold white on red"),
}


def frame(scene: DemoModel, width: int, height: int) -> RenderableType:
    """All of it, for a terminal of `width` by `height` characters; sections that do not fit are left out."""
    members, description = scene.map_members, scene.description
    over_time = 0 if description.is_shared else len(scene.spans) + TIMELINE_FRAME_LINES
    left = height - HEADER_LINES - EVENTS_LEAST_LINES
    is_compact = map_lines(description, members, is_compact=False) + over_time > left
    by_member = map_lines(description, members, is_compact=is_compact)
    the_map = live_map(description, members, scene.queue_rates, is_compact=is_compact)
    parts = [Layout(_header(scene), size=HEADER_LINES), Layout(the_map, size=by_member)]
    if over_time and by_member + over_time <= left:
        parts.append(Layout(_timeline(scene, width), size=over_time))
        left -= over_time
    if by_member <= left:
        parts.append(Layout(_events(scene, left - by_member + EVENTS_LEAST_LINES - 2)))
    layout = Layout()
    layout.split_column(*parts)
    return layout


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def _header(scene: DemoModel) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    head.add_column(justify="right", no_wrap=True)
    title, text = Text("setting the stage …", style="dim"), Text()
    if (act := scene.act) is not None:
        number = f" {scene.act_number}/{len(SCRIPT)} "
        title = Text.assemble((number, "bold black on white"), "  ", (act.title, "bold"))
        text = Text(act.text, style="italic")
    head.add_row(title, Text(clock(scene.now_s), style="bold"))
    place = Text(scene.title, style="dim", no_wrap=True, overflow="ellipsis")
    counts = Text(
        counts_line(scene),
        style="bold white on red" if scene.inversions else "green",
        no_wrap=True,
        overflow="ellipsis",
    )
    return Group(place, head, text, counts, ProgressBar(total=1.0, completed=scene.share))


def _timeline(scene: DemoModel, width: int) -> RenderableType:
    crashes = [kill.at_s for kill in scene.kills]
    return timeline(scene.word, scene.spans, COLOURS, now_s=scene.now_s, width=width, crashes=crashes)


def _events(scene: DemoModel, rows: int) -> RenderableType:
    lines = []
    for note in scene.notes[-rows:]:
        sign, style = _NOTES[note.kind]
        line = Text.assemble((f"{clock(note.at_s)} ", "dim"), (f"{sign} {note.text}", style))
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return _panel("events", *lines)


def _panel(title: str, *parts: RenderableType) -> Panel:
    return Panel(Group(*parts), title=title, border_style="bright_black")


STATUS_EVERY_S = 5.0


class PlainView:
    """Writes the title, each event once, and a line of status every five seconds."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = 0
        self._next_status_s = STATUS_EVERY_S

    def __call__(self, scene: DemoModel) -> None:
        if not self._written:
            self._write(scene.title)
        for note in scene.notes[max(0, self._written - 1) :]:
            self._write(f"{clock(note.at_s)}  {'── ' if note.kind == 'act' else ''}{note.text}")
        self._written = 1 + len(scene.notes)
        if scene.now_s >= self._next_status_s:
            self._next_status_s = scene.now_s + STATUS_EVERY_S
            self._write(f"{clock(scene.now_s)}  {status_line(scene)}")


def status_line(scene: DemoModel) -> str:
    return f"{counts_line(scene)}, {sharing_line(scene.description)}"


def counts_line(scene: DemoModel) -> str:
    ready = scene.description.ready
    waiting = "unknown" if ready is UNKNOWN else f"{ready:,}"
    return (
        f"{scene.share:.0%} delivered ({rate_text(scene.delivered.rate(scene.now_s))}), {waiting} waiting, "
        f"{scene.inversions} order errors, {scene.rewinds} again"
    )


def summary(scene: DemoModel, report: Mapping[str, Any], *, width: int) -> RenderableType:
    """The verdict, the proof, the moves, queues by member and time, and the load."""
    parts: list[RenderableType] = [_verdict(report), _proof(report)]
    load = dict(report["per_member"])
    if not scene.description.is_shared:
        parts += [_handoffs(report), _timeline(scene, width)]
        load |= {f"{scene.word} {number}": count for number, count in report["per_queue"].items()}
    return Group(*parts, _panel("delivered", _bars(load, sum(report["per_member"].values()))))


def _verdict(report: Mapping[str, Any]) -> RenderableType:
    words, colour = f"FAILED: {report['lost']:,} lost, {report['order_errors']:,} out of order", "red"
    if report["ok"]:
        counts = f"{report['published']:,} published, {report['distinct']:,} delivered"
        words, colour = f"{counts}: nothing lost, nothing out of order", "green"
    return Panel(Align.center(Text(words, style="bold")), border_style=colour)


def _proof(report: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, count, text in _proof_rows(report):
        table.add_row(name, count, text)
    return _panel(f"the proof, on {report['engine']}", table)


def _proof_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str | Text, str]]:
    yield "published", f"{report['published']:,}", f"{report['seconds']:.0f} s, keyed by {report['key']}"
    yield "delivered, each counted once", f"{report['distinct']:,}", ""
    yield "lost", _must_be_zero(report["lost"]), ""
    sessions = report["sessions"]
    unit = "key" if sessions is None else "session"
    yield (
        "order errors",
        _must_be_zero(report["order_errors"]),
        f"no message after a later one of its {unit}",
    )
    if sessions is not None:
        numbers = " ".join(f"{name}:{number:,}" for name, number in sessions["last_numbers"].items())
        yield "in two sessions", _must_be_zero(sessions["in_two_places"]), f"last numbers {numbers}"
    elif report["mode"] not in UNCOUNTED_MODES:
        moves = counted(report["handoffs"]["planned"]["count"], "move")
        yield "repeated on planned moves", _must_be_zero(report["repeated_on_planned_moves"]), moves
    for kill in report["kills"]:
        elsewhere = kill["first_delivery_elsewhere_us"]
        after = "" if elsewhere is None else f"; next delivery elsewhere after {elsewhere / 1000:.0f} ms"
        text = f"of {kill['in_flight']} that it held{after}"
        yield f"repeated after SIGKILL of {kill['member']}", f"{kill['repeated']:,}", text
    if report["repeated_otherwise"]:
        yield "repeated otherwise", f"{report['repeated_otherwise']:,}", ""


def _must_be_zero(count: int) -> Text:
    sign, style = ("✔", "bold green") if count == 0 else ("✘", "bold red")
    return Text(f"{count:,} {sign}", style=style)


def _handoffs(report: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    for name in ("", "moves", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for kind in ("planned", "crash"):
        for measure, words in (("held", "a message waited"), ("pause", "the queue paused")):
            if (some := report["handoffs"][kind])["count"]:
                times = (f"{some[measure][f'{name}_us'] / 1000:.1f}" for name in ("p50", "p90", "p99", "max"))
                table.add_row(f"{kind}: {words}", str(some["count"]), *times)
    note = "a queue also pauses while nobody publishes to it; what a message waited is the cost"
    return _panel("moves, in ms", table, Text(), Text(note, style="dim"))


def _bars(counts: Mapping[str, int], total: int) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for name, count in counts.items():
        table.add_row(name, Bar(total, 0, count, color=COLOURS.get(name, "bright_black")), f"{count:,}")
    return table
