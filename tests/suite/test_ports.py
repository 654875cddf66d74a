"""Two runs on one machine are never given the same port."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testing import ROOT
from testing.ports import COUNT, FIRST, Ports

HOLDER = """
import sys
from pathlib import Path
from testing.ports import Ports
ports = Ports(Path(sys.argv[1]), start=7)
print(ports.free(), ports.free(), flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_port_is_given_to_one_process_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "ports"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        assert len(theirs) == 2
        ours = Ports(file, start=7)
        assert {ours.free(), ours.free()} & theirs == set()
        other.communicate()
    later = Ports(file, start=min(theirs) - FIRST)
    assert {later.free(), later.free()} == theirs


def test_a_port_that_somebody_listens_on_is_not_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", Ports(tmp_path / "probe", start=4711).free())) as server:
        port = server.getsockname()[1]
        assert Ports(tmp_path / "ports", start=port - FIRST).free() != port


def test_ports_start_again_behind_the_last_one(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "ports", start=COUNT - 1)
    found = [ports.free() for _ in range(50)]
    assert len(set(found)) == 50
    assert all(FIRST <= port < FIRST + COUNT for port in found)
