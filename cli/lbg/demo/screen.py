"""The demo on a terminal: one frame of the scene, drawn with rich.

The lines of the matrix are those of the document's figures ("Sticky Load Balancing"): heavy carries traffic, light
does not; solid is what the member believes to be its own, dotted is a backup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.align import Align
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lbg.demo.meters import sparkline
from lbg.demo.scene import Life, MemberView, MoveView, Note, QueueView, Scene

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
LINES = {
    (True, True): "━",
    (True, False): "─",
    (False, True): "┅",
    (False, False): "┄",
}
"""(primary, active) -> the line of the document's figures."""

_LIFE = {
    Life.WAITING: ("·", "dim", "not started"),
    Life.STARTING: ("◌", "yellow", "joining"),
    Life.LIVE: ("●", "", "live"),
    Life.LEAVING: ("◍", "yellow", "leaving"),
    Life.LEFT: ("○", "dim", "has left"),
    Life.KILLED: ("✖", "bold red", "KILLED"),
    Life.FAILED: ("✖", "bold red", "ended"),
}
_NOTE = {
    "act": ("▶", "bold white"),
    "life": ("●", "white"),
    "member": ("·", "dim"),
    "move": ("⇄", "cyan"),
    "bad": ("‼", "bold white on red"),
    "kill": ("✖", "bold red"),
}


def frame(scene: Scene, *, width: int, height: int) -> RenderableType:
    """All of it, for a terminal of `width` by `height` characters."""
    colours = colours_of(scene)
    layout = Layout()
    matrix_height = 2 * len(scene.queues) + 7
    timeline_height = len(scene.queues) + 3
    layout.split_column(
        Layout(_header(scene), name="header", size=3),
        Layout(_act(scene, width), name="act", size=5),
        Layout(name="middle", size=matrix_height),
        Layout(timeline(scene, width - 4, colours), name="time", size=timeline_height),
        Layout(name="bottom", minimum_size=3),
    )
    layout["middle"].split_row(
        Layout(_matrix(scene, colours), name="matrix", ratio=5),
        Layout(_flow(scene), name="flow", ratio=3, minimum_size=34),
    )
    rows = max(1, height - 3 - 5 - matrix_height - timeline_height - 2)
    layout["bottom"].split_row(
        Layout(_moves(scene.moves, rows, colours), name="moves", ratio=1),
        Layout(_notes(scene.notes, rows), name="notes", ratio=1),
    )
    return layout


def colours_of(scene: Scene) -> dict[str, str]:
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(scene.members)}


def _header(scene: Scene) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(
        Text.assemble(("LBG ", "bold"), ("a load-balanced group, live", "bold cyan")),
        Text(clock(scene.now_s), style="bold"),
    )
    line.add_row(Text(scene.title, style="dim"), _progress_words(scene))
    return Group(line, Rule(style="dim"))


def _progress_words(scene: Scene) -> Text:
    return Text(f"{scene.share:6.1%} of {scene.rows:,} delivered", style="dim")


def _act(scene: Scene, width: int) -> RenderableType:
    if scene.act is None:
        return Padding(Text("setting the stage …", style="dim"), (0, 1))
    title = Text.assemble(
        (f" {scene.act_number}/{scene.acts_total} ", "bold black on white"), "  ", (scene.act.title, "bold")
    )
    bar = _progress_bar(scene, width - 4)
    return Padding(Group(title, Text(scene.act.text, style="italic"), Text(), bar), (0, 1))


def _progress_bar(scene: Scene, width: int) -> Text:
    """The input, with a mark where each act began."""
    filled = round(scene.share * width)
    bar = Text("━" * filled, style="green") + Text("━" * (width - filled), style="bright_black")
    for number, mark in enumerate(scene.act_marks, 1):
        at = min(width - 1, round(mark * width))
        bar = bar[:at] + Text(str(number % 10), style="bold white") + bar[at + 1 :]
    return bar


def _matrix(scene: Scene, colours: dict[str, str]) -> RenderableType:
    table = Table(expand=True, box=None, padding=(0, 1), show_edge=False)
    table.add_column("", no_wrap=True)
    for member in scene.members.values():
        table.add_column(_member_head(member, colours[member.name]), ratio=1, justify="center", no_wrap=True)
    table.add_column(Text("waiting", style="dim"), justify="right", no_wrap=True)
    for queue in scene.queues:
        table.add_row(
            Text(f"queue {queue.number}", style="bold"),
            *(_cell(queue, member, colours[member.name], scene.now_s) for member in scene.members.values()),
            _waiting(queue),
        )
    legend = Text.assemble(
        ("━━▶", "bold"),
        (" primary, delivering   ", "dim"),
        ("───", "bold"),
        (" primary, idle   ", "dim"),
        ("┅┅▶", "bold"),
        (" backup, delivering   ", "dim"),
        ("┄┄┄", "bold"),
        (" backup", "dim"),
    )
    return Panel(
        Group(table, Text(), Align.center(legend)), title="queues × members", border_style="bright_black"
    )


