from __future__ import annotations

import gzip
import json
import os
import threading
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from lbg_core.publisher.errors import BadRow, InputError
from lbg_core.publisher.input.rows import Row, RowOptions, read_rows
from lbg_core.publisher.input.source import open_source
from testing.waiting import GUARD_S

CSV = b'id,name\n1,"a, ""b"""\n,x\nNA,y\n\n2,"two\nlines"\n'


def read(path: Path, options: RowOptions | None = None) -> list[Row | BadRow]:
    with open_source(str(path)) as source:
        return [row for batch in read_rows(source, options or RowOptions()) for row in batch]


def written(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def good(rows: list[Row | BadRow]) -> list[Row]:
    assert all(isinstance(row, Row) for row in rows), rows
    return [row for row in rows if isinstance(row, Row)]


def bad(rows: list[Row | BadRow]) -> list[str]:
    return [str(row) for row in rows if isinstance(row, BadRow)]


def test_csv_rows_become_json_objects_of_text(tmp_path: Path) -> None:
    rows = good(read(written(tmp_path, "x.csv", CSV), RowOptions(key_field="id", topic="t")))
    assert [json.loads(row.body) for row in rows] == [
        {"id": "1", "name": 'a, "b"'},
        {"id": "", "name": "x"},
        {"id": "NA", "name": "y"},
        {"id": "2", "name": "two\nlines"},
    ]
    assert [row.key for row in rows] == ["1", None, None, "2"]
    assert [(row.number, row.line) for row in rows] == [(1, 2), (2, 3), (3, 4), (4, 7)]
    assert {row.topic for row in rows} == {"t"}


def test_values_that_mean_no_key_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", CSV)
    rows = good(read(path, RowOptions(key_field="id", no_key=frozenset({"2"}))))
    assert [row.key for row in rows] == ["1", "", "NA", None]


def test_a_jsonl_body_is_the_line_itself_and_keys_may_lie_deeper(tmp_path: Path) -> None:
    lines = [
        b'{"a": {"b": "x"},  "t": "cars"}',
        b'{"a": {"b": 17}, "t": "bikes"}\r',
        b'{"a": null, "t": null}',
        b'{"a.b": true, "t": ""}',
        '{"a": {"b": "ü"}, "t": "cars"}'.encode(),
    ]
    path = written(tmp_path, "x.jsonl", b"\n".join(lines))
    rows = good(read(path, RowOptions(key_field="a.b", topic_field="t")))
    assert [row.key for row in rows] == ["x", "17", None, "true", "ü"]
    assert [row.topic for row in rows] == ["cars", "bikes", "", "", "cars"]
    assert rows[0].body == lines[0]
    assert rows[1].body == lines[1].strip()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"1"', "1"),
        (b"1", "1"),
        (b"1.0", "1"),
        (b"10e-1", "1"),
        (b"-0.0", "0"),
        (b"1.50", "1.5"),
        (b"1e22", "1" + "0" * 22),
        (b"12345678901234567890", "12345678901234567890"),
        (b"true", "true"),
        (b"null", None),
        (b'""', None),
    ],
)
def test_a_key_of_json_has_one_text(tmp_path: Path, value: bytes, key: str | None) -> None:
    line = b'{"k": ' + value + b"}"
    (row,) = good(read(written(tmp_path, "x.jsonl", line), RowOptions(key_field="k")))
    assert (row.key, row.body) == (key, line)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"1e400", "beyond the range of a double"),
        (b"-1e400", "beyond the range of a double"),
        (b"NaN", "NaN is no JSON number"),
        (b'"\\ud800"', "unpaired surrogate"),
        (b"[1]", "an array"),
        (b"{}", "an object"),
    ],
)
def test_what_cannot_be_a_key_is_a_bad_row(tmp_path: Path, value: bytes, told: str) -> None:
    path = written(tmp_path, "x.jsonl", b'{"k": ' + value + b"}")
    (reason,) = bad(read(path, RowOptions(key_field="k")))
    assert told in reason


