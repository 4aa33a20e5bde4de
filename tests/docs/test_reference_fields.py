"""Every field of a run's folder and of the commands' JSON is on its page of the reference, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import edgefl
from edgefl.commands.doctor.machine_checks import package_check
from edgefl.records.record import fields_of
from edgefl.records.run import Environment, EvaluationFacts
from edgefl.runs import Run, read_run
from edgefl.work.metrics import TOP
from edgefl.work.scoring import RECALLS
from tools.pages.answers import DOCTOR

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "docs" / "reference"
RECORDED = HERE.parent / "recorded" / "expected"
TABLE = re.compile(r"<!-- fields: (\S+) -->\n\n((?:\|.*\n)+)")

Path_ = tuple[str, ...]


def rows(page: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """The tables of a page by their marks: field, and the cells behind it."""
    found = {}
    for mark, lines in TABLE.findall((FOLDER / page).read_text(encoding="utf-8")):
        cells = [line.strip("|\n ").split(" | ") for line in lines.splitlines()[2:]]
        found[mark] = {row[0].strip("`"): tuple(row[1:]) for row in cells}
        assert len(found[mark]) == len(cells), f"{page}, {mark}: a field stands there twice"
    return found


TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    **rows("records.md"),
    "doctor": {name: ("–", text) for name, text in DOCTOR.items()},
    "environment": {row.name: (row.unit or "–",) for row in fields_of(Environment)},
    "evaluation.json": {row.name: (row.unit or "–",) for row in fields_of(EvaluationFacts)},
}

ELSEWHERE = {
    "compare.json": {"runs[].sets.PATH"},
}
"""Fields whose own fields are told elsewhere."""

RARE = {
    "rounds": {"rejections.REASON"},
    "environment": {
        "plug_ins[].file",
        "plug_ins[].sha256",
        "resumed[].environment.FIELD",
        "resumed[].round",
        "resumed[].set[]",
    },
}
"""Fields that only a fault, plug-ins or a resume bring about."""


def pattern(field: str) -> Path_:
    return tuple(part.removesuffix("[]") for part in field.split("."))


def matches(wanted: Path_, there: Path_) -> bool:
    """Whether a path is one of a pattern; words in capitals stand for any name."""
    return len(wanted) == len(there) and all(w == t or w.isupper() for w, t in zip(wanted, there, strict=True))


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, bool]]:
    """Paths of all values, lists left out, each with whether there is nothing at it."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value is None or value == [] or value == {}


@pytest.fixture(scope="module")
def small() -> Callable[..., dict[str, Any]]:
    """A scenario with two clients of one kind."""

    def make(**sections: Any) -> dict[str, Any]:
        scenario = {
            "name": "small",
            "seed": 3,
            "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 40, "test": 40},
            "model": {"image": {"blocks": 2, "width": 16, "heads": 2}},
            "schedule": {"name": "end-to-end", "rounds": 1},
            "training": {"batch": 8},
            "round": {"cohort": 1.0},
            "executor": {"name": "inline", "device": "cpu"},
            "evaluation": {"every": 10},
        }
        return {**scenario, **sections}

    return make


@pytest.fixture(scope="module")
def heard() -> dict[str, set[str]]:
    """The events of a run, each with the names of its facts."""
    return {}


@pytest.fixture(scope="module")
def played(
    tiny: Callable[..., dict[str, Any]], heard: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """A run in which a schedule offers several parts, retrieval has folds, a client attacks, and a metric ends it."""

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        heard.setdefault(event, set()).update(facts)

    fleet = {
        "failures": {"attack": {"share": "10%", "name": "label-flip"}},
        "budgets": {"energy_total": "1 MJ", "power": "1 kW"},
        "carbon_intensity": 400,
    }
    elastic = {"name": "elastic", "stages": 2, "rounds": 1}
    training, stop = {"batch": 8, "lr_schedule": "cosine"}, {"metric": "image.accuracy", "target": 0.0}
    evaluation = {"every": 10, "fold": 10}
    scenario = tiny(schedule=elastic, evaluation=evaluation, fleet=fleet, training=training, stop=stop)
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("played") / "run", on_progress=on_progress)


SPOKEN = {"audio": {"audio": {"bins": 16, "frames": 24, "mean": -6.0, "deviation": 3.0}, "classes": ["one", "two"]}}
"""What tests/runs/test_result_leaves.py reads of a run with audio, which would take seconds here."""


