"""Users, their tags and their permissions, with RabbitMQ's meaning.

Semantics follow RabbitMQ's «Access Control» guide: a permission is three regular expressions (configure, write, read)
for one user in one virtual host, here in RE2's syntax. A pattern matches anywhere in a name unless it is anchored; an
empty pattern stands for `^$`, which grants nothing that has a name; the default exchange is checked as `amq.default`.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self, get_args

from lbg_core.name_pattern import NamePattern, PatternError
from lbg_core.passwords import is_password_of_user

Permission = Literal["configure", "write", "read"]


class Authority(Protocol):
    """Authority of users and permissions, from memory; the broker checks it before it acts."""

    generation: int
    """Grows with every change of a user or a permission: answers given before it no longer count."""

    def authenticate(self, user: str, password: str) -> bool:
        """True if this user exists and this is the password."""

    def can_enter(self, user: str, vhost: str) -> bool:
        """True if the user has any permission in the vhost."""

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        """True if the user may do this to the queue or exchange of this name (RabbitMQ's access control)."""


class Open:
    """An authority without secrets: for tests of the core."""

    generation = 0

    def authenticate(self, user: str, password: str) -> bool:
        return True

    def can_enter(self, user: str, vhost: str) -> bool:
        return True

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        return True


PERMISSIONS: Final[tuple[Permission, ...]] = get_args(Permission)
DEFAULT_EXCHANGE_ALIAS: Final = "amq.default"
_CACHE_LIMIT = 20_000
_WRONG_MAX = 4096
_MANAGEMENT_TAGS = frozenset({"management", "policymaker", "monitoring", "administrator"})


@dataclass(frozen=True, slots=True)
class User:
    """A user; an empty `password_hash` is a user who cannot log in with a password."""

    name: str
    password_hash: str
    tags: tuple[str, ...] = ()

    @property
    def may_manage(self) -> bool:
        return not _MANAGEMENT_TAGS.isdisjoint(self.tags)

    @property
    def is_administrator(self) -> bool:
        return "administrator" in self.tags

    @property
    def may_monitor(self) -> bool:
        """True if the user may list what belongs to others: connections, channels, consumers."""
        return self.is_administrator or "monitoring" in self.tags

    def to_row(self) -> dict[str, Any]:
        return {"name": self.name, "password_hash": self.password_hash, "tags": list(self.tags)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["name"], row["password_hash"], tuple(row["tags"]))

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, tags={self.tags!r})"


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of one user in one virtual host: a pattern of names for each permission.

    Raises PatternError, which names the permission.
    """

    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""
    _patterns: Mapping[Permission, NamePattern] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        patterns: dict[Permission, NamePattern] = {}
        for permission in PERMISSIONS:
            try:
                patterns[permission] = NamePattern(self.pattern(permission) or "^$")
            except PatternError as error:
                raise PatternError(f"{permission}: {error}") from None
        object.__setattr__(self, "_patterns", patterns)

    def pattern(self, permission: Permission) -> str:
        match permission:
            case "configure":
                return self.configure
            case "write":
                return self.write
            case "read":
                return self.read

    def allows(self, permission: Permission, name: str) -> bool:
        return self._patterns[permission].matches(name or DEFAULT_EXCHANGE_ALIAS)

    def to_row(self) -> dict[str, str]:
        patterns = {"configure": self.configure, "write": self.write, "read": self.read}
        return {"user": self.user, "vhost": self.vhost, **patterns}

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        return cls(**row)


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """A login failed; the reason is for the log, never for the peer."""

    reason: str


class Users:
    """The users and grants of one broker, and the answers drawn from them: an `Authority`."""

    def __init__(self, users: Iterable[User] = (), grants: Iterable[Grant] = ()) -> None:
        self.generation = 0
        self._users = {user.name: user for user in users}
        self._grants = {(grant.user, grant.vhost): grant for grant in grants}
        self._answers: dict[tuple[str, str, Permission, str], bool] = {}
        self._proven: dict[str, bytes] = {}
        self._refuted: OrderedDict[bytes, str] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def all(self) -> list[User]:
        return sorted(self._users.values(), key=lambda user: user.name)

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def put(self, user: User) -> None:
        self._users[user.name] = user
        self._proven.pop(user.name, None)
        self._changed()

    def drop(self, name: str) -> bool:
        """Remove the user with every grant; False if there was none."""
        for key in [key for key in self._grants if key[0] == name]:
            del self._grants[key]
        there = self._users.pop(name, None) is not None
        self._proven.pop(name, None)
        self._changed()
        return there

    def all_grants(self) -> list[Grant]:
        return sorted(self._grants.values(), key=lambda grant: (grant.vhost, grant.user))

    def grant_of(self, user: str, vhost: str) -> Grant | None:
        return self._grants.get((user, vhost))

    def grant(self, grant: Grant) -> None:
        self._grants[grant.user, grant.vhost] = grant
        self._changed()

    def revoke(self, user: str, vhost: str) -> bool:
        """Remove one grant; False if there was none."""
        there = self._grants.pop((user, vhost), None) is not None
        self._changed()
        return there

    def log_in(self, name: str, password: str, *, loopback: bool) -> User | LoginRefused:
        """Check a login, at the cost of a hash: for who has no event loop that waits for it."""
        known = self.recall(name, password, loopback=loopback)
        if known is not None:
            return known
        password_hash = self.password_hash_of(name)
        is_right = is_password_of_user(password, password_hash)
        self.remember(name, password, password_hash, is_right=is_right)
        return self._users[name] if is_right else self._wrong(name)

    def recall(self, name: str, password: str, *, loopback: bool) -> User | LoginRefused | None:
        """Outcome of a login that takes no hash, because of the user or of a check before; None if it takes one.

        `guest` is let in from loopback only («Access Control», "guest" user).
        """
        user = self._users.get(name)
        if user is not None:
            if name == "guest" and not loopback:
                return LoginRefused("user 'guest' can only connect from this machine")
            if not user.password_hash or not password:
                return LoginRefused(f"user '{name}' was given no password")
        digest = self._digest(name, password)
        if user is not None and hmac.compare_digest(self._proven.get(name, b""), digest):
            return user
        return self._wrong(name) if self._refuted.get(digest) == self.password_hash_of(name) else None

    def password_hash_of(self, name: str) -> str:
        """The hash to check a password with; empty for an unknown user."""
        user = self._users.get(name)
        return "" if user is None else user.password_hash

    def remember(self, name: str, password: str, password_hash: str, *, is_right: bool) -> None:
        """Record a check with this hash for `recall`; nothing if the user has another hash by now."""
        if self.password_hash_of(name) != password_hash:
            return
        digest = self._digest(name, password)
        if is_right:
            self._proven[name] = digest
            return
        self._refuted[digest] = password_hash
        if len(self._refuted) > _WRONG_MAX:
            self._refuted.popitem(last=False)

    def authenticate(self, user: str, password: str, *, loopback: bool = True) -> bool:
        return isinstance(self.log_in(user, password, loopback=loopback), User)

    def can_enter(self, user: str, vhost: str) -> bool:
        """True if the user has any grant in the virtual host, which connection.open requires."""
        return (user, vhost) in self._grants

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        """True if the user may do this to the exchange or queue called `name`."""
        question = (user, vhost, permission, name)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _CACHE_LIMIT:
                self._answers.clear()
            grant = self._grants.get((user, vhost))
            answer = self._answers[question] = grant is not None and grant.allows(permission, name)
        return answer

    def _wrong(self, name: str) -> LoginRefused:
        if name in self._users:
            return LoginRefused(f"wrong password for user '{name}'")
        return LoginRefused(f"there is no user '{name}'")

    def _digest(self, name: str, password: str) -> bytes:
        """Key of a checked login, in memory only: the costly hash is paid once per process and login."""
        named = name.encode()
        return hmac.digest(self._key, len(named).to_bytes(4) + named + password.encode(), "sha256")

    def _changed(self) -> None:
        self.generation += 1
        self._answers.clear()
