"""What a run needs before it begins: samples, weights, GPUs' memory, room for updates, the metrics that it follows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from edgefl import garbage, models, registry
from edgefl.cells.fingerprint import check_importable
from edgefl.cost.predict import Predictor, metric_names, parts_of, passes_key
from edgefl.errors import DataError, RunError, suggestion
from edgefl.machine.host import free_bytes
from edgefl.memo import cache_folder
from edgefl.models import peft_folder, quantised
from edgefl.models.word_vectors import read_vectors
from edgefl.planning.offers import Prices, choose
from edgefl.planning.planner import Planner
from edgefl.planning.rules import checked_rounds
from edgefl.planning.setup import Setup
from edgefl.planning.workload import LEFT_OUT, stage_eligibility, workload_of
from edgefl.records.metrics import MEAN, with_means
from edgefl.results.fitting import Fitting, nobody_fits
from edgefl.scenario import Scenario
from edgefl.setup.compose import compose, errors_at, federation_of, predictor_of
from edgefl.training import Executor, ProcessExecutor
from edgefl.training.packing import DeviceMemory
from edgefl.training.pools import Packing
from edgefl.units import show_bytes
from edgefl.work.description import Description, Work, digest
from edgefl.work.torch_device import device_of


def check(
    scenario: Scenario, on_message: Callable[[str], None], folder: Path = Path("runs"), *, brief: bool = False
) -> Setup:
    """Compose a scenario, and raise the errors with which ``run`` refuses it before it writes anything.

    Beside those of ``compose``: a device that this machine lacks, data without samples, a tracker that isn't installed,
    a metric to follow that the evaluation lacks, weights that are missing or belong to another model, updates that
    neither the memory nor the disk of the run's ``folder`` holds, and works without a price (``check_steps``).
    """
    if scenario.tracker.name != "none":
        from edgefl.runs.trackers import check_tracker  # which imports all records

        check_tracker(scenario.tracker.name, folder)
    setup = compose(scenario, on_message)
    if scenario.training.mode == "none":
        check_steps(scenario, setup, brief=brief)
        return setup
    check_devices(scenario, setup)
    check_open_files(scenario)
    check_importable(scenario, setup)
    if federation_of(scenario, on_message).is_declared_only:
        raise DataError(
            f"{scenario.name} declares the shapes of its data and has no samples to train on: "
            "edgefl profile and edgefl sweep predict its cost, and --set training.mode=none simulates it"
        )
    check_followed(scenario, setup)
    check_updates(scenario, setup, folder, on_message)
    checked = set()  # kinds share towers
    for kind in setup.method.setting.kinds.values():
        for tower, source in kind.weights.items():
            key = (tower, digest(kind.model["towers"].get(tower)))
            if key not in checked:
                with errors_at(scenario, "model", tower, "weights"):
                    models.check_weights(kind.model, tower, source)
                checked.add(key)
        for tower, source in kind.adapter_weights.items():
            described = quantised.without(kind.model)
            with errors_at(scenario, "adapter", "weights"):
                peft_folder.read_peft_folder(models.on_meta(described), described, tower, source)
    for tower, source in scenario.model.vectors.items():
        with errors_at(scenario, "model", tower, "vectors"):
            tokens = setup.method.setting.token_ids()
            ids, _ = read_vectors(source, tokens, scenario.model.towers[tower].embedding)
        on_message(f"{len(ids):,} of {len(tokens):,} tokens are words of {source}, the others start at random")
    check_steps(scenario, setup, brief=brief)
    return setup


def check_steps(scenario: Scenario, setup: Setup, *, brief: bool) -> None:
    """Price the work of each kind at each stage, and the evaluations of a run that trains; they must have samples, too.

    A client with a single sample has steps of its own.  Of edgefl's own parts, which work at every depth, the last
    stage is enough, and with ``brief`` a step of the whole model.  The run finds the other prices in the cache.  Raises
    ScenarioError or UncountedOperator for what has no price: the run would end so.
    """
    makers = {("method", scenario.method_name), ("schedule", scenario.schedule_name)}

    def is_own(work: Description) -> bool:
        return all(registry.origin(*part).package == "edgefl" for part in makers | parts_of(work))

    planner = Planner(setup, brief_predictor(scenario, lambda work: brief and is_own(work)))
    schedule, evaluation = setup.schedule, setup.evaluation
    samples, server = np.asarray(setup.clients.client_samples), setup.clients.server()
    # the first price imports torch's compiler
    with garbage.pausing_collection(), errors_at(scenario, "model"):
        for stage, kind, round, variant in checked_rounds(setup.method, schedule):
            members = setup.of_variant(kind, variant)
            if not len(members) or not setup.participates(kind, round):
                continue
            form, base = planner.form(kind, round, stage, variant)
            single, own = members[samples[members] == 1][:1].tolist(), is_own(form)
            for client in {int(members[samples[members].argmax()]), *single}:
                if own and brief:
                    whole, source = setup.method.client_work(kind, round, variant), setup.clients.client(client)
                    planner.predictor.trace(whole.limit_batches(source.size), source)
                elif not own or stage.index == schedule.stages[-1].index:
                    planner.compute(form, planner.scalars(kind, round, stage, variant), base, client)
    follows = scenario.stop.metric or evaluation.best
    splits = [evaluation.split] if follows or evaluation.every < schedule.rounds else []
    for split in dict.fromkeys([*splits, evaluation.final]) if scenario.training.mode == "real" else ():
        with errors_at(scenario, "method"):
            works = setup.evaluations(split, schedule.stage(schedule.rounds))
        for work, _ in works:
            with errors_at(scenario, "data", split):
                passes_key(work, server)  # asks for their samples
            if not is_own(work):
                with errors_at(scenario, "model"):
                    planner.server(work)


def brief_predictor(scenario: Scenario, brief: Callable[[Work], bool] = lambda _: True) -> Predictor:
    """A predictor that tries a step of each work that is ``brief``, without what kernels take beside it."""
    return Predictor(cache_folder() / "costs", predictor_of(scenario).device, brief=brief)


def idle_parts(setup: Setup, predictor: Predictor, brief: Predictor) -> list[str]:
    """Sentences that say that nobody can train: at all, or of a kind or in a stage; none as a rule.

    Where a client of each kind has budgets for what ``brief`` says of its largest client's last stage, no more is
    priced; a stage before the last in which nobody fits shows when it is played.
    """
    if setup.round.gate != "eligible":
        return []
    planner, fleet, samples = Planner(setup, brief), setup.fleet, np.asarray(setup.clients.client_samples)
    able, asked, last = set[str](), set[str](), setup.schedule.stages[-1].index
    for stage, kind, round, variant in checked_rounds(setup.method, setup.schedule):
        members = setup.of_variant(kind, variant)
        if stage.index == last and len(members) and setup.participates(kind, round):
            demand = planner.demand(int(members[samples[members].argmax()]), round, stage)
            priced = Prices([demand], fleet.budget_names).on(fleet.pairs, fleet.throttling)
            works, budgets = np.zeros(len(members), np.int32), setup.budgets(members, fleet)
            if choose({last: works}, fleet.pair_index[members], priced, budgets, why=False).eligible.any():
                able.add(kind)
            asked.add(kind)
    if able == asked:
        return []
    workload, fitting = workload_of(setup, predictor), list[Fitting]()
    priced = workload.prices.on(fleet.pairs, fleet.throttling)
    for turn in stage_eligibility(workload):
        for kind in setup.clients.kinds:
            members = setup.of_kind(kind)
            members = members[turn.work[members] != LEFT_OUT]
            costs = priced.work_costs(turn.work[members], fleet.pair_index[members])
            of_budget = {name: costs[name][turn.binding[members] == i] for i, name in enumerate(fleet.budget_names)}
            least = {name: float(values.min()) for name, values in of_budget.items() if len(values)}
            if len(members):
                fitting.append(Fitting(turn.stage.index, kind, int(turn.eligible[members].sum()), least))
    return nobody_fits(fitting)


def peaks_of(planner: Planner) -> dict[str, int]:
    """Predicted peak bytes, kernels' scratch included, of each kind's largest client at each stage, and of evaluations.

    A work of a method that changes later isn't among them,
    nor is one of the server's beside evaluations: executors learn of those when they come.
    """
    setup, peaks = planner.setup, dict[str, int]()
    schedule, samples = setup.schedule, np.asarray(setup.clients.client_samples)
    for first in accumulate((stage.rounds for stage in schedule.stages[:-1]), initial=1):
        if first > schedule.rounds:
            break
        staged = schedule.offered is schedule.stages
        for stage in (schedule.stage(first),) if staged else schedule.offered:
            for kind, variant in setup.variants:
                members = setup.of_variant(kind, variant)
                if not len(members) or not setup.participates(kind, first):
                    continue
                largest = int(members[int(samples[members].argmax())])
                form, base = planner.form(kind, first, stage, variant)
                scalars = planner.scalars(kind, first, stage, variant)
                _, _, cost = planner.compute(form, scalars, base, largest)
                what = f"the work of kind {kind!r} at stage {stage.index}"
                peaks[what] = max(peaks.get(what, 0), cost.peak_memory_bytes)
        for split in {setup.evaluation.split, setup.evaluation.final}:
            for work, _ in setup.evaluations(split, schedule.stage(first)):
                what = f"the evaluation of kind {work.kind!r}"
                peaks[what] = max(peaks.get(what, 0), planner.server(work)[1].peak_memory_bytes)
    return peaks


def check_devices(scenario: Scenario, setup: Setup, memories: Sequence[DeviceMemory] | None = None) -> None:
    """Raise TrainingError for a device that this machine lacks, ScenarioError for a client that fits on no GPU.

    Worker processes share GPUs by predicted memory, so only there it is compared; ``memories`` are the GPUs' bytes,
    asked for if they aren't given.
    """
    options = scenario.executor
    if options.name == "ray":  # its nodes have the GPUs
        return
    devices = [device_of(name) for name in options.devices]
    if options.name == "inline" or (devices[0].type == "cpu" and memories is None):
        return
    packing = Packing([str(device) for device in devices], memories)
    peaks = peaks_of(Planner(setup, predictor_of(scenario)))
    if peaks and not packing.places(1, peaks.values()):
        what, peak = max(peaks.items(), key=lambda item: item[1])
        raise scenario.error(("executor", "device"), packing.refusal(what, peak))


def expect_works(executor: Executor | None, scenario: Scenario, setup: Setup, predictor: Predictor) -> None:
    """Tell workers that share GPUs which works will come; raises TrainingError if one fits nowhere."""
    if isinstance(executor, ProcessExecutor) and executor.packs:
        executor.expect(peaks_of(Planner(setup, predictor)))


@dataclass(frozen=True)
class WaitingUpdates:
    """The updates that the server holds until a round ends, at most, and their bytes as the server reads them."""

    updates: int
    bytes: int


def held_updates(setup: Setup) -> WaitingUpdates:
    """The updates that the server holds at a time: none if it adds them up, or mixes them in, as they land."""
    method, options, rounds = setup.method, setup.round, range(1, setup.schedule.rounds + 1)
    policy = options.build_policy()
    if (method.adds_up and not policy.overlapping) or policy.at_once:
        return WaitingUpdates(0, 0)
    kinds = [kind for kind in setup.clients.kinds if kind not in options.leave_out]
    population = {kind: len(setup.of_kind(kind)) for kind in kinds}
    if not sum(population.values()):
        return WaitingUpdates(0, 0)
    of_all = next(filter(method.draws_all, rounds if method.has_other_draws else ()), None)
    everyone = 0 if of_all is None else sum(n * _upload_bytes(setup, kind, [of_all]) for kind, n in population.items())
    firsts = accumulate((stage.rounds for stage in setup.schedule.stages[:-1]), initial=1)
    usual = [first for first in firsts if first in rounds and not method.draws_all(first)]
    sizes = {kind: _upload_bytes(setup, kind, usual) for kind in kinds}
    counts = options.seats(population)
    total = sum(counts.values())
    held = policy.holds(total)
    most = held * max(sizes.values())
    if options.stratify and not policy.overlapping and held == total:
        most = sum(n * sizes[kind] for kind, n in counts.items())
    return WaitingUpdates(held, most) if most >= everyone else WaitingUpdates(sum(population.values()), everyone)


def _upload_bytes(setup: Setup, kind: str, rounds: Sequence[int]) -> int:
    """Bytes of a client's decoded upload in that of these rounds, and at the stage, at which they are most."""
    schedule, most = setup.schedule, 0
    for round in rounds:
        if not setup.participates(kind, round):
            continue
        staged = schedule.offered is schedule.stages
        for variant in setup.method.variants[kind]:
            full = setup.method.client_work(kind, round, variant)
            for stage in (schedule.stage(round),) if staged else schedule.offered:
                work = setup.restrict_to_stage(full, stage)
                most = max(most, sum(item.spec.bytes for payload in work.up for item in payload.items))
    return most


