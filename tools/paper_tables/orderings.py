"""docs/evidence/papers/orderings.json: what every seed of a study measured, and how seeds that lack are trained."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from edgefl.commands.compare.answer import OrderingClaim
from edgefl.commands.compare.orderings import claim_of
from edgefl.commands.run.command import run
from edgefl.errors import RunError, UnknownName
from edgefl.records.metrics import metric_value
from edgefl.records.reading import decode
from edgefl.records.record import Keys, Record
from edgefl.records.run import FinalSummary
from edgefl.runs import Run, is_comparison, read_run
from edgefl.runs.durable import replace_file
from edgefl.runs.folders import comparison_sets
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario, load
from edgefl.scenario.library import find_document
from tools.paper_tables.page_tables import pages_folder
from tools.paper_tables.studies import STUDIES, Study

SeedValues = Mapping[str, Mapping[str, float]]
"""What one seed measured, by row and metric."""


class StudyValues(Record):
    """What the seeds of a study measured, and what follows for its claims."""

    scenario: str
    """The shipped scenario"""
    overrides: Sequence[str]
    """What was changed of it"""
    fields: str
    """A digest of the scenario's fields but for seeds: values of other fields aren't this study's"""
    seeds: Sequence[int]
    """The seeds"""
    values: Annotated[Mapping[str, Mapping[str, Sequence[float]]], Keys("ROW.METRIC")]
    """A value for each seed: of the last evaluation, on the test split"""
    claims: Sequence[OrderingClaim]
    """The verdicts on what is claimed"""


class OrderingValues(Record):
    """The file."""

    studies: Annotated[Mapping[str, StudyValues], Keys("STUDY")]
    """Studies of which a seed has been trained"""


def values_file() -> Path:
    """The file that holds them."""
    return pages_folder() / "orderings.json"


def recorded(file: Path | None = None) -> dict[str, StudyValues]:
    """The studies in the file that have the fields of today's scenarios, by name; none if there is no file."""
    file = file or values_file()
    known = decode(OrderingValues, file.read_bytes(), file).studies if file.exists() else {}
    return {name: known[name] for name, study in STUDIES.items() if name in known
            if known[name].fields == digest_of(study)}  # fmt: skip


def studies_of(names: Sequence[str]) -> list[Study]:
    """The studies of these names, all for none.  Raises UnknownName."""
    for name in names:
        if name not in STUDIES:
            raise UnknownName("study", name, STUDIES)
    return [STUDIES[name] for name in names or STUDIES]


def seeds_left(study: Study, known: StudyValues | None) -> list[int]:
    """The seeds that lack."""
    return [seed for seed in seeds_of(study) if known is None or seed not in known.seeds]


def list_studies() -> Iterator[str]:
    """A line for each study: its seeds, and the minutes that are left."""
    known = recorded()
    yield f"{'study':20}{'seeds':>10}{'minutes left':>15}  where"
    for name, study in STUDIES.items():
        there = known.get(name)
        seeds = f"{len(there.seeds) if there else 0} of {len(seeds_of(study))}"
        yield f"{name:20}{seeds:>10}{study.minutes * len(seeds_left(study, there)):>15.0f}  {study.where}"


