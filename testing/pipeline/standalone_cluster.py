"""A standalone cluster of Spark on this machine, and a Python for its executors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

START_S = 120.0


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """The URL of a master with one worker, of two cores; their logs are in `directory`."""
    with _daemon(directory, "master", "Master", "--host", "127.0.0.1", "--port", "0") as log:
        url = _logged(log, r"Starting Spark master at (spark://\S+)")
        cores = ("--host", "127.0.0.1", "--cores", "2", "--memory", "1200m")
        with _daemon(
            directory, "worker", "Worker", *cores, "--work-dir", str(directory / "work"), url
        ) as log:
            _logged(log, "(Successfully registered)")
            yield url


def executors(directory: Path) -> list[int]:
    """Running processes below `directory`, which are those of the executors of its cluster."""
    return [
        int(place.parent.name)
        for place in Path("/proc").glob("[0-9]*/cwd")
        if _is_below(place, directory / "work")
    ]


def _is_below(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except OSError:  # it has ended
        return False


def bare_python(directory: Path, *modules: str) -> Path:
    """An environment of this Python with `modules` alone, as they are installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for name in modules:
        file = _file_of(name)
        place = file.parent if file.name == "__init__.py" else file
        (packages / place.name).symlink_to(place)
        libraries = place.with_name(f"{name}.libs")
        if libraries.exists():
            (packages / libraries.name).symlink_to(libraries)
    return directory / "bin" / "python"


def _file_of(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


@contextmanager
def _daemon(directory: Path, name: str, role: str, *arguments: str) -> Iterator[Path]:
    home = _file_of("pyspark").parent
    log = directory / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    command = [
        home / "bin" / "spark-class",
        f"org.apache.spark.deploy.{name}.{role}",
        "--webui-port",
        "0",
        *arguments,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=directory)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def _logged(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if match := re.search(pattern, log.read_text()):
            return match[1]
        time.sleep(0.1)
    raise AssertionError(f"{log} has no {pattern!r}: {log.read_text()}")
