"""The wheel that the images install is whole, and works without the source tree."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

from lbgroup.cli import COMMANDS
from support.command_line import clean_environment
from support.images.build_context import known_files
from support.images.installation import Installed

pytestmark = pytest.mark.timeout(300)  # the wheel is built and installed within the first one
PLACES = ("broker", "sidecar", "operator", "pipeline", "cli")


def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed) -> None:
    ours = {str(path.relative_to(path.parts[0])) for path in known_files() if path.parts[0] in PLACES}
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == ours
    assert {
        f"{package}/py.typed"
        for package in ("lbgroup", "lbg_broker", "lbg_sidecar", "lbg_operator", "lbg_pipeline")
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
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lbg " if command == ["--version"] else f"Usage: lbg {command[0]}")


def test_what_runs_is_the_wheel(installed: Installed) -> None:
    names = "lbgroup, lbg_broker, lbg_operator, lbg_pipeline, lbg_sidecar"
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
            "lbgroup, lbg_broker, lbg_sidecar",
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
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
