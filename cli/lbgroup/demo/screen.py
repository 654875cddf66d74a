"""Screen of the demo: one frame of the model, drawn with rich; plain lines without a terminal.

Heavy carries traffic, light does not; solid is what the member believes to be its own, dotted is a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.align import Align
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lbg_broker.admin.snapshot import MessageGroupsStatus, SessionsStatus, SessionStatus
from lbg_broker.group import SESSIONS, UNCOUNTED_MODES
from lbgroup.demo.model import DemoModel, MemberState, MemberView, Note, QueueView, sparkline

LINES = {
    (True, True): "━",
    (True, False): "─",
    (False, True): "┅",
    (False, False): "┄",
}
"""(primary, active) -> the line of the figures."""

MUCH_WAITING = 1000

_LIFE = {
    MemberState.WAITING: ("·", "dim", "not started"),
    MemberState.STARTING: ("◌", "yellow", "joining"),
    MemberState.LIVE: ("●", "", "live"),
    MemberState.LEAVING: ("◍", "yellow", "leaving"),
    MemberState.LEFT: ("○", "dim", "has left"),
    MemberState.KILLED: ("✖", "bold red", "KILLED"),
    MemberState.FAILED: ("✖", "bold red", "ended"),
}
_REBALANCE = {"HoldDown": "holding", "Rebalancing": "moving"}


def matrix(scene: DemoModel, colours: Mapping[str, str], *, compact: bool) -> RenderableType:
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
    if member.life is MemberState.LIVE:
        index = "" if member.index is None else f"index {member.index}"
        words = _REBALANCE.get(member.rebalance, index)
    return life_of(member, colour) + Text(
        f"\n{words}", style="red" if member.life is MemberState.KILLED else "dim"
    )


def life_of(member: MemberView, colour: str) -> Text:
    """Its name with the sign of its life."""
    sign, style, _ = _LIFE[member.life]
    is_there = member.life in (MemberState.LIVE, MemberState.STARTING, MemberState.LEAVING)
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


LABEL = 13


def timeline(scene: DemoModel, width: int, colours: Mapping[str, str]) -> RenderableType:
    """From the beginning until now, in `width` characters; a cross below marks a SIGKILL."""
    room = max(10, width - LABEL)
    end_s = max(scene.now_s, 1.0)
    lines = [_line(f"{scene.row_word} {queue.number}", queue, room, end_s, colours) for queue in scene.queues]
    marks = Text(" " * (LABEL + room))
    for kill in scene.kills:
        at = LABEL + min(room - 1, int(kill.at_s / end_s * room))
        marks = marks[:at] + Text("✖", style="bold red") + marks[at + 1 :]
    title = f"who served each {scene.row_word}, so far"
    return Panel(Group(*lines, marks), title=title, border_style="bright_black")


def _line(label: str, queue: QueueView, room: int, end_s: float, colours: Mapping[str, str]) -> Text:
    """A block for each span of time, with the member's name in it where it fits."""
    line = Text(f"{label:<{LABEL}}", style="bold")
    starts = [max(0, min(room, round(at_s / end_s * room))) for at_s, _ in queue.spans]
    line.append("░" * (starts[0] if starts else room), style="bright_black")
    for (_, member), start, end in zip(queue.spans, starts, [*starts, room][1:], strict=True):
        length = max(0, end - start)
        name = member if len(member) < length else ""
        block = name + " " * (length - len(name))
        line.append(block, style=f"bold black on {colours.get(member, 'white')}")
    return line


_STATES = {"live": "green", "away": "dim", "stranded": "bold red", "closing": "yellow"}


def sharing_panel(scene: DemoModel, colours: Mapping[str, str]) -> RenderableType:
    if scene.mode == SESSIONS:
        return Panel(_sessions(scene, colours), title="sessions", border_style="bright_black")
    return Panel(_groups(scene, colours), title="keys × members", border_style="bright_black")


def _groups(scene: DemoModel, colours: Mapping[str, str]) -> RenderableType:
    table = _table("member", "", "in work", "delivered", "")
    for member in scene.members.values():
        sign = life_of(member, colours[member.name])
        bar = Text("━" * min(24, member.held) + ("▶" if member.held else ""), style=colours[member.name])
        speed = rate(member.meter.rate(scene.now_s))
        table.add_row(sign, bar, f"{member.held:,}", f"{member.meter.count:,}", Text(speed, style="dim"))
    told = Text("how many keys have messages is not known", style="dim")
    if isinstance(seen := scene.shared, MessageGroupsStatus):
        told = Text.assemble(
            (f"{seen.known:,}", "bold"),
            " keys have messages or are at a member, ",
            (f"{seen.busy:,}", "bold"),
            " are",
        )
    return Group(table, Text(), told, Text("each key is at one member at a time, in order", style="dim"))


