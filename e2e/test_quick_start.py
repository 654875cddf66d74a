"""The quick start of docs/kubernetes.md, its commands as they stand, in a namespace of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from e2e import stage
from e2e.kubectl import Kubectl, until

ROOT = Path(__file__).parents[1]
STEPS = ("2. Create a group", "3. Publish", "4. Watch", "5. Scale", "6. Clean up")
LAST_S = 300


def commands() -> dict[str, str]:
    """The commands of each step."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    found = {}
    for step in STEPS:
        at = text.index(f"**{step}")
        block = re.search(r"```sh\n(.*?)```", text[at:], re.DOTALL)
        assert block is not None, step
        found[step] = block[1]
    return found


def test_the_quick_start_runs_as_it_stands(shop: Kubectl, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    manifest = tmp_path / "examples" / "flights-group.yaml"
    text = manifest.read_text()
    # The broker is the namespace's, not that of an installation for all; its image is on the cluster.
    for shown, here in {
        "{name: main, namespace: lbg-system}": "{name: main}",
        "image: python:3.11-slim": f"image: {stage.image('sidecar')}",
    }.items():
        assert text.count(shown) == 1
        text = text.replace(shown, here)
    manifest.write_text(text)
    kubectl = shutil.which("kubectl")
    assert kubectl is not None
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec {kubectl} --namespace {shop.namespace} "$@"\n')
    (programs / "kubectl").chmod(0o755)

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LAST_S,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    step = commands()
    shown = run(step["2. Create a group"])
    assert re.search(r"^flights +Exclusive +8 +", shown, re.MULTILINE), shown
    published = run(step["3. Publish"])
    assert "24951 of 24951" in published.replace(",", ""), published
    watch = "kubectl get lbg flights --watch\n"
    assert watch in step["4. Watch"]
    watched = run(step["4. Watch"].replace(watch, f"timeout 3 {watch.strip()} || test $? = 124\n"))
    assert re.search(r" to \w+ at 20", watched), watched
    run(step["5. Scale"])
    until(
        lambda: len(shop.get("lbg", "flights")["status"].get("members", ())) >= 4,
        what="four members",
        timeout_s=LAST_S,
    )
    until(lambda: stage.waiting(shop, "flights") == 0, what="everything to be consumed", timeout_s=LAST_S)
    first, *others = step["6. Clean up"].splitlines()
    assert first == "kubectl delete lbg flights"
    assert len(others) == 3, "of the installation, which other tests use"
    run(first)
    assert not shop.is_there("lbg", "flights")
