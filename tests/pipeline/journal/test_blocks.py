"""Every line is read once, whatever the parts and blocks are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Part, scan, blocks_of, local_path, splits_of
    from lbg_pipeline.journal import scan
    from lbg_pipeline.journal.scan import Part, blocks_of, local_path, splits_of


@given(
    lines=st.lists(
        st.binary(max_size=9).map(lambda text: text.translate(None, b"\0\n\xfe\xff")), max_size=12
    ),
    part_bytes=st.integers(1, 40),
    block_bytes=st.integers(1, 16),
    is_ended=st.booleans(),
)
def test_each_line_is_in_one_part(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    part_bytes: int,
    block_bytes: int,
    is_ended: bool,
) -> None:
    path = tmp_path_factory.mktemp("part") / "j.jsonl"
    text = b"\n".join(lines) + (b"\n" if is_ended and lines else b"")
    path.write_bytes(text)
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK_BYTES", block_bytes)
        for start in range(0, len(text), part_bytes):
            for place, block in blocks_of(Part(str(path), start, min(start + part_bytes, len(text)))):
                assert text[place.start : place.end] == block
                assert block.endswith(b"\n") or text.endswith(block)
                read.append(block)
    assert b"".join(read) == text


def test_small_files_are_read_together_and_large_ones_in_parts(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"small{number}").write_bytes(b"x" * 10)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(40 << 20)
    splits = splits_of([str(tmp_path / f"small{number}") for number in range(3)] + [str(large)], cores=2)
    assert [len(parts) for parts in splits[:1]] == [3]
    assert sum(part.end - part.start for parts in splits for part in parts) == (40 << 20) + 30
    assert max(part.end - part.start for parts in splits for part in parts) <= (5 << 20) + 30


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a%20b/c.jsonl", "/a b/c.jsonl"),
        ("/a/c.jsonl", "/a/c.jsonl"),
        ("s3a://bucket/c.jsonl", None),
        ("hdfs://host/c.jsonl", None),
        ("file:///c.jsonl.gz", None),
    ],
)
def test_workers_open_plain_local_files_and_leave_the_rest_to_spark(url: str, path: str | None) -> None:
    assert local_path(url) == path
