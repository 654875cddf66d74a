"""Modes of what is created, and the line about what is open to others, in directories as people and Kubernetes make
them."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_core.private_files import allocate, make_private_directory, open_private, report_wide

OPEN_DIRECTORY = "has mode 0755, which gives every user who can reach it access to"


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (made := tmp_path / "state").mkdir(0o700)
    os.close(open_private(made / "file", os.O_WRONLY | os.O_CREAT))
    return made


def reported(path: Path, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    caplog.set_level(logging.INFO)
    report_wide(path)
    report_wide(path)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_directory_that_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")
    assert [mode_of(tmp_path / "a"), mode_of(tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_directory_that_exists_retains_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(0o750)
    make_private_directory(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o750


def test_a_file_in_the_place_of_a_directory_is_an_error(directory: Path) -> None:
    with pytest.raises(FileExistsError):
        make_private_directory(directory / "file")


def test_a_file_is_the_owners_alone_whatever_the_umask(directory: Path) -> None:
    assert mode_of(directory / "file") == 0o600


def test_a_private_directory_is_not_mentioned_whatever_its_files(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "file").chmod(0o666)
    assert reported(directory, caplog) == []


def test_a_directory_open_to_all_is_one_line_with_the_remedy(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.chmod(0o755)
    line = f"{directory} {OPEN_DIRECTORY} it, but to none of its files: chmod -R go= {directory}"
    assert reported(directory, caplog) == [(logging.WARNING, line)]


def test_open_files_in_an_open_directory_are_part_of_the_line(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.chmod(0o755)
    (directory / "file").chmod(0o644)
    line = f"{directory} {OPEN_DIRECTORY} it and its files: chmod -R go= {directory}"
    assert reported(directory, caplog) == [(logging.WARNING, line)]


def test_an_open_file_is_one_line(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file := directory / "file").chmod(0o640)
    line = f"{file} has mode 0640, which gives access to GID {file.stat().st_gid}: chmod go= {file}"
    assert reported(file, caplog) == [(logging.WARNING, line)]


def as_volume(directory: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kubelet leaves a volume with fsGroup: it belongs to root, and the process has access by its group."""
    directory.chmod(mode)
    owner = directory.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1000)


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o2770, "processes of this group have access to it"),
        (0o2775, "other users can list it, and processes of this group have access to it"),
    ],
)
def test_a_volume_of_kubernetes_is_information_and_no_warning(
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    who: str,
) -> None:
    as_volume(directory, mode, monkeypatch)
    [(level, line)] = reported(directory, caplog)
    assert level == logging.INFO
    assert line.endswith(who)
    assert "chmod" not in line


def test_files_that_kubelet_opened_to_the_group_are_information(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """fsGroupChangePolicy Always: each mount gives the group access to everything, also where its user is the owner."""
    directory.chmod(0o2770)
    (directory / "file").chmod(0o660)
    [(level, _)] = reported(directory, caplog)
    assert level == logging.INFO


def test_files_of_a_volume_that_are_open_to_all_are_a_warning(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "file").chmod(0o644)
    as_volume(directory, 0o2775, monkeypatch)
    [(level, line)] = reported(directory, caplog)
    assert level == logging.WARNING
    assert line.endswith(f"such as file: chmod o= {directory}/*")


def test_a_volume_in_which_all_may_replace_files_is_a_warning_with_a_remedy_of_its_user(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emptyDir has mode 2777, and its user cannot change that."""
    as_volume(directory, 0o2777, monkeypatch)
    [(level, line)] = reported(directory, caplog)
    assert level == logging.WARNING
    assert line.endswith("name a directory inside it, which is created for this user alone")


def unsupported(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.parametrize("system", ["Linux", "a file system that cannot", "macOS"])
def test_a_file_has_its_length_also_where_nothing_can_be_allocated(
    directory: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if system == "macOS":
        monkeypatch.delattr(os, "posix_fallocate")
    elif system != "Linux":
        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    (directory / "file").write_bytes(b"abc")
    descriptor = os.open(directory / "file", os.O_RDWR)
    for length in ((3 << 20) + 1, 2):
        allocate(descriptor, 0, length)
    os.close(descriptor)
    assert (directory / "file").read_bytes() == b"abc".ljust((3 << 20) + 1, b"\0")


def test_a_full_disk_is_an_error_and_nothing_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    descriptor = os.open(directory / "file", os.O_RDWR)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        allocate(descriptor, 0, 10)
    os.close(descriptor)
    assert (directory / "file").stat().st_size == 0
