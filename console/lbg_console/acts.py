"""Acts of a signed-in user on a group: the functions of the command line, with the user's own login.

Each is confirmed on a page of its own, runs in the background, and is one line of the audit log when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlencode

from lbg_console.sessions import ADMINISTRATOR, Session, admin_of, places_of
from lbg_core.admin import GroupAdmin, ProvisioningError
from lbg_core.admin.dead_letters import DeadLetterError, DeadQueue, ReplayResult, Selection, open_dead_queue
from lbg_core.admin.dead_letters import discard as discard_letters
from lbg_core.admin.dead_letters import replay as replay_letters
from lbg_core.admin.describe import Description
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.parked_messages import administration
from lbg_core.admin.problems import argv, command_line
from lbg_core.admin.progress import Progress, Report, line_of
from lbg_core.admin.record import is_of_kubernetes
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import BrokerAddress, ClientError
from lbg_core.counted_nouns import counted
from lbg_core.group import UNCOUNTED_MODES, GroupSpec, SpecError
from lbg_core.peers import printable
from lbg_core.redaction import redacted

log = logging.getLogger("lbg.console.audit")

REPARTITION_S = 300.0
"""As of the command line."""

OF_GROUPS_USER = frozenset({"skip"})
"""Acts that the permissions of a group's own user allow."""

OF_ADMINISTRATORS = frozenset({"pause-ingress", "resume-ingress"})
"""Acts that take the tag `administrator`: they change users' permissions by the management API."""

RUNNING, DONE, FAILED = "running", "done", "failed"
ACTS_SHOWN = 20
RUNNING_MAX = 16
"""Acts at a time, of all users."""


class ActRefused(Exception):
    """An act that does not begin; its text is the reason and what to do instead."""


@dataclass(frozen=True, slots=True)
class Request:
    """An act as it was asked for. `key`, `id` and `reason` select messages: what is given must all hold. `limit`: at
    most so many of them. `queues`: of a repartition."""

    group: str
    key: str | None = None
    id: str | None = None
    reason: str | None = None
    limit: int | None = None
    queues: int | None = None

    @property
    def selection(self) -> Selection:
        return Selection(frozenset(() if self.id is None else (self.id,)), self.key, self.reason)

    def selected(self, of_key: str = "of key") -> str:
        """The selection as a part of a sentence; empty for everything."""
        parts = {of_key: self.key, "with id": self.id, "whose reason contains": self.reason}
        return ", ".join(f"{word} {value}" for word, value in parts.items() if value is not None)


@dataclass(slots=True)
class Course:
    """An act that runs or has ended."""

    id: str
    at_s: float
    by: str
    group: str
    act: str
    detail: str
    state: str = RUNNING
    text: str = ""

    @property
    def line(self) -> str:
        """For people: who, what, and what became of it."""
        detail = f" {self.detail}" if self.detail else ""
        return f"{self.by}: {self.act}{detail}: {'running' if self.state == RUNNING else self.text or self.state}"

    @property
    def mark(self) -> str:
        """Another one as soon as it has ended."""
        return f"{self.id}-{self.state}"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "at": round(self.at_s * 1000),
            "by": self.by,
            "act": self.act,
            "detail": self.detail,
            "state": self.state,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Login:
    """The broker, and the login of who acts."""

    address: BrokerAddress
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class Act:
    """`title`: of its button. `consequences`: what it does, for who confirms it. `command`: the same on the command
    line. `fields`: those of the request that it takes; `needs`: the one that has to be given. `reads_messages`: it
    reads the queue of the dead letters or the parking queue."""

    name: str
    title: str
    consequences: tuple[str, ...]
    command: str
    work: Callable[[Login, Request, Report], Awaitable[str]]
    fields: tuple[str, ...] = ()
    needs: str = ""
    reads_messages: bool = False
    is_final: bool = False
    """It deletes messages."""

    of_key: str = ""
    of_one: str = ""
    """Titles of the button for a key, and for one message."""

    def command_of(self, request: Request) -> str:
        words = list(argv(self.command, group=request.group))
        given = {name: value for name in self.fields if (value := getattr(request, name)) is not None}
        is_every = self.reads_messages and not self.needs and not given.keys() - {"limit"}
        words += ["--all"] if is_every else []
        for name, value in given.items():
            words += [f"--{name}", str(value)] if name != self.needs else []
        if self.needs == "queues":
            words += ["--queues", str(given.get("queues", "N"))]
        elif self.needs:
            words += argv("{value}", value=str(given.get(self.needs, self.needs.upper())))
        return command_line(words)

    def detail_of(self, request: Request) -> str:
        if "queues" in self.fields:
            return counted(request.queues or 0, "queue")
        limit = [] if request.limit is None else [f"at most {request.limit:,}"]
        return ", ".join(filter(None, [request.selected("key"), *limit]))


