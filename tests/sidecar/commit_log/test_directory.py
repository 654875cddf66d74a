"""A directory that cannot be used is told before anything is consumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbg_sidecar.commit_log import CommitsError, require_directory


def test_a_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    require_directory(wanted)
    assert list(wanted.iterdir()) == []


def test_a_file_in_its_place_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(CommitsError) as raised:
        require_directory(tmp_path / "taken")
    assert str(raised.value) == (
        f"the commits directory {tmp_path / 'taken'} cannot be used: File exists; name another directory, or none"
    )
