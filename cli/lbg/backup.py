"""`lbg broker backup` and `restore`: a copy of the embedded broker's store, and a store made of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

if TYPE_CHECKING:
    from lbg_broker.server.store.backup import StoreCopy

STANDARD = "-"
DATA_DIR = click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The broker's data directory.",
)


@click.command(epilog="Example: lbg broker backup --data-dir ./data backup.sqlite3")
@DATA_DIR
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
def backup(data_dir: Path, file: str) -> None:
    """Copy a broker's messages and definitions to FILE (- is standard output) while it runs.

    The copy holds everything that was confirmed when it began, users and the hashes of their passwords too. It is
    read again and checked before it gets its name. Standard output takes as much room in the data directory meanwhile.
    """
    from lbg_broker.server.store.backup import back_up, copied_out

    if file == STANDARD:
        with copied_out(data_dir) as (copy, found):
            shutil.copyfileobj(copy, sys.stdout.buffer, 1 << 20)
            sys.stdout.buffer.flush()
    else:
        found = back_up(data_dir, Path(file))
    _tell("backed up", found)


@click.command(epilog="Example: lbg broker restore --data-dir ./data backup.sqlite3")
@DATA_DIR
@click.option("--replace", is_flag=True, help="Give up the store that is there.")
@click.argument("file", type=click.File("rb"))
def restore(data_dir: Path, replace: bool, file: BinaryIO) -> None:
    """Make FILE (- is standard input), which `lbg broker backup` wrote, a broker's store. No broker may run there.

    A file that is damaged or was cut off is refused, and changes nothing.
    """
    from lbg_broker.server.store.backup import restore as restore_store

    _tell("restored", restore_store(file, data_dir, replace=replace))


def _tell(what: str, copy: StoreCopy) -> None:
    told = f"{what}: {copy.queues} queues, {copy.messages} messages, {copy.size_bytes / (1 << 20):.1f} MiB"
    click.echo(told, err=True)
