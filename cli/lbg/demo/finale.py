"""The demo's last screen: the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lbg.demo.scene import Scene
from lbg.demo.screen import colours_of
from lbg.demo.timeline import timeline
from lbg_broker.group import UNCOUNTED_MODES

BAR_WIDTH = 30
NARROW = 120


def finale(scene: Scene, report: Mapping[str, Any], *, width: int) -> RenderableType:
    """Everything at once: the verdict, the moves, the load, and who served what when."""
    colours = colours_of(scene)
    members = Panel(
        _bars(report["per_member"], colours), title="delivered per member", border_style="bright_black"
    )
    if not scene.has_rows:
        return Group(_verdict(report), _side_by_side(_proof(report), members, width=width))
    queues = {f"{scene.row_word} {number}": count for number, count in report["per_queue"].items()}
    return Group(
        _verdict(report),
        _side_by_side(_proof(report), _handoffs(report), width=width),
        timeline(scene, width - 4, colours),
        _side_by_side(
            Panel(_bars(queues, {}), title=f"delivered per {scene.row_word}", border_style="bright_black"),
            members,
            width=width,
        ),
    )


def _side_by_side(left: RenderableType, right: RenderableType, *, width: int) -> RenderableType:
    if width < NARROW:
        return Group(left, right)
    table = Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row(left, right)
    return table


def _verdict(report: Mapping[str, Any]) -> RenderableType:
    words = (
        f"{report['published']:,} published, {report['distinct']:,} delivered: nothing lost, nothing out of order"
        if report["ok"]
        else f"FAILED: {report['lost']:,} lost, {report['order_errors']:,} out of order"
    )
    style = "bold white on green" if report["ok"] else "bold white on red"
    return Panel(Align.center(Text(words, style="bold")), border_style=style.split(" on ")[1], style="")


def _proof(report: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row(
        "published", f"{report['published']:,}", f"{report['seconds']:.0f} s, keyed by {report['key']}"
    )
    table.add_row("delivered, each counted once", f"{report['distinct']:,}", "")
    table.add_row("lost", _must_be_zero(report["lost"]), "")
    sessions = report["sessions"]
    of_what = "key" if sessions is None else "session"
    table.add_row(
        "order errors",
        _must_be_zero(report["order_errors"]),
        f"no message after a later one of its {of_what}",
    )
    if sessions is not None:
        numbers = " ".join(f"{name}:{number:,}" for name, number in sessions["last_numbers"].items())
        table.add_row("in two sessions", _must_be_zero(sessions["in_two_places"]), f"last numbers {numbers}")
    elif report["mode"] not in UNCOUNTED_MODES:
        table.add_row(
            "repeated on planned moves",
            _must_be_zero(report["repeated_on_planned_moves"]),
            f"{report['handoffs']['planned']['count']} moves",
        )
    for kill in report["kills"]:
        elsewhere = kill["first_delivery_elsewhere_us"]
        after = "" if elsewhere is None else f"; next delivery elsewhere after {elsewhere / 1000:.0f} ms"
        table.add_row(
            f"repeated after SIGKILL of {kill['member']}",
            f"{kill['repeated']:,}",
            f"of {kill['in_flight']} that it held{after}",
        )
    if report["repeated_otherwise"]:
        table.add_row("repeated otherwise", f"{report['repeated_otherwise']:,}", "")
    return Panel(table, title=f"the proof, on {report['engine']}", border_style="bright_black")


def _must_be_zero(count: int) -> Text:
    return Text(
        f"{count:,} ✔" if count == 0 else f"{count:,} ✘", style="bold green" if count == 0 else "bold red"
    )


def _handoffs(report: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    for name in ("", "moves", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    rows: Sequence[tuple[str, str, str]] = (
        ("planned", "held", "planned: a message waited"),
        ("planned", "pause", "planned: the queue paused"),
        ("crash", "held", "crash: a message waited"),
        ("crash", "pause", "crash: the queue paused"),
    )
    for kind, measure, words in rows:
        some = report["handoffs"][kind]
        if some["count"]:
            percentiles = (_ms(some[measure][f"{name}_us"]) for name in ("p50", "p90", "p99", "max"))
            table.add_row(words, str(some["count"]), *percentiles)
    note = Text(
        "a queue also pauses while nobody publishes to it; what a message waited is the cost", style="dim"
    )
    return Panel(Group(table, Text(), note), title="moves, in ms", border_style="bright_black")


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f}"


def _bars(counts: Mapping[str, int], colours: Mapping[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    top = max(counts.values(), default=1)
    total = sum(counts.values()) or 1
    for name, count in counts.items():
        bar = Text("█" * max(1, round(count / top * BAR_WIDTH)), style=colours.get(name, "bright_black"))
        table.add_row(name, bar, f"{count:,}", Text(f"{count / total:.0%}", style="dim"))
    return table
