"""Connection settings: addresses, TLS, credentials and timeouts.

RabbitMQ checks a login when a connection opens and never again: a changed password ends no connection.
"""

from __future__ import annotations

import logging
import random
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from lbg_core.client.errors import AddressConflict, SettingsError
from lbg_core.declaration import declared


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password, which never shows in a repr."""

    username: str
    password: str = field(repr=False)


AddressFilter = Callable[[str], bool]
"""True for a numeric address that may be connected to."""


class AddressRefused(OSError):
    """None of the addresses of a host may be connected to."""


def permitted(addresses: Sequence[str], permits: AddressFilter) -> list[str]:
    """Raises AddressRefused."""
    found = [address for address in dict.fromkeys(addresses) if permits(address)]
    if not found:
        raise AddressRefused(
            f"connections to {', '.join(dict.fromkeys(addresses))} are not permitted here: give another address, or "
            "let the administrator permit its network"
        )
    return found


CredentialsSource = Callable[[], Credentials]
"""Called in a thread of its own for each attempt to connect; whatever it raises makes that attempt fail."""


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Reads files as a Kubernetes Secret mounts them: one line each, of which the first counts.

    Called, it returns the `Credentials` of this moment. Raises OSError, and ValueError for an empty first line.
    """

    username: str | Path
    password: str | Path = field(repr=False)

    def __call__(self) -> Credentials:
        return Credentials(_text(self.username), _text(self.password))


def first_line(file: Path) -> str:
    """The first line of `file`, without its end. Raises OSError, and ValueError when it is empty."""
    with file.open(encoding="utf-8") as lines:
        line = lines.readline().rstrip("\r\n")
    if not line:
        raise ValueError(f"{file}: its first line is empty")
    return line


def _text(source: str | Path) -> str:
    return first_line(source) if isinstance(source, Path) else source


_PORTS = {"amqp": 5672, "amqps": 5671}

FRAME_MAX_LEAST_BYTES = 8192
"""RabbitMQ from 4.1 on closes the connection of a client with less; AMQP 0-9-1 allows 4096 (section 4.2.3)."""


log = logging.getLogger("lbg.client")


