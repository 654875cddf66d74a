"""Who served each queue over time, as coloured blocks."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from lbg.demo.cast import QueueView
from lbg.demo.scene import Scene

LABEL = 13


def timeline(scene: Scene, width: int, colours: Mapping[str, str]) -> RenderableType:
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
