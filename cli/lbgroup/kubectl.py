"""`kubectl lbg`: commands of `lbg` on the group of a LoadBalancedGroup, with the login of its Secret.

The plug-in runs a command in its own process. The password is in the memory of this process, and in no argument,
environment or file. kubectl reads the objects and forwards the port, with the context, the login and the proxy of its
user (docs/adr/0069-kubectl-lbg-runs-kubectl.md).
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import click

from lbgroup.child_processes import die_with_parent
from lbgroup.commands import CliError, LazyCommand, LazyGroup, run
from lbgroup.options import BROKER_OPTIONS

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress
    from lbg_operator.resources.credentials import Login

GROUP, SECRET = "LoadBalancedGroup", "Secret"
RESOURCES = {GROUP: "loadbalancedgroups.lbg.dev", SECRET: "secrets"}
RIGHTS = 'docs/kubernetes.md, "kubectl lbg", has all rules'
LOCALHOST = "127.0.0.1"

POD_WITHIN = "10s"
"""Duration in which a pod of the Service has to run."""

RESTART_S = 1.0
"""Seconds between the end of a port-forward and the next one."""

_FORBIDDEN = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
"""Words of the API server's authorizer (RBAC)."""

_LISTENING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+")


class _NotFound(CliError):
    pass


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the options of its user; None: those of the kubeconfig."""

    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None

    def command(self, *arguments: str, namespace: str | None = None) -> list[str]:
        options = {
            "--kubeconfig": self.kubeconfig,
            "--context": self.context,
            "--namespace": namespace or self.namespace,
        }
        return [
            "kubectl",
            *(f"{name}={value}" for name, value in options.items() if value is not None),
            *arguments,
        ]

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """The object as the API server has it; `kind` as in `RESOURCES`. Raises CliError."""
        command = self.command("get", RESOURCES[kind], "--output=json", "--", name, namespace=namespace)
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise _no_kubectl() from None
        if "(NotFound)" in done.stderr:
            raise _NotFound(done.stderr)
        if done.returncode:
            raise _failure(f"{kind} {name} cannot be read", done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _no_kubectl() -> CliError:
    return CliError("there is no kubectl on the PATH: install it, or add its directory to PATH")


def _failure(what: str, said: str) -> CliError:
    """The error that kubectl printed, in one line, with the rule that is missing if that is the reason."""
    if denied := _FORBIDDEN.search(said):
        inside = f" in namespace {denied['namespace']}" if denied["namespace"] else ""
        rule = (
            f'apiGroups: ["{denied["group"]}"], resources: [{denied["resource"]}], verbs: [{denied["verb"]}]'
        )
        return CliError(f"{what}: your user needs the rule {{{rule}}}{inside} ({RIGHTS})")
    lines = said.strip().splitlines() or ["kubectl ended without a word"]
    return CliError(f"{what}: {lines[-1].removeprefix('error: ')}")


@dataclass(frozen=True, slots=True)
class GroupAccess:
    """`name`: of the group on its broker."""

    name: str
    namespace: str
    login: Login


def access_of(kubectl: Kubectl, name: str) -> GroupAccess:
    """Access to the group of LoadBalancedGroup `name`. Raises CliError."""
    from lbg_operator.resources.credentials import login_in

    try:
        group = kubectl.get(GROUP, name)
    except _NotFound:
        where = f"namespace {kubectl.namespace}" if kubectl.namespace else "the current namespace"
        raise CliError(
            f"there is no LoadBalancedGroup {name} in {where}: `kubectl get lbg --all-namespaces` lists all"
        ) from None
    namespace, status = group["metadata"]["namespace"], group.get("status", {})
    remedy = f"`kubectl describe lbg {name} --namespace {namespace}` shows why"
    if not {"groupName", "secretName"} <= status.keys():
        raise CliError(f"LoadBalancedGroup {name} is not yet on its broker: {remedy}")
    try:
        login = login_in(kubectl.get(SECRET, status["secretName"], namespace=namespace))
    except _NotFound:
        raise CliError(f"LoadBalancedGroup {name} has no Secret {status['secretName']}: {remedy}") from None
    if login is None:
        raise CliError(f"Secret {status['secretName']} lacks username, password or uris: {remedy}")
    return GroupAccess(status["groupName"], namespace, login)


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """A Service or a pod, as `kubectl port-forward` takes it."""

    resource: str
    namespace: str


def target_of(host: str, namespace: str) -> ForwardTarget | None:
    """The Service or pod that has the name `host` in a cluster (Kubernetes: "DNS for Services and Pods"); None for a
    host outside. A name without `svc` is that of a Service if this machine cannot resolve it: in `namespace`, unless it
    has one."""
    labels = host.split(".")
    if "svc" in labels[2:4]:
        labels = labels[: labels.index("svc", 2)]
    elif len(labels) > 2 or _is_known(host):
        return None
    if len(labels) == 3:
        return ForwardTarget(f"pod/{labels[0]}", labels[2])
    return ForwardTarget(f"service/{labels[0]}", labels[1] if len(labels) == 2 else namespace)


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


class PortForward:
    """`kubectl port-forward` from a local port, for the length of the block; `port` is the local one.

    kubectl ends when the pod does. It is started again with the same local port, so that clients can reconnect.
    """

    def __init__(self, kubectl: Kubectl, target: ForwardTarget, port: int) -> None:
        self._command = kubectl.command(
            "port-forward",
            f"--address={LOCALHOST}",
            f"--pod-running-timeout={POD_WITHIN}",
            target.resource,
            namespace=target.namespace,
        )
        self._what = f"port {port} of {target.resource} in namespace {target.namespace} cannot be forwarded"
        self._remote_port = port
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._restart, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        """Raises CliError."""
        self._start(f":{self._remote_port}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._process.terminate()
        self._thread.join()

    def _start(self, ports: str) -> None:
        """Returns when kubectl listens. It has a session of its own: Ctrl-C is for the command. Raises CliError."""
        try:
            process = subprocess.Popen(
                [*self._command, ports],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except FileNotFoundError:
            raise _no_kubectl() from None
        self._process = process
        if self._is_closed.is_set():  # the block ended meanwhile
            process.terminate()
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            if listening := _LISTENING.match(line):
                self.port = int(listening[1])
                return
            said += line
        _end(process)
        raise _failure(self._what, said)

    def _restart(self) -> None:
        while not self._is_closed.is_set():
            assert self._process.stdout is not None
            for _ in self._process.stdout:  # a line for each connection
                pass
            _end(self._process)
            while not self._is_closed.wait(RESTART_S):
                with suppress(CliError):
                    self._start(f"{self.port}:{self._remote_port}")
                    break
        _end(self._process)


def _end(process: subprocess.Popen[str]) -> None:
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@contextmanager
def broker_of(kubectl: Kubectl, access: GroupAccess) -> Iterator[BrokerAddress]:
    """The group's broker, for the length of the block: an address in the cluster by a forwarded port. The management
    API is not used, as it refuses the users of groups. Raises CliError where no address can be used."""
    from lbg_core.client import BrokerAddress, ConnectionSettings

    login = access.login
    urls: list[str] = []
    errors: list[str] = []
    with ExitStack() as stack:
        more: dict[str, str] = {}
        if login.ca is not None:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix="lbg-ca-", suffix=".pem"))
            file.write(login.ca)
            file.flush()
            more["cafile"] = file.name
        for uri in login.uris:
            place = ConnectionSettings.parse(uri)
            netloc, options = f"{place.host}:{place.port}", more if place.tls is not None else {}
            if (target := target_of(place.host, access.namespace)) is not None:
                try:
                    forward = stack.enter_context(PortForward(kubectl, target, place.port))
                except CliError as error:
                    errors.append(str(error))
                    continue
                netloc = f"{LOCALHOST}:{forward.port}"
                if place.tls is not None:
                    options = {"server_name_indication": place.host, **options}
            urls.append(_with_login(uri, login, netloc, options))
        if not urls:
            raise CliError("; ".join(errors))
        yield BrokerAddress(tuple(urls), management_urls=None)


def _with_login(uri: str, login: Login, netloc: str, options: dict[str, str]) -> str:
    parts = urlsplit(uri)
    user, password = (quote(text, safe="") for text in (login.username, login.password))
    query = urlencode({**options, **dict(parse_qsl(parts.query))})
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{netloc}", query=query))


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[f"{__name__}.{option.name}"] = value


def _kubectl_options() -> list[click.Parameter]:
    """Options of kubectl, before or after the command's name."""
    return [
        click.Option(names, metavar=metavar, help=text, expose_value=False, callback=_remember)
        for names, metavar, text in (
            (("-n", "--namespace"), "NAME", "The namespace of the LoadBalancedGroup."),
            (("--context",), "NAME", "The context of the kubeconfig."),
            (("--kubeconfig",), "FILE", "The kubeconfig."),
        )
    ]


