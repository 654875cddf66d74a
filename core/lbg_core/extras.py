"""Extras of the distribution: the packages that a part of LBG needs and the others do without."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import requires

DISTRIBUTION = "lbgroup"


def install_command(extra: str) -> str:
    """Command that adds the packages of an extra to this Python, wherever LBG was installed from.

    It names the packages and not the distribution, which is on no package index: a package of its name there would be
    somebody else's.
    """
    packages = [
        match["package"].strip()
        for line in requires(DISTRIBUTION) or ()
        if (match := re.fullmatch(rf"(?P<package>[^;]+);\s*extra == ['\"]{extra}['\"]", line))
    ]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])