def memory_for_updates(scenario: Scenario) -> int:
    """Bytes of memory that updates may take which wait for the end of their round."""
    asked = scenario.executor.updates_memory
    return free_bytes() // 2 if asked is None else asked


def check_updates(scenario: Scenario, setup: Setup, folder: Path, on_message: Callable[[str], None]) -> None:
    """Compare the updates that a round holds with this machine's memory and with its disk at ``folder``.

    ``on_message`` is told where they are to lie if the memory doesn't hold them.  Raises ScenarioError with the numbers
    if the disk doesn't either.
    """
    need, memory = held_updates(setup), memory_for_updates(scenario)
    if need.bytes <= memory:
        return
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    disk = shutil.disk_usage(place).free
    facts = (
        f"the {need.updates:,} updates of a round need {show_bytes(need.bytes)} on the server; this machine has "
        f"{show_bytes(memory)} for them in memory (executor.updates_memory) and {show_bytes(disk)} at {place}"
    )
    if need.bytes - memory > disk:
        field: str = scenario.round.build_policy().size
        raise scenario.error(tuple(field.split(".")), f"{facts}; allowed: {_list_remedies(scenario, setup, field)}")
    on_message(f"{facts}: those beyond the memory lie in a temporary file there")


def _list_remedies(scenario: Scenario, setup: Setup, field: str) -> str:
    """What a scenario may change so that the server holds fewer updates."""
    smaller = f"a smaller {field}"
    if not setup.method.streams:
        return f"{smaller}, or a method that adds updates up as they land ({scenario.method_name} reads all at once)"
    if not scenario.aggregation.adds_up:
        return f"{smaller}, or a rule that averages (aggregation.rule: mean)"
    if setup.method.setting.averages_products:
        return f"{smaller}, or a schedule that averages factors (flexlora averages their products)"
    return f"{smaller}, or round.policy: synchronous, which adds updates up as they land"