@pytest.mark.parametrize("name", ["x.csv.gz", "x.zip", "x.csv"])
def test_compression_is_told_by_content_and_progress_ends_at_the_total(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(CSV))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("folder/", "")
            archive.writestr("folder/x.csv", CSV)
            archive.writestr("__MACOSX/x.csv", "noise")
    else:
        path.write_bytes(CSV)
    with open_source(str(path)) as source:
        assert sum(map(len, read_rows(source, RowOptions()))) == 4
        assert source.total_bytes is not None
        assert source.read_bytes == source.total_bytes
        assert not source.may_wait


def test_format_is_told_by_name_then_by_content(tmp_path: Path) -> None:
    assert good(read(written(tmp_path, "a.tsv", b"k\tv\n1\t2\n")))[0].body == b'{"k":"1","v":"2"}'
    assert good(read(written(tmp_path, "b", b'\n {"k": 1}\n')))[0].body == b'{"k": 1}'
    assert good(read(written(tmp_path, "c", b"k\n1\n")))[0].body == b'{"k":"1"}'
    assert good(read(written(tmp_path, "d.log", b"k\n1\n"), RowOptions(format="csv")))[0].number == 1
    with pytest.raises(InputError, match=r"'xml' is not one of csv, tsv, jsonl"):
        read(written(tmp_path, "e.log", b"k\n1\n"), RowOptions(format="xml"))


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_field(tmp_path: Path) -> None:
    rows = good(read(written(tmp_path, "x.csv", b"\xef\xbb\xbfid,v\r\n1,2\r\n"), RowOptions(key_field="id")))
    assert rows[0].body == b'{"id":"1","v":"2"}'


def test_an_unknown_field_lists_those_there_are(tmp_path: Path) -> None:
    options = RowOptions(key_field="tail")
    with pytest.raises(InputError, match=r"x\.csv has no field 'tail'; its fields are id, name"):
        read(written(tmp_path, "x.csv", CSV), options)
    with pytest.raises(InputError, match=r"x\.jsonl has no field 'tail'; its fields are a\.b, c"):
        read(written(tmp_path, "x.jsonl", b'{"a":{"b":1},"c":2}\n'), options)
    with pytest.raises(InputError, match="no field 'nope'"):
        read(written(tmp_path, "x.csv", CSV), RowOptions(topic_field="nope"))


def test_a_bad_csv_row_is_one_line_with_file_row_and_reason_and_reading_goes_on(tmp_path: Path) -> None:
    content = b'a,b\n1\n1,2\n1,\xff\n1,2,3\n"x"y,2\n5,6\n'
    rows = read(written(tmp_path, "x.csv", content))
    assert [row.number for row in rows if isinstance(row, Row)] == [2, 6]
    messages = bad(rows)
    assert len(messages) == 4
    assert "x.csv, row 1 (line 2): 1 field where the header has 2" in messages[0]
    assert "row 3 (line 4): byte 0xff is not UTF-8" in messages[1]
    assert "row 4 (line 5): 3 fields" in messages[2]
    assert "row 5 (line 6): ',' expected after '\"'" in messages[3]


