"""Commands of README and docs in a shell, in which the namespaces of the pages are those of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testing import ROOT
from testing.documents import BLOCKS, Block

LAST_S = 300
HELM = """#!/bin/sh
exec {python} -m e2e.helm_command "$@"
"""


def blocks(page: str, section: str, *, language: str | None = None) -> list[Block]:
    """The blocks of a section that call kubectl or helm; of another language, if one is given."""
    here = [one for one in BLOCKS if (one.page, one.section) == (page, section)]
    if language is not None:
        return [one for one in here if one.language == language]
    return [one for one in here if one.language in ("", "sh") and is_for_cluster(one)]


def is_for_cluster(block: Block) -> bool:
    words = {word for line in block.text.splitlines() for word in line.split()}
    return not words.isdisjoint({"kubectl", "helm"})


@dataclass
class Shell:
    """A shell in `folder`. kubectl's default namespace is `namespace`. `replaced`: texts of the pages, and those that
    the test has instead."""

    folder: Path
    namespace: str
    replaced: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, programs = self.folder / "kubeconfig", self.folder / "programs"
        shutil.copy(os.environ["KUBECONFIG"], config)
        programs.mkdir()
        if shutil.which("helm") is None:
            (programs / "helm").write_text(HELM.format(python=sys.executable))
            (programs / "helm").chmod(0o755)
        paths = (programs, Path(sys.executable).parent, os.environ["PATH"])
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(config),
            "PATH": ":".join(map(str, paths)),
            "PYTHONPATH": str(ROOT),
        }
        self.run(f"kubectl config set-context --current --namespace={self.namespace}")

    def text(self, block: Block) -> str:
        text = block.text
        for shown, here in self.replaced.items():
            text = text.replace(shown, here)
        return text

    def run(self, script: str | Block) -> str:
        """Returns what the script prints. It must succeed."""
        text = script if isinstance(script, str) else self.text(script)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LAST_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout

    def watch(self, block: Block, *, seconds: int) -> str:
        """Runs a block in which a command watches without an end: it is stopped after so many seconds."""
        lines = self.text(block).splitlines()
        watching = [f"timeout {seconds} {one} || test $? = 124" if "--watch" in one else one for one in lines]
        assert watching != lines
        return self.run("\n".join(watching))
