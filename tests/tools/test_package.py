"""What a wheel and an sdist mustn't hold, lack or say is named: files made by hand, each with one thing wrong."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import package

SOURCES = ["pyproject.toml", "edgefl/units.py", "profiles/devices/a.yaml", "scenarios/b.yaml"]
INSIDE = ["edgefl/units.py", "edgefl/shipped/profiles/devices/a.yaml", "edgefl/shipped/scenarios/b.yaml"]
ABOUT = "Metadata-Version: 2.4\nName: edgefl-sim\nVersion: 1\nDescription-Content-Type: text/markdown\n"
TEXT = "\n# edgefl\n[torch](https://pytorch.org)\n"


def faults(
    folder: Path, *, inside: list[str] | None = None, sources: list[str] = SOURCES, about: str = ABOUT + TEXT
) -> list[str]:
    """What is said of a wheel with these files and this METADATA, and an sdist with these sources."""
    wheel, sdist = folder / "w.whl", folder / "s.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in INSIDE if inside is None else inside:
            archive.writestr(name, "")
        archive.writestr("edgefl_sim-1.dist-info/METADATA", about)
    with tarfile.open(sdist, "w:gz") as made:
        for name in sources:
            made.addfile(tarfile.TarInfo(f"edgefl_sim-1/{name}"), io.BytesIO())
    return list(package.faults(wheel, sdist))


def test_nothing_is_said_of_a_package_that_has_what_it_needs(tmp_path: Path) -> None:
    assert faults(tmp_path) == []


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("tests/test_units.py", ["isn't part of the package", "is a test or a tool"]),
        ("tools/bench.py", ["isn't part of the package", "is a test or a tool"]),
        ("edgefl/__pycache__/units.pyc", ["isn't part of the package", "is a cache or an environment"]),
    ],
)
def test_what_a_wheel_must_not_have(tmp_path: Path, extra: str, said: list[str]) -> None:
    found = faults(tmp_path, inside=[*INSIDE, extra])
    assert len(found) == len(said) and all(
        extra in line and words in line for line, words in zip(found, said, strict=True)
    )


def test_tests_within_the_package_are_found_too(tmp_path: Path) -> None:
    test = "edgefl/cost/test_cost.py"
    assert faults(tmp_path, inside=[*INSIDE, test], sources=[*SOURCES, test]) == [f"w.whl: {test} is a test or a tool"]


def test_what_a_wheel_lacks(tmp_path: Path) -> None:
    assert faults(tmp_path, inside=INSIDE[:-1]) == [f"w.whl lacks {INSIDE[-1]}"]


def test_an_environment_in_the_sdist(tmp_path: Path) -> None:
    assert faults(tmp_path, sources=[*SOURCES, ".venv/pyvenv.cfg"]) == [".venv/pyvenv.cfg is a cache or an environment"]


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LARGEST_WHEEL", 100)
    assert faults(tmp_path) == ["w.whl has more than 100 bytes"]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (ABOUT + TEXT + "[limits](docs/evidence/limits.md#time)", "(docs/evidence/limits.md#time) leads nowhere"),
        (ABOUT + TEXT + '<img src="docs/a.svg">', '<img src="docs/a.svg"> leads nowhere'),
        (ABOUT + "License-Expression: no such license\n" + TEXT, "license-expression"),
    ],
)
def test_what_an_index_refuses_or_shows_broken(tmp_path: Path, about: str, said: str) -> None:
    (line,) = faults(tmp_path, about=about)
    assert said in line


def test_every_promised_python_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = [f"Programming Language :: Python :: {each}" for each in ("3.11", "3.987")]
    (tmp_path / "pyproject.toml").write_text(f"[project]\nclassifiers = {classes}\n")
    monkeypatch.setattr(package, "ROOT", tmp_path)
    found = dict(package.pythons())
    assert found.keys() == {"3.11", "3.987"} and found["3.987"] is None