def _sessions(scene: DemoModel, colours: Mapping[str, str]) -> RenderableType:
    seen = scene.shared if isinstance(scene.shared, SessionsStatus) else SessionsStatus(False, 0, ())
    known = {one.session: one for one in seen.sessions}
    table = _table("member", "session", "given out", "acknowledged", "holds", "")
    for member in scene.members.values():
        cells = _session_cells(known.get(member.name))
        speed = Text(rate(member.meter.rate(scene.now_s)), style="dim")
        table.add_row(life_of(member, colours[member.name]), *cells, speed)
    told = Text.assemble((f"{seen.pool:,}", "bold"), " messages without a session yet")
    return Group(table, Text(), told, Text("a message that is given out stays in its session", style="dim"))


def _session_cells(one: SessionStatus | None) -> Iterator[Text]:
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
    """Number of lines of each part; `compact`: one line a queue in the matrix instead of two."""

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


def frame(scene: DemoModel, *, width: int, height: int) -> RenderableType:
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


def colours_of(scene: DemoModel) -> dict[str, str]:
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(scene.members)}


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def _header(scene: DemoModel) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(justify="right", no_wrap=True)
    name = Text.assemble(("LBG ", "bold"), ("a load-balanced group, live", "bold cyan"))
    line.add_row(name, Text(clock(scene.now_s), style="bold"))
    told = Text(f"{scene.share:6.1%} of {scene.rows:,} delivered", style="dim")
    line.add_row(Text(scene.title, style="dim"), told)
    return Group(line, Rule(style="dim"))


def _act(scene: DemoModel, width: int) -> RenderableType:
    if scene.act is None:
        return Padding(Text("setting the stage …", style="dim"), (0, 1))
    number = f" {scene.act_number}/{scene.acts_total} "
    title = Text.assemble((number, "bold black on white"), "  ", (scene.act.title, "bold"))
    text = Text(scene.act.text, style="italic", no_wrap=True, overflow="ellipsis")
    return Padding(Group(title, text, Text(), _progress_bar(scene, width)), (0, 1))


def _progress_bar(scene: DemoModel, width: int) -> Text:
    """The input, with the number of each act where it began."""
    filled = round(scene.share * width)
    bar = Text("━" * filled, style="green") + Text("━" * (width - filled), style="bright_black")
    for number, mark in enumerate(scene.act_marks, 1):
        at = min(width - 1, round(mark * width))
        bar = bar[:at] + Text(str(number % 10), style="bold white") + bar[at + 1 :]
    return bar


def _flow(scene: DemoModel) -> RenderableType:
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


def _moves(scene: DemoModel, rows: int, colours: Mapping[str, str]) -> RenderableType:
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


STATUS_EVERY_S = 5.0


class PlainView:
    """Writes the title, each event once, and a line of status every five seconds."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told = 0
        self._has_title = False
        self._next_status_s = STATUS_EVERY_S

    def show(self, scene: DemoModel) -> None:
        if not self._has_title:
            self._has_title = True
            self._write(scene.title)
        new = scene.notes_since(self._told)
        self._told = scene.noted
        for note in new:
            self._write(f"{clock(note.at_s)}  {'── ' if note.kind == 'act' else ''}{note.text}")
        if scene.now_s >= self._next_status_s:
            self._next_status_s = scene.now_s + STATUS_EVERY_S
            self._write(f"{clock(scene.now_s)}  {status_line(scene)}")


def status_line(scene: DemoModel) -> str:
    lag = "unknown" if scene.lag is None else f"{scene.lag:,}"
    return (
        f"{scene.share:.0%} delivered ({scene.delivered.rate(scene.now_s):,.0f}/s), {lag} waiting, "
        f"{scene.inversions} order errors, {scene.rewinds} again, {_shared(scene)}"
    )


def _shared(scene: DemoModel) -> str:
    match scene.shared:
        case MessageGroupsStatus(known, busy):
            return f"{busy} of {known} keys at a member"
        case SessionsStatus(sessions=sessions):
            return "sessions " + " ".join(
                f"{one.session}:{one.acknowledged}/{one.assigned}" for one in sessions
            )
        case _:
            holders = " ".join(f"{queue.number}:{queue.holder or '-'}" for queue in scene.queues)
            return f"{scene.row_word}s {holders}"


BAR_WIDTH = 30
NARROW = 120


def finale(scene: DemoModel, report: Mapping[str, Any], *, width: int) -> RenderableType:
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
