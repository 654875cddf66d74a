"""Where the application listens: ``http://host:port/path``, or ``unix:/path/to.sock:/url-path`` for a unix socket."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import SettingsError

_RULE = "must be http://HOST:PORT/PATH, or unix:/PATH/TO.sock:/URL-PATH"


@dataclass(frozen=True, slots=True)
class Target:
    """`socket`: the unix socket to connect to, None for TCP. `base`: scheme, host and port. `path`: with its query."""

    base: str
    path: str
    socket: str | None = None

    @property
    def url(self) -> str:
        return self.base + self.path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for TCP."""
        parts = urlsplit(self.base)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def __str__(self) -> str:
        return f"unix:{self.socket}:{self.path}" if self.socket is not None else self.url


def parse_target(value: str) -> Target:
    """Raises SettingsError."""
    if value.startswith("unix:"):
        socket, colon, path = value.removeprefix("unix:").rpartition(":")
        if not colon or not socket.startswith("/") or not path.startswith("/"):
            raise SettingsError("app", value, _RULE)
        return Target("http://localhost", path, socket)
    try:
        parts = urlsplit(value)
        is_fit = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or parts.fragment or "@" in parts.netloc:
        if "@" in value:  # what is before it may be a password
            raise SettingsError("app", "an address with '@'", f"{_RULE}, without a login")
        raise SettingsError("app", value, _RULE)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(f"{parts.scheme}://{parts.netloc}", path)
