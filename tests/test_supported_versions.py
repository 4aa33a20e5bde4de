"""The two ends of the supported versions, which `.ci/run --slow` tests, are those that pyproject.toml promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
EXTRAS = ("hub", "data", "audio", "minilm", "tensorboard", "mlflow", "notebook", "privacy", "ray", "tune")


def pinned(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert len({package for package, _ in pairs}) == len(pairs) > 50
    return {package: Version(version) for package, version in pairs}


def direct() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = (project["dependencies"], *(project["optional-dependencies"][name] for name in EXTRAS))
    return [Requirement(line) for lines in lists for line in lines]


@pytest.mark.parametrize("requirement", direct(), ids=str)
def test_the_lowest_version_is_the_lower_bound(requirement: Requirement) -> None:
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==")]
    assert bounds == [pinned("constraints-lowest.txt")[requirement.name]]


@pytest.mark.parametrize("requirement", direct(), ids=str)
def test_the_highest_version_is_allowed_and_at_least_the_pinned_one(requirement: Requirement) -> None:
    highest = pinned("constraints-highest.txt")[requirement.name]
    assert highest in requirement.specifier and highest >= pinned("constraints.txt")[requirement.name]


def test_ci_takes_both_files() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^  step .* versions (\w+)$", script, re.MULTILINE) == ["lowest", "highest"]
    assert "constraints-$1.txt" in script
