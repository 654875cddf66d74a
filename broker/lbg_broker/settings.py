"""Settings of the embedded broker, and its start errors.

::

    ServerError
    └── StartError     a setting, the address or the data directory cannot be used; the text is one clear line

The store has errors of its own (`store/errors.py`), the core as well (`core/errors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lbg_broker.core.state import DEFAULT_MESSAGE_GROUP


class ServerError(Exception):
    """Base of every error of the broker process."""


class StartError(ServerError):
    """The broker did not start."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address to listen on. Port 0: any free one (`Server.port` says which)."""

    host: str = "127.0.0.1"
    port: int = 5672

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`; an IPv6 host stands in brackets. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The broker's certificate (PEM), and whose client certificates it asks for; without `client_ca_file` none."""

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class AdministratorFiles:
    """Files with the administrator's name and password: the first line of each file."""

    username_file: Path
    password_file: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one broker process."""

    data_dir: Path
    """Directory of messages and definitions; made if missing."""

    listen: Address = Address()
    management: Address | None = None
    """Address of the management HTTP API. None: nowhere."""

    console_url: str | None = None
    """Address of `lbg console`, to which the management API redirects /console. None: there is none."""

    default_message_group: str = DEFAULT_MESSAGE_GROUP
    """The group of messages that name none, on queues of message groups."""

    tls: TlsSettings | None = None
    """For AMQP and the management API. None: plain TCP and HTTP."""

    administrator: AdministratorFiles | None = None
    """Let in from everywhere, with every permission; made and kept so at each start. None: a new broker knows guest."""

    files_check_s: float = 10.0
    """Seconds between checks of the files of `tls` and `administrator` are looked at for a change. Kubernetes takes a
    minute or so to bring a changed Secret to a pod, which is long compared with this."""

    heartbeat_s: int = 60
    """Proposed to clients; the smaller of both wishes counts, 0 turns heartbeats off. RabbitMQ's default."""

    frame_max_bytes: int = 131072
    channel_max: int = 4223
    """Of a connection. A lone member consumes each queue of its group on one; the API allows 4,096."""

    connections_max: int = 10_000

    message_max_bytes: int = 16 * 1024 * 1024
    """The largest body, RabbitMQ's `max_message_size` and its default since 4.0. A message is held in memory whole,
    several times over while it passes through."""

    incomplete_max_bytes: int = 128 * 1024 * 1024
    """Bytes of messages that clients have begun to send and not completed; beyond this those clients take turns."""

    handshake_timeout_s: float = 10.0
    """From connecting to connection.open-ok."""

    close_timeout_s: float = 5.0
    """Seconds for a client to answer connection.close."""

    unwritten_max_bytes: int = 16 * 1024 * 1024
    """Publishes waiting for the disk; beyond this publishers are no longer read from."""

    write_buffer_bytes: int = 1024 * 1024
    """Unsent bytes of one connection beyond which nothing is delivered to it."""

    unsent_max_bytes: int = 64 * 1024 * 1024
    """Unsent bytes of one connection beyond which it is not read from either: a client that publishes what
    comes back (mandatory, unroutable) and never reads would fill the memory. Far above `write_buffer_bytes`,
    because a client that writes before it reads must not be locked out by its own deliveries."""

    disk_silent_s: float = 10.0
    """Seconds that a batch may take before the broker calls itself not ready: a disk that hangs gives no error."""

    disk_retry_s: float = 1.0
    """Seconds to wait before a batch that found the disk full is tried again."""
