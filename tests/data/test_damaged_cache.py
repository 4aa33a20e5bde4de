"""Whatever becomes of the files of a cache, what is opened is what a good cache gives, and a line names the file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from split_texts import texts_in

from edgefl import memo
from edgefl.data import DataOptions, Federation, open_federation
from edgefl.data import stored_arrays as store
from edgefl.data.stored_arrays import Built, StoredEntry, entry
from edgefl.errors import DataError
from edgefl.runs.durable import boot


def federation(cache: Path) -> Federation:
    """Data of the table beside the cache: 64 texts of two words."""
    table = (cache.parent / "table.csv").resolve()  # one name for all copies
    data = {"source": "table", "folders": {"table": str(table)}, "clients": {"text": 2}, "vocabulary": 40}
    options = DataOptions.model_validate({**data, "partition": "iid", "validation": 8, "test": 8})
    return open_federation(options, seed=1, tokens=4, cache=cache)


def copied(good: tuple[Path, list[Any]], folder: Path) -> Path:
    """A copy of a good cache.  The table is a link to one file, so that it is the same data set."""
    shutil.copytree(good[0], folder / "cache")
    (folder / "table.csv").symlink_to(good[0].parent / "table.csv")
    return folder / "cache"


def content(found: Federation) -> list[Any]:
    """All that is read of the cached files, as plain data."""
    (part,) = found._parts
    arrays = [[name, array.dtype.str, array.tolist()] for name, array in sorted(part.arrays.items())]
    return [arrays, found.class_names, found.facts, texts_in(found, "train"), found.tokenizer.to_str()]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A cache, and what is read of it."""
    folder = tmp_path_factory.mktemp("good")
    rows = [f"{'abcdefgh'[i % 8]}{i} {'stuvwxyz'[i // 8]},{i % 2}" for i in range(64)]
    (folder / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    expected = content(federation(folder / "cache"))
    names = [path.name for path in paths_of(folder / "cache")]
    assert names.count("meta.json") == 2 and {"texts.json", "tokenizer.json", "client_rows.npy"} < set(names)
    return folder / "cache", expected


def paths_of(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file() and not path.name.startswith(memo.LOOKED))


@contextmanager
def told(*parts: str) -> Iterator[None]:
    """Exactly one warning, of one line, which has these parts."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    lines = [str(each.message) for each in said]
    assert len(lines) == 1 and "\n" not in lines[0] and all(part in lines[0] for part in parts), (parts, lines)


def check_repaired(cache: Path, damaged: Path, expected: list[Any]) -> None:
    """The first opening gives what a good cache gives and names the file; the second has nothing to say."""
    before = {path.relative_to(cache): path.read_bytes() for path in paths_of(cache) if path != damaged}
    with told(str(damaged), "is built again"):
        assert content(federation(cache)) == expected
    assert content(federation(cache)) == expected  # a warning would be an error
    assert not [path for path in cache.rglob(".*") if not path.name.startswith(memo.LOOKED)]
    after = {path.relative_to(cache): path.read_bytes() for path in paths_of(cache) if path != damaged}
    assert after == before and damaged.is_file() and not damaged.is_symlink()


# --- each file, damaged in each way ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found_and_the_data_built_again(
    good: tuple[Path, list[Any]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cache = copied(good, tmp_path_factory.mktemp("flipped"))
    path = data.draw(st.sampled_from(paths_of(cache)), "file")
    bytes_ = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(bytes_) - 1), "bit")
    bytes_[bit // 8] ^= 1 << bit % 8
    status = path.stat()
    path.write_bytes(bytes_)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk that lost a bit leaves it
    check_repaired(cache, path, good[1])
    shutil.rmtree(cache)


def _linked_elsewhere(path: Path) -> None:
    other = path.parent.parent.parent / "other"
    other.write_bytes(path.read_bytes()[::-1])
    path.unlink()
    path.symlink_to(other)


def _replaced(by: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        by(path)

    return replace


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a folder": _replaced(Path.mkdir),
    "a pipe": _replaced(os.mkfifo),
    "a link to nothing": _replaced(lambda path: path.symlink_to(path.parent / "nothing")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path)),
    "a link to a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a link to another file": _linked_elsewhere,
    "JSON of other types": lambda path: path.write_text('{"files": [1], "meta": {"kinds": 7}}'),
    "JSON that is no object": lambda path: path.write_text("[null, 1e999, []]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_something_else_is_found_and_the_data_built_again(
    good: tuple[Path, list[Any]], tmp_path: Path, damage: str
) -> None:
    for number, original in enumerate(paths_of(good[0])):
        (tmp_path / str(number)).mkdir()
        cache = copied(good, tmp_path / str(number))
        path = cache / original.relative_to(good[0])
        DAMAGES[damage](path)
        check_repaired(cache, path, good[1])


SMALL = Built(
    {"a": np.arange(5, dtype=np.int16), "b": np.eye(2, order="F"), "c": np.zeros((0, 3))},
    {"classes": ["x"]},
    {"t.txt": "né"},
)


def plain(found: StoredEntry) -> list[Any]:
    return [sorted((n, a.dtype.str, a.tolist()) for n, a in found.arrays.items()), found.meta, found.text("t.txt")]


def test_a_file_cut_at_any_byte_is_found(tmp_path: Path) -> None:
    expected = plain(entry(tmp_path, "small", lambda: SMALL))
    folder = tmp_path / "data" / "small"
    for path in paths_of(folder):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with told(str(path), "small is built again"):
                assert plain(entry(tmp_path, "small", lambda: SMALL)) == expected
        assert path.read_bytes() == whole


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes")
@pytest.mark.parametrize("what", ["file", "pipe", "link", "empty", "other"])
def test_something_else_in_the_place_of_the_folder_makes_room(tmp_path: Path, what: str) -> None:
    """A link to a folder that holds the entry would be good; what a link leads to is left alone."""
    folder, other = tmp_path / "data" / "small", tmp_path / "other"
    expected = plain(entry(tmp_path, "small", lambda: SMALL))
    if what == "other":  # another entry under this one's name
        entry(tmp_path, "second", lambda: Built({"a": np.arange(7)}, {}, {"t.txt": "other"}))
        shutil.rmtree(folder)
        folder.with_name("second").rename(folder)
    else:
        shutil.rmtree(folder)
        other.mkdir()
        (other / "meta.json").write_text("{}")
        make = {"file": Path.touch, "pipe": os.mkfifo, "link": lambda path: path.symlink_to(other), "empty": Path.mkdir}
        make[what](folder)
    with told(str(folder), "small is built again"):
        assert plain(entry(tmp_path, "small", lambda: SMALL)) == expected
    assert plain(entry(tmp_path, "small", lambda: SMALL)) == expected
    assert what == "other" or [path.name for path in other.iterdir()] == ["meta.json"]


# --- other processes -------------------------------------------------------------------------------------------------


READER = """
import sys, time, warnings
from pathlib import Path
import numpy as np
from edgefl.data.stored_arrays import Built, entry

def build():
    return Built({f"a{i}": np.arange(1000) + i for i in range(8)}, {"padding": 7}, {"t.txt": "text" * 500})

def open_once(cache):
    def slowly():
        with (cache / "builds").open("a") as file:
            file.write("built\\n")
        time.sleep(0.4)
        return build()

    entry(cache, "once", slowly)

def read(cache, seconds):
    opened, count, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until or count < 20:
        found = entry(cache, "shared", build)
        assert found.meta == {"padding": 7} and found.text("t.txt") == "text" * 500
        assert sorted(found.arrays) == [f"a{i}" for i in range(8)]
        opened = [*opened[-3:], found]
        for each in opened:  # also what was opened before another process built it again
            assert all((each.arrays[f"a{i}"] == np.arange(1000) + i).all() for i in range(8))
        count += 1
    return count

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("ready", flush=True)
    sys.stdin.readline()
    open_once(Path(sys.argv[1]))
    print(read(Path(sys.argv[1]), 1.0))
"""


def test_processes_open_damage_and_rebuild_one_entry_at_once(tmp_path: Path) -> None:
    """What is missing is built by one of them; none sees a half entry, and none loses what it has open."""
    folder, own = tmp_path / "data" / "shared", dict[str, Any](__name__="reader")
    exec(READER, own)
    command = [sys.executable, "-c", READER, str(tmp_path)]
    rng, damaged = np.random.default_rng(0), 0
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        ThreadPoolExecutor(2) as threads,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        assert other.stdout is not None and other.stdin is not None and other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        own["open_once"](tmp_path)
        here = [threads.submit(own["read"], tmp_path, 1.0) for _ in range(2)]
        while other.poll() is None or not all(each.done() for each in here):
            time.sleep(0.01)
            try:
                path = sorted(folder.iterdir())[rng.integers(0, 10)]
                if rng.random() < 0.5:
                    path.unlink()
                else:  # not in place: what others have open stays as it is, but for a disk that changes under them
                    (tmp_path / "worse").write_bytes(bytes([*path.read_bytes()[:-1], rng.integers(0, 256)]))
                    os.replace(tmp_path / "worse", path)
                damaged += 1
            except (OSError, IndexError):
                continue  # it is being built, or was just built again
        assert min(each.result() for each in here) >= 20 and int(other.stdout.read()) >= 20
        entry(tmp_path, "shared", own["build"])
    assert other.returncode == 0 and damaged > 10
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["once", "shared"]
    assert (tmp_path / "builds").read_text() == "built\n"


# --- folders that can't be written -----------------------------------------------------------------------------------


@contextmanager
def only_read(folder: Path) -> Iterator[None]:
    """A folder that can't be written: by its mode, or for root by a mount."""
    if os.geteuid():
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path in modes:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    for command in (["mount", "--bind", str(folder), str(folder)], ["mount", "-o", "remount,ro,bind", str(folder)]):
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this machine lets nobody mount")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_cache_that_cannot_be_written_still_works(good: tuple[Path, list[Any]], tmp_path: Path) -> None:
    cache = copied(good, tmp_path)
    with only_read(cache):
        assert content(federation(cache)) == good[1]
    (path,) = cache.rglob("tokens_whole.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    damaged = path.read_bytes()
    with only_read(cache), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert content(federation(cache)) == good[1]
    assert path.read_bytes() == damaged
    first, second = (str(each.message) for each in said)
    assert str(path) in first and "is built again" in first
    assert "can't be written (Read-only" in second or "can't be written (Permission" in second
    assert "EDGEFL_CACHE" in second
    empty = tmp_path / "empty"
    empty.mkdir()
    with only_read(empty), pytest.warns(UserWarning, match="can't be written .* EDGEFL_CACHE"):
        assert content(federation(empty)) == good[1]


def test_a_file_in_the_place_of_the_cache_costs_time_only(good: tuple[Path, list[Any]], tmp_path: Path) -> None:
    copied(good, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"file/data can't be written .* EDGEFL_CACHE"):
        assert content(federation(tmp_path / "file")) == good[1]
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.skipif(os.name != "posix", reason="it needs a limit of open files")
def test_a_good_cache_is_left_alone_where_this_process_can_open_no_more_files(
    good: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    import resource

    cache = copied(good, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    status = {path: path.stat().st_ino for path in paths_of(cache)}
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    for number in free:
        os.close(number)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), before[1]))  # the limit is one of numbers, not of files
        with pytest.raises(DataError, match=r"can't be opened \(Too many open files\)"):
            federation(cache)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {path: path.stat().st_ino for path in paths_of(cache)} == status
    assert content(federation(cache)) == good[1]


# --- large files -----------------------------------------------------------------------------------------------------


def bytes_read() -> int:
    """Bytes that this process has read, as the kernel counts them."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.slow(smaller="test_a_mark_of_another_boot_or_of_yesterday_does_not_count")
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system doesn't say what a process has read")
def test_a_large_file_that_was_read_lately_is_not_read_again_unless_its_status_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LARGE", 10**6)
    folder, size = tmp_path / "data" / "large", 5 * 10**6
    marks, path = folder / "checked.json", folder / "large.npy"

    def reads() -> bool:
        """Whether an opening by a process that hasn't opened it yet reads the file."""
        store._read.clear()
        before = bytes_read()
        found = entry(tmp_path, "large", lambda: Built({"large": np.full(size, 7, np.uint8)}, {}, {}))
        assert (found.arrays["large"] == 7).all()
        return bytes_read() - before > size

    def settle() -> None:
        time.sleep(max(0.0, path.stat().st_ctime + 2.1 - time.time()))

    assert reads() and reads() and not marks.exists()  # a change in the same tick would have the same time
    settle()
    assert reads() and marks.exists() and not reads()
    marks.write_bytes(marks.read_bytes()[:-3])  # what says that it was read is damaged
    assert reads() and not reads()
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x06")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a time that is set leaves the time of change
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    with told(str(path), "is built again"):
        assert reads()
    settle()
    assert reads() and not reads()


def test_a_mark_of_another_boot_or_of_yesterday_does_not_count(tmp_path: Path) -> None:
    now: store.Mark = {"boot": boot(), "at": time.time(), "status": [1, 2, 3, 4, 5]}
    ended: store.Mark = {**now, "boot": "another"}
    old: store.Mark = {**now, "at": now["at"] - store.MARK_SECONDS - 1}
    future: store.Mark = {**now, "at": now["at"] + 3600}
    store._mark(tmp_path, {"now": now, "ended": ended, "old": old, "future": future})
    assert store._read_marks(tmp_path) == {"now": now}


# --- other caches ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_answer_is_no_answer(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("memo")
    answer = data.draw(st.lists(st.integers(0, 10**6), min_size=1))
    memo.remember(folder, "key", answer)
    assert memo.recall(folder, "key", list, "numbers") == answer
    path = folder / "key.sealed"
    bytes_ = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut"):
        del bytes_[data.draw(st.integers(0, len(bytes_) - 1), "length") :]
    else:
        bit = data.draw(st.integers(0, 8 * len(bytes_) - 1), "bit")
        bytes_[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes_)
    with told(str(path), "numbers are computed again"):
        assert memo.recall(folder, "key", list, "numbers") is None
    memo.remember(folder, "key", answer)
    assert memo.recall(folder, "key", list, "numbers") == answer


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes")
@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "deleted"])
def test_an_answer_that_is_something_else_gives_way(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "one" / "two"
    memo.remember(folder, "key", [1, 2])
    path = folder / "key.sealed"
    DAMAGES[damage](path)
    if damage == "a link to nothing":
        assert memo.recall(folder, "key", list, "numbers") is None
    else:
        with told(str(path), "numbers are computed again"):
            assert memo.recall(folder, "key", list, "numbers") is None
    memo.remember(folder, "key", [1, 2])
    assert memo.recall(folder, "key", list, "numbers") == [1, 2]
    assert [each.name for each in folder.iterdir()] == ["key.sealed"]


def test_an_answer_under_another_name_is_no_answer(tmp_path: Path) -> None:
    memo.remember(tmp_path, "one", 1)
    (tmp_path / "one.sealed").rename(tmp_path / "two.sealed")
    with told("two.sealed"):
        assert memo.recall(tmp_path, "two", int, "numbers") is None
