"""Options that several commands share: where the broker and its management API are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lbg_broker.client import ConnectionSettings
    from lbg_broker.provisioning.management import ManagementApi

DEFAULT_BROKER_URL = "amqp://guest:guest@127.0.0.1:5672/"

C = TypeVar("C", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """What the broker options say; TLS files apply to AMQP and to the management API alike."""

    url: str
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None

    def settings(self) -> ConnectionSettings:
        """Raises SettingsError, which shows no password."""
        from lbg_broker.client import ConnectionSettings

        settings = ConnectionSettings.parse(self.url)
        if self.cafile or self.certfile or self.keyfile:
            if settings.tls is None:
                raise click.UsageError("--cafile, --certfile and --keyfile need an amqps:// address")
            settings = settings.with_tls(self.cafile, self.certfile, self.keyfile)
        return settings

    def management(self, url: str | None) -> ManagementApi:
        """The API at `url`, or at the broker's host on its usual port; the broker's login unless `url` has one."""
        from lbg_broker.provisioning.management import ManagementApi, ManagementSettings

        settings = self.settings()
        if url is None:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            url = f"{'http' if settings.tls is None else 'https'}://{host}"
        try:
            where = ManagementSettings.parse(url, user=settings.username, password=settings.password)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        tls = settings.tls.context() if settings.tls is not None and where.url.startswith("https:") else None
        return ManagementApi(where, tls=tls)


def broker_options(command: C) -> C:
    """--broker and the TLS files, handed to the command as one `address`."""

    @click.option(
        "--broker",
        "broker_url",
        metavar="URL",
        envvar="LBG_BROKER",
        show_envvar=True,
        default=DEFAULT_BROKER_URL,
        help="amqp[s]://user:password@host:port/vhost; by default guest at 127.0.0.1:5672.",
    )
    @click.option("--cafile", type=FILE, help="Authorities to trust, for amqps.")
    @click.option("--certfile", type=FILE, help="This client's certificate, for amqps.")
    @click.option("--keyfile", type=FILE, help="The key of --certfile.")
    def with_address(
        *args: Any,
        broker_url: str,
        cafile: Path | None,
        certfile: Path | None,
        keyfile: Path | None,
        **kwargs: Any,
    ) -> Any:
        address = BrokerAddress(broker_url, cafile, certfile, keyfile)
        return command(*args, address=address, **kwargs)

    return _named_as(command, with_address)


def management_option(command: C) -> C:
    return click.option(
        "--management",
        "management_url",
        metavar="URL",
        envvar="LBG_MANAGEMENT",
        show_envvar=True,
        help="The management API, http[s]://user:password@host:port; by default port 15672 of the broker's host, "
        "with the broker's login.",
    )(command)


def _named_as(command: C, wrapper: Callable[..., Any]) -> C:
    """Keep the command's name, help and the options that are already on it."""
    import functools

    params = getattr(wrapper, "__click_params__", [])
    wrapped = functools.update_wrapper(wrapper, command)
    wrapped.__click_params__ = [*getattr(command, "__click_params__", []), *params]  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]
