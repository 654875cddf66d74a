"""LBG installed from a wheel, in an environment that knows nothing of the source tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from testing import ROOT

from .build_context import sent_files


@dataclass(frozen=True)
class Installed:
    """A wheel made of the images' build context, and where it is installed."""

    wheel: Path
    prefix: Path

    @property
    def lbg(self) -> Path:
        return self.prefix / "bin" / "lbg"

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"


def installed_in(place: Path) -> Installed:
    for file in sent_files():
        copy = place / "context" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", place, place / "context")
    shutil.rmtree(place / "context")
    (wheel,) = place.glob("*.whl")
    prefix = place / "prefix"
    _run(sys.executable, "-m", "venv", "--without-pip", prefix)
    _run(
        *pip,
        "--python",
        prefix / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    )
    # The dependencies are those of this environment. A folder named by a .pth file is searched, but its own
    # .pth files are not read, and it is one of these that leads to the source tree.
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, prefix)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
