"""Files and folders that take their place in one step, and the modes of what edgefl keeps."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edgefl import memo
from edgefl.data import stored_arrays as store
from edgefl.errors import RunError
from edgefl.files import read_regular, replacing
from edgefl.runs.durable import replace_file


def test_a_name_that_no_system_allows_is_an_error_of_the_file() -> None:
    with pytest.raises(OSError, match="NUL"):
        read_regular(Path("a\0b"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_takes_its_place_in_one_step(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path, durable=durable) as partial:
        assert partial.parent == tmp_path and partial.name.startswith(".partial-") and not partial.exists()
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_not_finished_leaves_nothing(tmp_path: Path, durable: bool) -> None:
    path, folder = tmp_path / "a.json", tmp_path / "b"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path, durable=durable) as partial:
        partial.write_text("half")
        raise KeyError
    with pytest.raises(KeyError), replacing(folder, durable=durable) as partial:
        partial.mkdir()
        (partial / "c").write_text("half")
        raise KeyError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_its_place_but_not_that_of_a_full_one(tmp_path: Path) -> None:
    def write(content: str) -> None:
        with replacing(tmp_path / "b") as partial:
            partial.mkdir()
            (partial / "c").write_text(content)

    write("first")
    with pytest.raises(OSError):
        write("second")
    assert (tmp_path / "b" / "c").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_writers_of_one_cache_entry_do_not_disturb_each_other(tmp_path: Path) -> None:
    def write(number: int) -> None:
        memo.remember(tmp_path / "memo", "key", [number] * 10_000)
        store.entry(tmp_path, "arrays", lambda: store.Built({"a": np.full(10_000, 7)}, {}, {}))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(40)))
    kept = memo.recall(tmp_path / "memo", "key", list, "numbers")
    assert kept is not None and len(kept) == 10_000 and len(set(kept)) == 1
    assert store.entry(tmp_path, "arrays", dict).arrays["a"].sum() == 70_000  # type: ignore[arg-type]
    assert not list(tmp_path.rglob(".partial-*"))


@pytest.mark.skipif(os.name != "posix", reason="modes are otherwise there")
def test_runs_follow_the_umask_and_the_cache_is_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace_file(tmp_path / "result.json", b"{}")
        memo.remember(tmp_path / "memo", "key", 1)
        store.entry(tmp_path, "arrays", lambda: store.Built({}, {}, {}))
    finally:
        os.umask(before)
    assert mode(tmp_path / "result.json") == 0o644
    assert mode(tmp_path / "memo" / "key.sealed") == 0o600
    assert mode(tmp_path / "data" / "arrays") == 0o700


def test_refusals_name_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"can't write .*a\.json: "):
        replace_file(tmp_path / "file" / "a.json", b"")
    with pytest.warns(UserWarning, match=r"the data cache .*file/data can't be written \(.*\): .*; name another"):
        store.entry(tmp_path / "file", "arrays", lambda: store.Built({}, {}, {}))
    memo.remember(tmp_path / "file", "key", 1)  # costs time, not results
    assert memo.recall(tmp_path / "file", "key", int, "numbers") is None
