"""Settings of the sidecar, from environment and file; the environment takes precedence.

MemberError
└── ConfigurationError   a setting is wrong, unknown or missing: its name, its value and what to do
"""

from __future__ import annotations

import enum
import re
import shlex
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from lbg_core.client import BrokerAddress, ConnectionSettings, split_urls
from lbg_core.client import SettingsError as AddressError
from lbg_sidecar.app import BatchSettings, HealthRules
from lbg_sidecar.app.http_client import parse_target
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


YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


def read_value(kind: Any, value: object) -> object:
    """`value`, a text of the environment or a value of TOML, as `kind`. Raises ValueError with the rule."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = _kind_of(get_args(kind))
    if kind is bool:
        return _boolean(value)
    if kind is int:
        return _whole(value)
    if kind is float:
        return _number(value)
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if issubclass(kind, enum.StrEnum):
        if value not in list(kind):
            raise ValueError(f"must be one of {', '.join(kind)}")
        return kind(value)
    if kind is Path:
        if not value:
            raise ValueError("must be a path")
        return Path(value)
    return value


def _kind_of(choices: Sequence[Any]) -> Any:
    """The type that a union stands for: None is an absent value, and texts are accepted beside a path or an enum."""
    kinds = [one for one in choices if one is not types.NoneType and get_origin(one) is not Literal]
    (kind,) = [one for one in kinds if one is not str] or kinds
    return kind


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*YES, *NO):
        return value.lower() in YES
    raise ValueError("must be true or false")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise ValueError("must be a whole number")


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError("must be a number")


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
    """- `broker`: one address or several with commas between them, tried in turn.
    - `username`: the user to log in as, in place of the address's.
    - `username_file`, `password_file`: their first lines, read again for every connection, as a mounted Secret
      changes under a running pod.
    - `publisher_username`, `publisher_username_file`, `publisher_password_file`: the login of the publishing endpoint,
      for a group whose publishers have a user of their own; None: the member's.
    - `cafile`, `certfile`, `keyfile`: for amqps addresses. The broker's certificate is verified, against the
      system's authorities when there is no `cafile`.
    """

    broker: str = field(default="amqp://guest:guest@127.0.0.1:5672/", repr=False)
    username: str | None = None
    username_file: Path | None = None
    password_file: Path | None = None
    publisher_username: str | None = None
    publisher_username_file: Path | None = None
    publisher_password_file: Path | None = None
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None

    @property
    def address(self) -> BrokerAddress:
        """Raises the client's SettingsError, which shows no password."""
        return BrokerAddress(
            split_urls(self.broker),
            cafile=self.cafile,
            certfile=self.certfile,
            keyfile=self.keyfile,
            username=self.username,
            username_file=self.username_file,
            password_file=self.password_file,
        )

    @property
    def publisher_address(self) -> BrokerAddress | None:
        """None if the publishing endpoint has the member's login. Raises the client's SettingsError."""
        if self.publisher_password_file is None:
            return None
        return replace(
            self.address,
            username=self.publisher_username,
            username_file=self.publisher_username_file,
            password_file=self.publisher_password_file,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """- `app`: the channel to the application: `command`, `http` (each message is pushed to it), `http-batch`
      (many in a request), or `stream` (it connects to the local listener's /v1/stream).
    - `command`: for `command`: what to run, split as a shell would, without a shell.
    - `target`: for `http` and `http-batch`: where messages are POSTed, http://HOST:PORT/PATH or unix:/SOCKET:/PATH.
    - `health_path`: for these two: what to GET to check that the application is ready; None: a connection to its port
      is enough.
    - `positions_path`: for these two: what to GET each time before it counts as ready, for the positions that it has
      committed itself (docs/app-channels.md); None: nothing.
    - `batch_size`, `batch_linger_ms`, `batch_requests`: for `http-batch`: messages in a request, at most; how long one
      waits for others while a request is on its way; requests under way at once. `concurrency` is the product of size
      and requests unless it is set.
    - For `stream`, `concurrency` is 256 unless it is set: the application's credit is the limit.
    - `local`: where publishing, the stream, drain and state are served; HOST:PORT or unix:/PATH. Loopback
      by default: every client that reaches it can publish, and make the member leave.
    - `observed`: where metrics and health are served, for Prometheus and the kubelet: the pod's address.
    - `body_max_bytes`: the longest request body.
    - `log_format`: `text`, or `json` with one object a line.
    """

    app: Channel = Channel.COMMAND
    command: str = ""
    target: str = ""
    health_path: str | None = None
    positions_path: str | None = None
    batch_size: int = 200
    batch_linger_ms: float = 5.0
    batch_requests: int = 2
    local: str = "127.0.0.1:8750"
    observed: str = "0.0.0.0:8751"
    body_max_bytes: int = 1_048_576
    log_format: LogFormat = LogFormat.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """The whole: what `configure` makes of environment and file. `publisher`: where and as whom the publishing endpoint
    publishes."""

    member: MemberSettings
    publisher: tuple[ConnectionSettings, ...]
    process: ProcessSettings
    local: Listener
    observed: Listener


def batch_settings(process: ProcessSettings) -> BatchSettings:
    """Raises SettingsError."""
    return BatchSettings(
        size=process.batch_size, linger_ms=process.batch_linger_ms, requests=process.batch_requests
    )


def health_rules(process: ProcessSettings) -> HealthRules:
    """Raises SettingsError."""
    return HealthRules(path=process.health_path, positions_path=process.positions_path)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: its name in the file, its type, and its default (None where it has none)."""

    name: str
    kind: Any
    default: object
    required: bool

    @property
    def variable(self) -> str:
        return f"LBG_{self.name.upper()}"


def table() -> dict[str, Setting]:
    """All settings by name, in the order to show them. A new setting of a member is in it by itself."""
    rows: dict[str, Setting] = {}
    for holder in (BrokerSettings, MemberSettings, ProcessSettings):
        kinds = get_type_hints(holder)
        for one in fields(holder):
            rows.setdefault(one.name, _row(one, kinds[one.name]))
    return rows


def _row(one: Field[Any], kind: Any) -> Setting:
    required = one.default is MISSING and one.default_factory is MISSING
    return Setting(one.name, kind, None if one.default is MISSING else one.default, required)


OTHERS = frozenset({"LBG_DEBUG", "LBG_MANAGEMENT"})
"""Variables of other commands, which a sidecar ignores."""

_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables of Kubernetes in every container for a Service whose name begins with lbg (kubernetes.io, "Accessing
the Service", Docker-links variables). No setting of ours may end like this."""

SECRET = frozenset({"broker"})


def configure(environment: Mapping[str, str], file: Path | None = None) -> SidecarSettings:
    """Raises ConfigurationError."""
    rows = table()
    values_read: dict[str, tuple[str, object]] = {}
    for name, value in (settings_in(file) if file is not None else {}).items():
        if name not in rows:
            raise ConfigurationError(
                f"{name} in {file} is not a setting of a sidecar: remove it or correct its name"
            )
        values_read[name] = (f"{name} in {file}", value)
    by_variable = {row.variable: row for row in rows.values()}
    for variable, text in environment.items():
        if variable in by_variable:
            values_read[by_variable[variable].name] = (variable, text)
        elif variable.startswith("LBG_") and variable not in OTHERS and not _SERVICE.search(variable):
            raise ConfigurationError(
                f"{variable} is not a setting of a sidecar: unset it or correct its name"
            )
    for row in rows.values():
        if row.required and row.name not in values_read:
            raise ConfigurationError(
                f"{row.variable} is missing: set it, or {row.name} in the file of --config"
            )
    values: dict[str, Any] = {}
    for name, (where, value) in values_read.items():
        values[name] = value_of(rows[name], value, where)
    return _settings(values, {name: where for name, (where, _) in values_read.items()})


def value_of(row: Setting, value: object, where: str) -> object:
    """`value` as the type of its setting. Raises ConfigurationError."""
    try:
        return read_value(str if row.name in SECRET else row.kind, value)
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
    process = ProcessSettings(**_of(ProcessSettings, values))
    listeners = {}
    for name in ("local", "observed"):
        text = getattr(process, name)
        try:
            listeners[name] = Listener.parse(text)
        except ValueError as error:
            raise ConfigurationError(_line(where.get(name, name), name, text, str(error))) from None
    if process.body_max_bytes < 1:
        at = where["body_max_bytes"]
        raise ConfigurationError(_line(at, "body_max_bytes", process.body_max_bytes, "must be at least 1"))
    if process.app is Channel.COMMAND:
        _check_command(process.command, where.get("command", "LBG_COMMAND"))
    elif process.app is not Channel.STREAM:
        if not process.target:
            raise ConfigurationError(
                f"{where.get('target', 'LBG_TARGET')} is missing: with LBG_APP={process.app.value} it is the "
                "address to which messages are sent, as http://127.0.0.1:8080/"
            )
        try:
            parse_target(process.target)
            batch_settings(process)
            health_rules(process)
        except SettingsError as error:
            name = _OF_APP.get(error.field, error.field)
            raise ConfigurationError(f"{where.get(name, f'LBG_{name.upper()}')} {error.what}") from None
    broker = BrokerSettings(**_of(BrokerSettings, values))
    member_values = {name: value for name, value in _of(MemberSettings, values).items() if name != "broker"}
    try:
        places = _places(broker.address)
        member = MemberSettings(broker=places, **member_values)
        publisher = _publisher_places(broker) or places
    except SettingsError as error:
        name = error.field
        raise ConfigurationError(f"{where.get(name, name)}: {error}") from None
    except AddressError as error:
        raise ConfigurationError(f"{where.get('broker', 'LBG_BROKER')}: {error}") from None
    return SidecarSettings(member=member, publisher=publisher, process=process, **listeners)


def _of(settings_class: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: values[one.name] for one in fields(settings_class) if one.name in values}


_OF_APP = {
    "app": "target",
    "app health path": "health_path",
    "app health positions_path": "positions_path",
    **{f"batch {name}": f"batch_{name}" for name in ("size", "linger_ms", "requests")},
}
"""Fields in errors of the application's channel, and the settings that they are from."""


def _check_command(command: str, where: str) -> None:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(_line(where, "command", command, f"cannot be split: {error}")) from None
    if not arguments:
        raise ConfigurationError(f"{where} is missing: with LBG_APP=command it is the command to run")


def _publisher_places(broker: BrokerSettings) -> tuple[ConnectionSettings, ...]:
    """Empty if the publishing endpoint has the member's login. Raises ConfigurationError and the client's
    SettingsError."""
    has_name = broker.publisher_username is not None or broker.publisher_username_file is not None
    if has_name != (broker.publisher_password_file is not None):
        missing = "LBG_PUBLISHER_PASSWORD_FILE" if has_name else "LBG_PUBLISHER_USERNAME"
        raise ConfigurationError(f"{missing} is missing: a login of the publishing endpoint has both")
    address = broker.publisher_address
    return () if address is None else _places(address)


def _places(address: BrokerAddress) -> tuple[ConnectionSettings, ...]:
    """Raises the client's SettingsError, also for a file of TLS that cannot be used."""
    places = address.places()
    for place in places:
        if place.tls is not None:
            place.tls.context()
    return places


def _line(where: str, name: str, value: object, rule: str) -> str:
    return f"{where} {rule}" if name in SECRET else f"{where} is {value!r}, but it {rule}"
