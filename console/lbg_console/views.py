"""Pages, JSON and forms of the console."""

from __future__ import annotations

import asyncio
import hmac
import logging
import mimetypes
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lbg_console.acts import ACTS, RUNNING, Act, ActRefused, ActRunner, Request, allowed_acts, offers
from lbg_console.event_streams import EventStreams
from lbg_console.messages import LETTERS_MAX, MessageReader
from lbg_console.protection import local_path, require_token
from lbg_console.sessions import (
    CHECKS_MAX,
    SEES_ALL,
    SESSION_S,
    LoginGate,
    Session,
    Sessions,
    check_login,
)
from lbg_console.survey import GroupSurvey, SurveyedGroup
from lbg_core.admin import ProvisioningError
from lbg_core.admin.dead_letters import Selection
from lbg_core.admin.errors import Denied
from lbg_core.admin.observations import age_text
from lbg_core.client import BrokerAddress, ClientError
from lbg_core.counted_nouns import counted
from lbg_core.group import SpecError
from lbg_core.group.names import default_group_name
from lbg_core.http_listener import form_of
from lbg_core.peers import PeerLog, printable
from lbg_core.redaction import redacted

audit = logging.getLogger("lbg.console.audit")

PAGES = Path(__file__).parent / "pages"
TEXT_MAX_CHARS = 4096
"""Of a key, an id, or a part of a reason."""

RECHECK_EVERY_S = 15.0

LABELS = {"key": "Key", "id": "Id", "reason": "Part of the reason", "limit": "At most", "queues": "Queues"}
"""Fields of an act, by their names, in the order of the page."""

TEXTS = ("key", "id", "reason")

OVER = {
    "session": "Your session is over. Sign in, and the same page opens again.",
    "act": "Your session was over, and nothing was done. Sign in, and confirm it again.",
}
"""Sentences of the sign-in page for who comes from a page of a session that has ended."""

NOTHING = "nothing"
"""In a form: no act was done on the group before."""

COUNTS_MAX = {"queues": 65_535, "limit": 99_999_999}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    content_type: str
    digest: str


