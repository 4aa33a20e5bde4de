"""``edgefl doctor`` finds what is wrong, says what to do, and ends with 1."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import edgefl
from edgefl.commands.doctor import machine_checks
from edgefl.commands.doctor.machine_checks import (
    LEAST_DISK,
    LITTLE_DISK,
    cache_check,
    differing,
    disk_check,
    memory_check,
    package_check,
    packages,
    python_check,
)
from edgefl.console import main
from edgefl.runs import Run

PACKAGES = ("torch", "numpy", "pydantic", "torchvision", "transformers", "timm")


@pytest.mark.slow(smaller="test_runs_that_differ_in_a_bit_are_found")
def test_a_healthy_machine_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    heard: list[str] = []
    result = edgefl.doctor(on_progress=lambda event, facts: heard.append(event))
    checks = {check.name: check for check in result.checks}
    assert result.healthy and heard == ["prepare"]
    assert set(checks) >= {"Python", "edgefl", *PACKAGES, "import", "GPU", "cache", "disk", "memory"}
    assert all((check.advice is None) == (check.status == "ok") for check in result.checks)
    assert "bit for bit" in checks["determinism"].found and "every rule" in checks["run"].found
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands work without it, and take longer."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--quick"])
    out = capsys.readouterr().out
    assert not ended.value.code
    (line,) = (line for line in out.splitlines() if line.split()[1] == "cache")
    assert line.startswith("warning ") and "can't be written" in line and "EDGEFL_CACHE" in line
    assert all(line.split()[0] in ("ok", "warning", "error") for line in out.splitlines())


def test_what_the_cache_holds_is_told_with_its_place_and_its_bounds(tmp_path: Path) -> None:
    entry = tmp_path / "data" / "entry"
    entry.mkdir(parents=True)
    (entry / "a").write_bytes(b"x" * 3000)
    (tmp_path / "data" / "b").write_bytes(b"x" * 72)
    (tmp_path / "data" / "link").symlink_to("/dev/zero")
    found = cache_check(tmp_path).found
    assert found.startswith(f"{tmp_path}, with costs 0 B of 512 MiB, ")
    assert "data 3.01 KiB of 32 GiB" in found or "data 3 KiB of 32 GiB" in found
    assert cache_check(tmp_path / "new").status == "ok" and (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("wanted", "there", "status"),
    [
        ("simpy<5,>=4.1", "4.1.2", "ok"),
        ("simpy<5,>=4.1", "5.0", "error"),
        ("torch>=2.11", "2.9.1+cu128", "error"),
        ("torch>=2.11", "2.13.0+cpu", "ok"),
        ("torch>=2.11", "2.14.0.dev20260101", "ok"),
        ("torch>=2.11", None, "error"),
    ],
)
def test_a_package_is_held_to_what_edgefl_supports(wanted: str, there: str | None, status: str) -> None:
    check = package_check(Requirement(wanted), there)
    assert check.status == status
    assert check.advice is None if status == "ok" else f"pip install '{Requirement(wanted).name}" in str(check.advice)


def test_every_package_that_edgefl_needs_is_checked() -> None:
    checks = {check.name: check for check in packages()}
    assert {"edgefl", *PACKAGES} <= set(checks)
    assert all(check.status == "ok" for check in checks.values())
    assert "mlxtend" not in checks, "a package of an extra isn't needed"


@pytest.mark.parametrize(
    ("running", "status"), [((3, 10, 9), "error"), ((3, 11, 0), "ok"), ((3, 12, 4), "ok"), ((3, 99, 0), "warning")]
)
def test_a_version_of_python(running: tuple[int, int, int], status: str) -> None:
    assert python_check(running).status == status


def test_supported_versions_of_python_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    least, most = (".".join(map(str, each)) for each in (machine_checks.OLDEST_PYTHON, machine_checks.NEWEST_PYTHON))
    assert f'requires-python = ">={least}"' in text
    assert f"Python :: {most}" in text and f"Python :: 3.{machine_checks.NEWEST_PYTHON[1] + 1}" not in text


def test_free_space_is_graded(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    grade = machine_checks._grade_free_bytes
    assert [grade("disk", free, limits, "", "").status for limits in ((0, 0), (free + 1, 0), (free + 1, free + 1))] == [
        "ok",
        "warning",
        "error",
    ]
    assert LEAST_DISK < LITTLE_DISK
    check = disk_check({"here": tmp_path, "cache": tmp_path / "not" / "there"})
    assert check.found.startswith("here ") and ", cache " in check.found
    assert "cores" in memory_check().found


def test_runs_that_differ_in_a_bit_are_found(layerwise_run: Run, tmp_path: Path) -> None:
    shutil.copytree(layerwise_run.path, tmp_path / "copy")
    assert differing(layerwise_run.path, tmp_path / "copy") == []
    path = tmp_path / "copy" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert differing(layerwise_run.path, tmp_path / "copy") == ["weights.safetensors"]


@pytest.mark.parametrize(
    "broken", ["torch", *(pytest.param(each, marks=pytest.mark.slow) for each in ("numpy", "msgspec", "rich"))]
)
def test_a_package_that_is_broken_is_an_answer_and_no_traceback(tmp_path: Path, broken: str) -> None:
    """One that can't be imported, as after an installation that was cut off."""
    (tmp_path / broken).mkdir()
    (tmp_path / broken / "__init__.py").write_text("raise ImportError('lib.so: no such file')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop()); from edgefl.console import main; main(['doctor', '--quick'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr + done.stdout and "ok      Python" in done.stdout
    if broken in ("torch", "numpy"):  # the others are the tables' and the records'
        assert done.returncode == 1 and "error   import" in done.stdout and "lib.so: no such file" in done.stdout
