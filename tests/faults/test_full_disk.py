"""Disks that fill up at any byte: a command ends in one line, and a run goes on to the bytes of one that had space."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl.errors import EdgeflError, RunError
from edgefl.files import output
from edgefl.runs import Run, is_run, unfinished
from edgefl.runs.durable import append_file
from edgefl.runs.tensor_file import TensorFile
from edgefl.runs.unfinished import UnfinishedWorks

resource = pytest.importorskip("resource", reason="a limit of a file's size needs a POSIX system")
pytestmark = pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")  # a resume says so
Tiny = Callable[..., dict[str, Any]]

HOST = ("host.jsonl", "environment.json", "files.json", "writer.lock")
"""Files that hold figures of the host, and the digests of these."""
FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """The system refuses to write more than so many bytes to a file, as a full disk does; Python ignores SIGXFSZ.

    Python's own compiled files would be cut to that length, and all later processes would read them.
    """
    limits, without = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = without


class Disk:
    """A file system in memory of so many bytes, which can be enlarged."""

    def __init__(self, folder: Path, size: int):
        self.folder = folder
        folder.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True)
        if made.returncode:
            pytest.skip(f"a file system can't be mounted here: {made.stderr.decode().strip()}")

    def enlarge(self) -> None:
        subprocess.run(["mount", "-o", "remount,size=100m", str(self.folder)], check=True)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


def contents(run: Path) -> dict[str, bytes]:
    """The bytes of a run's files, without figures of the host."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.name not in HOST:
            found[str(path.relative_to(run))] = path.read_bytes()
            if path.name == "state.json":
                manifest = json.loads(path.read_bytes())
                del manifest["records"]["host"]
                manifest.pop("written_since_boot", None)
                found[str(path.relative_to(run))] = json.dumps(manifest).encode()
    return found


def filled_and_resumed(scenario: dict[str, Any], folder: Path, disk: Callable[[], Any]) -> str:
    """Run on a disk that fills up, then go on with space; returns the file that couldn't be written, "" if none."""
    ignored: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda raised: ignored.append(raised.exc_value)
    refused = ""
    try:
        with disk():
            try:
                edgefl.run(scenario, out=folder)
            except EdgeflError as error:
                assert isinstance(error, RunError) and "can't write" in str(error) and "\n" not in str(error)
                refused = str(error).partition("can't write ")[2].partition(":")[0]
            gc.collect()
        assert ignored == []
    finally:
        sys.unraisablehook = before
    if is_run(folder):
        edgefl.run(resume=folder)
    else:
        edgefl.run(scenario, out=folder)
    return Path(refused).name