def test_a_bad_jsonl_row_is_one_line_with_file_row_and_reason_and_reading_goes_on(tmp_path: Path) -> None:
    lines = [
        b'{"k": 1}',
        b"{nope",
        b"[1]",
        b'{"k": {}}',
        b'{"z": 1}',
        b'{"k": NaN}',
        b'{"k": "\xff"}',
        b"[" * 100_000,
        b'{"k": 2}',
    ]
    rows = read(written(tmp_path, "x.jsonl", b"\n".join(lines)), RowOptions(key_field="k"))
    assert [row.key for row in rows if isinstance(row, Row)] == ["1", "2"]
    expected = ["not JSON", "no object", "is an object", "no field 'k'", "NaN", "0xff", "nested too deeply"]
    for message, words in zip(bad(rows), expected, strict=True):
        assert words in message
        assert "\n" not in message
    assert bad(rows)[0].startswith(f"{tmp_path}/x.jsonl, row 2: ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("x.csv", b"", "is empty", id="empty"),
        pytest.param("x.csv", b"a,b,a\n", "has a more than once", id="a column twice"),
        pytest.param("x.csv", b"\xff\n", "header: byte 0xff", id="a header in another encoding"),
        pytest.param("x.csv.gz", gzip.compress(CSV * 100)[:-20], "damaged or cut short", id="cut short"),
        pytest.param(
            "x.csv.gz", gzip.compress(CSV)[:-8] + bytes(8), "damaged or cut short", id="a wrong checksum"
        ),
        pytest.param("x.zip", b"PK\x03\x04nonsense", "no .zip that can be read", id="no archive"),
    ],
)
def test_an_input_that_cannot_be_read_past_is_an_error(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read(written(tmp_path, name, content))


def test_a_zip_of_several_files_or_none_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", CSV)
        archive.writestr("b.csv", CSV)
    with pytest.raises(InputError, match=r"holds 2 files \(a\.csv, b\.csv\): .* exactly one"):
        read(path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(InputError, match="holds no file"):
        read(path)


def test_a_file_that_is_not_there_or_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="directory"):
        read(tmp_path)


LONG = b"x" * (17 * 1024 * 1024)
LONG_TEXT = b"an inner line\n4,an inner row\n" * 600_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("x.jsonl", b'{"k":1}\n{"k":"%s"}\n{"k":3}\n' % LONG, id="a line"),
        pytest.param("x.csv", b"k,v\n1,a\n2,%s\n3,b\n" % LONG, id="a field"),
        pytest.param("x.csv", b'k,v\n1,a\n"%s\n"",",2\n3,b\n' % LONG, id="a quoted field"),
        pytest.param("x.csv", b'k,v\n1,a\n2,"%s"\n3,b\n' % LONG_TEXT, id="a quoted field of many lines"),
        pytest.param("x.tsv", b'k\tv\n1\ta\n2\t5" %s\n3\tb\n' % LONG, id="a quote that is none"),
        pytest.param("x.csv", b'k,v\n1,a\n2,"\xff\n4,c\n"\n3,b\n', id="a quoted field in another encoding"),
        pytest.param("x.csv", b'k,v\n1,a\n"2"x,"\n4,c\n"\n3,b\n', id="a wrong quote before a quoted field"),
    ],
)
def test_a_row_that_is_too_long_or_no_row_is_one_bad_row_and_the_next_one_is_read(
    tmp_path: Path, name: str, content: bytes
) -> None:
    rows = read(written(tmp_path, name, content), RowOptions(key_field="k"))
    assert [row.key if isinstance(row, Row) else row.row for row in rows] == ["1", 2, "3"]


@pytest.mark.parametrize(
    ("field", "why"), [(LONG, "it has more than 16777216 bytes"), (b"open", "unexpected end of data")]
)
def test_a_row_without_an_end_is_an_error_as_those_behind_it_cannot_be_read(
    tmp_path: Path, field: bytes, why: str
) -> None:
    content = b'k,v\n1,a\n2,"%s\n3,b\n' % field
    with pytest.raises(InputError, match=rf"row 2 .*: {why}.*no end") as caught:
        read(written(tmp_path, "x.csv", content), RowOptions(key_field="k"))
    assert not isinstance(caught.value, BadRow)


@pytest.mark.long
def test_a_file_without_newlines_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    tracemalloc.start()
    try:
        assert len(bad(read(path))) == 1
        assert tracemalloc.get_traced_memory()[1] < 60 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"id,text\n")
        for _ in range(300):
            file.write(b"7,some text that is not very long\n" * 100)
    tracemalloc.start()
    try:
        with open_source(str(path)) as source:
            assert sum(len(batch) for batch in read_rows(source, RowOptions(key_field="id"))) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 3 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_rows_of_a_pipe_are_given_when_they_come(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    first_was_read = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            pipe.write(b"k\n1\n2\n3")
            first_was_read.wait(GUARD_S)
            pipe.write(b"\n4\n")

    thread = threading.Thread(target=write)
    thread.start()
    with open_source(str(path)) as source:
        assert source.may_wait
        assert source.total_bytes is None
        batches = read_rows(source, RowOptions(key_field="k"))
        assert [row.key for row in next(batches) if isinstance(row, Row)] == ["1", "2"]
        first_was_read.set()
        assert [row.key for batch in batches for row in batch if isinstance(row, Row)] == ["3", "4"]
    thread.join()
