"""Everything that can be set about a sidecar, in one place."""

from __future__ import annotations

import enum
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from lbg_broker.client import BrokerAddress, split_urls

from ..app import BatchSettings, HealthRules
from ..settings import MemberSettings
from .listener import Listener


class Channel(enum.StrEnum):
    """How the sidecar speaks with the application."""

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
    - `cafile`, `certfile`, `keyfile`: for amqps addresses. The broker's certificate is verified, against the
      system's authorities when there is no `cafile`.
    """

    broker: str = field(default="amqp://guest:guest@127.0.0.1:5672/", repr=False)
    username: str | None = None
    username_file: Path | None = None
    password_file: Path | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """- `app`: the channel to the application: `command`, `http` (each message is pushed to it), `http-batch`
      (many in a request), or `stream` (it connects to the local listener's /v1/stream).
    - `command`: for `command`: what to run, split as a shell would, without a shell.
    - `target`: for `http` and `http-batch`: where messages are POSTed, http://HOST:PORT/PATH or unix:/SOCKET:/PATH.
    - `health_path`: for these two: what to GET to know that the application is ready; None: that its port can be
      connected to is enough.
    - `positions_path`: for these two: what to GET each time before it counts as ready, for the positions that it has
      committed itself (docs/app-channels.md); None: nothing.
    - `batch_size`, `batch_linger_ms`, `batch_requests`: for `http-batch`: messages in a request, at most; how long one
      waits for others while a request is on its way; requests under way at once. `concurrency` is the product of size
      and requests unless it is set.
    - For `stream`, `concurrency` is 256 unless it is set: the application's credit says what it can take.
    - `local`: where publishing, the stream, drain and state are served; HOST:PORT or unix:/PATH. Loopback
      unless told: whoever reaches it can publish, and make the member leave.
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
    """The whole: what `configuring.configure` makes of environment and file."""

    member: MemberSettings
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
    """All settings by name, in the order to show them. What a member learns to be told is in it by itself."""
    rows: dict[str, Setting] = {}
    for holder in (BrokerSettings, MemberSettings, ProcessSettings):
        kinds = get_type_hints(holder)
        for one in fields(holder):
            rows.setdefault(one.name, _row(one, kinds[one.name]))
    return rows


def _row(one: Field[Any], kind: Any) -> Setting:
    required = one.default is MISSING and one.default_factory is MISSING
    return Setting(one.name, kind, None if one.default is MISSING else one.default, required)