@pytest.fixture(scope="module")
def bare(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Run]:
    """A scenario of twelve rounds without training, and its run on a disk with space."""
    scenario = tiny(training={"mode": "none"}, schedule={"name": "end-to-end", "rounds": 12})
    return scenario, edgefl.run(scenario, out=tmp_path_factory.mktemp("bare") / "run")


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Run]:
    """A scenario whose clients keep a part of their model, and its run on a disk with space."""
    scenario = tiny(method="fedper", evaluation={"every": 1})
    return scenario, edgefl.run(scenario, out=tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.parametrize(("lines", "limit"), [(40, 300), (600, 9000), (1000, 10)])  # the first two fit a buffer
def test_what_a_full_disk_refused_is_not_written_later(tmp_path: Path, lines: int, limit: int) -> None:
    path = tmp_path / "rows.jsonl"
    append_file(path, b"first\n")
    with at_most(limit), pytest.raises(RunError, match="can't write .*rows.jsonl: File too large"):
        append_file(path, b"second, and longer\n" * lines)
    gc.collect(1)  # a buffer that still held a part would write it now
    append_file(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


@pytest.mark.parametrize(("round", "short"), [(1, 40_000), (5, 1000), (9, 1), (11, 5000)])
def test_a_file_that_reaches_its_limit_leaves_a_run_that_goes_on(
    bare: tuple[dict[str, Any], Run], tmp_path: Path, round: int, short: int
) -> None:
    """The limit is so many bytes short of the end of a round's records of clients; the first stops another table."""
    scenario, whole = bare
    lines = (whole.path / "clients.jsonl").read_bytes().splitlines(keepends=True)
    limit = max(sum(len(line) for line in lines if json.loads(line)["round"] <= round) - short, 20_000)
    assert filled_and_resumed(scenario, tmp_path / "run", lambda: at_most(limit)).endswith(".jsonl")
    assert contents(tmp_path / "run") == contents(whole.path)


@pytest.mark.parametrize("size", [20_000, 100_000, 120_000, 204_000])
def test_a_run_on_a_disk_that_was_full_ends_as_one_with_space(
    bare: tuple[dict[str, Any], Run], tmp_path: Path, size: int
) -> None:
    scenario, whole = bare
    with Disk(tmp_path / "disk", size) as disk:

        @contextmanager
        def until_enlarged() -> Iterator[None]:
            yield
            disk.enlarge()

        assert filled_and_resumed(scenario, disk.folder / "run", until_enlarged)
        assert contents(disk.folder / "run") == contents(whole.path)


@pytest.mark.slow(smaller="test_a_run_on_a_disk_that_was_full_ends_as_one_with_space")
@pytest.mark.usefixtures("with_pictures")  # which find no space either
def test_a_run_that_trains_on_disks_of_any_size_ends_as_one_with_space(
    trained: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    scenario, whole = trained
    expected, random, refused = contents(whole.path), Random(39), set()
    total = sum(len(content) + 4096 for content in expected.values())
    for number in range(12):
        size = int(total * 2 ** random.uniform(-6, 0.2))  # small ones too, where the first files find no space
        with Disk(tmp_path / f"disk-{number}", size) as disk:

            @contextmanager
            def until_enlarged(disk: Disk = disk) -> Iterator[None]:
                yield
                disk.enlarge()

            refused.add(filled_and_resumed(scenario, disk.folder / "run", until_enlarged))
            assert contents(disk.folder / "run") == expected
    assert len(refused) >= 4  # different files


def test_an_update_that_found_no_space_moves_no_other(tmp_path: Path) -> None:
    spill = TensorFile(tmp_path)
    first, second = {"w": torch.arange(100.0)}, {"w": torch.arange(50.0)}
    places = [spill.add(first)]
    with at_most(10_000), pytest.raises(RunError, match="can't write"):
        spill.add({"w": torch.ones(100_000)})
    places.append(spill.add(second))
    for place, given in zip(places, (first, second), strict=True):
        assert_equal_tensors(dict(place), given)


def test_works_of_a_long_round_that_find_no_space_are_left_out_and_the_run_goes_on(
    trained: tuple[dict[str, Any], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = UnfinishedWorks(tmp_path)
    works.write(1, 100, lambda: ("0" * 32, bytes(100)))
    with at_most(1000), pytest.raises(OSError, match="File too large"):
        works.write(2, 5000, lambda: ("1" * 32, bytes(5000)))
    assert not (tmp_path / "unfinished").exists()  # the run's own files need the space
    works.write(3, 100, lambda: pytest.fail("the disk was full"))

    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        yield path

    monkeypatch.setattr(unfinished, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(unfinished, "replacing", full)
    scenario, whole = trained
    with pytest.warns(RuntimeWarning, match="can't write what clients of a long round trained") as told:
        run = edgefl.run(scenario, out=tmp_path / "run")
    assert len(told) == 1 and contents(run.path) == contents(whole.path)


def test_a_file_that_a_user_names_is_whole_or_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "page.html"
    link.symlink_to("real")
    with at_most(1000), pytest.raises(OSError), output(link) as file:
        file.write(bytes(5000))
    assert (tmp_path / "real").read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["page.html", "real"]
    with output(link) as file:
        file.write(b"new")
    assert link.is_symlink() and (tmp_path / "real").read_bytes() == b"new"


@FULL_DEVICE
def test_a_device_is_written_and_never_replaced() -> None:
    before = os.stat("/dev/full")
    with pytest.raises(OSError, match="No space left"), output(Path("/dev/full")) as file:
        file.write(b"page")
    assert (before.st_rdev, before.st_ino) == (os.stat("/dev/full").st_rdev, os.stat("/dev/full").st_ino)


@pytest.mark.parametrize(
    "form", ["csv", "parquet", "tensorboard", pytest.param("mlflow", marks=pytest.mark.slow)]
)  # an MLflow store alone takes seconds
def test_an_export_that_finds_no_space_is_an_error_and_can_be_repeated(
    bare: tuple[dict[str, Any], Run], tmp_path: Path, form: str
) -> None:
    pytest.importorskip({"csv": "pandas", "parquet": "pyarrow"}.get(form, form))
    whole = bare[1]
    with at_most(3000), pytest.raises(RunError, match=r"can't write [^\n]*$"):
        edgefl.export(whole.path, form, tmp_path / "out")
    gc.collect()
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".partial-")]
    edgefl.export(whole.path, form, tmp_path / "out")
    edgefl.export(whole.path, form, tmp_path / "other")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in (tmp_path / "other").iterdir()}
    if form != "mlflow":
        for path in (tmp_path / "out").iterdir():
            assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_figures_and_pages_that_find_no_space_are_errors_and_leave_no_part(
    bare: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    run = bare[1].path
    with at_most(2000):
        with pytest.raises(RunError, match="can't write .*report.html: File too large"):
            edgefl.report(run, tmp_path / "report.html")
        with pytest.raises(RunError, match="can't write .*: File too large"):
            edgefl.export(run, "figures", tmp_path / "figures", formats=["png"])
        with pytest.raises(RunError, match="can't write .*trace.json: File too large"):
            edgefl.export(run, "perfetto", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def ended(*arguments: str, folder: Path, stdout: Any, stderr: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgefl", *arguments],
        cwd=folder,
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=900,
    )


@FULL_DEVICE
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["compare", "{run}", "--as", "json"],
        pytest.param(["parts", "--as", "json"], marks=pytest.mark.slow),
        pytest.param(["compare", "{run}"], marks=pytest.mark.slow),
        pytest.param(["export", "{run}", "--to", "csv", "-o", "out"], marks=pytest.mark.slow),
        pytest.param(["profile", "quickstart", "--as", "json"], marks=pytest.mark.slow),
        pytest.param(["validate", "--schema", "-o", "/dev/full"], marks=pytest.mark.slow),
        pytest.param(
            ["run", "quickstart", "--set", "training.mode=none", "--set", "compare={}", "-o", "new"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_command_whose_answer_finds_no_space_ends_in_a_line(
    bare: tuple[dict[str, Any], Run], tmp_path: Path, arguments: list[str]
) -> None:
    words = [word.format(run=bare[1].path) if word == "{run}" else word for word in arguments]
    with open("/dev/full", "w") as full:
        done = ended(*words, folder=tmp_path, stdout=full, stderr=subprocess.PIPE)
    *_, last = done.stderr.splitlines()
    place = "/dev/full" if "/dev/full" in arguments else "to stdout"
    assert last == f"edgefl: error: can't write {place}: {os.strerror(errno.ENOSPC)}"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr and done.returncode == 2


@pytest.mark.slow(smaller="test_a_command_whose_answer_finds_no_space_ends_in_a_line")
@FULL_DEVICE
def test_messages_that_find_no_space_are_lost_and_the_command_goes_on(
    bare: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full:
        done = ended("compare", str(bare[1].path), "--as", "json", folder=tmp_path, stdout=subprocess.PIPE, stderr=full)
        assert done.returncode == 0 and json.loads(done.stdout)["rows"]
        done = ended("compare", "nowhere", folder=tmp_path, stdout=full, stderr=full)
        assert done.returncode == 2