async def _pause(login: Login, request: Request, report: Report) -> str:
    behind = await _with_groups(login, lambda groups: groups.pause_group(request.group))
    return f"paused, but {', '.join(behind)} did not report it in time" if behind else "paused"


async def _resume(login: Login, request: Request, report: Report) -> str:
    behind = await _with_groups(login, lambda groups: groups.resume_group(request.group))
    return f"resumed, but {', '.join(behind)} did not report it in time" if behind else "resumed"


async def _pause_ingress(login: Login, request: Request, report: Report) -> str:
    is_closed = await _with_groups(login, lambda groups: groups.pause_ingress(request.group))
    more = (
        ""
        if is_closed
        else "; connections of publishers from before may publish until they are idle for a second"
    )
    return f"ingress is paused{more}"


async def _resume_ingress(login: Login, request: Request, report: Report) -> str:
    await _with_groups(login, lambda groups: groups.resume_ingress(request.group))
    return "ingress is resumed"


async def _repartition(login: Login, request: Request, report: Report) -> str:
    queues = request.queues
    assert queues is not None
    done = await _with_admin(
        login,
        lambda admin: repartition_group(admin, request.group, queues, timeout_s=REPARTITION_S, report=report),
    )
    return (
        f"{counted(done.now, 'queue')} now, {done.was} before"
        if done.is_changed
        else f"it has {counted(done.now, 'queue')} already"
    )


async def _skip(login: Login, request: Request, report: Report) -> str:
    id_ = request.id
    assert id_ is not None
    skipped = await _with_groups(login, lambda groups: groups.skip_message(request.group, id_))
    return f"a dead letter after {counted(skipped.attempts, 'attempt')} at {printable(skipped.member or '-')}"


async def _release(login: Login, request: Request, report: Report) -> str:
    keys = None if request.key is None else [request.key]
    released = await _with_admin(
        login,
        lambda admin: administration.release(
            admin, request.group, keys, timeout_s=administration.TIMEOUT_S, report=report
        ),
    )
    text = f"{counted(len(released.done), 'key')} released, {counted(released.published, 'message')}"
    if released.failed_again:
        failed = ", ".join(printable(key) for key in sorted(released.failed_again)[:5])
        raise DeadLetterError(f"{text}; parked again, because a message failed again: {failed}")
    return text


async def _replay_one(login: Login, request: Request, report: Report) -> str:
    key = request.key
    assert key is not None
    id_ = await _with_groups(login, lambda groups: groups.replay_parked(request.group, key))
    return f"message {printable(id_)} is given back"


async def _discard_parked(login: Login, request: Request, report: Report) -> str:
    count = await _with_groups(login, lambda groups: groups.discard_parked(request.group, request.selection))
    return f"{counted(count, 'parked message')} discarded"


async def _replay(login: Login, request: Request, report: Report) -> str:
    def work(queue: DeadQueue, done: ReplayResult) -> Awaitable[None]:
        return replay_letters(queue, request.selection, done, limit=request.limit)

    return await _with_dead_letters(login, request.group, "replayed", work)


async def _discard(login: Login, request: Request, report: Report) -> str:
    def work(queue: DeadQueue, done: ReplayResult) -> Awaitable[None]:
        return discard_letters(queue, request.selection, done)

    return await _with_dead_letters(login, request.group, "discarded", work)


async def _with_dead_letters(
    login: Login, group: str, verb: str, work: Callable[[DeadQueue, ReplayResult], Awaitable[None]]
) -> str:
    """Raises DeadLetterError where the command line ends with an error, with the number of those that were done."""
    done = ReplayResult()
    places = places_of(login.address, login.username, login.password)

    def text() -> str:
        unknown = f", {done.unknown:,} of unknown fate" if done.unknown else ""
        return f"{done.done:,} of {counted(done.total, 'dead letter')} {verb}{unknown}"

    try:
        async with open_dead_queue(places, group) as queue:
            await work(queue, done)
    except (DeadLetterError, ClientError) as error:
        raise DeadLetterError(f"{text()}; {error}" if done.total else str(error)) from error
    if done.not_looked_at:
        more = (
            f"{counted(done.not_looked_at, 'was', 'were')} not read, as another client holds them: do it again when "
            "it has ended"
        )
        raise DeadLetterError(f"{text()}; {more}")
    if done.missing_ids:
        raise DeadLetterError(f"no dead letter has id {', '.join(sorted(done.missing_ids))}")
    return text()


