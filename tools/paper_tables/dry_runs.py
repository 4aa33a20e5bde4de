"""What a published table would take, without training: missing files, costs of a round, hours of this processor."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import cast

import torch

from edgefl.commands.profile.answer import Tables
from edgefl.commands.profile.client_rounds import tables_of
from edgefl.commands.profile.profile_options import ProfileOptions
from edgefl.commands.profile.schedule_totals import stretches
from edgefl.data.vocabulary import ready_tokenizer, tokenizer_file
from edgefl.errors import EdgeflError, RunError
from edgefl.machine.observed_work import time_steps
from edgefl.modalities import KINDS, Kind
from edgefl.planning.planner import Planner
from edgefl.records.reading import decode
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario
from edgefl.scenario.scenario import with_fields
from edgefl.setup.compose import planner_of
from edgefl.work import Source, Work, distinct
from edgefl.work.description import digest
from tools.paper_tables.answer import DryRow, DryTable, MeasuredHours, MeasuredModel, MissingFile, TableHours
from tools.paper_tables.needed_files import NeededFiles, needed_files
from tools.paper_tables.published_tables import PrintedPaper, PrintedSize, published_tables, table_of
from tools.paper_tables.training_tables import TableRow, data_below, scenarios_of

TESTED = 1000
"""Declared test samples of each kind: evaluations are priced for so many, and scaled to the paper's."""
SAMPLES = 4
"""Samples of a measured batch: a choice, so that a step of the largest model takes a minute at most.

The optimizer's share of such a step is too large, by a few per cent, so that hours are too."""


def dry_table(
    name: str,
    rows: Sequence[str] = (),
    *,
    data: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    speeds: Speeds | None = None,
    paper: PrintedPaper | None = None,
    on_progress: OnProgress = silent,
) -> DryTable:
    """What training rows of a published table would take; nothing is trained, and no data are needed.

    Costs are those of ``edgefl profile`` of the row on declared data of the paper's sizes, spread evenly over the
    clients.  Hours are those of one core of this machine: FLOPs of the run, at the rate of measured steps.

    Args:
        name: A table, such as ``"fedcola-t1"``.
        rows: Its rows; none: all that can be run.
        data: The folder with a folder for each data set; None: as ``$EDGEFL_DATA`` says.
        overrides: Changes of every row, ``path=value``.
        speeds: Rates that were measured before; None: nothing is measured, and there are no hours.
        paper: The paper with the table; None: the one of published/ that has it.
        on_progress: Called with the name of an event and its facts.

    Raises:
        UnknownName: There is no such table or row.
        RunError: A row can't be run.
        ScenarioError: A change doesn't fit.
    """
    paper, table = table_of(name) if paper is None else (paper, paper.tables[name])
    with data_below(data):
        chosen = scenarios_of(table, rows, overrides)
        needed = {each.source: each for row in chosen for each in needed_files(row.scenario.data)}
    found = dict[str, DryRow]()
    for index, row in enumerate(chosen):
        on_progress("combination", {"label": row.name, "index": index, "of": len(chosen)})
        priced = found[row.same] if row.same in found else _priced(row, paper, speeds, on_progress)
        found[row.name] = replace(priced, row=row.name, same=row.same if row.same != row.name else None)
    hours = [row.core_hours for row in found.values() if row.same is None and row.core_hours is not None]
    return DryTable(
        table=name, title=table.title, paper=paper.cite, where=table.where, metrics=table.metrics,
        assumed=table.assumed, code=table.code, slips=table.slips, costs=table.costs, left=table.left_rows,
        missing=[file for each in needed.values() for file in _missing_files(each)],
        rows=list(found.values()), measured=[] if speeds is None else list(speeds.measured.values()),
        core_hours=sum(hours) if hours else None,
    )  # fmt: skip


