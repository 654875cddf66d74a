"""What there is to show where no queue or partition belongs to a member: keys that are at one, or sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lbg.demo.matrix import life_of, rate
from lbg.demo.scene import Scene
from lbg_broker.group import SESSIONS
from lbg_broker.provisioning.native import MessageGroupsSeen, SessionSeen, SessionsSeen

_STATES = {"live": "green", "away": "dim", "stranded": "bold red", "closing": "yellow"}


def sharing_panel(scene: Scene, colours: Mapping[str, str]) -> RenderableType:
    if scene.mode == SESSIONS:
        return Panel(_sessions(scene, colours), title="sessions", border_style="bright_black")
    return Panel(_groups(scene, colours), title="keys × members", border_style="bright_black")


def _groups(scene: Scene, colours: Mapping[str, str]) -> RenderableType:
    table = _table("member", "", "in work", "delivered", "")
    for member in scene.members.values():
        sign = life_of(member, colours[member.name])
        bar = Text("━" * min(24, member.held) + ("▶" if member.held else ""), style=colours[member.name])
        speed = rate(member.meter.rate(scene.now_s))
        table.add_row(sign, bar, f"{member.held:,}", f"{member.meter.count:,}", Text(speed, style="dim"))
    told = Text("how many keys have messages is not known", style="dim")
    if isinstance(seen := scene.shared, MessageGroupsSeen):
        told = Text.assemble(
            (f"{seen.known:,}", "bold"),
            " keys have messages or are at a member, ",
            (f"{seen.busy:,}", "bold"),
            " are",
        )
    return Group(table, Text(), told, Text("each key is at one member at a time, in order", style="dim"))


def _sessions(scene: Scene, colours: Mapping[str, str]) -> RenderableType:
    seen = scene.shared if isinstance(scene.shared, SessionsSeen) else SessionsSeen(False, 0, ())
    known = {one.session: one for one in seen.sessions}
    table = _table("member", "session", "given out", "acknowledged", "holds", "")
    for member in scene.members.values():
        cells = _session_cells(known.get(member.name))
        speed = Text(rate(member.meter.rate(scene.now_s)), style="dim")
        table.add_row(life_of(member, colours[member.name]), *cells, speed)
    told = Text.assemble((f"{seen.pool:,}", "bold"), " messages without a session yet")
    return Group(table, Text(), told, Text("a message that is given out stays in its session", style="dim"))


def _session_cells(one: SessionSeen | None) -> Iterator[Text]:
    if one is None:
        yield from (Text("-", style="dim"), Text(), Text(), Text())
        return
    yield Text(one.state, style=_STATES.get(one.state, ""))
    yield Text(f"{one.assigned:,}")
    yield Text(f"{one.acknowledged:,}")
    yield Text(f"{one.messages:,}", style="bold red" if one.state == "stranded" else "")


def _table(*names: str) -> Table:
    table = Table(expand=True, box=None, padding=(0, 1), header_style="dim")
    for number, name in enumerate(names):
        table.add_column(name, no_wrap=True, justify="left" if number < 2 else "right")
    return table
