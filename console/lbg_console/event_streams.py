"""Server-sent events (WHATWG HTML, "Server-sent events"): the overview, and one group.

A stream sends the newest state and no backlog: who reads slowly gets fewer events. Last-Event-ID gives what has changed
since. An id is the epoch of this process and the versions that were sent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web

from lbg_console.acts import allowed_acts, offered
from lbg_console.documents import group_document
from lbg_console.sessions import STREAMS_MAX, Session
from lbg_console.survey import GroupSurvey, Look, SurveyedGroup

TICK_S = 5.0
GROUP_EVERY_S = 0.25
OVERVIEW_EVERY_S = 1.0
SEND_S = 20.0
"""A client that does not read for so long is cut off: it connects again."""


class EventStreams:
    """`acts_of`: JSON of the acts of a group. `sees`: whether a session has a group."""

    def __init__(
        self,
        survey: GroupSurvey,
        *,
        acts_of: Callable[[str], list[dict[str, Any]]],
        sees: Callable[[Session, SurveyedGroup], bool],
        is_read_only: bool,
    ) -> None:
        self._survey = survey
        self._acts_of = acts_of
        self._sees = sees
        self._is_read_only = is_read_only
        self._epoch = secrets.token_hex(4)

    def overview(self, session: Session, since: int | None = None) -> dict[str, Any]:
        """All groups that the session sees, or those that have changed since this version."""
        survey = self._survey
        seen = [group for group in survey.groups.values() if self._sees(session, group)]
        return {
            "full": since is None,
            "at": round(survey.now_s() * 1000),
            "survey": survey.state.to_json(),
            "gone": [name for version, name in survey.gone if since is not None and version > since],
            "groups": [
                group.row for group in seen if group.row is not None and group.row_version > (since or 0)
            ],
        }

    def group(self, group: SurveyedGroup, session: Session) -> dict[str, Any]:
        """The group whole, with the acts that are offered to this user; before it was described, only its name."""
        survey, row = self._survey, group.observed.row
        now_s = survey.now_s()
        document = group_document(group.observed, now_s) or {"group": group.observed.name}
        allowed = frozenset() if self._is_read_only else allowed_acts(session, group.spec)
        acts = [] if row is None else offered(row.description, allowed)
        return {
            **document,
            "at": round(now_s * 1000),
            "survey": survey.state.to_json(),
            "acts": self._acts_of(group.observed.name),
            "acts_offered": acts,
        }

    async def stream_overview(self, request: web.Request, session: Session) -> web.StreamResponse:
        since = self._since(request, 1)
        version = None if since is None else since[0]
        if version is not None and not (self._oldest_gone() <= version <= self._survey.version):
            version = None
        async with _Stream(request, session) as stream:
            with self._survey.looking(None) as look, stream.of_session(look.changed):
                while not stream.is_over(self._survey.now_s()):
                    data, now = self.overview(session, version), self._survey.version
                    if data["full"] or data["groups"] or data["gone"]:
                        await stream.send("overview", data, f"{self._epoch}-{now}")
                    version = now
                    await self._pause(stream, look, OVERVIEW_EVERY_S)
        return stream.response

    async def stream_group(
        self, request: web.Request, session: Session, group: SurveyedGroup
    ) -> web.StreamResponse:
        since, name = self._since(request, 2), group.observed.name
        # A new page reads the timeline, and needs no earlier events.
        news = group.news_count if since is None else min(since[1], group.news_count)
        version = -1
        async with _Stream(request, session) as stream:
            with self._survey.looking(name) as look, stream.of_session(look.changed):
                while not stream.is_over(self._survey.now_s()):
                    if self._survey.groups.get(name) is not group or not self._sees(session, group):
                        await stream.send("gone", {})
                        break
                    if group.version != version and group.row is not None:
                        id_ = f"{self._epoch}-{group.version}-{news}"
                        await stream.send("group", self.group(group, session), id_)
                    version = group.version
                    for number, kind, data in list(group.news):
                        if number > news:
                            await stream.send(kind, data, f"{self._epoch}-{version}-{number}")
                            news = number
                    await self._pause(stream, look, GROUP_EVERY_S)
        return stream.response

    async def _pause(self, stream: _Stream, look: Look, every_s: float) -> None:
        """Until something has changed, and at least `every_s` after the last look unless a member is lost; ticks go
        on."""
        survey, loop = self._survey, asyncio.get_running_loop()
        earliest = loop.time() + every_s
        while True:
            if stream.tick_due <= loop.time() or stream.error != survey.state.error:
                stream.error = survey.state.error
                stream.tick_due = loop.time() + TICK_S
                tick = {"at": round(survey.now_s() * 1000), "survey": survey.state.to_json()}
                await stream.send("tick", tick)
            if stream.is_over(survey.now_s()):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, stream.tick_due - loop.time())):
                    await look.changed.wait()
            if not look.changed.is_set():
                continue
            look.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(earliest):
                    await look.lost.wait()
            look.lost.clear()
            return

    def _since(self, request: web.Request, count: int) -> list[int] | None:
        """The versions in Last-Event-ID; None without one of this process."""
        epoch, *versions = request.headers.get("Last-Event-ID", "").split("-")
        if epoch != self._epoch or len(versions) != count:
            return None
        try:
            return [int(one) for one in versions]
        except ValueError:
            return None

    def _oldest_gone(self) -> int:
        gone = self._survey.gone
        return gone[0][0] if len(gone) == gone.maxlen else 0


class _Stream:
    """The response, and its end: of the session, of the client or of the console."""

    def __init__(self, request: web.Request, session: Session) -> None:
        if len(session.streams) >= STREAMS_MAX:
            raise web.HTTPTooManyRequests(text=f"{STREAMS_MAX} pages of this session are open: close one")
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)
        self.tick_due = 0.0
        self.error = ""
        self._request = request
        self._session = session

    async def __aenter__(self) -> _Stream:
        await self.response.prepare(self._request)
        await self._write(b"retry: 1000\n\n")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        if kind is None and self._session.is_over:
            with suppress(ConnectionError, TimeoutError):
                await self.send("signed-out", {})
        # A client that has gone, or does not read.
        if kind is not None and self._request.transport is not None:
            self._request.transport.abort()
        return kind is not None and issubclass(kind, ConnectionError | TimeoutError)

    @contextmanager
    def of_session(self, changed: asyncio.Event) -> Iterator[None]:
        """For the length of the block: the end of the session is a change."""
        end = changed.set
        self._session.streams.add(end)
        try:
            yield
        finally:
            self._session.streams.discard(end)

    def is_over(self, now_s: float) -> bool:
        if now_s >= self._session.ends_at_s:
            self._session.is_over = True
        return self._session.is_over

    async def send(self, event: str, data: dict[str, Any], id_: str = "") -> None:
        # JSON has no line ends, which would end the field.
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
        id_line = f"id: {id_}\n" if id_ else ""
        await self._write(f"event: {event}\n{id_line}data: {text}\n\n".encode())

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(SEND_S):
            await self.response.write(data)
