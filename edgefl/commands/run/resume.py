"""How a run goes on: its folder is opened again, with the plug-ins, models and kernels' scratch that it began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.cells.fingerprint import MAY_CHANGE
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchRow
from edgefl.errors import RunError, ScenarioError
from edgefl.planning.setup import Setup
from edgefl.records.host import Scratch
from edgefl.records.reading import located_records
from edgefl.runs import RunDirectory, comparison, comparison_sets, create_comparison, is_comparison, read_run
from edgefl.runs.contents import read_json
from edgefl.runs.folders import check_formats, is_cut_short, json_text
from edgefl.scenario import Scenario, load


def reopen_runs(folder: Path, overrides: Sequence[str]) -> list[tuple[str, Path, Scenario]]:
    """The runs of a folder, with the changes that a resumed run may have.

    Raises RunError for another change, for a finished run whose files changed, and for a comparison of other runs
    than its folder holds.
    """
    for override in overrides:
        path = override.partition("=")[0].strip()
        if not any(path == allowed or path.startswith(f"{allowed}.") for allowed in MAY_CHANGE):
            raise RunError(
                f"--set {path}: a resumed run keeps its scenario; only executor.*, tracker and "
                "training.on_divergence may be set, on which results don't depend"
            )
    check_formats(folder)  # before the scenario, whose fields may be those of another version
    check_plug_in_files(folder)
    if not is_comparison(folder):
        if not _can_begin(folder):
            read_run(folder)
        scenario = load(folder / "scenario.yaml", overrides)
        if not scenario.compare:
            return [(scenario.name, folder, scenario)]
        sets = sets_of(scenario, scenario.combinations())
        create_comparison(folder, scenario_yaml=(folder / "scenario.yaml").read_text(encoding="utf-8"), runs=sets)
    folders = comparison(folder)
    whole = load(folder / "scenario.yaml", overrides)
    combinations = whole.combinations()
    sets = json.loads(json_text(list(sets_of(whole, combinations).values())))
    if list(comparison_sets(folder).values()) != sets:
        raise RunError(
            f"{folder / 'scenario.yaml'} compares {', '.join(label for label, _ in combinations)}, but the folder was "
            f"made for {', '.join(folders)}: its scenario has changed; undo that, or start a new run"
        )
    return [
        (label, path, combination)
        for (label, path), (_, combination) in zip(folders.items(), combinations, strict=True)
    ]


def _can_begin(folder: Path) -> bool:
    """Whether a start was cut short in a folder after it had written the scenario."""
    return folder.is_dir() and is_cut_short(folder) and (folder / "scenario.yaml").is_file()


def sets_of(scenario: Scenario, combinations: Sequence[tuple[str, Scenario]]) -> dict[str, dict[str, object]]:
    """The compared fields of each combination, ``{label: {path: value}}``."""
    return {
        label: {path: _value_at(combination.to_data(), path) for path in scenario.compare}
        for label, combination in combinations
    }


def _value_at(data: object, path: str) -> object:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def check_models(directory: RunDirectory, setup: Setup) -> None:
    """Raise RunError if a folder's ``models.json`` doesn't hold the models of its scenario."""
    models = {name: kind.model for name, kind in setup.method.setting.kinds.items()}
    if read_json(directory.path / "models.json") != json.loads(json_text(models)):
        directory.close()
        raise RunError(
            f"{directory.path / 'models.json'} doesn't hold the models of its scenario.yaml; restore that file from a "
            "copy, or start a new run"
        )


def keep_scratch(predictor: Predictor, directory: RunDirectory, round: int, on_message: Callable[[str], None]) -> None:
    """Predict with the kernels' scratch that the run's rounds up to ``round`` were predicted with.

    So eligibility is a function of what is recorded, on whatever machine the run goes on.
    """
    if predictor.scratch is None:
        return
    path = directory.table("scratch")
    rows = []
    for row, where in located_records(path, Scratch):
        if row.bytes < 0:
            raise RunError(f"{path.parent / where}: a kernel's scratch can't be {row.bytes} bytes; restore the file")
        if row.round <= round:
            rows.append(row)
    predictor.scratch.take_over(ScratchRow(r.call, r.operator, r.bytes, r.assumed, r.kernels) for r in rows)
    others = {row.kernels for row in rows} - {predictor.scratch.kernels}
    if others:
        on_message(
            f"kernels' scratch was measured with {sorted(others)[0]}; what the run lacks is measured with "
            f"{predictor.scratch.kernels}"
        )


SHOWN = 12
"""Digits of a hash in a message: 48 bits, by which a user tells two contents apart; the comparison reads all."""


def recorded_files(folder: Path) -> dict[str, str]:
    """SHA-256 by name of the plug-in files that a run, or the runs of a comparison, began with.

    Empty for a folder that holds no run.  Raises RunError for an ``environment.json`` that can't be read.
    """
    folders = comparison(folder).values() if is_comparison(folder) else [folder]
    found: dict[str, str] = {}
    for each in folders:
        path = each / "environment.json"
        entries = read_json(path).get("plug_ins", []) if path.is_file() else []
        if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
            raise RunError(f"{path}: plug_ins must be a list of entries with file and sha256")
        found |= {entry["file"]: entry["sha256"] for entry in entries}
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(isinstance(entry.get(name), str) for name in ("file", "sha256"))


def scenario_of_run(folder: Path) -> Scenario:
    """The scenario of a run.  Where it names a part that isn't known, a RunError asks for the run's plug-in files."""
    try:
        return load(folder / "scenario.yaml")
    except ScenarioError:
        check_plug_in_files(folder)
        raise


def check_plug_in_files(folder: Path) -> None:
    """Raise RunError unless the plug-in files of a run are loaded with the contents that it began with."""
    now = registry.plug_in_files()
    for name, sha256 in recorded_files(folder).items():
        if sha256 in now.values():  # it may have another name now
            continue
        if name not in now:
            raise RunError(
                f"the run at {folder} was made with the plug-in file {name} (SHA-256 {sha256[:SHOWN]}...), which isn't "
                f"loaded: add --plugin {name}, or import that module in Python first"
            )
        raise RunError(
            f"the run at {folder} was made with another content of the plug-in file {name}: SHA-256 "
            f"{sha256[:SHOWN]}... then, {now[name][:SHOWN]}... now; load the file as it was, or start a new run"
        )
