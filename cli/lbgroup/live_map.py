"""Live map of a group in a terminal: its queues, partitions or sessions, and the members that serve them.

It draws the rows of a description (`lbg_core.admin.describe`) with rich. Heavy lines carry traffic, light ones do
not; solid is a primary, dotted a secondary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from rich.align import Align
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lbg_core.admin.problem_kinds import Severity
from lbg_core.admin.snapshot import UNKNOWN, MessageGroupsStatus
from lbg_core.counted_nouns import counted
from lbg_core.group import SESSIONS

if TYPE_CHECKING:
    from lbg_core.admin.describe import Description
    from lbg_core.admin.rows import ServiceRow
    from lbg_core.admin.snapshot import SessionStatus
    from lbg_core.group.member_state import QueueState

RATE_OVER_S = 2.0


class Meter:
    """A count that only grows, and its rate over the last two seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._samples: deque[tuple[float, int]] = deque()

    def read(self, count: int, now_s: float) -> None:
        self.count = max(count, self.count)
        self._samples.append((now_s, self.count))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RATE_OVER_S:
            self._samples.popleft()

    def rate(self, now_s: float) -> float:
        """Per second; 0 when nothing was read for twice as long."""
        if len(self._samples) < 2 or self._samples[-1][0] < now_s - 2 * RATE_OVER_S:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


class MemberState(Enum):
    """State of a member's process: its sign on the map, the style of the sign and the words below its name."""

    WAITING = ("·", "dim", "not started")
    STARTING = ("◌", "yellow", "joining")
    LIVE = ("●", "", "live")
    LEAVING = ("◍", "yellow", "leaving")
    LEFT = ("○", "dim", "has left")
    KILLED = ("✖", "bold red", "KILLED")
    FAILED = ("✖", "bold red", "ended")

    @property
    def is_running(self) -> bool:
        return self in (MemberState.STARTING, MemberState.LIVE, MemberState.LEAVING)


@dataclass(frozen=True, slots=True)
class MapMember:
    """A member on the map, whether it is in the group or not. `delivered`: messages, and `rate`: of them per second.
    `label`: shorter name."""

    name: str
    colour: str
    state: MemberState = MemberState.LIVE
    delivered: int = 0
    rate: float = 0.0
    label: str = ""

    @property
    def title(self) -> Text:
        sign, style, _ = self.state.value
        name_style = f"bold {self.colour}" if self.state.is_running else "dim"
        return Text.assemble((f"{sign} ", style or self.colour), (self.label or self.name, name_style))


COLOURS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta")
"""Of members: red and yellow are the colours of problems."""
LINE_CHARS = 8
"""Of a member's line at a queue."""
LONG_NAME_CHARS = 12
MAP_FRAME_LINES = 6
"""Lines of the map beside those of its queues, partitions or members."""

_LINES = {(True, True): "━", (True, False): "─", (False, True): "┅", (False, False): "┄"}
"""(primary, active) -> line."""
_TROUBLES = {"Blocked": "blocked", "Stalled": "stalled"}
"""Progress -> its word on the map."""

_REBALANCE = {"HoldDown": "holding", "Rebalancing": "moving"}
_SESSION_STYLES = {"live": "green", "away": "dim", "stranded": "bold red", "closing": "yellow"}


def colours_of(names: Iterable[str]) -> dict[str, str]:
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def severity_style(severity: Severity | None) -> str:
    """None: there is no problem."""
    if severity is None:
        return ""
    return "dim" if severity is Severity.NOTE else "bold red" if severity.is_urgent else "yellow"


def service_word(description: Description) -> str:
    return "partition" if description.has_partitions else "queue"