@cache
def warn_unverified() -> None:
    """Once in a process: every attempt to connect has the same settings."""
    log.warning(
        "verify_none: the broker's certificate is not checked, so that whoever is in between can read passwords and "
        "messages, and change them; give its authority with cafile=FILE"
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings of a connection. None for `cafile`: the system's authorities.

    `verify=False` turns off every check of the broker's certificate and is meant for experiments only.
    `server_name` is the name to expect in the certificate; None: the host of the address.
    """

    cafile: Path | str | None = None
    certfile: Path | str | None = None
    keyfile: Path | str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """The SSL context. Raises `SettingsError` naming the file that cannot be used."""
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.cafile)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"cafile {self.cafile}: {_reason(error)}") from None
        if not self.verify:
            warn_unverified()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certfile is not None:
            try:
                context.load_cert_chain(self.certfile, self.keyfile)
            except (OSError, ssl.SSLError) as error:
                where = f"certfile {self.certfile}" + (f", keyfile {self.keyfile}" if self.keyfile else "")
                raise SettingsError(f"{where}: {_reason(error)}") from None
        elif self.keyfile is not None:
            raise SettingsError("keyfile is given without certfile")
        return context


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One broker's address, the login, and this end's limits.

    `heartbeat_s`: whole seconds, 0 for none; the broker may lower it. The default finds a host that fell
    silent within 15 s. `connect_timeout_s` bounds one attempt, from name look-up to connection.open-ok.
    `mechanism`: ``PLAIN``, or ``EXTERNAL`` when the client certificate is the login.
    `permits`: decides for each numeric address of the host whether to connect to it; None: to all.
    `credentials`: source of `username` and `password` at each attempt to connect; None: they stay as they are.
    """

    host: str = "localhost"
    port: int = 5672
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: TlsSettings | None = None
    mechanism: Literal["PLAIN", "EXTERNAL"] = "PLAIN"
    heartbeat_s: int = 5
    connect_timeout_s: float = 10.0
    frame_max_bytes: int = 131072
    channel_max: int = 65535
    credentials: CredentialsSource | None = field(default=None, repr=False)
    permits: AddressFilter | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> ConnectionSettings:
        """Settings from ``amqp[s]://user:password@host:port/vhost?heartbeat=5``.

        No path, or ``/``, is the virtual host ``/``; others are percent-encoded. Query: `heartbeat` and
        `connection_timeout` in seconds, `channel_max`, `frame_max`, `auth_mechanism`, and for amqps `cafile`
        (or `cacertfile`), `certfile`, `keyfile`, `verify` (``verify_peer``, ``verify_none``),
        `server_name_indication`. Raises `SettingsError`, which never shows the password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # Python's own message may quote what it took for the port: a piece of the password.
            hint = "; a '/', '?', '#' or '@' in the password must be percent-encoded"
            raise SettingsError(f"the address's host or port cannot be read{hint}") from None
        if parts.scheme not in _PORTS:
            shown = parts.scheme if parts.scheme and "@" not in parts.scheme else "none"
            raise SettingsError(f"the address must begin with amqp:// or amqps://, its scheme is {shown}")
        if parts.fragment:
            raise SettingsError("the address holds a '#': in a password it must be written %23")
        if port == 0:
            raise SettingsError("port 0 cannot be connected to")
        vhost = unquote(parts.path[1:])
        if "/" in parts.path[1:]:
            raise SettingsError("a '/' in the virtual host's name must be written %2F")
        options, tls_options = _options(parts.query)
        if parts.scheme == "amqp" and tls_options:
            raise SettingsError(f"{next(iter(tls_options))} needs an amqps:// address")
        return ConnectionSettings(
            host=parts.hostname or "localhost",
            port=port or _PORTS[parts.scheme],
            username=unquote(parts.username) if parts.username is not None else "guest",
            password=unquote(parts.password) if parts.password is not None else "guest",
            vhost=vhost or "/",
            tls=TlsSettings(**tls_options) if parts.scheme == "amqps" else None,
            **options,
        )

    @property
    def address(self) -> str:
        """``amqp://user@host:port/vhost``, to show to people."""
        return self._address(f"{quote(self.username, safe='')}@")

    @property
    def address_without_user(self) -> str:
        """``amqp://host:port/vhost``: `credentials` may name another user than `username`."""
        return self._address("")

    def _address(self, user: str) -> str:
        scheme = "amqp" if self.tls is None else "amqps"
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else quote(self.vhost, safe="")
        return f"{scheme}://{user}{host}:{self.port}/{vhost}"


_NUMBERS = {
    "heartbeat": ("heartbeat_s", 0, 65535),
    "connection_timeout": ("connect_timeout_s", 1, 86400),
    "channel_max": ("channel_max", 1, 65535),
    "frame_max": ("frame_max_bytes", FRAME_MAX_LEAST_BYTES, 0x7FFFFFFF),
}
_TLS_TEXTS = {
    "cafile": "cafile",
    "cacertfile": "cafile",
    "certfile": "certfile",
    "keyfile": "keyfile",
    "server_name_indication": "server_name",
}


def _options(query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The query's options: those of `ConnectionSettings`, and those of `TlsSettings`."""
    options: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in _NUMBERS:
            name, least, most = _NUMBERS[key]
            if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
                raise SettingsError(f"{key}={value}: a whole number from {least} to {most} is needed")
            options[name] = int(value)
        elif key == "auth_mechanism":
            if value.upper() not in ("PLAIN", "EXTERNAL"):
                raise SettingsError(f"auth_mechanism={value}: PLAIN and EXTERNAL are known")
            options["mechanism"] = value.upper()
        elif key == "verify":
            if value not in ("verify_peer", "verify_none"):
                raise SettingsError(f"verify={value}: verify_peer and verify_none are known")
            tls["verify"] = value == "verify_peer"
        elif key in _TLS_TEXTS:
            tls[_TLS_TEXTS[key]] = value
        else:
            raise SettingsError(f"the address's option {key!r} is not known")
    return options, tls


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# A password may hold a comma; what follows the one between two addresses is a scheme.
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z]+://)")


def split_urls(*texts: str) -> tuple[str, ...]:
    """The addresses in texts that hold one each, or several with commas between them."""
    return tuple(url for text in texts for url in _BETWEEN_URLS.split(text.strip()) if url)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker, a cluster perhaps. Raises `SettingsError`: `AddressConflict` where only the whole is wrong. Neither
    shows a password.

    - `urls`: of its nodes, tried in turn: amqp[s]://user:password@host:port/vhost, see `ConnectionSettings.parse`.
    - `management_urls`: of its management API; none: on its usual port. None: not used.

    The others are for every address: the TLS files in place of its own, and the files of the login count first.
    """

    urls: tuple[str, ...] = field(repr=False)
    management_urls: tuple[str, ...] | None = field(default=None, repr=False)
    cafile: Path | str | None = declared(
        None, "Authorities to trust, for amqps and https; by default the system's", metavar="FILE"
    )
    certfile: Path | str | None = declared(
        None, "This client's certificate, for amqps and https", metavar="FILE"
    )
    keyfile: Path | str | None = declared(None, "The key of {certfile}", metavar="FILE")
    username: str | None = declared(
        None, "The user to log in as, in place of the address's", metavar="NAME", variable="LBG_USERNAME"
    )
    username_file: Path | str | None = declared(
        None,
        "A file whose first line is the user, read again for every connection",
        metavar="FILE",
        variable="LBG_USERNAME_FILE",
    )
    password_file: Path | str | None = declared(
        None,
        "A file whose first line is the password, read again for every connection",
        metavar="FILE",
        variable="LBG_PASSWORD_FILE",
    )

    def __post_init__(self) -> None:
        self.places()

    def places(self) -> tuple[ConnectionSettings, ...]:
        """Addresses to connect to, in turn."""
        places = [ConnectionSettings.parse(url) for url in self.urls]
        files = self.tls_files
        if files is not None:
            self._check_use_of_tls_files(places)
            places = [replace(place, tls=files) if place.tls else place for place in places]
        if len({place.vhost for place in places}) > 1:
            raise AddressConflict("the broker's addresses name different virtual hosts")
        return tuple(map(self._with_login, places))

    def spread_places(self, chance: random.Random | None = None) -> tuple[ConnectionSettings, ...]:
        """The same in an order of chance, for processes of which there are many: a cluster's nodes share their
        connections, and when one goes, its clients do not all go to the same other one."""
        places = self.places()
        return tuple((chance or random.Random()).sample(places, len(places)))

    @property
    def tls_files(self) -> TlsSettings | None:
        if not any((self.cafile, self.certfile, self.keyfile)):
            return None
        cafile, certfile, keyfile = (
            None if file is None else str(file) for file in (self.cafile, self.certfile, self.keyfile)
        )
        return TlsSettings(cafile, certfile, keyfile)

    def _check_use_of_tls_files(self, places: Sequence[ConnectionSettings]) -> None:
        is_used = any(place.tls for place in places)
        is_used = is_used or any(url.startswith("https:") for url in self.management_urls or ())
        if not is_used:
            needed = "an amqps://" if self.management_urls is None else "an amqps:// or https://"
            raise AddressConflict(f"cafile, certfile and keyfile need {needed} address")

    def _with_login(self, place: ConnectionSettings) -> ConnectionSettings:
        username = self.username or place.username
        if self.username_file or self.password_file:
            user = Path(self.username_file) if self.username_file else username
            password = Path(self.password_file) if self.password_file else place.password
            return replace(place, credentials=CredentialFiles(user, password))
        return replace(place, username=username)
