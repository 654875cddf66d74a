"""The login, read anew for each attempt to connect: a password can be changed under clients that stay.

RabbitMQ looks at a login when a connection opens and never again: a changed password ends no connection.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CredentialFiles", "Credentials", "CredentialsSource", "first_line"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password, which never shows in a repr."""

    username: str
    password: str = field(repr=False)


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
