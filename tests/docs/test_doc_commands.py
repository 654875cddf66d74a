"""Commands and code of README and docs: each is parsed as the program itself would, and names files that exist.

Shell commands are read from code blocks and from code in sentences. Words in capitals and … stand for values. A command
with … may be incomplete, and so may one in a sentence.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from lbg_sidecar.process.http import local_routes, observed_routes
from lbg_sidecar.publish_api.http import routes as publish_routes
from lbgroup.cli import cli
from lbgroup.kubectl import kubectl_lbg
from testing import ROOT
from testing.documents import BLOCKS, PAGES, Block, Command, called

PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_-]*|.*(…|\$|<).*")


def error_in(command: Command, group: click.Command = cli) -> str | None:
    """Error of `lbg` on the command line of a document, None if it is right."""
    words = list(command.words[1:])
    while isinstance(group, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if PLACEHOLDER.fullmatch(name):
            return None
        context = click.Context(group)
        found = group.get_command(context, name)
        if found is None:
            return f"{group.name} has no command {name}"
        group = found
    is_whole = command.is_whole and not any("…" in word for word in words)
    try:
        values, arguments, _ = group.make_parser(click.Context(group)).parse_args(
            [word for word in words if word != "…"]
        )
    except click.BadOptionUsage as error:
        return error.format_message() if is_whole else None  # its value is missing
    except click.UsageError as error:
        return error.format_message()
    if {"help", "version"} & values.keys():
        return None
    for option in group.params:
        value = values.get(option.name)
        is_given = value not in (None, (), [], click.core.UNSET)
        if (
            option.required
            and is_whole
            and not is_given
            and option.value_from_envvar(click.Context(group)) is None
        ):
            return f"{option.name} is missing"
        is_choice = isinstance(option.type, click.Choice) and is_given and isinstance(value, str)
        if is_choice and not PLACEHOLDER.fullmatch(value) and value not in option.type.choices:
            return f"{value} is not one of {', '.join(option.type.choices)}"
    return f"does not take {arguments}" if arguments else None


@pytest.mark.parametrize("command", called("lbg"), ids=str)
def test_lbg_accepts_the_command(command: Command) -> None:
    assert error_in(command) is None


def test_commands_are_found_on_most_pages_and_a_wrong_one_is_seen() -> None:
    assert len(called("lbg")) > 60
    assert len({one.place.partition(":")[0] for one in called("lbg")}) > 10
    for wrong in (
        "lbg group created orders",
        "lbg publish --gruop orders x",
        "lbg group show",
        "lbg consume --order no --group a",
    ):
        assert error_in(Command("here:1", tuple(wrong.split()))) is not None


@pytest.mark.parametrize("command", called("make"), ids=str)
def test_make_has_the_target(command: Command) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for word in command.words[1:] if "=" not in word and not word.startswith("-")}
    assert named <= targets


@pytest.mark.parametrize(
    "module",
    sorted(
        {
            match
            for page in PAGES
            for match in re.findall(r"python -m (bench(?:\.[a-z_]+)*)\b", page.read_text())
        }
    ),
)
def test_the_benchmark_exists(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


@pytest.mark.parametrize(
    "command",
    [*called("kubectl"), *called("helm"), *called("sh"), *called("node"), *called("python")],
    ids=str,
)
def test_files_of_the_repository_that_a_command_names_exist(command: Command) -> None:
    for word in command.words:
        path = word.partition("=")[2] if word.startswith("--") else word
        if re.match(r"(examples|charts|crds|docs|docker)/[\w./-]+$", path):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("command", called("helm"), ids=str)
def test_values_that_helm_sets_are_those_of_the_chart(command: Command) -> None:
    values = yaml.safe_load((ROOT / "charts" / "lbg" / "values.yaml").read_text())
    words = list(command.words)
    for flag, setting in pairwise(words):
        if flag not in {"--set", "--set-string"}:
            continue
        value = values
        for name in re.sub(r"\[\d+\]", "", setting.partition("=")[0]).split("."):
            if value == {}:
                break  # free-form
            assert name in value, setting
            value = value[name]


CUSTOM = {
    name: manifest
    for manifest in (yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml")))
    for names in [manifest["spec"]["names"]]
    for name in (names["plural"], names["singular"], *names["shortNames"])
}
"""Custom resource definitions by each name that kubectl accepts for their kind."""
KINDS = {
    *(
        "apiservice",
        "configmap",
        "cronjob",
        "crd",
        "deploy",
        "deployment",
        "job",
        "namespace",
        "networkpolicy",
    ),
    *("node", "pod", "pv", "pvc", "role", "secret", "service", "statefulset"),
}
"""Kinds of Kubernetes itself that documents use."""
OF_A_KIND = {"get", "describe", "delete", "scale", "wait", "patch", "explain"}
OF_A_POD = {"logs", "exec", "attach", "port-forward"}
WITH_VALUE = {
    *(
        "-n",
        "--namespace",
        "-l",
        "-o",
        "--output",
        "-c",
        "-p",
        "-f",
        "--type",
        "--patch-file",
        "--for",
        "--raw",
    ),
}
"""Options of kubectl whose value is the next word."""


def parsed(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and options of kubectl; those behind -- are of another program."""
    arguments, options, rest = [], {}, iter(words)
    for word in rest:
        if word == "--":
            break
        name, has_value, value = word.partition("=")
        if word.startswith("-") and word != "-":
            options[name] = value if has_value else next(rest, "") if word in WITH_VALUE else ""
        else:
            arguments.append(word)
    return arguments, options


