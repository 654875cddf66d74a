"""Where a listener listens."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self


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
        """Whether only this machine (in Kubernetes: this pod) reaches it."""
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
