"""Rules of docker/Dockerfile, read and not built: no image engine is needed."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import PurePosixPath

import click
import pytest

from lbgroup.cli import cli
from testing.images.build_context import DOCKERFILE, ROOT, copied, instructions, is_sent, rules, sent_files

FILE = instructions(DOCKERFILE.read_text())
IMAGES = ("broker", "sidecar", "operator", "pipeline")
RUN_STAGES = ("run", *IMAGES)
BUILD_STAGES = ("dependencies", "build-operator", "build-pipeline", "build-java", "build")


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIREMENTS: dict[str, list[str]] = {
    "build": PROJECT["build-system"]["requires"],
    "run": PROJECT["project"]["dependencies"],
    "operator": EXTRAS["operator"],
    "pipeline": EXTRAS["pipeline"],
}


def canonical(package: str) -> str:
    """Its name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def rests(word: str, *stages: str) -> list[str]:
    return [one.rest for one in FILE if one.word == word and one.stage in stages]


def test_every_target_runs_on_the_one_stage_that_runs_on_the_base_image() -> None:
    assert rests("FROM", *RUN_STAGES) == ["${BASE_IMAGE} AS run", *(f"run AS {image}" for image in IMAGES)]
    assert rests("FROM", *BUILD_STAGES) == [
        "${BUILD_IMAGE} AS dependencies",
        "dependencies AS build-operator",
        "dependencies AS build-pipeline",
        "${BUILD_IMAGE} AS build-java",
        "dependencies AS build",
    ]
    assert [one.word for one in FILE[:2]] == ["ARG", "ARG"]


def test_the_base_images_are_named_by_digest() -> None:
    names = {one.rest.partition("=")[0]: one.rest.partition("=")[2] for one in FILE[:2]}
    assert names.keys() == {"BUILD_IMAGE", "BASE_IMAGE"}
    for name in names.values():
        assert re.fullmatch(r"[a-z][a-z./]*:3\.11[\w.-]*@sha256:[0-9a-f]{64}", name), name


def test_it_runs_as_a_number_that_is_not_root() -> None:
    """Kubernetes refuses a name under runAsNonRoot: it cannot know whose it is."""
    (user,) = rests("USER", *RUN_STAGES)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("image", IMAGES)
def test_the_entry_point_is_a_command_of_lbg_without_a_shell(image: str) -> None:
    (entry,) = map(json.loads, rests("ENTRYPOINT", image))
    (arguments,) = map(json.loads, rests("CMD", image) or ["[]"])
    (prefix,) = {copied(one)[0][0] for one in FILE if one.word == "COPY" and one.stage == "run"}
    assert entry[0] == f"{prefix}/bin/lbg"
    command: click.Command = cli
    words = [*entry[1:], *arguments]
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    if isinstance(command, click.Group):
        assert image == "pipeline", "its jobs are named by who runs it"
    else:
        assert command.make_context("lbg", words).params  # the options are there; nothing runs


@pytest.mark.parametrize(
    ("tree", "images"),
    [
        ("build-operator", {"operator", "pipeline"}),
        ("build-pipeline", {"pipeline"}),
        ("build-java", {"pipeline"}),
    ],
)
def test_what_only_some_need_is_in_their_images_alone(tree: str, images: set[str]) -> None:
    """The others' are their layers, and so cost a node nothing that has them."""
    copies = [(copied(one)[1], one.stage) for one in FILE if one.word == "COPY"]
    assert {stage for options, stage in copies if options.get("from") == tree} == images


def test_what_runs_in_a_run_stage_needs_no_shell() -> None:
    for rest in rests("RUN", *RUN_STAGES):
        assert isinstance(json.loads(rest), list)


def test_it_is_ended_by_the_signal_that_makes_it_drain() -> None:
    assert rests("STOPSIGNAL", *RUN_STAGES) == ["SIGTERM"]
    assert not rests("HEALTHCHECK", *RUN_STAGES)


def test_every_source_that_is_copied_exists_and_is_sent() -> None:
    for one in FILE:
        if one.word != "COPY":
            continue
        sources, options = copied(one)
        for source in sources:
            if "from" in options:
                assert options["from"] in BUILD_STAGES
            elif source != ".":
                files = [ROOT / source] if (ROOT / source).is_file() else list((ROOT / source).iterdir())
                assert files, source
                for file in files:
                    assert is_sent(PurePosixPath(file.relative_to(ROOT)), rules()), file


@pytest.mark.process
def test_only_what_the_wheel_is_made_of_is_sent() -> None:
    sent = {str(path) for path in sent_files()}
    assert {path for path in sent if "/" not in path} == {"pyproject.toml", "README.md"}
    assert {path.split("/")[0] for path in sent if "/" in path} == {
        "core",
        "broker",
        "sidecar",
        "operator",
        "pipeline",
        "console",
        "cli",
        "docker",
    }
    assert {path for path in sent if path.startswith("docker/")} == {
        f"docker/requirements/{name}.txt" for name in REQUIREMENTS
    }


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "broker/lbg.egg-info/PKG-INFO",
        "cli/lbgroup/__pycache__/x",
    ],
)
def test_what_could_be_large_or_stale_is_not_sent(path: str) -> None:
    assert not is_sent(PurePosixPath(path), rules())


def test_what_comes_from_an_index_has_a_hash() -> None:
    """Also what builds: without --no-build-isolation pip would fetch the newest setuptools."""
    installs = [
        command
        for rest in rests("RUN", *BUILD_STAGES)
        for command in rest.split("&&")
        if re.search(r"/pip\b.* (install|wheel)\b", command)
    ]
    assert len(installs) == 7
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command, command
    used = {name for command in installs for name in re.findall(r"-r /requirements/(\w+)\.txt", command)}
    assert used == REQUIREMENTS.keys()


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_an_image_has_what_the_project_needs_at_the_versions_that_tests_ran_with(name: str) -> None:
    """`.ci/requirements` writes these files again after a change of either."""
    text = (ROOT / "docker" / "requirements" / f"{name}.txt").read_text()
    pinned: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        head, *hashes = (line.removesuffix("\\").strip() for line in entry.splitlines())
        found = re.fullmatch(r"([\w.-]+)==(\S+)", head)
        assert found is not None, head
        assert hashes, head
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), head
        pinned[canonical(found[1])] = found[2]
    constrained = dict(
        line.split("==", 1) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    constrained = {canonical(package): version for package, version in constrained.items()}
    assert {package: constrained.get(package) for package in pinned} == pinned
    needed = {canonical(match[0]) for one in REQUIREMENTS[name] if (match := re.match(r"[\w.-]+", one))}
    assert needed <= pinned.keys()


def test_no_secret_can_stay_in_a_layer() -> None:
    text = DOCKERFILE.read_text()
    assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in text
    assert not re.search(r"^(ARG|ENV) .*(PASSWORD|TOKEN|INDEX_URL)", text, re.M)


def test_every_image_says_what_it_is() -> None:
    for image in IMAGES:
        labels = " ".join(rests("LABEL", "run", image))
        for name in ("title", "description", "version", "revision"):
            assert f"org.opencontainers.image.{name}=" in labels


@pytest.mark.process
def test_no_engine_is_one_clear_line() -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "images"],
        env={"PATH": "/usr/bin:/bin", "LBG_IMAGE_ENGINE": "no-such-engine"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "images need no-such-engine, which is not here\n")


@pytest.mark.process
def test_a_bill_of_materials_is_of_an_image_that_there_is() -> None:
    done = subprocess.run([ROOT / ".ci" / "sbom", "nothing", "out"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"usage: .ci/sbom {'|'.join(IMAGES)} FILE\n")
