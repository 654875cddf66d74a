"""Context of an image: docker/Dockerfile, and the files that .dockerignore includes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from testing import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"


@dataclass(frozen=True)
class Instruction:
    """One instruction: `stage` is the name of the stage it stands in, "" before the first."""

    stage: str
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """Those of a Dockerfile, with their continuation lines joined and without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    stage, found = "", []
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = rest.split()[-1]
        found.append(Instruction(stage, word, rest.strip()))
    return found


def copied(instruction: Instruction) -> tuple[list[str], dict[str, str]]:
    """A COPY's sources, and its options."""
    words = shlex.split(instruction.rest)
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
    sources = [word for word in words if not word.startswith("--")][:-1]
    return sources, options


def is_sent(path: PurePosixPath, rules: list[str]) -> bool:
    """True if .dockerignore includes a file. The last rule for it or a folder above it counts."""
    sent = True
    for rule in rules:
        pattern = rule.removeprefix("!").rstrip("/").removeprefix("**/")
        anywhere = "**/" in rule
        parts = [PurePosixPath(*path.parts[:depth]) for depth in range(1, len(path.parts) + 1)]
        if any(fnmatch(part.name if anywhere else str(part), pattern) for part in parts):
            sent = rule.startswith("!")
    return sent


def rules() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def known_files() -> list[PurePosixPath]:
    """Every file of the repository that git knows, or would: not what .gitignore names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [PurePosixPath(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def sent_files() -> Iterator[PurePosixPath]:
    yield from (path for path in known_files() if is_sent(path, rules()))
