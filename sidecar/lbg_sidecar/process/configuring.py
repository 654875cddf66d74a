"""Environment and file into one settings object: the environment counts where both say something."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lbg_broker.client import ConnectionSettings
from lbg_broker.client import SettingsError as AddressError

from ..app.targets import parse_target
from ..errors import SettingsError
from ..settings import MemberSettings
from .errors import ConfigurationError
from .listener import Listener
from .reading import read_value
from .settings import (
    BrokerSettings,
    Channel,
    ProcessSettings,
    SidecarSettings,
    batch_settings,
    health_rules,
    table,
)

OTHERS = frozenset({"LBG_DEBUG", "LBG_MANAGEMENT"})
"""Of other commands: they may be there and say nothing to a sidecar."""

_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""What Kubernetes puts into every container for a Service whose name begins with lbg (kubernetes.io, "Accessing
the Service", Docker-links variables). No setting of ours may end like this."""

SECRET = frozenset({"broker"})


def configure(environment: Mapping[str, str], file: Path | None = None) -> SidecarSettings:
    """Raises ConfigurationError."""
    rows = table()
    said: dict[str, tuple[str, object]] = {}
    for name, value in (_in_file(file) if file is not None else {}).items():
        if name not in rows:
            raise ConfigurationError(
                f"{name} in {file} is no setting of a sidecar: remove it or correct its name"
            )
        said[name] = (f"{name} in {file}", value)
    by_variable = {row.variable: row for row in rows.values()}
    for variable, text in environment.items():
        if variable in by_variable:
            said[by_variable[variable].name] = (variable, text)
        elif variable.startswith("LBG_") and variable not in OTHERS and not _SERVICE.search(variable):
            raise ConfigurationError(f"{variable} is no setting of a sidecar: unset it or correct its name")
    for row in rows.values():
        if row.required and row.name not in said:
            raise ConfigurationError(
                f"{row.variable} is missing: set it, or {row.name} in the file of --config"
            )
    values: dict[str, Any] = {}
    for name, (where, value) in said.items():
        try:
            values[name] = read_value(str if name in SECRET else rows[name].kind, value)
        except ValueError as error:
            raise ConfigurationError(_line(where, name, value, str(error))) from None
    return _settings(values, {name: where for name, (where, _) in said.items()})


def _in_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigurationError(f"--config {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {file} is no TOML: {error}") from None


def _settings(values: dict[str, Any], where: Mapping[str, str]) -> SidecarSettings:
    process = ProcessSettings(**_of(ProcessSettings, values))
    listeners = {}
    for name in ("local", "observed"):
        text = getattr(process, name)
        try:
            listeners[name] = Listener.parse(text)
        except ValueError as error:
            raise ConfigurationError(_line(where.get(name, name), name, text, str(error))) from None
    if process.body_max_bytes < 1:
        at = where["body_max_bytes"]
        raise ConfigurationError(_line(at, "body_max_bytes", process.body_max_bytes, "must be at least 1"))
    if process.app is Channel.COMMAND:
        _check_command(process.command, where.get("command", "LBG_COMMAND"))
    elif process.app is not Channel.STREAM:
        try:
            batch_settings(process)
            parse_target(process.target)
            health_rules(process)
        except SettingsError as error:
            raise ConfigurationError(
                f"LBG_TARGET, LBG_HEALTH_PATH, LBG_POSITIONS_PATH, LBG_BATCH_…: {error}"
            ) from None
    broker = BrokerSettings(**_of(BrokerSettings, values))
    told = {name: value for name, value in _of(MemberSettings, values).items() if name != "broker"}
    try:
        member = MemberSettings(broker=_places(broker), **told)
    except SettingsError as error:
        name = error.field
        raise ConfigurationError(f"{where.get(name, name)}: {error}") from None
    except AddressError as error:
        raise ConfigurationError(f"{where.get('broker', 'LBG_BROKER')}: {error}") from None
    return SidecarSettings(member=member, process=process, **listeners)


def _of(holder: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: values[one.name] for one in fields(holder) if one.name in values}


def _check_command(command: str, where: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(_line(where, "command", command, f"cannot be split: {error}")) from None
    if not words:
        raise ConfigurationError(f"{where} is missing: with LBG_APP=command it says what to run")


def _places(said: BrokerSettings) -> tuple[ConnectionSettings, ...]:
    """Raises the client's SettingsError, also for a file of TLS that cannot be used."""
    places = said.address.places()
    for place in places:
        if place.tls is not None:
            place.tls.context()
    return places


def _line(where: str, name: str, value: object, rule: str) -> str:
    return f"{where} {rule}" if name in SECRET else f"{where} is {value!r}, but it {rule}"