async def _with_admin(login: Login, work: Callable[[LiveAdmin], Awaitable[Any]]) -> Any:
    admin = admin_of(login.address, login.username, login.password)
    try:
        return await work(admin)
    finally:
        await admin.close()


async def _with_groups(login: Login, work: Callable[[GroupAdmin], Awaitable[Any]]) -> Any:
    return await _with_admin(login, lambda admin: work(GroupAdmin(admin)))


ACTS: Mapping[str, Act] = {
    act.name: act
    for act in (
        Act(
            "pause",
            "Pause consumption",
            (
                "Members keep their queues and start no new call; calls that run end.",
                "Publishers go on, and messages wait in the queues.",
            ),
            "lbg group pause {group}",
            _pause,
        ),
        Act(
            "resume",
            "Resume consumption",
            ("Members start calls again.",),
            "lbg group resume {group}",
            _resume,
        ),
        Act(
            "pause-ingress",
            "Pause ingress",
            ("Publishers of LBG wait, in order; every other one is refused.", "Members go on."),
            "lbg group pause {group} --ingress",
            _pause_ingress,
        ),
        Act(
            "resume-ingress",
            "Resume ingress",
            ("Publishers publish again.",),
            "lbg group resume {group} --ingress",
            _resume_ingress,
        ),
        Act(
            "repartition",
            "Change the number of queues",
            (
                "Publishers and members go on; keys move to their new queues in order.",
                "After 5 minutes the act ends, and the change stays as it is: the same act again goes on with it.",
            ),
            "lbg group repartition {group}",
            _repartition,
            fields=("queues",),
            needs="queues",
        ),
        Act(
            "skip",
            "Skip a poisoned message",
            (
                "It becomes a dead letter, and its key goes on without it.",
                "A message that is being called is skipped when this call has failed.",
            ),
            "lbg group skip {group}",
            _skip,
            fields=("id",),
            needs="id",
        ),
        Act(
            "release",
            "Release parked keys",
            (
                "Their messages are given back in order, before what is published meanwhile.",
                "A key of which a message fails again is parked again.",
            ),
            "lbg park release {group}",
            _release,
            fields=("key",),
            reads_messages=True,
            of_key="Release the key",
        ),
        Act(
            "replay-one",
            "Try the first parked message",
            (
                "The first parked message of the key is given back, and no other.",
                "The others stay parked, whether it succeeds or fails.",
            ),
            "lbg park replay-one {group}",
            _replay_one,
            fields=("key",),
            needs="key",
            reads_messages=True,
        ),
        Act(
            "discard-parked",
            "Discard parked messages",
            (
                "They are deleted for good. Only the command can save them to a file before: --save FILE.",
                "A key that has none left goes on with what is published next.",
            ),
            "lbg park discard {group}",
            _discard_parked,
            fields=("key", "id"),
            reads_messages=True,
            is_final=True,
            of_key="Discard its parked messages",
            of_one="Discard this message",
        ),
        Act(
            "replay",
            "Replay dead letters",
            (
                "They are published again, oldest first, in order per key, behind what waits there now.",
                "To members a replayed message is a new one.",
            ),
            "lbg dead replay {group}",
            _replay,
            fields=("key", "id", "reason", "limit"),
            reads_messages=True,
            of_key="Replay its dead letters",
            of_one="Replay this one",
        ),
        Act(
            "discard",
            "Discard dead letters",
            ("They are deleted for good. Only the command can save them to a file before: --save FILE.",),
            "lbg dead discard {group}",
            _discard,
            fields=("key", "id", "reason"),
            reads_messages=True,
            is_final=True,
            of_key="Discard its dead letters",
            of_one="Discard this one",
        ),
    )
}


def allowed_acts(session: Session, spec: GroupSpec | None) -> frozenset[str]:
    """Names of the acts that the broker may allow this user: where its rights are not known, all."""
    if session.tags is not None and ADMINISTRATOR in session.tags:
        return frozenset(ACTS)
    if spec is not None and spec.client_username == session.username:
        return OF_GROUPS_USER
    return frozenset(ACTS) - (OF_ADMINISTRATORS if session.tags is not None else frozenset())


