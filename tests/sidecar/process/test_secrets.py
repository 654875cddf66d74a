"""Passwords and keys are planted wherever they can be given, and looked for in all that the process lets one see."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_sidecar.process.settings import ConfigurationError, configure
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import clean_environment, start_lbg
from testing.fork_server import DIRECTLY
from testing.sidecar.planted_secret import Planted
from testing.sidecar.process import PROMPT, Sidecar, create
from testing.waiting import GUARD_S

IN_URL = Planted("Zx7&pla/nted+Qw9?first~")
IN_FILE = Planted("Hk3%pla@nted:Vb5#secnd!")
IN_TOML = Planted('Rt8=pla"nted;Nm2$third_')
IN_KEY = Planted("MIIPlantedKeyContentsWq4")
ALL = (IN_URL, IN_FILE, IN_TOML, IN_KEY)
SEEN = ("/metrics", "/healthz", "/readyz", "/v1/state")


def assert_clean(text: str) -> None:
    assert text
    for planted in ALL:
        assert not planted.found_in(text), text


def all_to_be_seen(sidecar: Sidecar) -> str:
    """Log, endpoints and arguments as they are now."""
    told = [sidecar.get(path)[1] for path in SEEN] + [sidecar.ask("GET", path)[1] for path in SEEN]
    arguments = Path(f"/proc/{sidecar.process.pid}/cmdline").read_text()
    return "\n".join([sidecar.text, arguments, *told])


def test_the_search_finds_a_secret_in_each_shape() -> None:
    for planted in ALL:
        login = f"\0planted\0{planted.text}"
        for shown in (
            planted.text,
            planted.in_url,
            json.dumps(planted.text),
            repr(planted.text.encode())[2:-1],
        ):
            assert planted.found_in(f"Login failed: {shown} at 5672")
        for shift in ("", "x", "xx"):
            assert planted.found_in(base64.b64encode((shift + login).encode()).decode())


def test_nothing_shows_through_a_wrong_login_a_kill_publishing_and_draining(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(own_broker, "planted")
    own_broker.put("users/planted", password=IN_FILE.text, tags="")
    own_broker.put("permissions/%2F/planted", **dict.fromkeys(("configure", "write", "read"), ".*"))
    file, config = tmp_path / "password", tmp_path / "sidecar.toml"
    file.write_text(IN_URL.text + "\n")
    toml = json.dumps(f"amqp://planted:{IN_TOML.in_url}@127.0.0.1:{own_broker.port}/")
    config.write_text(f"broker = {toml}\nlog_format = 'json'\n")
    sidecar = Sidecar(
        own_broker,
        tmp_path,
        "planted",
        PROMPT,
        config=config,
        under=DIRECTLY,
        LBG_PASSWORD_FILE=str(file),
    )
    seen = []
    sidecar.until(lambda: "LBG_PASSWORD_FILE" in sidecar.get("/readyz")[1])
    seen.append(all_to_be_seen(sidecar))
    assert sidecar.ask("POST", "/v1/publish/planted", b"early")[0] == 403
    file.write_text(IN_FILE.text + "\n")
    sidecar.until(sidecar.ready)
    sidecar.publish("planted", 20)
    sidecar.until(lambda: sidecar.acked() >= 20)
    seen.append(all_to_be_seen(sidecar))
    own_broker.kill()
    sidecar.until(lambda: "Connection refused" in sidecar.get("/readyz")[1])
    seen.append(all_to_be_seen(sidecar))
    own_broker.start()
    sidecar.until(sidecar.ready)
    hook = start_lbg("drain", "--local", f"unix:{sidecar.socket}")
    seen += hook.communicate(timeout=GUARD_S)
    seen.append(all_to_be_seen(sidecar))
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0
    assert_clean("\n".join([*seen, sidecar.text]))


def bad_settings(directory: Path) -> Iterator[dict[str, str]]:
    """Settings that are refused, each with a secret in them."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{IN_KEY.text}\n-----END PRIVATE KEY-----\n")
    certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for url in (
        f"http://planted:{IN_URL.in_url}@host/",
        f"amqp://planted:{IN_URL.in_url}@host:port/",
        f"amqp://planted:{IN_URL.text}@host:5672/",
        f"amqp://planted:{IN_URL.in_url}@host:5672/?heartbeat=often",
        f"amqp://planted:{IN_URL.in_url}@host:5672/?password={IN_URL.in_url}",
        f"planted:{IN_URL.text}@host",
        f"amqp://ok@host/, amqp://planted:{IN_URL.text}",
    ):
        yield {"LBG_BROKER": url}
    tls = {"LBG_BROKER": f"amqps://planted:{IN_URL.in_url}@host/"}
    yield {**tls, "LBG_CERTFILE": str(certificate), "LBG_KEYFILE": str(key)}
    yield {**tls, "LBG_CAFILE": str(key)}
    yield {"LBG_PASSWORD": IN_FILE.text}
    yield {"LBG_APP": "http", "LBG_TARGET": f"http://planted:{IN_URL.text}@host:80:80/"}
    yield {"LBG_APP": "http", "LBG_TARGET": f"ftp://planted:{IN_URL.in_url}@host/"}


def test_a_bad_setting_is_refused_without_showing_what_is_secret(tmp_path: Path) -> None:
    for number, settings in enumerate(bad_settings(tmp_path)):
        with pytest.raises(ConfigurationError) as raised:
            configure({"LBG_GROUP": "g", "LBG_COMMAND": "cat", **settings})
        assert_clean(f"{number} {raised.value} {raised.value!r} {raised.value.__cause__!r}")


def test_a_bad_file_is_refused_without_showing_what_is_secret(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    for text in (
        f"broker = amqp://planted:{IN_TOML.in_url}@host/\n",
        f"broker = ['amqp://planted:{IN_TOML.in_url}@host/']\n",
        f"password = {json.dumps(IN_TOML.text)}\n",
        f"broker = 'amqp://planted:{IN_TOML.in_url}@host:port/'\n",
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError) as raised:
            configure({"LBG_GROUP": "g", "LBG_COMMAND": "cat"}, file)
        assert_clean(f"{raised.value} {raised.value!r}")


@pytest.mark.process
def test_help_and_a_refusal_with_tracebacks_show_no_secret(tmp_path: Path) -> None:
    environment = {
        **clean_environment(),
        "LBG_BROKER": f"amqp://planted:{IN_URL.in_url}@host:port/",
        "LBG_GROUP": "g",
        "LBG_COMMAND": "cat",
        "LBG_DEBUG": "1",
    }
    for arguments in (["sidecar", "--help"], ["sidecar"]):
        said = subprocess.run(
            [sys.executable, "-m", "lbgroup", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=GUARD_S,
        )
        assert_clean(said.stdout + said.stderr)
