"""Tables and pictures of strangers: odd labels, deep JSON, pipes in place of files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edgefl.data.collection import Collection, FolderRequest, check_fits
from edgefl.data.folders.csv_table import TABLE_SET
from edgefl.data.folders.places import folder_with_most
from edgefl.data.folders.rows import read_json
from edgefl.errors import DataError


def table(path: Path, tmp_path: Path) -> Collection:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return TABLE_SET.build(FolderRequest(None, TABLE_SET.find(path), lambda _: None, scratch))


@pytest.mark.parametrize("label", ["--5", "9" * 5000])
def test_labels_that_are_no_numbers_are_sorted_as_text(tmp_path: Path, label: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"text,label\none,{label}\ntwo,10\nthree,7\n")
    assert table(path, tmp_path).classes == tuple(sorted(["10", "7", label]))
    path.write_text("text,label\none,-5\ntwo,10\nthree,7\n")
    assert table(path, tmp_path).classes == ("-5", "7", "10")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5000 + "}"])
def test_json_lines_that_python_refuses_have_their_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"t.jsonl:2: invalid JSON"):
        table(path, tmp_path)


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"deep.json:1: invalid JSON"):
        read_json(path)


@pytest.mark.skipif(os.name != "posix", reason="pipes as files")
def test_a_pipe_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    os.mkfifo(folder / "t.csv")
    with pytest.raises(DataError, match=r"t.csv: can't be read: it isn't a regular file"):
        table(folder, tmp_path)
    os.mkfifo(folder / "a.png")
    rows = tmp_path / "t.csv"
    rows.write_text("image,label\ntables/a.png,x\n")
    with pytest.raises(DataError, match="none of 1 pictures can be read: 1 unreadable"):
        table(rows, tmp_path)


def test_an_array_larger_than_the_machine_is_refused_with_both_numbers() -> None:
    check_fits((1000, 32, 32), "pictures")
    with pytest.raises(DataError, match=r"6,352 texts take [\d,.]+ GiB of memory, but this machine has [\d,.]+ GiB"):
        check_fits((6352, 10**9), "6,352 texts", bytes_each=np.dtype(np.int32).itemsize)


def test_a_name_that_no_file_can_have_is_that_of_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert folder_with_most(tmp_path, ["[" * 5000, "a\0", "a"]) == tmp_path
    assert folder_with_most(tmp_path, ["[" * 5000, "a\0"]) is None