def _kubectl_of(context: click.Context) -> Kubectl:
    return Kubectl(
        *(context.meta.get(f"{__name__}.{name}") for name in ("context", "namespace", "kubeconfig"))
    )


class _Forwarded(click.Command):
    """A command of `lbg` on the group of a LoadBalancedGroup: without the options of a broker, and with kubectl's."""

    def __init__(self, inner: click.Command, path: str, summary: str) -> None:
        own = [one for one in inner.params if one.name not in BROKER_OPTIONS | {"name", "names", "url"}]
        words = " ".join(["flights", *("N14228" for one in own if isinstance(one, click.Argument))])
        super().__init__(
            inner.name,
            params=[click.Argument(["name"]), *own, *_kubectl_options()],
            help=f"{summary}\n\nNAME is that of the LoadBalancedGroup. `lbg {path} --help` has more.",
            epilog=f"Example: kubectl lbg {path} {words} --namespace shop",
        )
        self._inner = inner

    def invoke(self, ctx: click.Context) -> Any:
        values = dict(ctx.params)
        kubectl = _kubectl_of(ctx)
        access = access_of(kubectl, values.pop("name"))
        assert self._inner.callback is not None
        if self._inner.name == "console":  # one browser signs in with the login of the Secret
            values |= {"names": (access.name,), "url": None, "signs_in": True}
        else:
            values["name"] = access.name
        with broker_of(kubectl, access) as address:
            return self._inner.callback(address=address, **values)


