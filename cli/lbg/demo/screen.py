"""The demo on a terminal: one frame of the scene, drawn with rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lbg.demo.cast import Note
from lbg.demo.matrix import matrix, rate
from lbg.demo.meters import sparkline
from lbg.demo.scene import Scene
from lbg.demo.sharing_panel import sharing_panel
from lbg.demo.timeline import timeline

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")

HEADER_LINES = 3
ACT_LINES = 5
MATRIX_FRAME_LINES = 6
TIMELINE_FRAME_LINES = 3
FLOW_LINES = 11
BOTTOM_LEAST_LINES = 5

_NOTE = {
    "act": ("▶", "bold white"),
    "life": ("●", "white"),
    "member": ("·", "dim"),
    "move": ("⇄", "cyan"),
    "bad": ("‼", "bold white on red"),
}


@dataclass(frozen=True, slots=True)
class Rooms:
    """How many lines each part gets; `compact`: one line a queue in the matrix instead of two."""

    matrix: int
    timeline: int
    bottom: int
    compact: bool

    @classmethod
    def of(cls, queues: int, height: int) -> Rooms:
        left = height - HEADER_LINES - ACT_LINES
        over_time = queues + TIMELINE_FRAME_LINES
        compact = 2 * queues + MATRIX_FRAME_LINES + over_time + BOTTOM_LEAST_LINES > left
        by_member = max((1 if compact else 2) * queues + MATRIX_FRAME_LINES, FLOW_LINES)
        if by_member + over_time + BOTTOM_LEAST_LINES > left:
            over_time = 0
        return cls(by_member, over_time, max(0, left - by_member - over_time), compact)


def frame(scene: Scene, *, width: int, height: int) -> RenderableType:
    """All of it, for a terminal of `width` by `height` characters."""
    colours = colours_of(scene)
    rooms = Rooms.of(len(scene.queues) if scene.has_rows else len(scene.members), height)
    by_row = matrix(scene, colours, compact=rooms.compact)
    sharing = by_row if scene.has_rows else sharing_panel(scene, colours)
    middle = Layout(name="middle", size=rooms.matrix)
    middle.split_row(
        Layout(sharing, ratio=5),
        Layout(_flow(scene), ratio=3, minimum_size=34),
    )
    parts = [
        Layout(_header(scene), size=HEADER_LINES),
        Layout(_act(scene, width - 2), size=ACT_LINES),
        middle,
    ]
    if rooms.timeline and scene.has_rows:
        parts.append(Layout(timeline(scene, width - 4, colours), size=rooms.timeline))
    if rooms.bottom >= BOTTOM_LEAST_LINES:
        bottom = Layout(minimum_size=BOTTOM_LEAST_LINES)
        notes = Layout(_notes(scene.notes, rooms.bottom - 2), ratio=5)
        moves = Layout(_moves(scene, rooms.bottom - 3, colours), ratio=4, minimum_size=48)
        bottom.split_row(*((moves, notes) if scene.has_rows else (notes,)))
        parts.append(bottom)
    layout = Layout()
    layout.split_column(*parts)
    return layout


def colours_of(scene: Scene) -> dict[str, str]:
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(scene.members)}


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def _header(scene: Scene) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(justify="right", no_wrap=True)
    name = Text.assemble(("LBG ", "bold"), ("a load-balanced group, live", "bold cyan"))
    line.add_row(name, Text(clock(scene.now_s), style="bold"))
    told = Text(f"{scene.share:6.1%} of {scene.rows:,} delivered", style="dim")
    line.add_row(Text(scene.title, style="dim"), told)
    return Group(line, Rule(style="dim"))


def _act(scene: Scene, width: int) -> RenderableType:
    if scene.act is None:
        return Padding(Text("setting the stage …", style="dim"), (0, 1))
    number = f" {scene.act_number}/{scene.acts_total} "
    title = Text.assemble((number, "bold black on white"), "  ", (scene.act.title, "bold"))
    text = Text(scene.act.text, style="italic", no_wrap=True, overflow="ellipsis")
    return Padding(Group(title, text, Text(), _progress_bar(scene, width)), (0, 1))


def _progress_bar(scene: Scene, width: int) -> Text:
    """The input, with the number of each act where it began."""
    filled = round(scene.share * width)
    bar = Text("━" * filled, style="green") + Text("━" * (width - filled), style="bright_black")
    for number, mark in enumerate(scene.act_marks, 1):
        at = min(width - 1, round(mark * width))
        bar = bar[:at] + Text(str(number % 10), style="bold white") + bar[at + 1 :]
    return bar


def _flow(scene: Scene) -> RenderableType:
    now_s = scene.now_s
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    delivered = Text(f"{scene.delivered.count:,}", style="bold green")
    waiting = Text("unknown", style="yellow") if scene.lag is None else Text(f"{scene.lag:,}")
    again = Text(f"{scene.rewinds:,}", style="yellow" if scene.rewinds else "bold green")
    errors = Text(f"{scene.inversions:,}", style="bold white on red" if scene.inversions else "bold green")
    table.add_row("published", f"{scene.published.count:,}", rate(scene.published.rate(now_s)))
    table.add_row("delivered", delivered, rate(scene.delivered.rate(now_s)))
    table.add_row("waiting", waiting, "")
    table.add_row("order errors", errors, "")
    table.add_row("delivered again", again, "")
    words = Text("deliveries a second, last minute", style="dim", no_wrap=True)
    spark = Text(sparkline(list(scene.delivered.history), 28), style="green")
    return Panel(Group(table, Text(), words, spark), title="flow", border_style="bright_black")


def _moves(scene: Scene, rows: int, colours: Mapping[str, str]) -> RenderableType:
    moves = scene.moves
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("at", justify="right", no_wrap=True, min_width=6)
    table.add_column(scene.row_word, no_wrap=True)
    table.add_column("from → to", no_wrap=True, min_width=9)
    table.add_column("waited", justify="right", no_wrap=True, min_width=8)
    table.add_column("", no_wrap=True)
    for move in list(reversed(moves))[: max(1, rows)]:
        route = Text.assemble(
            (move.was, colours.get(move.was, "")), " → ", (move.now, colours.get(move.now, ""))
        )
        how = Text("crash", style="red") if move.is_crash else Text("planned", style="green")
        waited = Text(f"{move.waited_ms:.1f} ms", style="bold")
        table.add_row(Text(clock(move.at_s), style="dim"), str(move.queue), route, waited, how)
    return Panel(table, title=f"moves ({len(moves)})", border_style="bright_black")


def _notes(notes: Sequence[Note], rows: int) -> RenderableType:
    lines = []
    for note in list(notes)[-max(1, rows) :]:
        sign, style = _NOTE.get(note.kind, ("·", ""))
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{clock(note.at_s)} ", style="dim")
        lines.append(line.append(f"{sign} {note.text}", style=style))
    return Panel(Group(*lines), title="events", border_style="bright_black")