def live_map(
    description: Description,
    members: Sequence[MapMember],
    rates: Mapping[int, float],
    *,
    is_compact: bool = False,
    selected: int | None = None,
    width: int | None = None,
) -> RenderableType:
    """`rates`: messages per second of each queue or partition. `is_compact`: one line for each of them, and not two.
    `selected`: number of the one that is marked. `width`: in characters; a list where columns do not fit."""
    if not description.is_shared:
        title = f"{service_word(description)}s × members"
        if width is None or _map_width(description, members) <= width:
            body = _services(description, members, rates, is_compact=is_compact, selected=selected)
        else:
            title, body = f"{service_word(description)}s", _listed(description, members, rates, selected)
    elif description.spec is not None and description.spec.mode == SESSIONS:
        title, body = "sessions", _sessions(description, members)
    else:
        title, body = "keys × members", _message_groups(description, members)
    return Panel(body, title=title, border_style="bright_black")


def map_lines(
    description: Description, members: Sequence[MapMember], *, is_compact: bool, width: int | None = None
) -> int:
    """Height of the map; `width` is as of `live_map`."""
    services = () if description.services is UNKNOWN else description.services
    if not description.is_shared and width is not None and _map_width(description, members) > width:
        longest = 3 + max(map(len, _states(description, members)), default=0)
        return len(services) + MAP_FRAME_LINES - 1 + -(-len(members) // max(1, (width - 4) // longest))
    lines = (1 if is_compact else 2) * len(services) if services else len(members)
    return lines + MAP_FRAME_LINES


def _map_width(description: Description, members: Sequence[MapMember]) -> int:
    """Width of the map with whole names, in characters."""
    beside = len(service_word(description)) + 6 + len("waiting") + 8
    return beside + sum(max(LINE_CHARS, len(member.title)) + 2 for member in members)


def _listed(
    description: Description, members: Sequence[MapMember], rates: Mapping[int, float], selected: int | None
) -> RenderableType:
    """The queues, and below them the members with their states."""
    table = _table(service_word(description), "served by", "status", "rate", "waiting")
    titles = {member.name: member.title for member in members}
    for row in description.reported_services:
        trouble = description.severity_of(row.number)
        style = f"{'reverse ' if row.number == selected else ''}bold {severity_style(trouble)}"
        server = Text(row.server or "nobody", style=severity_style(trouble) or "dim")
        if row.member is not None:
            server = titles.get(row.member.name, server)
        rate = Text(rate_text(rates.get(row.number, 0.0)), style="dim")
        status = Text(row.status, style=severity_style(trouble))
        table.add_row(Text(str(row.number), style=style), server, status, rate, _waiting(row, trouble))
    return Group(table, Text(), Columns(_states(description, members), padding=(0, 3)))


def _states(description: Description, members: Sequence[MapMember]) -> list[Text]:
    """Name and state of each member."""
    return [Text(" ").join(_head(description, member).split("\n")) for member in members]


def _services(
    description: Description,
    members: Sequence[MapMember],
    rates: Mapping[int, float],
    *,
    is_compact: bool,
    selected: int | None,
) -> RenderableType:
    table = Table(expand=True, box=None, padding=(0, 1), show_edge=False)
    table.add_column("", no_wrap=True)
    for member in members:
        table.add_column(_head(description, member), ratio=1, justify="center", no_wrap=True)
    table.add_column(Text("waiting", style="dim"), justify="right", no_wrap=True)
    if description.services is UNKNOWN:
        return Group(table, Text(f"{service_word(description)}s unknown", style="yellow"))
    for row in description.services:
        bindings = {member.name: one for member, one in row.bindings}
        rate = rates.get(row.number, 0.0)
        trouble = description.severity_of(row.number)
        server = None if row.member is None else row.member.name
        cells = (
            _cell(
                bindings.get(one.name),
                one.colour,
                rate,
                trouble,
                is_active=one.name == server,
                is_compact=is_compact,
            )
            for one in members
        )
        style = f"{'reverse ' if row.number == selected else ''}bold {severity_style(trouble)}"
        label = Text(f"{service_word(description)} {row.number}", style=style)
        table.add_row(label, *cells, _waiting(row, trouble))
    legend = Text("primary ─── active ━━▶   secondary ┄┄┄ active ┅┅▶", style="dim", no_wrap=True)
    return Group(table, Text(), Align.center(legend))


def _head(description: Description, member: MapMember) -> Text:
    words = member.state.value[2]
    if member.state is MemberState.LIVE and description.members is not UNKNOWN:
        for one in description.members:
            if one.name == member.name:
                # Where the broker moves partitions, it is not the members that wait.
                rebalance = description.rebalance if description.is_one_queue else one.rebalance
                words = _REBALANCE.get(rebalance, f"index {one.index}")
    style = (
        "red" if member.state is MemberState.KILLED else severity_style(description.severity_of(member.name))
    )
    return member.title + Text(f"\n{words}", style=style or "dim")


def _cell(
    binding: QueueState | None,
    colour: str,
    rate: float,
    trouble: Severity | None,
    *,
    is_active: bool,
    is_compact: bool,
) -> Text:
    """`trouble`: of the queue. A member that is not active may have it too: it should be, and gets no messages."""
    if binding is None or binding.status == "Unbound":
        return Text("" if is_compact else "\n")
    is_active = is_active or binding.active
    line = _LINES[binding.is_primary, is_active]
    below, style = "", colour
    word = None if trouble is None else _TROUBLES.get(binding.progress)
    if word is not None or (trouble is not None and is_active):
        style = severity_style(trouble)
        cell = Text(f"{line * 7}!", style=style)
        below = word or rate_text(rate)
    elif is_active:
        is_paused = binding.status == "Paused"
        cell = Text(line * 7 + ("‖" if is_paused else "▶"), style=f"bold {colour}")
        below = "paused" if is_paused else rate_text(rate)
    else:
        cell = Text(line * 8, style=colour if binding.is_primary else "bright_black")
    if is_active and binding.in_flight:
        below += f" +{binding.in_flight}"
    return cell if is_compact else cell + Text(f"\n{below}", style=style)


def progress_text(binding: QueueState, rate: float) -> str:
    """Progress of a queue; one that had messages in the last seconds is not idle."""
    return "Working" if binding.progress == "Idle" and binding.active and rate > 0 else binding.progress


def last_chars(text: str, count: int) -> str:
    """The end of a text, by which ids differ."""
    return text if len(text) <= count else f"…{text[1 - count :]}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names of members as short as they differ: pods of one deployment begin alike."""
    if len(names) < 2 or max(map(len, names)) <= LONG_NAME_CHARS:
        return {name: name for name in names}
    first, last = min(names), max(names)
    same = next((place for place, char in enumerate(first) if last[place : place + 1] != char), len(first))
    begin = first.rfind("-", 0, same) + 1
    return {name: f"…{name[begin:]}" if begin else name for name in names}


def _waiting(row: ServiceRow, trouble: Severity | None) -> Text:
    if not isinstance(row.ready, int):
        return Text("unknown" if row.ready is UNKNOWN else "missing", style="yellow")
    return Text(f"{row.ready:,}", style=severity_style(trouble) or ("white" if row.ready else "dim"))


def _message_groups(description: Description, members: Sequence[MapMember]) -> RenderableType:
    table = _table("member", "", "in flight", "delivered", "")
    held = {} if description.members is UNKNOWN else {one.name: one.in_flight for one in description.members}
    for member in members:
        count = held.get(member.name, 0)
        bar = Text("━" * min(24, count) + ("▶" if count else ""), style=member.colour)
        rate = Text(rate_text(member.rate), style="dim")
        table.add_row(member.title, bar, f"{count:,}", f"{member.delivered:,}", rate)
    counts = Text("how many keys have messages is not known", style="dim")
    if isinstance(native := description.native, MessageGroupsStatus):
        counts = Text(native.text)
    return Group(table, Text(), counts, Text("each key is at one member at a time, in order", style="dim"))


def _sessions(description: Description, members: Sequence[MapMember]) -> RenderableType:
    table = _table("member", "session", "assigned", "acknowledged", "messages", "")
    sessions = description.sessions
    rows = {} if sessions is None else {one.session: one for one in sessions.sessions}
    for member in members:
        rate = Text(rate_text(member.rate), style="dim")
        table.add_row(member.title, *_session_cells(rows.pop(member.name, None)), rate)
    for name, row in rows.items():
        table.add_row(Text(name, style="dim"), *_session_cells(row), "")
    pool = "unknown messages" if sessions is None else counted(sessions.pool, "message")
    words = Text("a message that is assigned stays in its session", style="dim")
    return Group(table, Text(), Text(f"{pool} without a session yet"), words)


def _session_cells(session: SessionStatus | None) -> Iterator[Text]:
    if session is None:
        yield from (Text("-", style="dim"), Text(), Text(), Text())
        return
    yield Text(session.state, style=_SESSION_STYLES.get(session.state, ""))
    yield Text(f"{session.last_sequence:,}")
    yield Text(f"{session.acknowledged:,}")
    yield Text(f"{session.messages:,}", style="bold red" if session.is_stranded else "")


def _table(*names: str) -> Table:
    table = Table(expand=True, box=None, padding=(0, 1), header_style="dim")
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=True, justify="left" if place < 2 else "right")
    return table


