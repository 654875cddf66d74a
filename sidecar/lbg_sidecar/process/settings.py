"""Settings of the sidecar, from environment and file; the environment takes precedence.

MemberError
└── ConfigurationError   a setting is wrong, unknown or missing: its name, its value and what to do
"""

from __future__ import annotations

import enum
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from lbg_core.client import BrokerAddress, ConnectionSettings, split_urls
from lbg_core.client import SettingsError as AddressError
from lbg_core.declaration import Declaration, about, check, declarations, declared
from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_client import parse_target
from lbg_sidecar.app.http_push import BatchSettings
from lbg_sidecar.errors import MemberError, SettingsError
from lbg_sidecar.settings import MemberSettings


class ConfigurationError(MemberError):
    """One line for a person. It holds the value of a setting only where that cannot be a secret."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of an address, or a unix socket. Port 0 takes a free one."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/PATH``. Raises ValueError with the rule."""
        if text.startswith("unix:"):
            path = Path(text.removeprefix("unix:"))
            if not path.is_absolute():
                raise ValueError("must be unix:/ and the path of a socket")
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise ValueError("must be HOST:PORT or unix:/PATH")
        return cls(host, int(port))

    @property
    def is_local(self) -> bool:
        """True if only this machine (in Kubernetes: this pod) reaches it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Channel(enum.StrEnum):
    """Channel between sidecar and application."""

    COMMAND = "command"
    HTTP = "http"
    HTTP_BATCH = "http-batch"
    STREAM = "stream"


class LogFormat(enum.StrEnum):
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Addresses, and the login of the publishing endpoint. The broker's certificate is verified."""

    broker: str = field(
        default="amqp://guest:guest@127.0.0.1:5672/",
        repr=False,
        metadata=about(
            "Address of the broker, `amqp[s]://HOST:PORT/VHOST`; several with commas between them are tried in random "
            "order",
            is_secret=True,
        ),
    )
    publisher_username: str | None = declared(
        None,
        "The user of the publishing endpoint, for a group with [`Exclusive` "
        "publishers](rabbitmq.md#the-user-of-publishers); by default the member's",
    )
    publisher_username_file: Path | None = declared(None, "A file whose first line is this user")
    publisher_password_file: Path | None = declared(None, "A file whose first line is this user's password")

    def publisher_address(self, address: BrokerAddress) -> BrokerAddress | None:
        """None if the publishing endpoint has the member's login. Raises ConfigurationError and the client's
        SettingsError."""
        has_name = self.publisher_username is not None or self.publisher_username_file is not None
        if has_name != (self.publisher_password_file is not None):
            missing = "LBG_PUBLISHER_PASSWORD_FILE" if has_name else "LBG_PUBLISHER_USERNAME"
            raise ConfigurationError(f"{missing} is missing: a login of the publishing endpoint has both")
        if not has_name:
            return None
        return replace(
            address,
            username=self.publisher_username,
            username_file=self.publisher_username_file,
            password_file=self.publisher_password_file,
        )