def write(studies: Mapping[str, StudyValues], file: Path | None = None) -> None:
    """Write the file: a list of numbers takes one line."""
    ordered = {name: studies[name] for name in STUDIES if name in studies}
    text = json.dumps(OrderingValues(studies=ordered).to_data(), indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[[^][{}\"]+\]", lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)
    replace_file(file or values_file(), f"{text}\n".encode())


def digest_of(study: Study) -> str:
    """A digest of the fields of a study's scenario as they are written, without its seeds."""
    written = find_document(study.scenario).data
    fields = [{**written, "compare": written["compare"]["rows"]}, study.overrides]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:12]


def seeds_of(study: Study) -> list[int]:
    """The seeds that the study's scenario asks for."""
    return list(find_document(study.scenario).data["compare"]["seed"])


def with_seed(study: Study, known: StudyValues | None, seed: int, found: SeedValues) -> StudyValues:
    """The study's values with those of one more seed, in the order of seeds."""
    columns: dict[tuple[str, str], dict[int, float]] = {}
    if known is not None:
        for row, of in known.values.items():
            columns |= {(row, m): dict(zip(known.seeds, values, strict=True)) for m, values in of.items()}
    for row, measured in found.items():
        for m, value in measured.items():
            columns.setdefault((row, m), {})[seed] = round(value, 6)
    seeds = sorted({*(known.seeds if known else ()), seed})
    values = {row: {m: [columns[row, m][s] for s in seeds] for m in measured} for row, measured in found.items()}
    return StudyValues(
        scenario=study.scenario, overrides=list(study.overrides), fields=digest_of(study), seeds=seeds, values=values,
        claims=list(claims_of(study, values)),
    )  # fmt: skip


def claims_of(study: Study, values: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[OrderingClaim]:
    """The verdict on each claim of a study, pair by pair."""

    def column(term: str, metric: str) -> Sequence[float]:
        first, *second = (values[row][metric] for row in term.split(" - "))
        return [a - b for a, b in zip(first, second[0], strict=True)] if second else first

    for claim in study.claims:
        for metric in claim.metrics:
            for worse, better in zip(claim.order, claim.order[1:], strict=False):
                yield claim_of(worse, better, metric, column(worse, metric), column(better, metric))


# --- training --------------------------------------------------------------------------------------------------------


def seed_folder(folder: Path, study: Study, seed: int) -> Path:
    """Where the runs of one seed are."""
    return folder / study.name / f"seed-{seed}"


def train(
    studies: Sequence[Study], folder: Path, on_progress: OnProgress, *, minutes: float, file: Path | None = None
) -> bool:
    """Train the seeds of these studies that lack, and add each to the file; whether none lacks at the end.

    The cheapest study is first.  A row that another study in the file has isn't trained again.  A seed that was cut off
    goes on with the rows that it began with.  After so many minutes no other seed begins.
    Raises RunError for a folder with the runs of another scenario, and what ``edgefl.run`` raises.
    """
    end = time.monotonic() + 60 * minutes
    for study in sorted(studies, key=lambda study: study.minutes):
        for seed in seeds_left(study, recorded(file).get(study.name)):
            known = recorded(file)  # with what another process wrote meanwhile
            place = seed_folder(folder, study, seed)
            shared = _rows_not_begun(place, shared_rows(study, seed, known))
            if (found := seed_values(study, seed, place, shared)) is None:
                if time.monotonic() > end:
                    return False
                run(_scenario(study, seed, without=shared), resume=place, on_progress=on_progress)
                found = seed_values(study, seed, place, shared)
            if found is None:
                raise RunError(f"{place} has no {' or '.join(study.metrics)} of every row")
            write({**known, study.name: with_seed(study, known.get(study.name), seed, found)}, file)
    return True


def take(studies: Sequence[Study], folder: Path, file: Path | None = None) -> int:
    """Add the finished seeds in the folder to the file without training; how many were added."""
    known, added = recorded(file), 0
    for study in studies:
        for seed in seeds_left(study, known.get(study.name)):
            if found := seed_values(study, seed, seed_folder(folder, study, seed), shared_rows(study, seed, known)):
                known[study.name] = with_seed(study, known.get(study.name), seed, found)
                added += 1
    write(known, file)
    return added


def _scenario(study: Study, seed: int, *, without: Collection[str] = ()) -> Scenario:
    overrides = [*study.overrides, f"compare.seed=[{seed}]", "executor=inline"]
    scenario = load(study.scenario, overrides)
    if not without:
        return scenario
    rows = [row for row in scenario.compare["rows"] if row not in without]
    return load(study.scenario, [*overrides, f"compare.rows={json.dumps(rows)}"])


def shared_rows(study: Study, seed: int, known: Mapping[str, StudyValues]) -> SeedValues:
    """What other studies measured of this study's rows, by row: the same seed and fields, in a scenario of any name."""
    measured: dict[str, Mapping[str, float]] = {}
    for name, values in known.items():  # its own seed lacks
        if seed not in values.seeds or not {*study.metrics} <= {*STUDIES[name].metrics}:
            continue
        at = list(values.seeds).index(seed)
        for row, fields in _fields_by_row(STUDIES[name], seed).items():
            of = values.values[row]
            measured[fields] = {metric: of[metric][at] for metric in study.metrics}
    return {row: measured[f] for row, f in _fields_by_row(study, seed).items() if f in measured}


def _rows_not_begun(place: Path, rows: SeedValues) -> SeedValues:
    """The rows that a seed's folder doesn't train: one that was cut off goes on with the rows that it began with."""
    begun = {sets["rows"] for sets in comparison_sets(place).values()} if is_comparison(place) else ()
    return {row: measured for row, measured in rows.items() if row not in begun}


@cache
def _fields_by_row(study: Study, seed: int) -> dict[str, str]:
    """The fields of each row's run, but for the scenario's name, as a text."""
    scenario = _scenario(study, seed)
    runs = [{**cell.to_data(), "name": ""} for _, cell in scenario.combinations()]
    return {row: json.dumps(data) for row, data in zip(scenario.compare["rows"], runs, strict=True)}


def seed_values(study: Study, seed: int, place: Path, shared: SeedValues | None = None) -> SeedValues | None:
    """What the runs of one seed measured, beside the ``shared`` rows; None until all are finished.

    Raises RunError if they are runs of another scenario.
    """
    rows, found = _scenario(study, seed).compare["rows"], dict(shared or {})
    if found.keys() >= rows.keys():
        return {row: found[row] for row in rows}
    if not is_comparison(place):
        return None
    runs, sets = read_run(place).runs, comparison_sets(place)
    for label, wanted in _scenario(study, seed, without=tuple(found)).combinations():
        done = runs.get(label)
        if done is None or not done.is_finished:
            return None
        if other := _other_field(done.scenario, wanted.to_data()):
            raise RunError(f"{place} holds the run of another scenario ({label}: {other}); choose another folder")
        found[str(sets[label]["rows"])] = {metric: _metric(done, metric) for metric in study.metrics}
    return {row: found[row] for row in rows}


def _other_field(was: Mapping[str, object], wanted: Mapping[str, object], path: str = "") -> str | None:
    """The first field that both scenarios have and that differs; how they are executed doesn't count."""
    for name in was.keys() & wanted.keys() - {"executor", "compare"}:
        a, b, here = was[name], wanted[name], f"{path}{name}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if inner := _other_field(a, b, f"{here}."):
                return inner
        elif a != b:
            return here
    return None


def _metric(done: Run, metric: str) -> float:
    summary = done.read_file(FinalSummary)
    value = None if summary is None else metric_value(summary.metrics, metric)
    if value is None:
        raise RunError(f"the run at {done.path} has no value of {metric}")
    return value
