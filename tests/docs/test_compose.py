"""examples/compose is a compose file by the specification's schema, of the images that docker/ builds, and its services
work as processes with the commands, variables, files and health checks that it gives them."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from csv import DictReader
from functools import partial
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import jsonschema
import pytest
import yaml

from lbg_sidecar.process.settings import configure, table, variable_of
from lbgroup.cli import cli
from testing.command_line import Where, clean_environment
from testing.images.build_context import DOCKERFILE, ROOT, instructions
from testing.ports import free_port
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S

FOLDER = ROOT / "examples" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
PAGE = (ROOT / "docs" / "compose.md").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
SCHEMA = json.loads((ROOT / "testing/images/compose/compose-spec.json").read_text())
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SIDECARS = [name for name in SERVICES if name.startswith("sidecar-")]
CONSUMERS = [name.replace("sidecar", "consumer") for name in SIDECARS]
OURS = [name for name in SERVICES if name not in (*CONSUMERS, "rabbitmq")]
PROFILES = ("embedded", "rabbitmq")
SAMPLE = ROOT / "examples" / "flights-sample.csv.gz"
RUN_SECRETS = re.compile(r"/run/secrets/(\w+)")
LBG = "/opt/lbg/bin/lbg"
CLOSING_S = 6
"""After LBG_SHUTDOWN_GRACE_S (docs/sidecar.md, "Leaving")."""


def of_image(service: Mapping[str, Any], word: str) -> list[str]:
    """ENTRYPOINT, CMD or VOLUME of a service's image."""
    target = service["image"].partition(":")[0].removeprefix("lbg-")
    found = [
        one.rest for one in instructions(DOCKERFILE.read_text()) if (one.stage, one.word) == (target, word)
    ]
    return [text for rest in found for text in json.loads(rest)]


def command_of(service: Mapping[str, Any]) -> list[str]:
    """Program and arguments of its container. An entrypoint of the service replaces the image's command too."""
    command = service.get("command")
    if "entrypoint" in service:
        return [*service["entrypoint"], *(command or [])]
    return [*of_image(service, "ENTRYPOINT"), *(of_image(service, "CMD") if command is None else command)]


def environment_of(name: str) -> dict[str, str]:
    environment = SERVICES[name].get("environment", {})
    assert all(isinstance(value, str) for value in environment.values()), "a number may be written otherwise"
    return dict(environment)


def variables_of(command: click.Command) -> set[str]:
    told = [option.envvar for option in command.params if option.envvar]
    return {name for one in told for name in ([one] if isinstance(one, str) else one)}


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


@pytest.fixture
def secrets(process: None, tmp_path: Path) -> Path:
    """The folder as docs/compose.md makes it."""
    lines = [line for text in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in text.splitlines()]
    script = "\n".join(line for line in lines if "secrets" in line)
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    return tmp_path / "secrets"


@pytest.mark.long
def test_the_file_is_one_of_the_compose_specification() -> None:
    jsonschema.validate(FILE, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**FILE, "services": {"broker": {**SERVICES["broker"], "speck": 1}}}, SCHEMA)


def test_its_images_are_those_that_make_images_builds() -> None:
    file = instructions(DOCKERFILE.read_text())
    targets = {one.stage for one in file if one.word == "ENTRYPOINT"}
    for name in (*OURS, *CONSUMERS):
        image, _, version = SERVICES[name]["image"].partition(":")
        assert image.removeprefix("lbg-") in targets
        assert version == VERSION
        assert SERVICES[name]["pull_policy"] == "never"


