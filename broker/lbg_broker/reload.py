"""Files that are reloaded while the broker runs: certificates, administrator, logins."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lbg_broker.core.effects import Definition
from lbg_broker.core.permissions import Grant, LoginRefused, User, Users
from lbg_broker.settings import AdministratorFiles, StartError, TlsSettings
from lbg_broker.store import StoreError
from lbg_core.passwords import hash_password

log = logging.getLogger("lbg.broker")

Marks = tuple[tuple[int, int, int] | None, ...]


class WatchedFile:
    """Files as they are when this is made, which is to be before anybody reads them.

    Kubernetes replaces the files of a Secret by changing one symbolic link («Secrets», mounted Secrets are updated
    automatically), so what counts is where a path leads.
    """

    def __init__(self, called: str, files: Sequence[Path]) -> None:
        self._called = called
        self.files = tuple(files)
        self._marks = _marks(self.files)

    async def follow(self, reload: Callable[[], Awaitable[None]], *, every_s: float) -> None:
        """Call `reload` whenever one of the files is another or has changed, for ever.

        Two files may be seen half changed: what `reload` refuses is tried again each time, and told once.
        """
        reported = ""
        while True:
            await asyncio.sleep(every_s)
            marks = await asyncio.to_thread(_marks, self.files)
            if marks == self._marks:
                continue
            try:
                await reload()
            except (StartError, StoreError) as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning(
                        "%s changed and cannot be used; continuing with the old one: %s", self._called, error
                    )
            else:
                self._marks, reported = marks, ""
                log.info("%s changed and was reloaded", self._called)


def _marks(files: Sequence[Path]) -> Marks:
    return tuple(_mark(file) for file in files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class ServerTls:
    """`context` is for the listeners, once and for all. Each handshake gets the certificate that was read last.

    The certificate is not changed in the listeners' context itself: a file that cannot be used, or a key that does
    not belong to it yet, would leave that without any.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Raises `StartError` for files that are missing or hold something else."""
        self._settings = settings
        self._current = _context(settings)
        self.context = _context(settings)
        self.context.sni_callback = self._choose

    def read_again(self) -> None:
        """Take up what the files hold now, or raise `StartError` and go on with what there was."""
        self._current = _context(self._settings)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _read_pause: ssl.SSLContext) -> None:
        """OpenSSL asks for every ClientHello, one without a server name too."""
        connection.context = self._current


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    except OSError as error:
        raise StartError(
            f"cannot use the certificate {tls.certificate_file} with the key {tls.key_file}: {error}"
        ) from error
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except OSError as error:
            raise StartError(f"cannot use the client authorities {tls.client_ca_file}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


NAME_MAX_BYTES = 255
"""A short string of AMQP, which the name is in a message's user-id."""


@dataclass(frozen=True, slots=True)
class Administrator:
    username: str
    password: str = field(repr=False)


def read_administrator(files: AdministratorFiles) -> Administrator:
    """Raises `StartError`, which never says the password."""
    username = _first_line(files.username_file)
    if username == "guest":
        raise StartError(
            f"{files.username_file}: guest is let in from this machine only: name the administrator otherwise"
        )
    if len(username.encode()) > NAME_MAX_BYTES or "\0" in username:
        raise StartError(f"{files.username_file}: a user's name has at most 255 bytes, none of them 0")
    return Administrator(username, _first_line(files.password_file))


def _first_line(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            line = lines.readline().rstrip("\r\n")
    except OSError as error:
        raise StartError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise StartError(f"{file}: its first line is not UTF-8") from None
    if not line:
        raise StartError(f"{file}: its first line is empty")
    return line


USER: Final = "user"
PERMISSION: Final = "permission"
ADMINISTRATOR: Final = "administrator"
VHOST: Final = "/"


def user_definition(user: User, *, there: bool = True) -> Definition:
    """The row of a user; `there` False deletes it."""
    return Definition(USER, user.name, json.dumps(user.to_row()) if there else None)


def grant_definition(grant: Grant, *, there: bool = True) -> Definition:
    """The row of a permission; `there` False deletes it."""
    key = json.dumps([grant.vhost, grant.user])
    return Definition(PERMISSION, key, json.dumps(grant.to_row()) if there else None)


def load_users(definitions: Iterable[Definition]) -> Users:
    """The users and permissions among the stored definitions."""
    users: list[User] = []
    grants: list[Grant] = []
    for definition in definitions:
        if definition.kind == USER and definition.value is not None:
            users.append(User.from_row(json.loads(definition.value)))
        elif definition.kind == PERMISSION and definition.value is not None:
            grants.append(Grant.from_row(json.loads(definition.value)))
    return Users(users, grants)


def first_accounts(users: Users, administrator: Administrator | None) -> list[Definition]:
    """Make known to `users` who is to be there at the start; the rows that are new.

    Without an administrator a new broker knows, as RabbitMQ, `guest` with everything, let in from this machine only.
    With one there is no need for a user whose password everybody knows.
    """
    if administrator is not None:
        return administrator_accounts(users, administrator)
    if users.all():
        return []
    return _made(users, User("guest", hash_password("guest"), (ADMINISTRATOR,)))


def administrator_accounts(users: Users, administrator: Administrator) -> list[Definition]:
    """Give `administrator` its password and every permission; the rows that changed, none if all was so already."""
    there = users.get(administrator.username)
    has_password = not isinstance(
        users.log_in(administrator.username, administrator.password, loopback=True), LoginRefused
    )
    is_granted = users.grant_of(administrator.username, VHOST) == _everything(administrator.username)
    if there is not None and has_password and there.is_administrator and is_granted:
        return []
    tags = () if there is None else tuple(tag for tag in there.tags if tag != ADMINISTRATOR)
    return _made(
        users, User(administrator.username, hash_password(administrator.password), (*tags, ADMINISTRATOR))
    )


def _made(users: Users, user: User) -> list[Definition]:
    grant = _everything(user.name)
    users.put(user)
    users.grant(grant)
    return [user_definition(user), grant_definition(grant)]


def _everything(user: str) -> Grant:
    return Grant(user, VHOST, ".*", ".*", ".*")
