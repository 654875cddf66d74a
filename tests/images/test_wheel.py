"""The wheel that the images install is whole, and works without the source tree; docs/install.md works with it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from lbg_broker.store.schema import lock_holder
from lbgroup.cli import COMMANDS
from testing import ROOT
from testing.command_line import clean_environment
from testing.documents import on_free_ports
from testing.images.build_context import known_files
from testing.images.installation import Installed
from testing.ports import free_port
from testing.terminal import Terminal
from testing.waiting import GUARD_S

PAGE = (ROOT / "docs" / "install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = ("core", "broker", "sidecar", "operator", "pipeline", "console", "cli")


def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed) -> None:
    ours = {str(path.relative_to(path.parts[0])) for path in known_files() if path.parts[0] in PLACES}
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == ours
    assert {
        f"{package}/py.typed"
        for package in (
            "lbgroup",
            "lbg_core",
            "lbg_broker",
            "lbg_sidecar",
            "lbg_operator",
            "lbg_pipeline",
            "lbg_console",
        )
    } <= packed


@pytest.mark.parametrize(
    "command", [["--version"], *([command, "--help"] for command in COMMANDS)], ids=" ".join
)
def test_every_command_starts_where_there_is_no_source_tree(installed: Installed, command: list[str]) -> None:
    done = subprocess.run(
        [installed.lbg, *command],
        cwd="/",
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lbg " if command == ["--version"] else f"Usage: lbg {command[0]}")


def test_what_runs_is_the_wheel(installed: Installed) -> None:
    names = "lbgroup, lbg_core, lbg_broker, lbg_console, lbg_operator, lbg_pipeline, lbg_sidecar"
    told = subprocess.run(
        [installed.python, "-c", f"import {names}\nfor one in ({names}): print(one.__file__)"],
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    )
    assert all(line.startswith(f"{installed.prefix}/") for line in told.stdout.splitlines())


@pytest.mark.parametrize(
    ("packages", "without"),
    [
        (
            "lbgroup, lbg_core, lbg_broker, lbg_console, lbg_sidecar",
            "kopf, kubernetes, cryptography, pyspark, pandas, numpy, matplotlib",
        ),
        ("lbg_operator", "pyspark, pandas, numpy, matplotlib"),
        ("lbg_pipeline", "kopf"),
    ],
    ids=["broker and sidecar", "operator", "pipeline"],
)
def test_every_module_can_be_imported_from_the_wheel(
    installed: Installed, packages: str, without: str
) -> None:
    """A module that is imported only when it is needed is found missing only then; and what only the operator needs is
    in its image alone."""
    code = (
        "import importlib, pkgutil, sys\n"
        "for name in filter(None, sys.argv[2].split(', ')):\n"
        "    sys.modules[name] = None\n"
        "for package in map(importlib.import_module, sys.argv[1].split(', ')):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
    )
    command = [installed.python, "-c", code, packages, without]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr


def test_the_page_names_the_wheel_and_every_extra(installed: Installed) -> None:
    assert set(re.findall(r"[\w.]+-[\w.]+-py3-none-any\.whl", PAGE)) == {installed.wheel.name}
    (table,) = re.findall(r"^\| extra .*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.M)
    named = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert named == PROJECT["optional-dependencies"].keys()
    used = {name for extras in re.findall(r"\[([a-z,]+)\](?: @|')", PAGE) for name in extras.split(",")}
    assert used
    assert used <= named
    assert f"| Python | {PROJECT['requires-python'].removeprefix('>=')} or newer." in PAGE


@pytest.mark.parametrize("extra", ["pipeline", "otel", "operator", "postgres"])
def test_what_lacks_an_extra_is_told_to_install_its_packages(installed: Installed, extra: str) -> None:
    """By their names: nobody may be sent to an index for a distribution that is not there."""
    code = "import sys; from lbg_core.extras import install_command; print(install_command(sys.argv[1]))"
    told = subprocess.run(
        [installed.python, "-c", code, extra], cwd="/", check=True, capture_output=True, text=True
    )
    python, *pip, named = told.stdout.split(maxsplit=4)
    assert (python, pip) == (str(installed.python), ["-m", "pip", "install"])
    wanted = PROJECT["optional-dependencies"][extra]
    assert {re.match(r"[\w.-]+", one)[0] for one in shlex.split(named)} == {
        re.match(r"[\w.-]+", one)[0] for one in wanted
    }


def test_the_demo_has_its_flights(installed: Installed) -> None:
    code = "from lbgroup.demo.command import SAMPLE; print(SAMPLE)"
    sample = subprocess.check_output([installed.python, "-c", code], cwd="/", text=True).strip()
    assert Path(sample).is_file()


def test_the_page_can_be_followed_with_the_wheel_alone(installed: Installed, tmp_path: Path) -> None:
    """Broker, group, publisher and member; only the ports are others."""
    (script,) = re.findall(r"^## Try it\n.*?```sh\n(.*?)```", PAGE, re.M | re.S)
    stop = "lbg broker stop --data-dir ./data"
    assert f"`{stop}`" in PAGE
    terminal = Terminal(tmp_path, installed.prefix / "bin")
    try:
        terminal.type(on_free_ports(script, {"5673": free_port(), "15673": free_port()}))
        terminal.shows(lambda _: len(terminal.handled) == 6)
        terminal.interrupt()
        terminal.type(f"{stop}\n")
        terminal.leave()
    finally:
        terminal.close()
        if (broker := lock_holder(tmp_path / "data")) is not None:
            os.kill(broker, signal.SIGKILL)
    numbers = {
        key: [json.loads(one["data"])["n"] for one in terminal.handled if one["key"] == key]
        for key in ("anna", "ben")
    }
    assert numbers == {"anna": [1, 2, 3], "ben": [1, 2, 3]}