def measure_hours(file: str | os.PathLike[str], *, on_progress: OnProgress = silent) -> MeasuredHours:
    """The hours that every published table would take on one core of this machine, written to a file after each.

    A repeated call goes on with the tables that the file lacks, and keeps the rates that it has.

    Raises RunError if it can't be written, or is there and isn't such a file.
    """
    place = Path(file)
    before = decode(MeasuredHours, place.read_bytes(), place) if place.exists() else None
    speeds = Speeds({} if before is None else dict(before.models))
    known = {} if before is None else before.tables
    hours = {name: known[name] for name in published_tables() if name in known}
    result = before or _measured_hours(hours, speeds.measured)
    for name, (_, table) in published_tables().items():
        if name in hours:
            continue
        found = dry_table(name, speeds=speeds, on_progress=on_progress) if table.runnable else None
        rows = () if found is None else found.rows
        hours[name] = TableHours(
            rows=len(table.rows), priced=sum(row.why is None for row in rows),
            core_hours=None if found is None or found.core_hours is None else float(f"{found.core_hours:.3g}"),
        )  # fmt: skip
        result = _measured_hours(hours, speeds.measured)
        replace_file(place, (json.dumps(result.to_data(), indent=1) + "\n").encode())  # what is known so far
    return result


def _measured_hours(hours: Mapping[str, TableHours], models: Mapping[str, MeasuredModel]) -> MeasuredHours:
    rates = [each.flops_per_second / 1e9 for each in models.values()]
    return MeasuredHours(
        origin=f"`python tools/papers.py train --hours` on {datetime.now():%-d %B %Y}: FLOPs of each run, at the rate "
        f"of {sum(each.steps for each in models.values())} measured steps of {len(models)} models, of {SAMPLES} random "
        "samples each",
        machine=f"one core of an {platform.machine()} processor that other programs shared, "
        f"{min(rates, default=0):.0f} to {max(rates, default=0):.0f} GFLOP/s by model",
        tables=hours, models=models,
    )  # fmt: skip


def _missing_files(needed: NeededFiles) -> Iterator[MissingFile]:
    """The files that a data set lacks; one without names for a set of which nothing is known."""
    place = str(needed.folder or next(iter(needed.tried), needed.source))
    for file in needed.missing:
        yield MissingFile(source=needed.source, folder=place, file=file.name, holds=file.holds, size_bytes=file.size)
    if needed.problem and not needed.missing:
        yield MissingFile(source=needed.source, folder=place, file="", holds=needed.problem, size_bytes=None)


def _priced(row: TableRow, paper: PrintedPaper, speeds: Speeds | None, on_progress: OnProgress) -> DryRow:
    """The costs of a row; where it can't be priced, why."""
    try:
        declared = declare(row.scenario, paper.sets)
        planner = planner_of(declared, on_progress)
        tables = tables_of(planner, ProfileOptions(clients=True), on_progress, row.name)
        tested = samples_tested(row.scenario, paper.sets)
        hours = None if speeds is None else hours_of(declared, tables, planner, tested, speeds)
    except EdgeflError as error:
        return DryRow(row=row.name, same=None, why=str(error))
    rounds = sum(each.rounds for each in tables.round_totals)

    def of_a_round(*names: str) -> float:
        total = sum(each.rounds * sum(getattr(each, name) for name in names) for each in tables.round_totals)
        return float(total / rounds)

    clients = tables.clients or ()
    return DryRow(
        row=row.name, same=None, why=None, rounds=rounds,
        flops=of_a_round("forward_flops", "backward_flops"),
        download_bytes=of_a_round("download_bytes"), upload_bytes=of_a_round("upload_bytes"),
        peak_memory_bytes=max(each.peak_memory_bytes for each in tables.rows if each.rounds),
        clients=len(clients), eligible=sum(each.eligible for each in clients), core_hours=hours,
    )  # fmt: skip


# --- declared data ---------------------------------------------------------------------------------------------------