def rate_text(per_s: float) -> str:
    return f"{per_s:,.0f}/s"


def sharing_line(description: Description) -> str:
    """The active member of each queue, in one line."""
    if isinstance(native := description.native, MessageGroupsStatus):
        return f"{native.busy} of {counted(native.known, 'key')} at a member"
    if description.sessions is not None:
        sessions = description.sessions.sessions
        numbers = (f"{one.session}:{one.acknowledged}/{one.last_sequence}" for one in sessions)
        return f"sessions {' '.join(numbers)}"
    word = service_word(description)
    if description.services is UNKNOWN:
        return f"{word}s unknown"
    servers = (f"{row.number}:{row.server or '-'}" for row in description.services)
    return f"{word}s {' '.join(servers)}"


Spans = Sequence[tuple[float, str]]
"""A change of a queue's active member: seconds, and the member's name."""
LABEL_CHARS = 13


def timeline(
    word: str,
    spans: Mapping[int, Spans],
    colours: Mapping[str, str],
    *,
    now_s: float,
    width: int,
    crashes: Iterable[float] = (),
) -> RenderableType:
    """The active member of each queue or partition over time, in `width` characters; a cross for a crash."""
    room = max(10, width - LABEL_CHARS - 4)
    end_s = max(now_s, 1.0)
    lines = [_line(f"{word} {number}", some, room, end_s, colours) for number, some in spans.items()]
    marks = Text(" " * (LABEL_CHARS + room))
    for at_s in crashes:
        at = LABEL_CHARS + min(room - 1, int(at_s / end_s * room))
        marks = marks[:at] + Text("✖", style="bold red") + marks[at + 1 :]
    return Panel(Group(*lines, marks), title=f"who served each {word}, so far", border_style="bright_black")


def _line(label: str, spans: Spans, room: int, end_s: float, colours: Mapping[str, str]) -> Text:
    """A block for each span of time, with the member's name in it where it fits."""
    line = Text(f"{label:<{LABEL_CHARS}}", style="bold")
    starts = [max(0, min(room, round(at_s / end_s * room))) for at_s, _ in spans]
    line.append("░" * (starts[0] if starts else room), style="bright_black")
    for (_, member), start, end in zip(spans, starts, [*starts, room][1:], strict=True):
        length = max(0, end - start)
        name = member if len(member) < length else ""
        line.append(name.ljust(length), style=f"bold black on {colours.get(member, 'white')}")
    return line


class FullScreen:
    """Draws over the whole terminal, for the length of the block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # No thread of its own: it is drawn when there is something new.
        self._live = Live(console=console, screen=True, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._live.stop()

    def draw(self, picture: Callable[[int, int], RenderableType]) -> None:
        """`picture` makes it for a width and a height."""
        size = self._console.size
        self._live.update(picture(size.width, size.height), refresh=True)


def can_draw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal
