"""`lbg drain`: asks the sidecar beside it to leave, as a preStop hook does."""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import TYPE_CHECKING

import click

from lbg.failing import Failure

if TYPE_CHECKING:
    from lbg_sidecar.process.listener import Listener

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
def drain(local: str, wait: float) -> None:
    """Make the sidecar hand its queues over and leave the group.

    It stays up, not ready, until SIGTERM. The exit status is 0 when all was handed over, and 1 when that took longer
    or messages that were at work are delivered again.
    """
    from lbg_sidecar.process.listener import Listener

    try:
        listener = Listener.parse(local)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--local") from error
    try:
        told = _asked(listener, wait)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Failure(f"no sidecar answers at {listener}: {why}") from error
    if not told.get("drained"):
        raise Failure(f"not drained: {told.get('why', told)}")
    if told["delivered_again"]:
        raise Failure(f"drained by force: {told['delivered_again']} messages are delivered again")
    click.echo("drained: nothing is delivered again")


def _asked(listener: Listener, wait_s: float) -> dict[str, object]:
    connection = http.client.HTTPConnection(
        listener.host or "localhost", listener.port, timeout=wait_s + ANSWER_S
    )
    if listener.path is not None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(wait_s + ANSWER_S)
        connection.sock.connect(os.fspath(listener.path))
    try:
        connection.request("POST", f"/v1/drain?wait={wait_s:g}")
        told = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if not isinstance(told, dict):
        raise ValueError("its answer is no object")
    return told