def static_files() -> dict[str, StaticFile]:
    """All of them, by their path below /static/."""
    root = PAGES / "static"
    files = {}
    for file in sorted(root.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            guessed = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            content_type = {"application/javascript": "text/javascript"}.get(guessed, guessed)
            digest = blake2b(content, digest_size=8).hexdigest()
            files[file.relative_to(root).as_posix()] = StaticFile(content, content_type, digest)
    return files


def templates() -> Environment:
    """Those of the pages, without the global `static`."""
    made = Environment(
        loader=FileSystemLoader(PAGES / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"counted": counted, "age": age_text}
    return made


class Views:
    """`url`: the public address of the console, where it has one. `signs_in`: there is a `sign_in_token`."""

    def __init__(
        self,
        address: BrokerAddress,
        survey: GroupSurvey,
        *,
        url: str | None,
        is_read_only: bool,
        signs_in: bool,
        peer_log: PeerLog,
    ) -> None:
        self.sessions = Sessions()
        self.sign_in_token = secrets.token_urlsafe(32) if signs_in else ""
        """In place of a password, once; empty when it was used, and where there is none."""
        self.acts = ActRunner(address, survey.note_act)
        self._address = address
        self._survey = survey
        self._secure_url = url if url is not None and url.startswith("https:") else ""
        self._is_read_only = is_read_only
        self._peer_log = peer_log
        self._gate = LoginGate()
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._messages = MessageReader(address)
        self._streams = EventStreams(survey, acts_of=self.acts.of, sees=self.sees, is_read_only=is_read_only)
        self._static = static_files()
        self._version = version("lbgroup")
        self._templates = templates()
        self._templates.globals["static"] = self._static_url

    def routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/healthz", self.health),
            web.get("/static/{path:.+}", self.static),
            web.get("/login", self.login_page),
            web.post("/login", self.login),
            web.post("/logout", self.logout),
            web.get("/", self.overview),
            web.get("/events", self.overview_events),
            web.get("/groups/{name}", self.group),
            web.get("/groups/{name}/events", self.group_events),
            web.get("/groups/{name}/timeline", self.timeline),
            web.get("/kubernetes/{namespace}/{name}", self.kubernetes),
            web.get("/groups/{name}/key", self.key),
            web.get("/groups/{name}/parked", self.parked),
            web.get("/groups/{name}/dead", self.dead),
        ]
        if not self._is_read_only:
            routes += [
                web.get("/groups/{name}/acts/{act}", self.confirm),
                web.post("/groups/{name}/acts/{act}", self.act),
            ]
        return routes

    # Sessions

    def session_of(self, request: web.Request) -> Session | None:
        id_ = request.cookies.get(self._cookie(request), "")
        return self.sessions.find(id_, self._survey.now_s()) if id_ else None

    def require_session(self, request: web.Request) -> Session:
        """Raises HTTPSeeOther for a page, and HTTPUnauthorized for anything else, without a session."""
        session = self.session_of(request)
        if session is not None:
            return session
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            over = {"over": "session"} if self._cookie(request) in request.cookies else {}
            raise web.HTTPSeeOther(f"/login?{urlencode({'next': request.path_qs, **over})}")
        raise web.HTTPUnauthorized(text="sign in first")

    def sees(self, session: Session, group: SurveyedGroup) -> bool:
        spec = group.spec
        return session.sees_all or (spec is not None and spec.client_username == session.username)

    async def login_page(self, request: web.Request) -> web.Response:
        next_ = local_path(request.query.get("next", "/"))
        if self.session_of(request) is not None:
            raise web.HTTPSeeOther(next_)
        token = request.query.get("token")
        if token is None:
            return self._login_page(request, next_)
        expected = self.sign_in_token
        if not expected or not hmac.compare_digest(token.encode(errors="replace"), expected.encode()):
            return self._login_page(
                request, next_, error="this link was used: start the command again", status=401
            )
        self.sign_in_token = ""
        place = self._address.places()[0]
        raise self._signed_in(request, next_, place.username, place.password, sees_all=True)

    async def login(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        username, password = _text(form, "username"), _text(form, "password")
        next_ = local_path(_text(form, "next") or "/")
        if self._survey.awaited:
            return self._login_page(request, next_, username, status=503)
        peer, now_s = request.remote or "unknown", self._survey.now_s()
        wait_s = self._gate.wait_s(peer, username, now_s)
        if wait_s > 0:
            self._peer_log.warn(peer, f"{peer}: refused: too many logins of this address or user")
            error = f"too many failed logins: wait {wait_s:.0f} s"
            return self._login_page(request, next_, username, error, status=429, retry_after_s=wait_s)
        self._gate.checked += 1
        try:
            async with self._checks:
                tags = await check_login(self._address, username, password) if username else None
        except Denied as error:
            self._gate.failed(peer, username, self._survey.now_s())
            self._peer_log.warn(peer, f"{peer}: login of user {printable(username)!r} refused: {error}")
            text = "the broker refuses this user or password"
            return self._login_page(request, next_, username, text, status=401)
        except (ProvisioningError, ClientError, OSError) as error:
            text = redacted(str(error))
            return self._login_page(request, next_, username, text, status=503)
        finally:
            self._gate.checked -= 1
        if not username:
            return self._login_page(request, next_, username, "a user name is missing", status=401)
        if (former := self.session_of(request)) is not None:
            self.sessions.close(former)
        raise self._signed_in(
            request, next_, username, password, sees_all=self._sees_all(username, tags), tags=tags
        )

    def _signed_in(
        self,
        request: web.Request,
        next_: str,
        username: str,
        password: str,
        *,
        sees_all: bool,
        tags: frozenset[str] | None = None,
    ) -> web.HTTPSeeOther:
        """Answer that opens a session."""
        now_s = self._survey.now_s()
        session = self.sessions.open(username, password, sees_all=sees_all, now_s=now_s, tags=tags)
        audit.info('user="%s" from="%s" signed in', printable(username), request.remote)
        answer = web.HTTPSeeOther(next_)
        answer.set_cookie(
            self._cookie(request),
            session.id,
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=bool(self._secure_url),
        )
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        session = self.require_session(request)
        require_token(request, await form_of(request), session.csrf)
        self.sessions.close(session)
        audit.info('user="%s" from="%s" signed out', printable(session.username), request.remote)
        answer = web.HTTPSeeOther("/login")
        answer.del_cookie(self._cookie(request), path="/")
        raise answer

    def _login_page(
        self,
        request: web.Request,
        next_: str,
        username: str = "",
        error: str = "",
        *,
        status: int = 200,
        retry_after_s: float | None = None,
    ) -> web.Response:
        wait_s = None if retry_after_s is None else max(1, round(retry_after_s))
        answer = self.page(
            "login.html",
            None,
            status=status,
            title="Sign in",
            notice=OVER.get(request.query.get("over", ""), ""),
            error=error or self._survey.awaited,
            other_url="" if self._secure_url.endswith(f"://{request.host.lower()}") else self._secure_url,
            next=next_,
            username=username,
            retry_after_s=wait_s,
        )
        if wait_s is not None:
            answer.headers["Retry-After"] = str(wait_s)
        return answer

    def _cookie(self, request: web.Request) -> str:
        """Browsers share the cookies of all ports of a host."""
        if self._secure_url:
            return "__Host-lbg-console"  # RFC 6265bis, section 4.1.3.2
        local = None if request.transport is None else request.transport.get_extra_info("sockname")
        return f"lbg-console-{local[1] if isinstance(local, tuple) else 0}"

    async def recheck(self) -> None:
        """Until it is cancelled, ends the sessions of users whom the broker does not let in any more."""
        while True:
            await asyncio.sleep(RECHECK_EVERY_S)
            for session in self.sessions.due(self._survey.now_s()):
                try:
                    async with self._checks:
                        tags = await check_login(self._address, session.username, session.password)
                except Denied:
                    audit.info(
                        'user="%s" signed out: the broker refuses the login', printable(session.username)
                    )
                    self.sessions.close(session)
                except (ProvisioningError, ClientError, OSError):
                    break  # the broker cannot be asked now
                else:
                    session.tags, session.sees_all = tags, self._sees_all(session.username, tags)
                session.checked_at_s = self._survey.now_s()

    def _sees_all(self, username: str, tags: frozenset[str] | None) -> bool:
        """True if this user sees all groups that the console observes."""
        return bool((tags or frozenset()) & SEES_ALL) or username == self._own_username()

    def _own_username(self) -> str:
        """Of the login that observes; empty where its files cannot be read now."""
        try:
            place = self._address.places()[0]
            return place.username if place.credentials is None else place.credentials().username
        except (OSError, ValueError):
            return ""

    # Groups

    async def overview(self, request: web.Request) -> web.Response:
        session = self.require_session(request)
        return self.page("overview.html", session, title="Groups", overview=self._streams.overview(session))

    async def overview_events(self, request: web.Request) -> web.StreamResponse:
        return await self._streams.stream_overview(request, self.require_session(request))

    async def group(self, request: web.Request) -> web.Response:
        session, group = self._group(request)
        document = self._streams.group(group, session)
        return self.page(
            "group.html",
            session,
            title=group.observed.name,
            group=document,
            acts_offered=document["acts_offered"],
        )

    async def group_events(self, request: web.Request) -> web.StreamResponse:
        session, group = self._group(request)
        return await self._streams.stream_group(request, session, group)

    async def timeline(self, request: web.Request) -> web.Response:
        _, group = self._group(request)
        try:
            limits = [
                int(text) / 1000 if (text := request.query.get(name)) else None for name in ("from", "to")
            ]
        except (ValueError, OverflowError):
            raise web.HTTPBadRequest(text="from and to are milliseconds since the epoch") from None
        document = group.observed.timeline.to_json(self._survey.now_s(), *limits)
        return web.json_response({"group": group.observed.name, **document})

    async def kubernetes(self, request: web.Request) -> web.Response:
        """Leads from a LoadBalancedGroup to its group, for links of dashboards: metrics have the object's name."""
        session = self.require_session(request)
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        default, groups = default_group_name(namespace, name), self._survey.groups
        given = [one for one, group in groups.items() if group.object_name == f"{namespace}/{name}"]
        names = *given, default, f"{namespace}-{name}"  # the last: of older groups
        found = next((one for one in names if one in groups and self.sees(session, groups[one])), default)
        raise web.HTTPSeeOther(f"/groups/{quote(found, safe='')}")

    def _group(self, request: web.Request) -> tuple[Session, SurveyedGroup]:
        """Raises HTTPNotFound for a group that is not there, and for one that the session does not see."""
        session = self.require_session(request)
        name = request.match_info["name"]
        group = self._survey.groups.get(name)
        if group is None or not self.sees(session, group):
            raise web.HTTPNotFound(text=f"there is no group {printable(name, max_chars=80)} that you may see")
        return session, group

    def _allowed(self, session: Session, group: SurveyedGroup) -> frozenset[str]:
        """Names of the acts that are offered to this user."""
        return frozenset() if self._is_read_only else allowed_acts(session, group.spec)

    # Messages

    async def key(self, request: web.Request) -> web.Response:
        session, group = self._group(request)
        name, key = group.observed.name, _chosen(request.query, "key")
        found, error = None, ""
        row = group.observed.row
        acts: list[dict[str, Any]] = []
        if key is not None and row is None:
            error = "the group has not been read yet: load the page again"
        elif key is not None and row is not None:
            try:
                allowed = self._allowed(session, group)
                found = await self._messages.key(session, row.description, key, group.reading, allowed)
            except SpecError as refused:
                error = str(refused)
            else:
                names = ["release", "replay-one", "discard-parked"] if found.get("parked") else []
                names += ["replay"] if found.get("dead") else []
                acts = offers(names, allowed, name, key=key)
        return self.page(
            "key.html",
            session,
            title=name if key is None else f"{printable(key, max_chars=80)} · {name}",
            name=name,
            key=key,
            found=found,
            error=error,
            acts_offered=acts,
        )

    async def parked(self, request: web.Request) -> web.Response:
        session, group = self._group(request)
        name = group.observed.name
        found = await self._messages.parked_keys(session, name, group.reading)
        names = ("release", "discard-parked") if found.messages else ()
        acts = offers(names, self._allowed(session, group), name)
        return self.page(
            "parked.html", session, title=f"Parked keys · {name}", name=name, found=found, acts_offered=acts
        )

    async def dead(self, request: web.Request) -> web.Response:
        session, group = self._group(request)
        name = group.observed.name
        chosen = {one: text for one in ("key", "reason") if (text := _chosen(request.query, one))}
        selection = Selection(key=chosen.get("key"), reason=chosen.get("reason"))
        allowed = self._allowed(session, group)
        found = await self._messages.dead_letters(session, name, selection, group.reading, allowed)
        acts = offers(("replay", "discard") if found.messages else (), allowed, name, **chosen)
        return self.page(
            "dead.html",
            session,
            title=f"Dead letters · {name}",
            name=name,
            found=found,
            key=chosen.get("key", ""),
            reason=chosen.get("reason", ""),
            limit=LETTERS_MAX,
            acts_offered=acts,
        )

    # Acts

    async def confirm(self, request: web.Request) -> web.Response:
        session, group = self._group(request)
        act = _act(request)
        wanted, _ = _wanted(group, act, request.query)
        last = self.acts.last(group.observed.name)
        runs = last is not None and last.state == RUNNING
        return self._confirm_page(
            session, group, act, wanted, printable(last.line) if last is not None and runs else ""
        )

    async def act(self, request: web.Request) -> web.Response:
        act, form = _act(request), await form_of(request)
        if self.session_of(request) is None and "text/html" in request.headers.get("Accept", ""):
            chosen = {name: value for name in act.fields if (value := _text(form, name))}
            path = request.rel_url.raw_path
            next_ = f"{path}?{urlencode(chosen)}" if chosen else path
            raise web.HTTPSeeOther(f"/login?{urlencode({'next': next_, 'over': 'act'})}")
        session, group = self._group(request)
        require_token(request, form, session.csrf)
        wanted, error = _wanted(group, act, form)
        if error:
            return self._confirm_page(session, group, act, wanted, error, status=400)
        peer, now_s = request.remote or "unknown", self._survey.now_s()
        last = self.acts.last(wanted.group)
        if last is not None and last.state != RUNNING and _text(form, "after") not in ("", last.mark):
            error = f"meanwhile {printable(last.line)}. Confirm this again if it is still wanted"
            return self._confirm_page(session, group, act, wanted, error, status=409)
        try:
            self.acts.start(act, wanted, session, peer, now_s, group.reading)
        except ActRefused as refused:
            return self._confirm_page(session, group, act, wanted, str(refused), status=409)
        raise web.HTTPSeeOther(f"/groups/{quote(wanted.group)}")

    def _confirm_page(
        self,
        session: Session,
        group: SurveyedGroup,
        act: Act,
        wanted: Request,
        error: str = "",
        *,
        status: int = 200,
    ) -> web.Response:
        name = group.observed.name
        selected = printable(wanted.selected(), max_chars=200)
        is_every = act.reads_messages and not act.needs and not selected
        title = act.title.replace(" ", " all ", 1) if is_every else act.title
        fields = []
        for field, label in LABELS.items():
            value = getattr(wanted, field)
            if field not in act.fields or (value is None and field not in (act.needs, "limit")):
                continue
            is_hidden = field not in COUNTS_MAX and value is not None
            kind = "hidden" if is_hidden else "number" if field in COUNTS_MAX else "text"
            shown = "" if value is None else str(value)
            needed = field == act.needs
            fields.append({"name": field, "value": shown, "label": label, "type": kind, "required": needed})
        return self.page(
            "confirm.html",
            session,
            status=status,
            title=f"{act.title} · {name}",
            name=name,
            act=act.name,
            after=NOTHING if (last := self.acts.last(name)) is None else last.mark,
            question=" ".join(filter(None, [title, selected, f"in group {name}?"])),
            consequences=list(act.consequences),
            command=act.command_of(wanted),
            action=f"/groups/{quote(name)}/acts/{act.name}",
            fields=fields,
            button=act.title,
            is_final=act.is_final,
            error=error,
            back=f"/groups/{quote(name)}",
        )

    # Files and pages

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def static(self, request: web.Request) -> web.Response:
        file = self._static.get(request.match_info["path"])
        if file is None:
            raise web.HTTPNotFound(text="there is no such file")
        is_this = request.query.get("v") == file.digest
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if is_this else "no-cache",
            "ETag": f'"{file.digest}"',
        }
        if f'"{file.digest}"' in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        charset = "utf-8" if file.content_type.startswith("text/") else None
        return web.Response(
            body=file.content, content_type=file.content_type, charset=charset, headers=headers
        )

    def _static_url(self, path: str) -> str:
        return f"/static/{path}?v={self._static[path].digest}"

    def page(
        self, template: str, session: Session | None, *, status: int = 200, **variables: Any
    ) -> web.Response:
        text = self._templates.get_template(template).render(
            **variables,
            status=status,
            me=None
            if session is None
            else {"username": session.username, "is_administrator": session.sees_all},
            csrf="" if session is None else session.csrf,
            is_read_only=self._is_read_only,
            broker=self._address.places()[0].address_without_user,
            version=self._version,
        )
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)

    def error_page(self, request: web.Request, status: int, message: str) -> web.Response:
        remedies = {404: "The list of groups has those that you may see.", 403: "Load the page again."}
        return self.page(
            "error.html",
            self.session_of(request),
            status=status,
            title=f"Error {status}",
            message=message,
            remedy=remedies.get(status, ""),
        )


