"""The jobs as commands: options and their help. Each imports Spark when it runs, and can be handed to spark-submit."""

from __future__ import annotations

import sys
from pathlib import Path

# An application's own directory comes first in the path of modules, and profile.py would hide Python's own.
_HERE = Path(__file__).parent.resolve()
sys.path[:] = [place for place in sys.path if not place or Path(place).resolve() != _HERE]