_BATCH = BatchSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The channel to the application, the listeners and the log. Raises SettingsError."""

    app: Channel = declared(
        Channel.COMMAND,
        "How messages reach the application: `command`, `http`, `http-batch` or `stream` "
        "([app-channels.md](app-channels.md))",
    )
    command: str = declared("", "For `command`, required: the command to run, split as by a shell")
    target: str = declared(
        "",
        "For `http` and `http-batch`, required: where to POST messages, `http://HOST:PORT/PATH` or "
        "`unix:/SOCKET:/PATH`",
    )
    health_path: str | None = declared(
        None,
        "For `http` and `http-batch`: the path to GET to check that the application is ready; by default a connection "
        "to its port suffices",
        begins="/",
    )
    positions_path: str | None = declared(
        None,
        "For these two: the path to GET for the positions that the application has committed itself "
        "([inbox](exactly-once.md))",
        begins="/",
    )
    """Each time before it counts as ready (docs/app-channels.md)."""
    batch_size: int = declared(_BATCH.size, "For `http-batch`: most messages in a request", least=1)
    batch_linger_ms: float = declared(
        _BATCH.linger_ms, "… longest wait of a message for others, while a request is running", least=0
    )
    batch_requests: int = declared(_BATCH.requests, "… most requests at the same time", least=1)
    local: str = declared(
        "127.0.0.1:8750",
        "Listener for the application: publishing, the stream, state and drain; `HOST:PORT` or `unix:/PATH`",
    )
    """Loopback: every client that reaches it can publish, and make the member leave."""
    observed: str = declared("0.0.0.0:8751", "Listener for health and metrics")
    """For Prometheus and the kubelet: the pod's address."""
    body_max_bytes: int = declared(1_048_576, "Longest body of a request to the local listener", least=1)
    log_format: LogFormat = declared(LogFormat.TEXT, "`text`, or `json`: one object a line")

    def __post_init__(self) -> None:
        check(self, SettingsError)

    @property
    def batches(self) -> BatchSettings:
        return BatchSettings(
            size=self.batch_size, linger_ms=self.batch_linger_ms, requests=self.batch_requests
        )

    @property
    def health(self) -> HealthRules:
        return HealthRules(path=self.health_path, positions_path=self.positions_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """The whole: what `configure` makes of environment and file. `publisher`: where and as whom the publishing endpoint
    publishes."""

    member: MemberSettings
    publisher: tuple[ConnectionSettings, ...]
    process: ProcessSettings
    local: Listener
    observed: Listener


def table() -> Mapping[str, Declaration]:
    """All settings by name. A new one of a member is in it by itself."""
    return declarations(BrokerSettings, BrokerAddress, MemberSettings, ProcessSettings)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"LBG_{name.upper()}"


OTHERS = frozenset({"LBG_DEBUG", "LBG_MANAGEMENT"})
"""Variables of other commands, which a sidecar ignores."""

_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables of Kubernetes in every container for a Service whose name begins with lbg (kubernetes.io, "Accessing
the Service", Docker-links variables). No setting of ours may end like this."""


def configure(environment: Mapping[str, str], file: Path | None = None) -> SidecarSettings:
    """Raises ConfigurationError."""
    rows = table()
    found: dict[str, tuple[str, object]] = {}
    for name, value in (settings_in(file) if file is not None else {}).items():
        if name not in rows:
            raise ConfigurationError(
                f"{name} in {file} is not a setting of a sidecar: remove it or correct its name"
            )
        found[name] = (f"{name} in {file}", value)
    by_variable = {variable_of(name): name for name in rows}
    for variable, text in environment.items():
        if variable in by_variable:
            found[by_variable[variable]] = (variable, text)
        elif variable.startswith("LBG_") and variable not in OTHERS and not _SERVICE.search(variable):
            raise ConfigurationError(
                f"{variable} is not a setting of a sidecar: unset it or correct its name"
            )
    for name, row in rows.items():
        if row.is_required and name not in found:
            raise ConfigurationError(
                f"{variable_of(name)} is missing: set it, or {name} in the file of --config"
            )
    values = {name: value_of(rows[name], value, where) for name, (where, value) in found.items()}
    return _settings(values, {name: where for name, (where, _) in found.items()})


def value_of(row: Declaration, value: object, where: str) -> object:
    """`value` as the type of its setting. Raises ConfigurationError."""
    try:
        return row.read(value)
    except ValueError as error:
        raise ConfigurationError(_line(where, row.name, value, str(error))) from None


def settings_in(file: Path) -> dict[str, Any]:
    """Contents of the file of --config. Raises ConfigurationError."""
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigurationError(f"--config {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {file} is not TOML: {error}") from None


def _settings(values: dict[str, Any], where: Mapping[str, str]) -> SidecarSettings:
    def place(name: str) -> str:
        return where.get(name, variable_of(name))

    broker = BrokerSettings(**_of(BrokerSettings, values))
    try:
        process = ProcessSettings(**_of(ProcessSettings, values))
        listeners = {}
        for name in ("local", "observed"):
            text = getattr(process, name)
            try:
                listeners[name] = Listener.parse(text)
            except ValueError as error:
                raise ConfigurationError(_line(place(name), name, text, str(error))) from None
        if process.app is Channel.COMMAND:
            if not split_command(process.command, place("command")):
                raise ConfigurationError(
                    f"{place('command')} is missing: with LBG_APP=command it is the command to run"
                )
        elif process.app is not Channel.STREAM:
            if not process.target:
                raise ConfigurationError(
                    f"{place('target')} is missing: with LBG_APP={process.app} it is the address to which messages "
                    "are sent, as http://127.0.0.1:8080/"
                )
            parse_target(process.target)
        address = BrokerAddress(split_urls(broker.broker), **_of(BrokerAddress, values))
        places = _places(address)
        member = MemberSettings(broker=places, **_of(MemberSettings, values))
        own = broker.publisher_address(address)
        publisher = places if own is None else _places(own)
    except SettingsError as error:
        raise ConfigurationError(f"{place(error.field)} {error.what}") from None
    except AddressError as error:
        raise ConfigurationError(f"{place('broker')}: {error}") from None
    return SidecarSettings(member=member, publisher=publisher, process=process, **listeners)


def _of(settings_class: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in declarations(settings_class) if name in values}


def split_command(command: str, where: str) -> list[str]:
    """Its arguments, as a shell splits it. Raises ConfigurationError."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(_line(where, "command", command, f"cannot be split: {error}")) from None


def _places(address: BrokerAddress) -> tuple[ConnectionSettings, ...]:
    """In an order of chance. Raises the client's SettingsError, also for a file of TLS that cannot be used."""
    places = address.spread_places()
    for place in places:
        if place.tls is not None:
            place.tls.context()
    return places


def _line(where: str, name: str, value: object, rule: str) -> str:
    return f"{where} {rule}" if table()[name].is_secret else f"{where} is {value!r}, but {rule}"
