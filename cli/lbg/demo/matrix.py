"""Queues by members, in the lines of the document's figures ("Sticky Load Balancing").

Heavy carries traffic, light does not; solid is what the member believes to be its own, dotted is a backup.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lbg.demo.cast import Life, MemberView, QueueView
from lbg.demo.scene import Scene

LINES = {
    (True, True): "━",
    (True, False): "─",
    (False, True): "┅",
    (False, False): "┄",
}
"""(primary, active) -> the line of the figures."""

MUCH_WAITING = 1000

_LIFE = {
    Life.WAITING: ("·", "dim", "not started"),
    Life.STARTING: ("◌", "yellow", "joining"),
    Life.LIVE: ("●", "", "live"),
    Life.LEAVING: ("◍", "yellow", "leaving"),
    Life.LEFT: ("○", "dim", "has left"),
    Life.KILLED: ("✖", "bold red", "KILLED"),
    Life.FAILED: ("✖", "bold red", "ended"),
}
_REBALANCE = {"HoldDown": "holding", "Rebalancing": "moving"}


def matrix(scene: Scene, colours: Mapping[str, str], *, compact: bool) -> RenderableType:
    """`compact`: one line a queue instead of two."""
    table = Table(expand=True, box=None, padding=(0, 1), show_edge=False)
    table.add_column("", no_wrap=True)
    for member in scene.members.values():
        head = _head(member, colours[member.name])
        table.add_column(head, ratio=1, justify="center", no_wrap=True)
    table.add_column(Text("waiting", style="dim"), justify="right", no_wrap=True)
    for queue in scene.queues:
        cells = [
            _cell(queue, member, colours[member.name], scene.now_s, compact=compact)
            for member in scene.members.values()
        ]
        table.add_row(Text(f"{scene.row_word} {queue.number}", style="bold"), *cells, _waiting(queue))
    legend = Text("‖ paused for a handoff", style="dim") if scene.shared is not None else _legend()
    body = Group(table, Text(), Align.center(legend))
    return Panel(body, title=f"{scene.row_word}s × members", border_style="bright_black")


def _legend() -> Text:
    legend = Text.assemble(
        ("━━▶", "bold"),
        (" primary  ", "dim"),
        ("┅┅▶", "bold"),
        (" backup, delivering;  ", "dim"),
        ("───", "bold"),
        (" primary  ", "dim"),
        ("┄┄┄", "bold"),
        (" backup, idle", "dim"),
    )
    legend.no_wrap = True
    return legend


def _head(member: MemberView, colour: str) -> Text:
    words = _LIFE[member.life][2]
    if member.life is Life.LIVE:
        index = "" if member.index is None else f"index {member.index}"
        words = _REBALANCE.get(member.rebalance, index)
    return life_of(member, colour) + Text(f"\n{words}", style="red" if member.life is Life.KILLED else "dim")


def life_of(member: MemberView, colour: str) -> Text:
    """Its name with the sign of its life."""
    sign, style, _ = _LIFE[member.life]
    is_there = member.life in (Life.LIVE, Life.STARTING, Life.LEAVING)
    return Text.assemble(
        (f"{sign} ", style or colour), (member.name, f"bold {colour}" if is_there else "dim")
    )


def _cell(queue: QueueView, member: MemberView, colour: str, now_s: float, *, compact: bool) -> Text:
    cell = member.cells.get(queue.number)
    if cell is None or cell.status == "Unbound":
        return Text("" if compact else "\n")
    primary = cell.role == "primary"
    line = LINES[primary, cell.active]
    if not cell.active:
        shown = Text(line * 8, style=colour if primary else "bright_black", overflow="crop")
        return shown if compact else shown + Text("\n")
    paused = cell.status == "Paused"
    arrow = Text().append(line * 7 + ("‖" if paused else "▶"), style=f"bold {colour}")
    if compact:
        return arrow
    words = "paused" if paused else rate(queue.meter.rate(now_s))
    held = f" +{cell.in_flight}" if cell.in_flight else ""
    return arrow.append(f"\n{words}{held}", style=colour)


def _waiting(queue: QueueView) -> Text:
    if queue.ready is None:
        return Text("unknown", style="yellow")
    style = "bold yellow" if queue.ready > MUCH_WAITING else "white" if queue.ready else "dim"
    return Text(f"{queue.ready:,}", style=style)


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s"