def declare(scenario: Scenario, sets: Mapping[str, PrintedSize]) -> Scenario:
    """The scenario with declared data of the paper's sizes, spread evenly over the clients.

    Raises RunError for data that can't be declared so, and ScenarioError.
    """
    options = scenario.data
    if options.source == "declared":
        return scenario
    if getattr(scenario.method_options, "server_task", None) == "classify":
        raise RunError("the server's answers are of another set than the clients' classes, and declared data have one")
    clients = {kind: count for kind in KINDS if (count := options.clients.get(kind))}
    samples = {kind: _samples_of(scenario, kind, count, sets) for kind, count in clients.items()}
    missing = dict[str, dict[str, dict[str, float]]]()
    for kind in clients:
        if (rates := options.missing_of(kind)) and "patterns" not in rates:
            # equal shares of every client, so that one prediction is that of all
            one, other = kind.split("-")
            left = {each: 1 - cast(float, rates.get(each, 0.0)) for each in (one, other)}
            shares = {kind: left[one] * left[other], one: left[one] * (1 - left[other])}
            shares[other] = left[other] * (1 - left[one])
            kept = sum(shares.values())
            samples[kind] = int(samples[kind] * kept)
            missing[kind] = {"patterns": {pattern: share / kept for pattern, share in shares.items()}}
        elif rates:
            missing[kind] = {"patterns": dict(rates["patterns"])}
    fields = {
        "source": "declared", "clients": clients, "samples": samples, "partition": "iid", "validation": 0,
        "test": TESTED, "public": _public_of(scenario, sets), "tasks": options.tasks,
        "missing": missing or None, "shapes": _shapes_of(scenario, clients, sets),
    }  # fmt: skip
    return with_fields(scenario, {"data": fields})


def _sizes_of(names: Iterable[str], sets: Mapping[str, PrintedSize]) -> list[PrintedSize]:
    """The sizes of these data sets.  Raises RunError for one that the paper's file doesn't have."""
    if unknown := [name for name in names if name not in sets]:
        raise RunError(f"the size of {unknown[0]} isn't in the paper's file")
    return [sets[name] for name in names]