def offered(one: Description, allowed: Container[str]) -> list[dict[str, Any]]:
    """Acts that make sense for the group as it is, for a page. `allowed`: names of those that the user may do."""
    is_by_hand = not is_of_kubernetes(one.owner)
    names = []
    if is_by_hand:
        names += ["resume" if one.is_paused else "pause"]
        names += ["resume-ingress" if one.is_ingress_paused else "pause-ingress"]
        if one.spec is not None and one.spec.mode not in UNCOUNTED_MODES:
            names.append("repartition")
    if one.parked is not None:
        names.append("release")
    if one.dead_letters != 0:
        names.append("replay")
    return offers(names, allowed, one.group)


def offers(names: Iterable[str], allowed: Container[str], group: str, **fields: str) -> list[dict[str, Any]]:
    """Those of these acts that are allowed, for a page."""
    return [offer(ACTS[name], group, **fields) for name in names if name in allowed]


def offer(act: Act, group: str, **fields: str) -> dict[str, Any]:
    query = f"?{urlencode(fields)}" if fields else ""
    return {
        "act": act.name,
        "title": (act.of_one if "id" in fields else act.of_key if fields.keys() == {"key"} else "")
        or act.title,
        "href": f"/groups/{group}/acts/{act.name}{query}",
        "fields": [name for name in act.fields if name == "queues"],
        "is_final": act.is_final,
    }


class ActRunner:
    """`on_change` gets the group of an act that has begun, or ended, and a line about it."""

    def __init__(self, address: BrokerAddress, on_change: Callable[[str, str], None]) -> None:
        self._address = address
        self._on_change = on_change
        self._courses: dict[str, deque[Course]] = {}
        self._tasks: dict[asyncio.Task[None], Course] = {}
        self._ids = count(1)

    def of(self, group: str) -> list[dict[str, Any]]:
        """Acts of a group, the last one first."""
        return [one.to_json() for one in reversed(self._courses.get(group, ()))]

    def last(self, group: str) -> Course | None:
        """The act of the group that began last."""
        courses = self._courses.get(group)
        return courses[-1] if courses else None

    def start(
        self,
        act: Act,
        request: Request,
        session: Session,
        peer: str,
        now_s: float,
        reading: AbstractAsyncContextManager[object],
    ) -> None:
        """`reading`: entered by an act that reads the messages of the group. Raises ActRefused while another act on
        this group runs."""
        if (
            other := next((one for one in self._tasks.values() if one.group == request.group), None)
        ) is not None:
            raise ActRefused(f"another act on this group runs ({printable(other.line)}): wait for its end")
        if len(self._tasks) >= RUNNING_MAX:
            raise ActRefused(f"{RUNNING_MAX} acts run: wait for the end of one")
        login = Login(self._address, session.username, session.password)
        detail = act.detail_of(request)
        course = Course(str(next(self._ids)), now_s, session.username, request.group, act.name, detail)
        self._courses.setdefault(request.group, deque(maxlen=ACTS_SHOWN)).append(course)
        task = asyncio.create_task(self._run(act, request, login, course, peer, reading))
        self._tasks[task] = course
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """Ends acts that run: each takes back what is not done, or goes on with the same act later."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self,
        act: Act,
        request: Request,
        login: Login,
        course: Course,
        peer: str,
        reading: AbstractAsyncContextManager[object],
    ) -> None:
        def report(progress: Progress) -> None:
            course.text = line_of(progress)
            self._on_change(request.group, "")

        self._on_change(request.group, self._line(course, "began"))
        try:
            async with reading if act.reads_messages else nullcontext():
                course.text = await act.work(login, request, report)
            course.state = DONE
        except (ProvisioningError, DeadLetterError, ClientError, SpecError, OSError, ValueError) as error:
            course.state, course.text = FAILED, " ".join(redacted(str(error)).split())
        except asyncio.CancelledError:
            course.state, course.text = FAILED, "the console was stopped meanwhile"
            raise
        except Exception as error:
            course.state, course.text = FAILED, f"internal error: {type(error).__name__}"
            log.exception("act %s on group %s", act.name, request.group)
        finally:
            log.info(
                "user=%s from=%s group=%s act=%s detail=%s result=%s text=%s",
                *map(_quoted, (course.by, peer, course.group, course.act, course.detail)),
                course.state,
                _quoted(course.text),
            )
            self._on_change(request.group, self._line(course, course.state))

    def _line(self, course: Course, word: str) -> str:
        detail = f" ({course.detail})" if course.detail else ""
        return f"{course.by}: {course.act}{detail} {word}"


def _quoted(text: str) -> str:
    """One value of a log line, whatever is in it."""
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
