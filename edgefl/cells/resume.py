"""How a run goes on: its folder is opened again, with the plug-ins, models and kernels' scratch that it began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from edgefl.cells.fingerprint import MAY_CHANGE, fixed_part
from edgefl.cells.needs import check
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchRow
from edgefl.errors import RunError
from edgefl.planning.setup import Setup
from edgefl.records.host import Scratch
from edgefl.records.reading import located_records
from edgefl.runs import RunDirectory, comparison, comparison_sets, create_comparison, is_comparison, is_run, read_run
from edgefl.runs.contents import read_json
from edgefl.runs.digests import changed_parts
from edgefl.runs.folders import change_comparison, check_formats, is_cut_short, json_text
from edgefl.runs.plug_in_files import check_plug_in_files
from edgefl.scenario import Scenario, load
from edgefl.scenario.document import spell


def reopen_runs(
    folder: Path,
    overrides: Sequence[str],
    given: Scenario | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> list[tuple[str, Path, Scenario]]:
    """The runs of a folder, which go on as the scenario there says, with these changes, or as the ``given`` one says.

    A comparison gets a folder for each run that its scenario compares since.  Raises RunError for a change that a
    resumed run may not have, with the run and the field, for a begun run that the scenario compares no more, and for
    a finished run whose files changed; and what ``check`` raises for a run that is new.
    """
    for override in overrides if given is None else ():
        field = override.partition("=")[0].strip()
        if not any(field == allowed or field.startswith(f"{allowed}.") for allowed in MAY_CHANGE):
            raise RunError(
                f"--set {field}: a resumed run keeps its scenario; only executor.*, tracker and "
                "training.on_divergence may be set, on which results don't depend"
            )
    check_formats(folder)  # before the scenario, whose fields may be those of another version
    check_plug_in_files(folder)
    is_new = not is_comparison(folder)
    if is_new and not _can_begin(folder):
        read_run(folder)
    whole = load(folder / "scenario.yaml", overrides) if given is None else given
    combinations = dict(whole.combinations())
    if is_new and not whole.compare:
        _check_scenario(whole.name, folder, whole)
        return [(whole.name, folder, whole)]
    if is_new and is_run(folder):
        raise RunError(f"{folder} is a single run, but {whole.name} compares several; choose another folder")
    sets = sets_of(whole, list(combinations.items()))
    if is_new:
        folders = create_comparison(folder, scenario_yaml=whole.to_yaml(), runs=sets)
    else:
        folders = comparison(folder)
        begun = {label: path for label, path in folders.items() if is_run(path)}
        if gone := [label for label in begun if label not in combinations]:
            raise RunError(
                f"{folder} holds the run {gone[0]}, but its scenario compares {', '.join(combinations)}: put that run "
                "back into the scenario, or start a new comparison"
            )
        for label, path in begun.items():
            _check_scenario(label, path, combinations[label])
        for label in (each for each in combinations if each not in folders):
            check(combinations[label], on_message, folder)
        if given is not None or json.loads(json_text(sets)) != comparison_sets(folder):
            folders = change_comparison(folder, scenario_yaml=whole.to_yaml(), runs=sets)
    return [(label, folders[label], combination) for label, combination in combinations.items()]


def _check_scenario(label: str, folder: Path, scenario: Scenario) -> None:
    """Raise RunError, with the fields, if the run that was begun in a folder is that of another scenario."""
    before = fixed_part(load(folder / "scenario.yaml")) if is_run(folder) else {}
    if before and (differences := changed_parts(before, fixed_part(scenario))):
        raise RunError(
            f"{folder}: the run {label} was begun with another scenario: {'; '.join(differences[:5])}"
            f"{f' and {len(differences) - 5} more' if len(differences) > 5 else ''}; undo that, or start a new run"
        )


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
