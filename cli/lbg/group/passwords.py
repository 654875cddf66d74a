"""The password of a group's user: where it comes from, and where a generated one goes to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from lbg.failing import Failure
from lbg.options import FILE

C = TypeVar("C", bound=Callable[..., Any])


def password_options(command: C) -> C:
    """Where the password of the group's user comes from and, if it is generated, goes to."""
    for option in (
        click.option(
            "--write-password",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write a generated password to this new file (mode 600) and do not print it.",
        ),
        click.option(
            "--client-password-file",
            type=FILE,
            help="The user's password is this file's first line. Otherwise $LBG_CLIENT_PASSWORD, or one is generated.",
        ),
    ):
        command = option(command)
    return command


def given_password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("LBG_CLIENT_PASSWORD") or None
    from lbg_broker.client.credentials import first_line

    try:
        return first_line(file)
    except ValueError as error:
        raise Failure(f"--client-password-file {error}") from error


@contextlib.contextmanager
def kept_secret(file: Path | None) -> Iterator[Path | None]:
    """Make the file first: a password that cannot be kept must not be set. It is removed if nothing is written."""
    if file is not None:
        file.touch(mode=0o600, exist_ok=False)
    try:
        yield file
    finally:
        if file is not None and not file.stat().st_size:
            file.unlink()


def tell_password(user: str, password: str, file: Path | None) -> None:
    if file is not None:
        file.write_text(password + "\n")
        click.echo(f"user {user}: its password is in {file}")
    else:
        click.echo(f"user {user}: password {password} (shown this once)")
