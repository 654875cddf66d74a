"""Options that several commands share: broker, management API and credentials; tables of text."""

from __future__ import annotations

import base64
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from lbg_core.admin.progress import Progress, line_of
from lbg_core.admin.rows import Count
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import AddressConflict, BrokerAddress, split_urls
from lbg_core.counted_nouns import counted
from lbg_core.declaration import Declaration, declarations, option_of, without_links
from lbg_core.peers import printable
from lbgroup.commands import CliError

if TYPE_CHECKING:
    from lbg_core.admin.management import ManagementApi


def count_text(count: Count | None) -> str:
    """None: there is nothing to count."""
    if count is UNKNOWN:
        return "unknown"
    return "missing" if count is None else str(count)


def counted_text(count: Count | None, noun: str) -> str:
    """As `count_text`, with the noun."""
    return counted(count, noun) if isinstance(count, int) else f"{count_text(count)} {noun}s"


def show_progress(progress: Progress) -> None:
    """Line on standard error."""
    click.echo(line_of(progress), err=True)


def body_text(excerpt: Mapping[str, Any]) -> str:
    """A message's body as `BodyExcerpt.to_json` has it, in one line that is safe for a terminal."""
    size_bytes = excerpt["body_bytes"]
    if excerpt.get("body") is None and excerpt.get("body_base64") is None:
        return f"body of {counted(size_bytes, 'byte')}, which the member cannot read"
    if (text := excerpt.get("body")) is not None:
        content, shown_bytes = printable(text, max_chars=None), len(text.encode())
    else:
        content = f"base64 {excerpt['body_base64']}"
        shown_bytes = len(base64.b64decode(excerpt["body_base64"]))
    more = f" … and {counted(size_bytes - shown_bytes, 'byte')} more" if size_bytes > shown_bytes else ""
    return f"body of {counted(size_bytes, 'byte')}: {content}{more}" if size_bytes else "body empty"


def require_consent(question: Callable[[], str], *, refused: str) -> None:
    """Ask a person whether to delete what cannot be restored. Raises UsageError where nobody can be asked, and CliError
    with `refused` when the answer is no."""
    if not sys.stdin.isatty():
        raise click.UsageError("this deletes for good, and there is no terminal to confirm it: add --yes")
    if not click.confirm(question(), err=True):
        raise CliError(refused)


def declared_option(one: Declaration, kind: Any = None) -> Callable[[Any], Any]:
    """The option of a declared field. `kind`: a type of click in place of its own."""
    return click.option(
        one.option,
        one.name,
        type=kind or _type_of(one),
        is_flag=one.kind is bool,
        required=one.is_required,
        default=one.default.value if isinstance(one.default, StrEnum) else one.default,
        show_default=one.default not in (None, "", False, 0.0),
        metavar=_metavar_of(one),
        envvar=one.variable or None,
        show_envvar=bool(one.variable),
        help=f"{without_links(one.help_for(option_of))}.",
    )


def declared_options(*holders: type, without: Collection[str] = ()) -> Callable[[C], C]:
    """An option for each declared field of the dataclasses, handed to the command under the field's name."""

    def decorate(command: C) -> C:
        for one in reversed(list(declarations(*holders).values())):
            if one.name not in without:
                command = declared_option(one)(command)
        return command

    return decorate


class _Bounded(click.types.StringParamType):
    """A number in the bounds of its declaration."""

    name = "number"

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._declaration.read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _type_of(one: Declaration) -> Any:
    if one.choices:
        return click.Choice([str(word) for word in one.choices])
    if one.kind in (int, float):
        return _Bounded(one)
    is_file = one.metavar == "FILE"
    return (
        click.Path(file_okay=is_file, dir_okay=not is_file, path_type=Path) if one.kind is Path else one.kind
    )


def _metavar_of(one: Declaration) -> str | None:
    if one.metavar or one.choices or one.kind is bool:
        return one.metavar or None
    if one.name.endswith("_mb"):
        return "MB"
    return {int: "N", float: "S", str: "TEXT"}.get(one.kind)


body_bytes_option = click.option(
    "--body-bytes",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Show at most N bytes of a body, and the number of the others.",
)

DEFAULT_BROKER_URL = "amqp://guest:guest@127.0.0.1:5672/"