def facts_of(run: Run) -> Any:
    return json.loads((run.path / "preprocessing.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def samples(
    small: Callable[..., dict[str, Any]], layerwise_run: Run, played: Run, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """Values for each table: from runs and answers made now, and from the recorded ones, which a test holds alike."""
    folder = tmp_path_factory.mktemp("answers")
    comparison = edgefl.run(small(training={"mode": "none"}, compare={"training.lr": [0.1, 0.2]}), out=folder / "c")
    runs = [layerwise_run, played, *comparison.runs.values(), *map(read_run_records, recorded_runs())]
    found: dict[str, list[Any]] = {
        "compare.json": [json.loads((folder / "c" / "compare.json").read_text())],
        "host": [record for run in (layerwise_run, played) for record in run.records("host")],
        "scratch": layerwise_run.records("scratch"),
        "environment": [layerwise_run.environment.to_data()],
        "evaluation.json": [run.evaluation.to_data() for run in (layerwise_run, played)],
        "preprocessing.json": [facts_of(run) for run in (layerwise_run, played)] + [SPOKEN],
        "rounds": [], "clients": [], "eligibility": [], "result": [],
    }  # fmt: skip
    for run in runs:
        for table in ("rounds", "clients", "eligibility"):
            found[table] += run[table] if isinstance(run, dict) else run.records(table)  # type: ignore[arg-type]
        found["result"].append(run["result"] if isinstance(run, dict) else run.result.to_data())

    over = edgefl.run(small(training="none", fleet={"budgets": {"memory": "1kB"}}), out=folder / "over")
    found["explain"] = [edgefl.explain(layerwise_run.path, 1, client=0), edgefl.explain(over.path, 1, client=0)]
    lacking = package_check(Requirement("torch>=2.11"), None)
    found["doctor"] = [edgefl.doctor(quick=True).to_data(), {"checks": [vars(lacking)]}]

    return found


def recorded_runs() -> list[Path]:
    return sorted(path.parent for path in RECORDED.rglob("rounds.jsonl"))


def read_run_records(folder: Path) -> dict[str, Any]:
    """A recorded run, which lacks what makes a folder a run's."""
    found: dict[str, Any] = {"result": json.loads((folder / "result.json").read_text(encoding="utf-8"))}
    for table in ("rounds", "clients", "eligibility"):
        text = (folder / f"{table}.jsonl").read_text(encoding="utf-8")
        found[table] = [json.loads(line) for line in text.splitlines()]
    return found


@pytest.mark.parametrize("mark", [mark for mark in TABLES if mark != "metrics"])
def test_every_field_is_on_the_page_and_no_other(samples: dict[str, list[Any]], mark: str) -> None:
    wanted = {field: pattern(field) for field in TABLES[mark]}
    whole = [wanted[field] for field in ELSEWHERE.get(mark, ())]
    seen: set[Path_] = set()
    unknown = set()
    assert samples[mark]
    for value in samples[mark]:
        for path, nothing in leaves(value):
            above = [p for p in whole if matches(p, path[: len(p)])]
            found = above or [p for p in wanted.values() if matches(p, path)]
            seen.update(found)
            if not found and not (nothing and any(matches(p[: len(path)], path) for p in wanted.values())):
                unknown.add(".".join(path))
    assert not unknown, f"not on the page: {sorted(unknown)}"
    absent = {field for field, p in wanted.items() if p not in seen} - RARE.get(mark, set())
    assert not absent, f"on the page only: {sorted(absent)}"


def test_every_metric_is_on_the_page(layerwise_run: Run, played: Run) -> None:
    def regular(metric: str) -> str:
        return re.escape(metric).replace("MODALITY", "(image|text|audio)").replace("K", r"\d+")

    results = [layerwise_run.result, played.result, *(read_run_records(folder)["result"] for folder in recorded_runs())]
    there = {name.partition("[")[0] for result in results for kind in result["metrics"].values() for name in kind}
    named = [regular(metric) for metric in TABLES["metrics"]]
    assert there and all(any(re.fullmatch(each, name) for each in named) for name in there)
    never = {"soft_score", "matched@K"}  # of data and a method that no small run has
    assert all(any(re.fullmatch(regular(m), name) for name in there) for m in set(TABLES["metrics"]) - never)
    text = (FOLDER / "records.md").read_text(encoding="utf-8")
    assert f"({', '.join(map(str, RECALLS))})" in text and f"top{TOP}_accuracy" in text


def test_the_unit_of_a_field_is_what_its_name_says() -> None:
    units = {"bytes": "bytes", "seconds": "s", "joules": "J", "flops": "FLOPs", "macs": "MACs", "share": "share"}
    for mark, fields in TABLES.items():
        for field, (unit, *_) in fields.items():
            word = pattern(field)[-1].rpartition("_")[2]
            assert unit == units.get(word, unit), f"{mark}: {field} in {unit}"


def test_every_file_of_a_run_is_on_the_page(
    layerwise_run: Run, small: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    text = (FOLDER / "records.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+)`", text.partition("## Files")[2].partition("## rounds.jsonl")[0]))
    there = {path.name for path in layerwise_run.path.iterdir() if path.name != "checkpoints"}
    assert there <= named and "checkpoints/round-NNNNNN/" in named
    untrained = edgefl.run(small(training="none"), out=tmp_path / "run")
    left = {path.name for path in untrained.path.iterdir()}
    assert (
        there - left == {"preprocessing.json", "tokenizer.json", "partition.png", "curves.png"}
        and not untrained.weights()
    )


def test_the_snippet_reads_a_run(layerwise_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "records.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(layerwise_run.path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, names)
    assert names["late"] == []
    assert "metrics.image.accuracy" in names["run"].rounds.columns
    assert read_run("runs/mine").result == names["run"].result


def test_every_event_of_a_run_is_on_the_page(played: Run, heard: dict[str, set[str]]) -> None:
    text = (FOLDER / "python.md").read_text(encoding="utf-8")
    told = {
        event: set(re.findall(r"`(\w+)`", facts))
        for event, facts in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text.partition("## Progress")[2], re.MULTILINE)
    }
    assert played.is_finished and set(told) == set(heard)
    assert {event: facts for event, facts in told.items() if event != "record"} == {
        event: facts for event, facts in heard.items() if event != "record"
    }
