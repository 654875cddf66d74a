"""`lbg operator`: LoadBalancedGroups and Brokers of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from lbg_core.command_output import echo_json, output_option
from lbgroup.commands import EXIT_USAGE, CliError, error_line

if TYPE_CHECKING:
    from lbg_operator.settings import OperatorSettings
    from lbgroup import documents


@click.group(no_args_is_help=True)
def operator() -> None:
    """Run the operator of load-balanced groups. The chart in charts/lbg installs it; see docs/kubernetes.md."""


@operator.command(epilog="Example: lbg operator run --host 127.0.0.1 --port 8080")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address of health and metrics.")
@click.option("--port", default=8080, show_default=True, help="Port of health and metrics; 0 is a free one.")
def run(host: str, port: int) -> int:
    """Reconcile the groups and brokers of a cluster until SIGTERM.

    The cluster is the one that the pod is in, or else KUBECONFIG's. Running consumers do not need the operator: while
    it is away nothing scales and nothing is repaired. Settings are environment variables, LBG_OPERATOR_ and a name of
    the table in docs/operations.md; LBG_OPERATOR_SIDECAR_IMAGE and LBG_OPERATOR_BROKER_IMAGE are required.
    """
    from lbg_operator.errors import ClusterSetBack
    from lbg_operator.kube.api import ClusterError
    from lbg_operator.runtime.operator import configure_logging
    from lbg_operator.runtime.operator import run as run_operator

    settings = _settings()
    if settings is None:
        return EXIT_USAGE
    configure_logging(settings)
    try:
        asyncio.run(run_operator(settings, host=host, port=port))
    except (ClusterError, ClusterSetBack, OSError) as error:
        raise CliError(str(error)) from error
    return 0


@operator.command(epilog="Example: lbg operator release")
@click.option("--namespace", "namespaces", multiple=True, help="Only in this namespace. Repeatable.")
@click.option(
    "--stop",
    "selector",
    metavar="LABELS",
    help="First delete the operator's Deployment, which has these labels, in namespace $LBG_OPERATOR_NAMESPACE.",
)
@output_option("one object: the groups.")
def release(namespaces: tuple[str, ...], selector: str | None, as_json: bool) -> None:
    """Remove the operator's finalizer from every group, before the operator is uninstalled for good.

    Groups, queues and consumers stay as they are. An operator that is installed again adds the finalizer again; one
    that runs does so at once, and has to be stopped before.
    """
    from lbg_operator.kube.api import ClusterError
    from lbg_operator.runtime.uninstall import remove_finalizer as release_groups

    place = os.environ.get("LBG_OPERATOR_NAMESPACE", "")
    if selector is not None and not place:
        raise click.UsageError("--stop needs LBG_OPERATOR_NAMESPACE, the namespace of the operator")
    try:
        released = asyncio.run(
            release_groups(namespaces, operator=None if selector is None else (place, selector))
        )
    except ClusterError as error:
        raise CliError(str(error)) from error
    if as_json:
        done: documents.Released = {"action": "released", "groups": list(map(str, released))}
        echo_json(done)
        return
    for name in released:
        click.echo(f"released {name}")


def _settings() -> OperatorSettings | None:
    from lbg_operator.errors import SettingError
    from lbg_operator.settings import OperatorSettings

    try:
        return OperatorSettings.from_environment(os.environ)
    except SettingError as error:
        click.echo(error_line(error), err=True)
        return None
