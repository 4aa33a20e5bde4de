"""How a run goes on: its folder is opened again, with the plug-ins, models and kernels' scratch that it began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from edgefl.cells.fingerprint import MAY_CHANGE
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchRow
from edgefl.errors import RunError
from edgefl.planning.setup import Setup
from edgefl.records.host import Scratch
from edgefl.records.reading import located_records
from edgefl.runs import RunDirectory, comparison, comparison_sets, create_comparison, is_comparison, read_run
from edgefl.runs.contents import read_json
from edgefl.runs.folders import check_formats, is_cut_short, json_text
from edgefl.runs.plug_in_files import check_plug_in_files
from edgefl.scenario import Scenario, load
from edgefl.scenario.document import spell


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
    """The compared fields of each combination, ``{label: {path: value}}``, and which row it is."""
    axes = scenario.axes()
    return {
        label: {spell(axis.path): value if axis.are_rows else _value_at(combination.to_data(), spell(axis.path))
                for axis, value in zip(axes, choice, strict=True)}
        for (label, combination), choice in zip(combinations, product(*(axis.values for axis in axes)), strict=True)
    }  # fmt: skip


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
