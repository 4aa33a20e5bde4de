"""Run a scenario in its folder, or go on with it there; several in turn or side by side."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from edgefl.cells.cells import Nodes, run_cells
from edgefl.cells.fingerprint import (
    check_importable,
    inputs_of,
    report_changed_inputs,
    run_fingerprint,
)
from edgefl.cells.needs import check_open_files, check_updates, expect_works, idle_parts, memory_for_updates
from edgefl.cells.resume import check_models, keep_scratch
from edgefl.cells.workers import Cell
from edgefl.data import Federation
from edgefl.data.figure import draw_partition
from edgefl.drawing.charts import draw_curves
from edgefl.errors import DataError, DivergedError, RunError
from edgefl.records.metrics import best_metrics
from edgefl.records.rounds import Round
from edgefl.results.facts import evaluation_of
from edgefl.runs import RunDirectory, is_comparison, is_run, read_run
from edgefl.runs.environment import environment
from edgefl.runs.folders import check_finished, tidy
from edgefl.runs.plug_in_files import check_plug_in_files
from edgefl.runs.progress import OnProgress, messages
from edgefl.runs.trackers import Tracked, check_tracker, log_of
from edgefl.scenario import Scenario
from edgefl.setup.compose import compose, federation_of, predictor_of
from edgefl.simulation import OnRound, Simulation
from edgefl.simulation.watch import best_round
from edgefl.training import Executor, ProcessExecutor, RememberingExecutor, make_executor
from edgefl.training.pretraining import Pretraining
from edgefl.work.torch_device import threads


def run_parts(
    parts: Sequence[tuple[str, Path, Scenario]],
    on_progress: OnProgress,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    address: str | None = None,
    on_round: OnRound | None = None,
) -> None:
    """Run or resume these ``(label, folder, scenario)`` in turn, or ``jobs`` of them side by side.

    With an ``address`` they run on the nodes of the Ray cluster there.  ``on_round`` is for runs in turn only.

    Consecutive scenarios with the same data share their workers.  ``overrides`` are the changes that a resumed run was
    given; its folder records them.  Raises DivergedError, after all others have ended, for those that diverged; side
    by side another error waits for the others, too.
    """
    errors: dict[str, Exception] = {}
    if address is not None or (jobs > 1 and len(parts) > 1):
        on_progress("cells", {"folder": str(parts[0][1]), "of": len(parts)})
        cells = [Cell(label, (folder, label, scenario, tuple(overrides)), folder) for label, folder, scenario in parts]
        nodes = None
        if address is not None:
            nodes = Nodes(address, [scenario for _, _, scenario in parts], [folder.parent for _, folder, _ in parts])
        outcomes = run_cells(_run_cell, cells, jobs, on_progress, nodes)
        errors = {each.label: each.error for each in outcomes if each.error is not None}
    else:
        with ExitStack() as stack:
            executors = Executors(stack)
            for index, (label, folder, scenario) in enumerate(parts):
                on_progress("combination", {"label": label, "index": index, "of": len(parts), "folder": str(folder)})
                try:
                    _run_one(folder, label, scenario, executors, on_progress, overrides, on_round)
                except DivergedError as error:
                    errors[label] = error
    if len(parts) == 1 and errors:
        raise next(iter(errors.values()))
    if errors:
        told = "; ".join(f"{label}: {error}" for label, error in errors.items())
        if all(isinstance(error, DivergedError) for error in errors.values()):
            raise DivergedError(told)
        whole = parts[0][1].parent
        again = f"edgefl run --resume {whole}" if is_comparison(whole) else "the same command again"
        failure = RunError(f"{len(errors)} of {len(parts)} failed: {told}; the others have ended; go on with: {again}")
        failure.exit_code = max(getattr(error, "exit_code", 1) for error in errors.values())
        raise failure


def _run_cell(argument: tuple[Path, str, Scenario, tuple[str, ...]], on_progress: OnProgress) -> None:
    """``_run_one`` in a worker process."""
    folder, label, scenario, overrides = argument
    with ExitStack() as stack:
        _run_one(folder, label, scenario, Executors(stack), on_progress, overrides)


def run_until(
    folder: Path, label: str, scenario: Scenario, round: int, executors: Executors, on_progress: OnProgress
) -> None:
    """Play the rounds of a scenario up to this one in its folder, from its last checkpoint, and leave it unfinished.

    A later call, or ``run`` with ``resume``, goes on from there.  Nothing is drawn, and there are no final weights,
    even after the schedule's last round.  Raises DivergedError, and what else a run ends with.
    """
    _run_one(folder, label, scenario, executors, on_progress, (), until=round)


def run_undrawn(folder: Path, label: str, scenario: Scenario, executors: Executors, on_progress: OnProgress) -> None:
    """Run a scenario in its folder without drawing pictures, or go on from its last finished round.

    A run that is finished stays as it is.  Raises DivergedError, and what else a run ends with.
    """
    _run_one(folder, label, scenario, executors, on_progress, (), pictures=False)


def _run_one(
    folder: Path,
    label: str,
    scenario: Scenario,
    executors: Executors,
    on_progress: OnProgress,
    overrides: Sequence[str],
    on_round: OnRound | None = None,
    until: int | None = None,
    pictures: bool = True,
) -> None:
    """Run a scenario in its folder, from the last finished round if it was begun before.

    With ``until`` it plays the rounds up to this one and leaves the run unfinished.
    """

    on_message = messages(on_progress)

    check_plug_in_files(folder)
    if is_run(folder) and read_run(folder).is_finished:
        check_finished(folder)
        tidy(folder)
        return
    check_tracker(scenario.tracker.name, folder)  # a resumed run may set another
    trains = scenario.training.mode == "real"
    if trains:
        check_open_files(scenario)
    executor = executors.executor_for(scenario, on_message) if trains else None
    setup = compose(scenario, on_message)
    check_importable(scenario, setup)  # a resumed run may set workers
    continued = is_run(folder)
    if continued and (folder / "nodes.jsonl").exists():
        raise RunError(f"{folder} is of real devices, which a simulation can't go on for: begin another run")
    if continued and trains:
        check_updates(scenario, setup, folder, on_message)  # another machine may go on with it
    if continued:
        directory = RunDirectory.open(folder)
        if directory.is_finished:  # by another process, since this one looked
            directory.close()
            check_finished(folder)
            return
        check_models(directory, setup)
    else:
        directory = RunDirectory.create(
            folder,
            scenario_yaml=scenario.to_yaml(),
            environment=environment(),
            models={name: kind.model for name, kind in setup.method.setting.kinds.items()},
        )
    directory.keep = scenario.executor.checkpoints
    directory.in_background = True
    with directory:
        federation = federation_of(scenario, on_message)
        works = setup.evaluations(setup.evaluation.final, setup.schedule.stage(setup.schedule.rounds))
        scored = {kind: work.model for work, kinds in works for kind in kinds}
        directory.write_evaluation(evaluation_of(read_run(folder), federation.server_samples, scored))
        if trains:
            _keep_preprocessing(directory, federation)
            if isinstance(pretrained := setup.method.setting.pretrained, Pretraining):
                pretrained.save(directory.path)
        latest = directory.latest()
        predictor = predictor_of(scenario)
        keep_scratch(predictor, directory, latest[0] if latest else 0, on_message)
        tracked = Tracked(on_progress)
        simulation = Simulation(
            setup,
            RememberingExecutor(executor, directory.works, directory.facts) if executor is not None else None,
            predictor,
            directory,
            tracked,
            events=scenario.executor.clock == "events",
            updates_memory=memory_for_updates(scenario),
            on_divergence=scenario.training.on_divergence,
            on_round=on_round,
        )
        expect_works(executor, scenario, setup, predictor)
        for text in idle_parts(setup, predictor, predictor):
            on_message(text)
        directory.made_of = run_fingerprint(scenario, setup, predictor.device)
        directory.inputs = inputs_of(federation, simulation.state.tensors)
        if continued:
            report_changed_inputs(directory.check_unchanged(latest[0] if latest else 0), directory.inputs, on_message)
        if continued and not latest:
            told = f"the run at {folder} has no checkpoint: it begins at round 1"
            if rounds := directory.recorded_rounds():
                upto = f"rounds 1 to {rounds} are" if rounds > 1 else "round 1 are"
                told = f"{told}, and its records of {upto} computed again and replaced"
                warnings.warn(told, RuntimeWarning, stacklevel=2)
            on_message(told)
        if not latest:
            directory.write_begun()
        directory.rewind(latest[0] if latest else 0, best_round(latest[2] if latest else {}))
        if latest:
            simulation.load_data(*latest[1:])
        if continued:
            directory.record_resume(latest[0] if latest else 0, scenario.to_yaml(), overrides, environment())
        tracked.open(lambda: log_of(scenario.tracker.name, folder, label, scenario.to_data()))
        for record in read_run(folder).read(Round) if scenario.tracker.name != "none" else ():
            tracked.round(record)
        clients = {kind: len(setup.of_kind(kind)) for kind in setup.clients.kinds}
        on_progress("start", {"rounds": setup.schedule.rounds, "round": simulation.run.at.round, "clients": clients})
        gc.freeze()  # the set-up stays alive, and collecting over it takes as long as many events
        try:
            with threads(1):  # more would only wait: what the server adds up is small, or workers use the cores
                result = simulation.play(until)
        finally:
            tracked.close(finished=simulation.is_over and until is None)
            gc.unfreeze()  # the next combination of a comparison needs the memory of this one
        if until is not None:
            return
        if trains and pictures:
            draw_partition(federation, directory.path / "partition.png")
        if pictures:
            draw_curves(read_run(folder))
        if (reported := scenario.evaluation.reported) is not None:
            scores = [record.metrics for record in read_run(folder).read(Round)][-reported.last :]
            result = replace(result, metrics=best_metrics(scores))
        directory.finish(setup.method.exported_tensors(simulation.state) if trains else {}, result)


def _keep_preprocessing(directory: RunDirectory, federation: Federation) -> None:
    """Write how the models' inputs are made, and the tokenizer; a federation without texts has none."""
    if of_kinds := federation.preprocessing():
        directory.write_preprocessing(of_kinds)
    with suppress(DataError):
        directory.write_tokenizer(federation.tokenizer.to_str(pretty=True))


class Executors:
    """The executor of the current scenario; consecutive combinations with the same data and executor share it."""

    def __init__(self, stack: ExitStack):
        self._stack, self._key = stack, ""
        self._executor: Executor | None = None

    def executor_for(self, scenario: Scenario, on_message: Callable[[str], None]) -> Executor:
        """The open executor for a scenario; closes the previous one if that doesn't suit it."""
        data, options, tokens = scenario.data, scenario.executor, scenario.model.tokens
        key = f"{data!r} {options!r} {scenario.seed} {tokens} {scenario.evaluation.clients}"
        if self._executor is None or key != self._key:
            if self._executor is not None:
                self._executor.close()
            federation = federation_of(scenario, on_message)
            if options.name == "ray":
                on_message(f"starting {options.workers} workers on Ray")
            executor = make_executor(options, federation, data, scenario.seed, tokens, None)
            self._stack.push(executor)
            self._executor, self._key = executor, key
            if isinstance(executor, ProcessExecutor):
                on_message(f"starting {options.workers} worker processes")
                executor.warm()
        return self._executor
