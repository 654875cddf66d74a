"""Completion of `lbg` in shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testing.command_line import Lbg, clean_environment


def completed(words: str, *, imports: bool = False) -> list[str]:
    """Answer of `lbg` to bash, for a line whose last word is incomplete; with `imports`, modules instead."""
    program = (
        "import sys; from lbgroup.__main__ import main\ntry: main()\nfinally: print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program if imports else "from lbgroup.__main__ import main; main()"],
        env={
            **clean_environment(),
            "_LBG_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lbg pub", ["plain,publish"]),
        ("lbg group sh", ["plain,show"]),
        ("lbg broker serve --det", ["plain,--detach"]),
        ("lbg consume --order ", ["plain,key", "plain,queue"]),
        ("lbg group show orders -o ", ["plain,table", "plain,json"]),
        ("lbg pipeline plan --output j", ["plain,json"]),
        ("lbg pipeline v", ["plain,validate"]),
    ],
)
def test_commands_options_and_choices_are_completed(words: str, expected: list[str]) -> None:
    assert completed(words) == expected


@pytest.mark.process
def test_nothing_large_is_imported_for_the_names_of_commands() -> None:
    modules = completed("lbg ", imports=True)
    assert "plain,consume" in modules
    assert not {"aiohttp", "pyspark", "kopf", "kubernetes", "rich"} & set(modules)


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "share/bash-completion/completions/lbg"),
        ("zsh", "share/zsh/site-functions/_lbg"),
        ("fish", "config/fish/completions/lbg.fish"),
    ],
)
@pytest.mark.process
def test_one_command_installs_it_and_a_second_time_changes_nothing(
    lbg: Lbg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, place: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    printed = lbg("completion", shell)
    assert printed.status == 0
    for _ in range(2):
        installed = lbg("completion", shell, "--install")
        assert installed.status == 0, installed.err
        assert installed.err.splitlines()[0] == f"{tmp_path / place} written; it applies in new shells"
        assert (tmp_path / place).read_text() == printed.out


@pytest.mark.process
def test_bash_takes_the_script_and_completes(lbg: Lbg, tmp_path: Path) -> None:
    script = tmp_path / "lbg.bash"
    script.write_text(lbg("completion", "bash").out)
    bash = shutil.which("bash")
    assert bash is not None
    line = f"source {script}; COMP_WORDS=(lbg group cr); COMP_CWORD=2; _lbg_completion lbg; echo ${{COMPREPLY[@]}}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", line],
        env={**clean_environment(), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "create\n"


def test_a_directory_that_cannot_be_written_is_one_line(
    lbg: Lbg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "share").write_text("a file")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "share"))
    refused = lbg("completion", "fish", "--install")
    assert refused.status == 1
    assert refused.err == (
        f"lbg: error: cannot write {tmp_path}/share/fish/completions/lbg.fish: Not a directory\n"
    )
