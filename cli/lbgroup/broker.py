"""`lbg broker`: serve, backup and restore of the embedded broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbgroup.commands import EXIT_FAILED, EXIT_USAGE
from lbgroup.options import FILE

if TYPE_CHECKING:
    from lbg_broker import Address, Server
    from lbg_broker.store.backup import StoreCopy
    from lbgroup import documents


STANDARD = "-"
LOG_FILE = "broker.log"
"""In the data directory: the log of a broker in the background."""

POLL_S = 0.05
DATA_DIR = click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The broker's data directory.",
)

COPIED = output_option("one object: counts of queues and messages, and the size.")


@click.command(epilog="Example: lbg broker backup --data-dir ./data backup.sqlite3")
@DATA_DIR
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@COPIED
def backup(data_dir: Path, file: str, as_json: bool) -> None:
    """Copy a broker's messages and definitions to FILE (- is standard output) while it runs.

    The copy holds everything that was confirmed when it began, users and the hashes of their passwords too. It is
    read again and checked before it gets its name. A copy to standard output takes as much space in the data directory.
    """
    from lbg_broker.store.backup import back_up, copied_out

    if as_json and file == STANDARD:
        raise click.UsageError("--output json needs a FILE: the copy goes to standard output")
    if file == STANDARD:
        with copied_out(data_dir) as (copy, summary):
            shutil.copyfileobj(copy, sys.stdout.buffer, 1 << 20)
            sys.stdout.buffer.flush()
    else:
        summary = back_up(data_dir, Path(file))
    if as_json:
        done: documents.BackedUp = {"action": "backed_up", "file": file, **_counts(summary)}
        echo_json(done)
    else:
        _print_summary("backed up", summary)


@click.command(epilog="Example: lbg broker restore --data-dir ./data backup.sqlite3")
@DATA_DIR
@click.option("--replace", is_flag=True, help="Replace the store that exists.")
@click.argument("file", type=click.File("rb"))
@COPIED
def restore(data_dir: Path, replace: bool, file: BinaryIO, as_json: bool) -> None:
    """Make FILE (- is standard input), which `lbg broker backup` wrote, a broker's store. No broker may run there.

    A damaged or truncated file is refused, and changes nothing.
    """
    from lbg_broker.store.backup import restore as restore_store

    copy = restore_store(file, data_dir, replace=replace)
    if as_json:
        done: documents.Restored = {"action": "restored", "data_dir": str(data_dir), **_counts(copy)}
        echo_json(done)
    else:
        _print_summary("restored", copy)


def _counts(copy: StoreCopy) -> documents.Copied:
    return {"queues": copy.queues, "messages": copy.messages, "size_bytes": copy.size_bytes}


def _print_summary(verb: str, copy: StoreCopy) -> None:
    size = f"{copy.size_bytes / (1 << 20):.1f} MiB"
    click.echo(
        f"{verb}: {counted(copy.queues, 'queue')}, {counted(copy.messages, 'message')}, {size}", err=True
    )


@click.group(no_args_is_help=True)
def broker() -> None:
    """Run the embedded broker (AMQP 0-9-1 on one node, durable in one directory), and copy what it holds."""


@broker.command(epilog="Example: lbg broker serve --data-dir ./data")
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for messages and definitions; created if missing.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:5672",
    show_default=True,
    help="Address of the AMQP listener; port 0 is a free one.",
)
@click.option(
    "--management",
    metavar="HOST:PORT",
    default="127.0.0.1:15672",
    show_default=True,
    help="Address of the management HTTP API.",
)
@click.option("--no-management", is_flag=True, help="Serve no management API.")
@click.option("--certfile", type=FILE, help="The broker's certificate (PEM): AMQP is served over TLS only.")
@click.option("--keyfile", type=FILE, help="The key of --certfile.")
@click.option("--client-cafile", type=FILE, help="Ask clients for a certificate of these authorities.")
@click.option(
    "--admin-username-file",
    type=FILE,
    envvar="LBG_ADMIN_USERNAME_FILE",
    show_envvar=True,
    help="File whose first line is an administrator's name, who may connect from anywhere; restored at each start.",
)
@click.option(
    "--admin-password-file",
    type=FILE,
    envvar="LBG_ADMIN_PASSWORD_FILE",
    show_envvar=True,
    help="File whose first line is the administrator's password; a change applies within seconds.",
)
@click.option(
    "--default-message-group",
    metavar="NAME",
    default="qpid.no-group",
    show_default=True,
    envvar="LBG_DEFAULT_MESSAGE_GROUP",
    show_envvar=True,
    help="The group of messages that name none, on queues of message groups.",
)
@click.option(
    "--max-message-size",
    metavar="BYTES",
    type=click.IntRange(64 * 1024, 512 * 1024 * 1024),
    default=16 * 1024 * 1024,
    show_default=True,
    envvar="LBG_MAX_MESSAGE_SIZE",
    show_envvar=True,
    help="The largest message; a larger one closes its channel (406). RabbitMQ's max_message_size.",
)
@click.option(
    "--console-url",
    metavar="URL",
    envvar="LBG_CONSOLE_URL",
    show_envvar=True,
    help="Address of `lbg console`: the management API redirects /console to it.",
)
@click.option(
    "--detach",
    is_flag=True,
    help=f"Return when it listens, and leave it in the background: `lbg broker stop` ends it. Its log is {LOG_FILE} in "
    "the data directory.",
)
@output_option("one object on a line: the addresses.", has_flag=True)
@click.pass_context
def serve(
    context: click.Context,
    data_dir: Path,
    listen: str,
    management: str,
    no_management: bool,
    certfile: Path | None,
    keyfile: Path | None,
    client_cafile: Path | None,
    admin_username_file: Path | None,
    admin_password_file: Path | None,
    default_message_group: str,
    max_message_size: int,
    console_url: str | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    A new broker has one user: the administrator whom the files name, or else guest with password guest, who may
    connect from this machine only. It is one node: there is no second copy of a message. For more than one machine,
    run the same groups on RabbitMQ.

    The files of --certfile and of the administrator may change while it runs: it reads them again, and open
    connections stay.
    """
    import logging

    from lbg_broker import AdministratorFiles, ServerSettings, TlsSettings
    from lbg_broker import serve as serve_broker

    if (certfile is None) != (keyfile is None):
        raise click.UsageError("--certfile and --keyfile go together")
    if client_cafile is not None and certfile is None:
        raise click.UsageError("--client-cafile needs --certfile and --keyfile")
    if (admin_username_file is None) != (admin_password_file is None):
        raise click.UsageError("--admin-username-file and --admin-password-file go together")
    if not default_message_group:
        raise click.BadParameter("a group's name is not empty", param_hint="--default-message-group")
    administrator = (
        AdministratorFiles(admin_username_file, admin_password_file)
        if admin_username_file is not None and admin_password_file is not None
        else None
    )
    tls = (
        TlsSettings(certfile, keyfile, client_cafile)
        if certfile is not None and keyfile is not None
        else None
    )
    settings = ServerSettings(
        data_dir,
        listen=_address("--listen", listen),
        management=None if no_management else _address("--management", management),
        tls=tls,
        administrator=administrator,
        console_url=None if console_url is None else _console_url(console_url),
        default_message_group=default_message_group,
        message_max_bytes=max_message_size,
    )
    if detach:
        _detach(context, data_dir, as_json=as_json)
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve_broker(settings, on_ready=lambda server: _print_ready(server, as_json=as_json))