def _act(request: web.Request) -> Act:
    act = ACTS.get(request.match_info["act"])
    if act is None:
        raise web.HTTPNotFound(text="there is no such act")
    return act


def _wanted(group: SurveyedGroup, act: Act, fields: Mapping[str, Any]) -> tuple[Request, str]:
    """The act as it was asked for, and the reason why it cannot be done so, or an empty one. Raises HTTPBadRequest for
    a text that is none, or too long."""
    counts: dict[str, int] = {}
    errors = []
    for name, max_ in COUNTS_MAX.items():
        text = str(fields.get(name, "")) if name in act.fields else ""
        is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(max_))
        if is_number and 1 <= int(text) <= max_:
            counts[name] = int(text)
        elif text or act.needs == name:
            errors.append(f"{LABELS[name]}: a whole number from 1 to {max_:,} is wanted")
    key, id_, reason = (_chosen(fields, one) if one in act.fields else None for one in TEXTS)
    # An empty id or reason selects nothing: no id is empty, and every reason has an empty part.
    wanted = Request(group.observed.name, key, id_ or None, reason or None, **counts)
    if act.needs in TEXTS and getattr(wanted, act.needs) is None:
        errors.append(f"{LABELS[act.needs]}: it is missing")
    return wanted, "; ".join(errors)


def _chosen(fields: Mapping[str, Any], name: str) -> str | None:
    """Raises HTTPBadRequest for what is no text, or is too long."""
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > TEXT_MAX_CHARS):
        raise web.HTTPBadRequest(text=f"{name}: a text of at most {TEXT_MAX_CHARS:,} characters is wanted")
    return value


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""
