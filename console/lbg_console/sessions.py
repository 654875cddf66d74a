"""Sign-in: sessions of users of the broker, and the limits of attempts. The check of a login is an AMQP connection.

A session is a random number in a cookie; all else of it is in the memory of this process. It has the login, because
what a user does is done with the user's own rights, on connections of its own. `Sessions` and `LoginGate` do no I/O,
and get the time as an argument.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lbg_core.admin.errors import AdminError, Denied, Unreachable, Unsupported
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, management_places
from lbg_core.client import BrokerAddress, ConnectionSettings
from lbg_core.peers import network_of

SESSION_S = 8 * 3600.0
"""As of RabbitMQ's page."""

RECHECK_S = 300.0
"""After so long the login of a session is checked again."""

SESSIONS_MAX = 1000
"""The one that was opened first goes for one more."""

STREAMS_MAX = 20
"""Of one session: tabs that are open."""

ATTEMPTS_MAX = 10
ATTEMPTS_S = 60.0
"""Failed logins of one address, and of one user name, in so long."""

CHECKS_MAX = 4
WAITING_MAX = 16
"""Logins that are checked at a time, and that wait for it."""

COUNTED_MAX = 4096
ADMINISTRATOR = "administrator"
SEES_ALL = frozenset({ADMINISTRATOR, "monitoring"})
"""Tags of users who see all groups, as in RabbitMQ's management."""


@dataclass(slots=True)
class Session:
    """`sees_all`: not only the groups whose user this is. `checked_at_s`: the broker accepted the login then. `csrf`: a
    form of this session has it. `tags`: of the user, None where they cannot be read."""

    id: str
    username: str
    password: str = field(repr=False)
    sees_all: bool
    ends_at_s: float
    checked_at_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    streams: set[Callable[[], None]] = field(default_factory=set, repr=False)
    """Each ends a stream of this session."""
    is_over: bool = False
    tags: frozenset[str] | None = None


class Sessions:
    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(
        self,
        username: str,
        password: str,
        *,
        sees_all: bool,
        now_s: float,
        tags: frozenset[str] | None = None,
    ) -> Session:
        for one in list(self._sessions.values()):
            if one.ends_at_s <= now_s:
                self.close(one)
        while len(self._sessions) >= SESSIONS_MAX:
            self.close(next(iter(self._sessions.values())))
        session = Session(secrets.token_urlsafe(32), username, password, sees_all, now_s + SESSION_S, now_s)
        session.tags = tags
        self._sessions[session.id] = session
        return session

    def find(self, id: str, now_s: float) -> Session | None:
        session = self._sessions.get(id)
        if session is not None and session.ends_at_s <= now_s:
            self.close(session)
            return None
        return session

    def due(self, now_s: float) -> list[Session]:
        """Sessions whose login is to be checked again."""
        return [one for one in self._sessions.values() if one.checked_at_s <= now_s - RECHECK_S]

    def close(self, session: Session) -> None:
        session.is_over = True
        self._sessions.pop(session.id, None)
        for end in list(session.streams):
            end()


class LoginGate:
    """Limits of attempts. A flood of them costs the broker `CHECKS_MAX` logins at a time, and shuts out its own address
    and the name that it tries; sessions that are open go on."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self.checked = 0
        """Logins that are checked now, or wait for it."""

    def wait_s(self, address: str, username: str, now_s: float) -> float:
        """Seconds until the next attempt is allowed; 0: now."""
        if self.checked >= CHECKS_MAX + WAITING_MAX:
            return 1.0
        return max(self._wait_of(name, now_s) for name in self._names(address, username))

    def failed(self, address: str, username: str, now_s: float) -> None:
        for name in self._names(address, username):
            failures = self._failures.setdefault(name, deque(maxlen=ATTEMPTS_MAX))
            failures.append(now_s)
            self._failures.move_to_end(name)
        while len(self._failures) > COUNTED_MAX:
            self._failures.popitem(last=False)

    def _wait_of(self, name: str, now_s: float) -> float:
        failures = self._failures.get(name, ())
        recent = [at_s for at_s in failures if at_s > now_s - ATTEMPTS_S]
        return recent[0] + ATTEMPTS_S - now_s if len(recent) >= ATTEMPTS_MAX else 0.0

    def _names(self, address: str, username: str) -> tuple[str, str]:
        return f"address {network_of(address)}", f"user {username[:255]}"


def places_of(address: BrokerAddress, username: str, password: str) -> tuple[ConnectionSettings, ...]:
    """The console's places with another login, which is checked by its password: a certificate is the console's."""
    return tuple(
        replace(place, username=username, password=password, credentials=None, mechanism="PLAIN")
        for place in address.places()
    )


def admin_of(address: BrokerAddress, username: str, password: str) -> LiveAdmin:
    """The broker, with this login at both of its APIs. Nobody chooses where the console connects to."""
    places = places_of(address, username, password)
    if address.management_urls is None:
        return LiveAdmin(places)
    where = [replace(one, user=username, password=password) for one in management_places(address)]
    return LiveAdmin(places, ManagementApi.of_broker(address, where))


async def check_login(address: BrokerAddress, username: str, password: str) -> frozenset[str] | None:
    """Tags of the user, None where they cannot be read. Raises Denied for a login that is wrong, and Unreachable."""
    admin = admin_of(address, username, password)
    try:
        await admin.amqp.engine()
        try:
            return await admin.management_for("tags of the login can only be read").tags()
        except (Denied, Unreachable, Unsupported):
            return None
    except (Denied, Unreachable):
        raise
    except AdminError as error:  # a virtual host that the user may not enter
        raise Denied(str(error)) from error
    finally:
        await admin.close()
