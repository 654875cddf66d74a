"""`lbg sidecar` and `lbg drain`: a member in a container of its own, and its preStop hook."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbgroup.commands import EXIT_USAGE, CliError, error_line

if TYPE_CHECKING:
    from lbg_sidecar.process.settings import Listener
    from lbgroup import documents


ANSWER_S = 5.0


@click.command(epilog="Example: lbg drain --wait 25")
@click.option(
    "--local",
    metavar="HOST:PORT",
    envvar="LBG_LOCAL",
    show_envvar=True,
    default="127.0.0.1:8750",
    show_default=True,
    help="The sidecar's local listener; or unix:/PATH.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0, max=3600),
    default=25.0,
    show_default=True,
    metavar="S",
    help="Longest wait for the queues to be handed over.",
)
@output_option("one object, that states what was done.")
def drain(local: str, wait: float, as_json: bool) -> None:
    """Make the sidecar hand its queues over and leave the group.

    The sidecar stays up, not ready, until SIGTERM. The exit status is 0 when every queue was handed over, and 1 when
    that took longer or messages in flight are delivered again.
    """
    from lbg_sidecar.process.settings import Listener

    try:
        listener = Listener.parse(local)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--local") from error
    try:
        answer = _drained(listener, wait)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CliError(f"no sidecar answers at {listener}: {reason}") from error
    if not answer.get("drained"):
        raise CliError(f"not drained: {answer.get('why', answer)}")
    again = int(str(answer["delivered_again"]))
    if as_json:
        done: documents.Drained = {"action": "drained", "delivered_again": again}
        echo_json(done)
    if again:
        raise CliError(f"drained by force: {counted(again, 'message is', 'messages are')} delivered again")
    if not as_json:
        click.echo("drained: nothing is delivered again")


def _drained(listener: Listener, wait_s: float) -> dict[str, object]:
    connection = http.client.HTTPConnection(
        listener.host or "localhost", listener.port, timeout=wait_s + ANSWER_S
    )
    if listener.path is not None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(wait_s + ANSWER_S)
        connection.sock.connect(os.fspath(listener.path))
    try:
        connection.request("POST", f"/v1/drain?wait={wait_s:g}")
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("its answer is no object")
    return answer


@click.command(epilog="Example: lbg sidecar --config sidecar.toml")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with settings; environment variables override it.",
)
def sidecar(config: Path | None) -> int:
    """Run the sidecar until SIGTERM: a member of a group, with HTTP listeners for drain, state, health and metrics.

    Settings are environment variables, LBG_ and a name of the table in docs/sidecar.md; a wrong, unknown or missing
    one ends it with status 2. It waits for a broker that is away and for a group that does not exist yet.
    SIGTERM hands the queues over before it ends; a second one ends it at once. The status is 1 when messages in
    flight are delivered again.
    """
    from lbg_core.client import SettingsError as AddressError
    from lbg_core.journal import DirectoryUnusable
    from lbg_core.tracing import TracingError
    from lbg_sidecar import CommandFailed, SettingsError
    from lbg_sidecar.commit_log import CommitsError
    from lbg_sidecar.process.main import run_sidecar
    from lbg_sidecar.process.settings import ConfigurationError, configure

    wrong = (
        ConfigurationError,
        SettingsError,
        AddressError,
        CommandFailed,
        CommitsError,
        DirectoryUnusable,
        TracingError,
    )
    try:
        return run_sidecar(configure(os.environ, config))
    except wrong as error:
        click.echo(error_line(error), err=True)
        return EXIT_USAGE
