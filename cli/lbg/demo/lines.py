"""The demo without a terminal: plain lines, as a log or a CI job wants them."""

from __future__ import annotations

from collections.abc import Callable

from lbg.demo.scene import Scene
from lbg.demo.screen import clock
from lbg_broker.provisioning.native import MessageGroupsSeen, SessionsSeen

STATUS_EVERY_S = 5.0


class PlainView:
    """Writes the title, each event once, and a line of status every five seconds."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told = 0
        self._has_title = False
        self._next_status_s = STATUS_EVERY_S

    def show(self, scene: Scene) -> None:
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


def status_line(scene: Scene) -> str:
    lag = "unknown" if scene.lag is None else f"{scene.lag:,}"
    return (
        f"{scene.share:.0%} delivered ({scene.delivered.rate(scene.now_s):,.0f}/s), {lag} waiting, "
        f"{scene.inversions} order errors, {scene.rewinds} again, {_shared(scene)}"
    )


def _shared(scene: Scene) -> str:
    match scene.shared:
        case MessageGroupsSeen(known, busy):
            return f"{busy} of {known} keys at a member"
        case SessionsSeen(sessions=sessions):
            return "sessions " + " ".join(
                f"{one.session}:{one.acknowledged}/{one.assigned}" for one in sessions
            )
        case _:
            holders = " ".join(f"{queue.number}:{queue.holder or '-'}" for queue in scene.queues)
            return f"{scene.row_word}s {holders}"
