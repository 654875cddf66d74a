"""The first administrator, by two files of which the first line counts: a Secret that Kubernetes mounts."""

from dataclasses import dataclass, field
from pathlib import Path

from lbg_broker.server.errors import StartError
from lbg_broker.server.settings import AdministratorFiles

__all__ = ["Administrator", "read_administrator"]

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