@broker.command(epilog="Example: lbg broker stop --data-dir ./data")
@DATA_DIR
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Longest wait for its end.",
)
@output_option("one object, that states what was done.")
def stop(data_dir: Path, timeout_s: float, as_json: bool) -> None:
    """Stop the broker of a data directory, by SIGTERM, and wait until it has ended.

    Confirmed messages are on disk, and `lbg broker serve` with the same directory has them again.
    """
    from lbg_broker.store.schema import holds, lock_holder

    process = lock_holder(data_dir)
    if process is None:
        raise click.ClickException(f"no broker runs on {data_dir}")
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself
    except PermissionError:
        raise click.ClickException(f"the broker on {data_dir} is process {process} of another user") from None
    deadline = time.monotonic() + timeout_s
    while holds(process, data_dir):
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"the broker on {data_dir} (process {process}) has not ended in {timeout_s:g} s"
            )
        time.sleep(POLL_S)
    if as_json:
        done: documents.Stopped = {"action": "stopped", "data_dir": str(data_dir), "pid": process}
        echo_json(done)
    else:
        click.echo(f"the broker on {data_dir} (process {process}) has ended", err=True)


broker.add_command(backup)
broker.add_command(restore)


def _detach(context: click.Context, data_dir: Path, *, as_json: bool) -> None:
    """Start the same command in a session of its own, and end with its status unless it is ready."""
    from lbg_core.private_files import make_private_directory, open_private

    command = [sys.executable, "-m", "lbgroup", "broker", "serve", "--json", *_arguments(context)]
    log = data_dir / LOG_FILE
    try:
        make_private_directory(data_dir)
        descriptor = open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise click.ClickException(f"cannot write {log}: {error.strerror}") from error
    begin = os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, start_new_session=True
        )
    assert process.stdout is not None
    try:
        with process.stdout as addresses:
            line = addresses.readline()
    except BaseException:  # Ctrl-C
        process.terminate()
        raise
    if not line:
        status = process.wait()
        with log.open("rb") as file:
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
        is_stated = status in (EXIT_FAILED, EXIT_USAGE) and lines  # the last line is the error
        click.echo(
            lines[-1] if is_stated else f"lbg: error: the broker ended (status {status}): see {log}", err=True
        )
        context.exit(status)
    ready = json.loads(line)
    if as_json:
        click.echo(json.dumps({**ready, "pid": process.pid, "log": str(log)}))
    else:
        _print_addresses(ready)
        click.echo(
            f"process {process.pid}, log {log}; stop it: lbg broker stop --data-dir {data_dir}", err=True
        )


def _arguments(context: click.Context) -> list[str]:
    """Options of the command line that began this command, without --detach, --output and --json."""
    found = []
    for option in context.command.params:
        name = option.name
        if name in (None, "detach", "output", "as_json"):
            continue
        source = context.get_parameter_source(name)
        if source is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        found += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return found


def _address(option: str, text: str) -> Address:
    from lbg_broker import Address

    try:
        return Address.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _console_url(text: str) -> str:
    from lbg_console.application import public_url

    try:
        return public_url(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}", param_hint="--console-url") from error


def _print_ready(server: Server, *, as_json: bool) -> None:
    """One line on standard output as soon as clients can connect; ports that were asked for as 0 are the real ones."""
    amqp = f"{'amqp' if server.settings.tls is None else 'amqps'}://{server.address}"
    management = server.management_address
    api = (
        None if management is None else f"{'http' if server.settings.tls is None else 'https'}://{management}"
    )
    ready = {"amqp": amqp, "management": api}
    if as_json:
        click.echo(json.dumps(ready))
    else:
        _print_addresses(ready)


def _print_addresses(ready: dict[str, str | None]) -> None:
    api = ready["management"]
    click.echo(f"listening: {ready['amqp']}" + (f", management API {api}" if api else ""))