class _ForwardedGroup(LazyGroup):
    """A group with a table of commands of `lbg`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None or isinstance(command, click.Group):
            return command
        entry = self._table[cmd_name]
        return _Forwarded(command, _PATHS[entry.target], entry.summary)


_PATHS = {
    "lbgroup.top:top": "top",
    "lbgroup.console:console": "console",
    "lbgroup.group:show": "group show",
    "lbgroup.group:peek": "group peek",
    "lbgroup.group:key": "group key",
}
"""Words of `lbg` for each command."""

_PEEK = LazyCommand("lbgroup.group:peek", "Show messages of a group, in order per queue, and take none.")


@click.group(
    cls=_ForwardedGroup,
    table={
        "show": LazyCommand("lbgroup.group:show", "Show a group: its attributes, its queues, its members."),
        "peek": _PEEK,
        "key": LazyCommand(
            "lbgroup.group:key",
            "Show the fate of a KEY of a group: what became of its messages, and where they are.",
        ),
    },
    params=_kubectl_options(),
    no_args_is_help=True,
)
def group() -> None:
    """Show a group, find the messages of a key, and peek at messages."""


@click.command(
    cls=_ForwardedGroup,
    table={
        "top": LazyCommand("lbgroup.top:top", "Watch a group: rates, lag, members, problems."),
        "console": LazyCommand("lbgroup.console:console", "Show a group in a browser, live."),
        "group": LazyCommand("lbgroup.kubectl:group", "Show a group, find a key, peek at messages."),
        "peek": _PEEK,
    },
    params=_kubectl_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: kubectl lbg top flights --namespace shop",
)
@click.version_option(package_name="lbgroup", message="lbg %(version)s")
def kubectl_lbg() -> None:
    """Run a command of `lbg` on the broker of a LoadBalancedGroup, with the login of its Secret.

    The objects are read by kubectl, which also forwards a port to a broker in the cluster.
    """


def main() -> int:
    """The exit status is 0, 1 for a failure and 2 for a wrong command line."""
    return run(kubectl_lbg, name="kubectl lbg")
