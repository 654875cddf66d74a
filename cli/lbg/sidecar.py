"""`lbg sidecar`: a member in a container of its own."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lbg.failing import EXIT_USAGE, error_line


@click.command(epilog="Example: lbg sidecar --config sidecar.toml")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with settings; the environment counts where both say something.",
)
def sidecar(config: Path | None) -> int:
    """Run the sidecar until SIGTERM: a member of a group, with HTTP listeners for drain, state, health and metrics.

    It is set by environment variables, LBG_ and a name of the table in docs/sidecar.md; a wrong, unknown or missing
    one ends it with status 2. It waits for a broker that is away and for a group that is not there yet.
    SIGTERM hands the queues over before it ends; a second one ends it at once. The status is 1 when messages that
    were at work are delivered again.
    """
    from lbg_broker.client import SettingsError as AddressError
    from lbg_broker.journal import DirectoryUnusable
    from lbg_sidecar import CommandFailed, SettingsError
    from lbg_sidecar.commits import CommitsError
    from lbg_sidecar.process.configuring import configure
    from lbg_sidecar.process.errors import ConfigurationError
    from lbg_sidecar.process.running import run_sidecar

    wrong = (ConfigurationError, SettingsError, AddressError, CommandFailed, CommitsError, DirectoryUnusable)
    try:
        return run_sidecar(configure(os.environ, config))
    except wrong as error:
        click.echo(error_line(error), err=True)
        return EXIT_USAGE