def without_field(manifest: dict[str, Any], path: Sequence[str]) -> str | None:
    """The first part of the path that the schema of the kind does not have."""
    (version,) = manifest["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for name in path:
        schema = schema.get("items", schema)
        if "properties" not in schema:
            return None  # free-form
        if name not in schema["properties"]:
            return name
        schema = schema["properties"][name]
    return None


def fields(patch: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the fields that a merge patch sets."""
    if isinstance(patch, dict):
        for name, value in patch.items():
            yield from fields(value, (*path, name))
    else:
        yield path


def described(file: str) -> bool:
    """A page shows the file, or says which command writes it."""
    return any(f"`{Path(file).name}`" in page.read_text() for page in PAGES)


def kubectl_error(command: Command) -> str | None:
    """Error in the verb, kind, file or field of a command, None if it is right."""
    if command.words[1:2] == ("lbg",):
        return error_in(Command(command.place, command.words[1:], command.is_whole), kubectl_lbg)
    arguments, options = parsed(command.words[1:])
    if "--raw" in options:
        return None
    verb, *targets = arguments
    if verb == "explain" and targets:
        kind, *path = targets[0].split(".")
        if wrong := without_field(CUSTOM[kind], path):
            return f"{kind} has no field {wrong}"
        return None
    kinds = []
    if verb in OF_A_KIND and targets:
        kinds = [one.partition("/")[0] for one in targets[0].split(",")]
    elif verb in OF_A_POD:
        kinds = [one.partition("/")[0] for one in targets if "/" in one]
    elif verb == "events":
        kinds = [options["--for"].partition("/")[0]]
    elif verb == "create":
        kinds = [targets[0], options["--from"].partition("/")[0]]
    elif verb != "apply" and not (verb in OF_A_KIND and not command.is_whole):
        return f"{verb} is not a verb that documents use"
    if unknown := [kind for kind in kinds if kind not in KINDS | CUSTOM.keys()]:
        return f"no kind {unknown}"
    named = [options[one] for one in ("-f", "--patch-file") if one in options]
    if missing := [one for one in named if not (one == "-" or (ROOT / one).exists() or described(one))]:
        return f"no file {missing}"
    paths = [one.split(".") for one in re.findall(r"\.((?:status|spec)(?:\.\w+)*)", options.get("-o", ""))]
    paths += [[*one] for one in fields(json.loads(options.get("-p", "{}"))) if one[:1] != ("metadata",)]
    for kind in CUSTOM.keys() & set(kinds):
        if wrong := [".".join(path) for path in paths if without_field(CUSTOM[kind], path)]:
            return f"{kind} has no field {wrong}"
    return None


@pytest.mark.parametrize("command", called("kubectl"), ids=str)
def test_kinds_files_and_fields_that_kubectl_names_exist(command: Command) -> None:
    assert kubectl_error(command) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "kubectl get lgb flights",
        "kubectl gte lbg",
        "kubectl apply -f examples/flight-group.yaml",
        "kubectl logs deploi/x",
        "kubectl get lbg x -o jsonpath={.status.group}",
        """kubectl patch lbg x --type merge -p '{"spec": {"scale": {"minReplicas": 2}}}'""",
        "kubectl explain lbg.spec.consumers",
    ],
)
def test_a_wrong_command_of_kubectl_is_seen(wrong: str) -> None:
    assert kubectl_error(Command("README.md:1", tuple(shlex.split(wrong)))) is not None


NOTHING: Any = None
PATHS = [
    (route.method, re.sub(r"\{\w+\}", "[^/]+", route.path))
    for route in (
        *publish_routes(NOTHING),
        *local_routes(NOTHING, NOTHING, NOTHING),
        *observed_routes(NOTHING, NOTHING, NOTHING),
    )
]
"""Methods and paths of the sidecar."""


def curl_error(command: Command) -> str | None:
    """Error in the method or path of a request, None if it is right."""
    words = list(command.words)
    method = "POST" if "-d" in words else "GET"
    method = words[words.index("-X") + 1] if "-X" in words else method
    urls = [
        one.replace("$SIDECAR", "http://sidecar") for one in words if re.match(r"https?://|\$SIDECAR", one)
    ]
    if not urls:
        return "no URL"
    for path in (urlsplit(one).path for one in urls):
        if not any(one == method and re.fullmatch(pattern, path) for one, pattern in PATHS):
            return f"nothing serves {method} {path}"
    return None


@pytest.mark.parametrize("command", called("curl"), ids=str)
def test_paths_that_curl_requests_are_served(command: Command) -> None:
    assert curl_error(command) is None


def test_a_path_that_nothing_serves_is_seen() -> None:
    for wrong in (
        "curl $SIDECAR/v1/publish/orders",
        "curl -d x http://127.0.0.1:8750/v1/publishes/orders",
        "curl",
    ):
        assert curl_error(Command("here:1", tuple(wrong.split()))) is not None


def test_extras_that_pip_installs_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"(?:lbgroup|\.whl)\[([\w,]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert "pipeline" in named
    assert named <= declared


@pytest.mark.long
@pytest.mark.parametrize(
    "block", [one for one in BLOCKS if one.language == "python"], ids=lambda one: f"{one.page}:{one.line}"
)
def test_python_compiles_and_what_it_imports_exists(block: Block) -> None:
    tree = compile(block.text, block.page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.util.find_spec(alias.name) is not None, alias.name
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), alias.name


@pytest.mark.process
@pytest.mark.parametrize(
    "block",
    [one for one in BLOCKS if one.language in {"sh", "bash"}],
    ids=lambda one: f"{one.page}:{one.line}",
)
def test_bash_can_parse_the_block(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