def _samples_of(scenario: Scenario, kind: Kind, clients: int, sets: Mapping[str, PrintedSize]) -> int:
    """Training samples of a client: an equal part of all."""
    one_caption = getattr(scenario.method_options, "captions", "") == "one"  # a caption of each picture in an epoch
    sizes = _sizes_of(scenario.data.sets_of(kind, own=True), sets)
    total = sum(each.train if one_caption else each.training_samples for each in sizes)
    if kind == scenario.data.dealt_kind:
        total += _public_of(scenario, sets)
    return max(total // clients, 1)


def _public_of(scenario: Scenario, sets: Mapping[str, PrintedSize]) -> int:
    """Public samples: those that the method reads, or all that are held out."""
    options = scenario.data
    if not options.public:
        return 0
    (size,) = _sizes_of((options.public_source,), sets)
    held = size.training_samples
    if options.public != "all":
        groups = options.public if options.public >= 1 else options.public * size.train
        held = min(round(groups) * size.captions, held)
    return int(min(held, getattr(scenario.method_options, "pairs", None) or held))


def _shapes_of(
    scenario: Scenario, clients: Mapping[Kind, int], sets: Mapping[str, PrintedSize]
) -> dict[str, dict[str, int]]:
    """The shapes of the samples, one for each modality, with the most classes that one of its kinds has."""
    options, shapes = scenario.data, dict[str, dict[str, int]]()
    for kind in clients:
        forms = _sizes_of(options.sets_of(kind, own=True), sets)
        for modality in kind.split("-"):
            of_sets = [form for each in forms if (form := getattr(each, modality)) is not None]
            if not of_sets:
                raise RunError(f"the form of the {modality}s of {kind} clients isn't in the paper's file")
            known = shapes.setdefault(modality, {"classes": 2})
            known["classes"] = max(known["classes"], sum(form.classes for form in of_sets))
            if modality == "image":
                if options.size is None:
                    raise RunError("the scenario doesn't say how large pictures are: set data.size")
                channels = options.channels or of_sets[0].channels
                known |= {"size": options.size, "channels": max(channels, known.get("channels", 1))}
            elif modality == "text":
                words = options.vocabulary
                if isinstance(words, str):
                    words = ready_tokenizer(tokenizer_file(words), scenario.model.tokens).get_vocab_size()
                known["vocabulary"] = words
            else:
                known |= {"bins": of_sets[0].bins, "frames": of_sets[0].frames}
    return shapes


# --- hours -----------------------------------------------------------------------------------------------------------


@dataclass
class Speeds:
    """FLOP/s of one core of this machine by model, each measured once."""

    measured: dict[str, MeasuredModel] = field(default_factory=dict)

    def of(self, work: Work, source: Source, planner: Planner) -> float:
        """The rate of a work's model, measured on this work if it isn't known."""
        key = digest(work.model)
        if key not in self.measured:
            self.measured[key] = _measure(work, source, planner)
        return self.measured[key].flops_per_second


def _measure(work: Work, source: Source, planner: Planner) -> MeasuredModel:
    """Steps of a small batch of random samples, in 32 bits, because processors compute 16 bits slowly if at all."""
    passes = tuple(replace(each, batch=min(each.batch, SAMPLES)) for each in work.passes)
    small = replace(work, passes=passes, precision="float32", optimizer={**work.optimizer, "accumulation": 1})
    trace = planner.predictor.trace(small, source)
    once = replace(small, passes=tuple(distinct(small)))
    steps = time_steps(once, source, torch.device("cpu"))
    flops = sum(trace.steps[step].forward_flops + trace.steps[step].backward_flops for step in steps)
    seconds = sum(processor for _, processor in steps.values())
    return MeasuredModel(
        kind=work.kind, steps=len(steps), samples=SAMPLES, flops=flops, processor_seconds=seconds,
        flops_per_second=flops / seconds,
    )  # fmt: skip


def hours_of(scenario: Scenario, tables: Tables, planner: Planner, tested: Mapping[str, int], speeds: Speeds) -> float:
    """Hours of one core for the rounds and evaluations of a declared scenario; ``tested`` are test samples by kind."""
    setup, spans = planner.setup, stretches(planner)
    rates = dict[str, float]()
    for span in spans[::-1]:  # in the last stage most of a model trains
        for (kind, _), (work, _) in span.works.items():
            if kind not in rates:
                rates[kind] = speeds.of(work, setup.clients.client(int(setup.of_kind(kind)[0])), planner)
    seconds = sum(
        each.rounds * cost.flops / rates[kind]
        for each in tables.round_totals for kind, cost in each.by_kind.items() if kind in rates
    )  # fmt: skip
    server = setup.clients.server()
    for span in spans:
        for _, work in span.server:
            seconds += span.rounds * _flops(planner, work) / speeds.of(work, server, planner)
    for stage in setup.schedule.stages:
        scored = sum(span.rounds for span in spans if span.stage is stage) / scenario.evaluation.every
        for work, kinds in setup.evaluations(scenario.evaluation.split, stage) if scored else ():
            share = tested.get(kinds[0], TESTED) / TESTED
            seconds += scored * share * _flops(planner, work) / speeds.of(work, server, planner)
    return seconds / 3600


def _flops(planner: Planner, work: Work) -> float:
    _, cost = planner.server(work)
    return float(cost.forward_flops + cost.backward_flops)


def samples_tested(scenario: Scenario, sets: Mapping[str, PrintedSize]) -> dict[str, int]:
    """Test samples of each kind in the paper."""
    options, tested = scenario.data, dict[str, int]()
    for kind in KINDS:
        if not options.clients.get(kind):
            continue
        own = options.test_source if "-" in kind else None
        sizes = _sizes_of(options.sets_of(kind, own=True) if own is None else (own,), sets)
        tested[kind] = sum(each.test * each.captions for each in sizes)
        if options.like_of(kind) == "retrieve":
            tested[kind] = min(tested[kind], scenario.evaluation.pairs)
    return tested