C = TypeVar("C", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Urls(click.types.StringParamType):
    """One address or several with commas between them, on the command line as in the environment."""

    name = "URL"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return [rv]


def management_of(address: BrokerAddress) -> ManagementApi:
    """The API at its address, or else on its usual port of the broker's hosts; with the broker's login unless the
    address has one."""
    from lbg_core.admin.management import ManagementApi, management_places

    try:
        where = management_places(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return ManagementApi.of_broker(address, where)


def tls_arguments(address: BrokerAddress) -> list[str]:
    """The TLS options of this command, for a command that it starts."""
    files = {"--cafile": address.cafile, "--certfile": address.certfile, "--keyfile": address.keyfile}
    return [text for option, file in files.items() if file for text in (option, str(file))]


def broker_options(
    *, login: bool = False, management: bool = False, waits_for_files: bool = False
) -> Callable[[C], C]:
    """--broker and the TLS files, handed to the command as one `address`; `login` and `management` add theirs.
    `waits_for_files`: the TLS files need not be there yet."""
    tls = _LATER_TLS if waits_for_files else _TLS
    return _handed_over(
        {**_BROKER, **tls, **(_LOGIN if login else {}), **(_MANAGEMENT if management else {})}
    )


def other_broker_options(command: C) -> C:
    """The same for a command with a broker of its own: only the command line counts, and `address` is
    None without such options."""
    return _handed_over({**_OTHER_BROKER, **_TLS, **_OTHER_MANAGEMENT})(command)


def _handed_over(options: Mapping[str, Callable[[Any], Any]]) -> Callable[[C], C]:
    def decorate(command: C) -> C:
        @functools.wraps(command)
        def with_address(*args: Any, **kwargs: Any) -> Any:
            if "address" in kwargs:  # of `kubectl lbg`, which has none of these options
                return command(*args, **kwargs)
            values = {name: kwargs.pop(name) for name in options}
            urls = split_urls(*values.pop("broker"))
            management = split_urls(*values.pop("management")) if "management" in values else None
            if not urls and (management or any(values.values())):
                raise click.UsageError("--management and the TLS files need --broker")
            try:
                address = BrokerAddress(urls, management, **values) if urls else None
            except AddressConflict as error:
                raise click.UsageError(str(error)) from None
            return command(*args, address=address, **kwargs)

        made: Any = with_address
        for option in reversed(list(options.values())):
            made = option(made)
        return cast(C, made)

    return decorate


def _addresses(
    name: str, text: str, *, variable: str | None = None, default: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    return click.option(
        name,
        multiple=True,
        type=Urls(),
        metavar="URL[,URL]",
        envvar=variable,
        show_envvar=variable is not None,
        default=default,
        help=text,
    )


_BROKER = {
    "broker": _addresses(
        "--broker",
        "amqp[s]://user:password@host:port/vhost; by default guest at 127.0.0.1:5672. Several, also by repeating it, "
        "are tried in turn.",
        variable="LBG_BROKER",
        default=(DEFAULT_BROKER_URL,),
    ),
}


_ADDRESS = declarations(BrokerAddress)
_TLS = {name: declared_option(_ADDRESS[name], FILE) for name in ("cafile", "certfile", "keyfile")}
_LATER_TLS = {name: declared_option(_ADDRESS[name]) for name in _TLS}
_LOGIN = {name: declared_option(_ADDRESS[name]) for name in ("username", "username_file", "password_file")}
_MANAGEMENT = {
    "management": _addresses(
        "--management",
        "The management API, http[s]://user:password@host:port; by default port 15672 (https: 15671) of the "
        "broker's hosts, with the broker's login. Several are tried in turn.",
        variable="LBG_MANAGEMENT",
    ),
}
BROKER_OPTIONS = frozenset({*_BROKER, *_TLS, *_LOGIN, *_MANAGEMENT})
"""Names of the parameters that become a command's `address`."""

_OTHER_BROKER = {
    "broker": _addresses(
        "--broker",
        "Play on this broker, amqp[s]://user:password@host:port/vhost, and not on an embedded one of the demo's "
        "own. Several are tried in turn. $LBG_BROKER is ignored here.",
    ),
}
_OTHER_MANAGEMENT = {
    "management": _addresses(
        "--management",
        "The management API of --broker, http[s]://user:password@host:port; by default on its usual port.",
    ),
}
