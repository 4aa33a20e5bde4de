"""A scenario as an app of Flower: its files, and what is no scenario or no run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import RunError, ScenarioError
from edgefl.scenario import load

Scenario = Callable[..., dict[str, Any]]


def test_an_app_has_the_scenario_its_two_parts_and_the_versions_of_this_machine(tiny: Scenario, tmp_path: Path) -> None:
    answer = edgefl.export(tiny(name="My study, 2"), "flower", tmp_path / "app", overrides=["round.deadline=90 s"])
    files = {Path(file).relative_to(tmp_path / "app").as_posix() for file in answer.files}
    assert files == {f.relative_to(tmp_path / "app").as_posix() for f in (tmp_path / "app").rglob("*") if f.is_file()}
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-study-2"
    flower = project["tool"]["flwr"]["app"]
    assert flower["config"]["patience"] == 90.0
    for part in flower["components"].values():
        module, _, name = part.partition(":")
        body = ast.parse((tmp_path / "app" / f"{module.replace('.', '/')}.py").read_text()).body
        assert name in {each.targets[0].id for each in body if isinstance(each, ast.Assign)}  # type: ignore[attr-defined]
    exported = load(tmp_path / "app" / "edgefl_app" / "scenario.yaml")
    assert exported.to_data() == load(tiny(name="My study, 2"), ["round.deadline=90 s"]).to_data()
    pinned = dict(line.split("==") for line in (tmp_path / "app" / "constraints.txt").read_text().splitlines())
    assert pinned["torch"] == version("torch").partition("+")[0] and pinned["edgefl-sim"] == edgefl.__version__
    assert project["project"]["dependencies"] == [f"{name}=={pinned[name]}" for name in ("flwr", "edgefl-sim")]


def test_what_is_no_scenario_or_no_run_is_said(tiny: Scenario, tmp_path: Path) -> None:
    run = edgefl.run(tiny(training={"mode": "none"}), out=tmp_path / "run")
    with pytest.raises(ScenarioError, match="this is a folder; a scenario is a YAML file"):
        edgefl.export(run.path, "flower", tmp_path / "app")
    with pytest.raises(RunError, match="csv takes the folder of a run alone; a scenario and --set are for executorch"):
        edgefl.export(tiny(), "csv", tmp_path / "app")
    with pytest.raises(RunError, match="say where to write the app, --out DIR"):
        edgefl.export(tiny(), "flower")
    with pytest.raises(ScenarioError, match="round.policy: not on real devices"):
        edgefl.export(tiny(round={"policy": "asynchronous"}), "flower", tmp_path / "app")
    assert not (tmp_path / "app").exists()