def _member_head(member: MemberView, colour: str) -> Text:
    sign, style, words = _LIFE[member.life]
    name_style = f"bold {colour}" if member.life in (Life.LIVE, Life.STARTING, Life.LEAVING) else "dim"
    head = Text.assemble((f"{sign} ", style or colour), (member.name, name_style))
    if member.life is Life.LIVE:
        index = "" if member.index is None else f"index {member.index}"
        words = f"{index}, {_REBALANCE[member.rebalance]}" if member.rebalance in _REBALANCE else index
    return head + Text(f"\n{words}", style="dim" if member.life is not Life.KILLED else "red")


_REBALANCE = {"HoldDown": "waits until stable", "Rebalancing": "rebalancing"}


def _cell(queue: QueueView, member: MemberView, colour: str, now_s: float) -> Text:
    cell = member.cells.get(queue.number)
    if cell is None or cell.status == "Unbound":
        return Text(
            "✖" if member.life is Life.KILLED and queue.holder == member.name else " ", style="red dim"
        )
    primary = cell.role == "primary"
    line = LINES[primary, cell.active]
    if not cell.active:
        return Text(line * 8, style=colour if primary else "bright_black") + Text("\n")
    paused = cell.status == "Paused"
    words = "paused" if paused else _rate(queue.meter.rate(now_s))
    held = f" +{cell.in_flight}" if cell.in_flight else ""
    return Text(line * 7 + ("‖" if paused else "▶"), style=f"bold {colour}") + Text(
        f"\n{words}{held}", style=colour
    )


def _waiting(queue: QueueView) -> Text:
    if queue.ready is None:
        return Text("unknown", style="yellow")
    style = "bold yellow" if queue.ready > 1000 else "white" if queue.ready else "dim"
    return Text(f"{queue.ready:,}", style=style)


def _flow(scene: Scene) -> RenderableType:
    now_s = scene.now_s
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(
        "published", f"{scene.published.count:,}", Text(_rate(scene.published.rate(now_s)), style="dim")
    )
    table.add_row(
        "delivered",
        Text(f"{scene.delivered.count:,}", style="bold green"),
        Text(_rate(scene.delivered.rate(now_s)), style="dim"),
    )
    lag = scene.lag
    table.add_row("waiting", Text("unknown", style="yellow") if lag is None else f"{lag:,}", "")
    table.add_row("order errors", _verdict(scene.inversions), "")
    table.add_row(
        "delivered again", Text(f"{scene.rewinds:,}", style="yellow" if scene.rewinds else "bold green"), ""
    )
    spark = Text(sparkline(list(scene.delivered.history), 28), style="green")
    return Panel(
        Group(table, Text(), Text("deliveries a second, last minute", style="dim"), spark),
        title="flow",
        border_style="bright_black",
    )


def _verdict(count: int) -> Text:
    return Text(f"{count:,}", style="bold white on red" if count else "bold green")


def timeline(scene: Scene, width: int, colours: dict[str, str]) -> RenderableType:
    """Who served each queue, from the beginning until now."""
    label = 9
    room = max(10, width - label)
    end_s = max(scene.now_s, 1.0)
    lines = [_queue_line(queue, room, end_s, label, colours) for queue in scene.queues]
    marks = Text(" " * (label + room))
    for kill in scene.kills:
        at = label + min(room - 1, int(kill.at_s / end_s * room))
        marks = marks[:at] + Text("✖", style="bold red") + marks[at + 1 :]
    return Panel(
        Group(*lines, marks),
        title="who served each queue, so far",
        border_style="bright_black",
    )


def _queue_line(queue: QueueView, room: int, end_s: float, label: int, colours: dict[str, str]) -> Text:
    line = Text(f"{f'queue {queue.number}':<{label}}", style="bold")
    holder: str | None = None
    spans = list(queue.spans)
    for column in range(room):
        until_s = (column + 1) / room * end_s
        while spans and spans[0][0] <= until_s:
            holder = spans.pop(0)[1]
        line.append("█" if holder else "░", style=colours.get(holder or "", "bright_black"))
    return line


def _moves(moves: Sequence[MoveView], rows: int, colours: dict[str, str]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), expand=True, header_style="dim")
    for name, justify in (
        ("at", "right"),
        ("queue", "left"),
        ("from → to", "left"),
        ("pause", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for move in list(reversed(moves))[: max(1, rows - 1)]:
        how = Text("crash", style="red") if move.is_crash else Text("planned", style="green")
        table.add_row(
            Text(clock(move.at_s), style="dim"),
            str(move.queue),
            Text.assemble(
                (move.was, colours.get(move.was, "")), " → ", (move.now, colours.get(move.now, ""))
            ),
            Text(f"{move.waited_ms:.1f} ms", style="bold"),
            how,
        )
    return Panel(table, title=f"moves ({len(moves)})", border_style="bright_black")


def _notes(notes: Sequence[Note], rows: int) -> RenderableType:
    lines = []
    for note in list(notes)[-rows:]:
        sign, style = _NOTE.get(note.kind, ("·", ""))
        line = Text(f"{clock(note.at_s)} ", style="dim", no_wrap=True, overflow="ellipsis")
        lines.append(line + Text(f"{sign} {note.text}", style=style))
    return Panel(Group(*lines), title="events", border_style="bright_black")


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s"