def test_there_are_a_broker_a_publisher_and_two_consumers_with_sidecars() -> None:
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert profiles == {
        "broker": ["embedded"],
        "rabbitmq": ["rabbitmq"],
        **dict.fromkeys(("group", "publisher", "consumer-1", "sidecar-1", "consumer-2", "sidecar-2")),
    }
    assert SERVICES["rabbitmq"]["networks"]["default"]["aliases"] == ["broker"]
    assert (FOLDER / ".env").read_text().splitlines()[-1] == "COMPOSE_PROFILES=embedded"
    assert all(f"`{name}`" in PAGE for name in SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_the_product_reads_its_command_and_its_environment(
    name: str, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(text: str) -> str:
        text = text.replace("/data/flights-sample.csv.gz", str(SAMPLE))
        return RUN_SECRETS.sub(rf"{secrets}/\1", text)

    environment = {variable: here(value) for variable, value in environment_of(name).items()}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    words = [here(word) for word in command_of(SERVICES[name])]
    assert words.pop(0) in ("lbg", LBG)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    command.make_context("lbg", words)  # the options are there; nothing runs
    if command.name == "sidecar":
        assert environment.keys() <= set(map(variable_of, table()))
        assert configure(environment).member.group == "flights"
    else:
        assert environment.keys() <= variables_of(command)


def test_every_password_is_a_secret_from_a_file_that_its_service_has() -> None:
    declared = FILE["secrets"]
    assert all(Path(one["file"]).parent == Path("secrets") for one in declared.values())
    assert {name for service in SERVICES.values() for name in service.get("secrets", ())} == declared.keys()
    for service in SERVICES.values():
        named = set(RUN_SECRETS.findall(json.dumps(service)))
        assert named == set(service.get("secrets", ()))
        for word in json.dumps(service.get("environment", {})).split():
            assert "@" not in word, "a login in an address"
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/examples/compose/secrets/" in ignored
    for name in (*SIDECARS, "publisher"):
        own = "publisher_password" if name == "publisher" else "flights_password"
        assert SERVICES[name]["secrets"] == [own], "the administrator's is not for them"


@pytest.mark.parametrize("profile", PROFILES)
def test_each_service_waits_for_what_it_needs(profile: str) -> None:
    there = {name for name, one in SERVICES.items() if profile in one.get("profiles", [profile])}
    waits: dict[str, set[str]] = {}
    for name in there:
        needs = SERVICES[name].get("depends_on", {})
        waits[name] = needs.keys() & there
        for other, need in needs.items():
            if need["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]
            else:
                assert need["condition"] == "service_completed_successfully"
                assert "restart" not in SERVICES[other]
            assert other in there or need["required"] is False
    order = list(TopologicalSorter(waits).static_order())
    assert order.index("group") < min(order.index(name) for name in ("publisher", *SIDECARS))
    for name in SIDECARS:
        application = name.replace("sidecar", "consumer")
        assert application in waits[name], "which is so stopped after the sidecar"
        assert environment_of(name)["LBG_TARGET"].startswith(f"http://{application}:")
        assert environment_of(name)["LBG_NAME"] == application
    assert all("healthcheck" in SERVICES[name] for name in there - {"group", "publisher"})


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_has_the_time_that_its_drain_takes(name: str) -> None:
    grace_s = int(environment_of(name)["LBG_SHUTDOWN_GRACE_S"]) + CLOSING_S
    assert seconds(SERVICES[name]["stop_grace_period"]) > grace_s


def test_what_is_written_is_on_a_volume() -> None:
    (volume,) = SERVICES["broker"]["volumes"]
    name, place = volume.split(":")
    assert [place] == of_image(SERVICES["broker"], "VOLUME")
    assert name in FILE["volumes"]
    assert command_of(SERVICES["broker"])[3:5] == ["--data-dir", place]
    for one in SERVICES.keys() - {"rabbitmq"}:
        assert SERVICES[one]["read_only"] is True
        assert SERVICES[one]["cap_drop"] == ["ALL"]
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source, _, rest = mount.partition(":")
            assert source in FILE["volumes"] or rest.endswith(":ro")
            assert source in FILE["volumes"] or (FOLDER / source).is_file()


def test_the_node_of_rabbitmq_has_one_name_and_its_password_from_the_file() -> None:
    service = SERVICES["rabbitmq"]
    assert service["hostname"] == "rabbitmq"
    shell, option, script = service["entrypoint"]
    assert (shell, option) == ("sh", "-c")
    assert "$" not in script.replace("$$", "").replace("$(", ""), "compose reads a single one itself"
    assert script.endswith("exec docker-entrypoint.sh rabbitmq-server")


class Stack:
    """The services as processes of this machine: hosts are ports of loopback, and what containers mount is in `folder`.
    `broker` is what answers as `broker`."""

    def __init__(self, folder: Path, broker: Where, rows: int) -> None:
        self._folder = folder
        self._rows = folder / "flights.csv.gz"
        with gzip.open(SAMPLE, "rt") as sample:
            self._rows.write_bytes(gzip.compress("".join(islice(sample, rows + 1)).encode()))
        amqp, management = urlsplit(broker.broker), urlsplit(broker.management)
        self._here = {
            "broker:5672/": f"127.0.0.1:{amqp.port}{amqp.path}",
            "broker:15672": f"127.0.0.1:{management.port}",
            "0.0.0.0:5672": f"127.0.0.1:{amqp.port}",
            "0.0.0.0:15672": f"127.0.0.1:{management.port}",
            "127.0.0.1:15672": f"127.0.0.1:{management.port}",
            "/var/lib/lbg": str(folder / "data"),
            "/data/flights-sample.csv.gz": str(self._rows),
            "/app/": f"{FOLDER}/",
            "/run/": f"{folder}/",
            "--rate=500": "--rate=2000",
        }
        self._ports = {name: {port: free_port() for port in (8080, 8750, 8751)} for name in SERVICES}
        self.running: dict[str, subprocess.Popen[str]] = {}

    @property
    def flights(self) -> Counter[str]:
        """The lines that consumers print of them."""
        with gzip.open(self._rows, "rt") as rows:
            return Counter(
                f"{one['tailnum']} to {one['dest']} at {one['time_hour']}" for one in DictReader(rows)
            )

    @property
    def handled(self) -> Counter[str]:
        return Counter(line for name in CONSUMERS for line in self.log(name).splitlines())

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def up(self, there: set[str]) -> None:
        """Starts these services, each when what it waits for is so."""
        waits = {name: SERVICES[name].get("depends_on", {}).keys() & there for name in there}
        for name in TopologicalSorter(waits).static_order():
            for other in waits[name]:
                self.until(partial(self.fulfils, other, SERVICES[name]["depends_on"][other]["condition"]))
            self.start(name)

    def fulfils(self, name: str, condition: str) -> bool:
        if condition == "service_completed_successfully":
            return self.running[name].poll() == 0
        kind, _, *words = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [sys.executable, *(self._local(name, word) for word in words)]
        return subprocess.run(command, capture_output=True, timeout=GUARD_S).returncode == 0

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 2 * GUARD_S
        while not condition():
            said = {name: self.log(name)[-2000:] for name in self.running}
            assert all(process.poll() in (None, 0) for process in self.running.values()), said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def stop(self, *names: str) -> list[int]:
        for name in names:
            self.running[name].send_signal(signal.SIGTERM)
        return [self.running[name].wait(timeout=GUARD_S) for name in names]

    def start(self, name: str) -> None:
        """Starts the service, after the run of it before has ended."""
        if name in self.running:
            self.running[name].wait(timeout=GUARD_S)
        environment = {key: self._local(name, value) for key, value in environment_of(name).items()}
        if name in SIDECARS:  # in containers these are the same for all
            ports = self._ports[name]
            environment |= {
                "LBG_LOCAL": f"127.0.0.1:{ports[8750]}",
                "LBG_OBSERVED": f"127.0.0.1:{ports[8751]}",
            }
        program, *words = [self._local(name, word) for word in command_of(SERVICES[name])]
        before = ["-m", "lbgroup"] if program in ("lbg", LBG) else []
        with (self._folder / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *before, *words],
                env={**clean_environment(), **environment},
                stdout=log,
                stderr=log,
                text=True,
            )

    def _local(self, name: str, text: str) -> str:
        """`text` of a service as it is on this machine."""
        for inside, here in self._here.items():
            text = text.replace(inside, here)
        for service, ports in self._ports.items():
            for port, here in ports.items():
                text = text.replace(f"//{service}:{port}", f"//127.0.0.1:{here}")
                if service == name:
                    text = re.sub(rf"^(http://127\.0\.0\.1:)?{port}$", rf"\g<1>{here}", text)
                    text = text.replace(f"'http://127.0.0.1:{port}/", f"'http://127.0.0.1:{here}/")
        return text


ROWS = 1000


@pytest.fixture
def stack(engine: str, request: pytest.FixtureRequest, secrets: Path, tmp_path: Path) -> Iterator[Stack]:
    if engine == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("rabbitmq")
        vhost = node.new_vhost()
        name, password = ((secrets / f"admin_{one}").read_text().strip() for one in ("username", "password"))
        node.control("add_user", name, password)
        node.control("set_user_tags", name, "administrator")
        node.control("set_permissions", "-p", urlsplit(vhost).path[1:], name, ".*", ".*", ".*")
        broker = Where(vhost, node.management_url)
    else:
        broker = Where(f"amqp://127.0.0.1:{free_port()}/", f"http://127.0.0.1:{free_port()}")
    stack = Stack(tmp_path, broker, ROWS)
    yield stack
    for process in stack.running.values():
        process.kill()
        process.wait()
    if engine == "rabbitmq":
        for user in (name, "flights"):
            node.control("delete_user", user)


@pytest.mark.parametrize("engine", ["embedded", "rabbitmq"])
def test_the_services_as_processes_handle_every_flight_once_also_when_one_stops(
    engine: str, stack: Stack
) -> None:
    """With what docs/compose.md shows: a sidecar is stopped and started, and the publisher run again."""
    stack.up(SERVICES.keys() - ({"rabbitmq"} if engine == "embedded" else {"rabbitmq", "broker"}))
    stack.until(lambda: all(stack.fulfils(name, "service_healthy") for name in SIDECARS))
    stack.until(lambda: stack.handled.total() >= ROWS)
    for times, (stopped, at_work) in enumerate(((0, 1), (1, 0)), start=2):
        before = stack.log(CONSUMERS[at_work])
        assert stack.stop(SIDECARS[stopped]) == [0]
        stack.start("publisher")
        stack.until(lambda times=times: stack.handled.total() >= times * ROWS)
        handled = stack.log(CONSUMERS[at_work]).removeprefix(before)
        assert Counter(handled.splitlines()) == stack.flights
        stack.start(SIDECARS[stopped])
        stack.until(partial(stack.fulfils, SIDECARS[stopped], "service_healthy"))
    assert stack.stop(*SIDECARS, "publisher") == [0, 0, 0]
    assert stack.stop(*CONSUMERS) == [0, 0]
    if engine == "embedded":
        assert stack.stop("broker") == [0]
    assert stack.handled.total() == 3 * ROWS