def check_followed(scenario: Scenario, setup: Setup) -> None:
    """Raise ScenarioError, with file and line, for a metric that the evaluation of its kind doesn't write."""
    followed: list[tuple[tuple[str, ...], str | None]] = [
        (("stop", "metric"), scenario.stop.metric),
        (("evaluation", "best"), scenario.evaluation.best),
    ]
    if (until := getattr(scenario.schedule_options, "until", None)) is not None and not until.is_loss:
        followed.append((("schedule", "until", "metric"), until.metric))
    if all(metric is None for _, metric in followed):
        return
    with errors_at(scenario, "method"):
        there = written_metrics(setup, setup.evaluation.split)
    for path, metric in followed:
        if metric is not None and metric not in there:
            kind, _, name = metric.partition(".")
            names = [each.removeprefix(f"{kind}.") for each in there if each.startswith(f"{kind}.")]
            lacks = "no kind's evaluation has" if kind == MEAN else f"the evaluation of {kind} has no"
            raise scenario.error(path, f"{lacks} {name!r}{suggestion(name, names)}")


def written_metrics(setup: Setup, split: str) -> list[str]:
    """The metrics that evaluations on a split write, ``KIND.NAME``, and then their means over kinds."""
    works, source = setup.evaluations(split, setup.schedule.stage(1)), setup.clients.server()
    return with_means(f"{kind}.{name}" for work, of in works for name in metric_names(work, source) for kind in of)


FILES_AT_LEAST, FILES_PER_WORKER = 40, 12
"""File descriptors of a run with worker processes, and those that each worker adds, counted in ``/proc/self/fd``."""


def check_open_files(scenario: Scenario) -> None:
    """Raise RunError if the system lets this process open too few files for the scenario's worker processes."""
    if scenario.executor.name != "processes":
        return
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    workers, (limit, _) = scenario.executor.workers, resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_AT_LEAST + FILES_PER_WORKER * workers
    if 0 <= limit < needed:
        raise RunError(
            f"executor.workers: {workers} worker processes need about {needed} open files, and the limit of this "
            f"process is {limit} (ulimit -n); raise it, or set fewer workers"
        )
