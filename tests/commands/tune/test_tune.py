"""``edgefl tune`` on small real runs: what its trials are, what they are scored on, and how it goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log10
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.cells.workers import Cell, Outcome
from edgefl.commands.tune import tune_scenario
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.tune.batches import TuneSearch
from edgefl.commands.tune.best_settings import answer_of
from edgefl.commands.tune.draws import optuna
from edgefl.commands.tune.trial_run import Advance, Reached
from edgefl.commands.tune.trial_store import JOURNAL, TRIALS, TrialStore
from edgefl.console import main
from edgefl.errors import DivergedError, EdgeflError, RunError, ScenarioError
from edgefl.runs import tables
from edgefl.runs.folders import OF_EVERY_RUN
from edgefl.scenario import load
from edgefl.scenario.search_space import parse_search_space
from tests.toys.answers import read_back

SMALL: dict[str, Any] = {
    "edgefl": 1,
    "name": "small",
    "seed": 5,
    "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 20, "size": 16, "validation": 20, "test": 20},
    "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 2, "patch": 8}},
    "method": "fedavg",
    "schedule": {"name": "end-to-end", "rounds": 4},
    "training": {"batch": 8, "lr_schedule": {"name": "cosine", "floor": 0}},
    "round": {"cohort": 2},
    "executor": {"name": "inline", "device": "cpu"},
}
SEARCH = ["training.lr=1e-4..1e-1", "training.batch=4..20"]


def same(first: Tuning, second: Tuning) -> bool:
    """Whether two answers are equal but for wall times and the folder."""
    return bool(_without(first.to_data()) == _without(second.to_data()))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in ("seconds", "folder")}
    return [_without(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, Path]:
    """A search of five trials, and its folder."""
    folder = tmp_path_factory.mktemp("tune") / "small"
    return edgefl.tune(SMALL, SEARCH, trials=5, out=folder), folder


def test_trials_are_halved_and_the_best_has_all_rounds(done: tuple[Tuning, Path]) -> None:
    answer, folder = done
    read_back(Tuning, json.dumps(answer.to_data()))
    assert answer.metric == "image.accuracy" and answer.better == "higher" and answer.seeds == [5]
    assert len(answer.trials) == answer.asked_for == 5 and not answer.refused
    for trial in answer.trials:
        lr, batch = trial.settings["training.lr"], trial.settings["training.batch"]
        assert isinstance(lr, float) and 1e-6 <= lr <= 10 and isinstance(batch, int) and 4 <= batch <= 20
        assert trial.rungs == [2, 4] and trial.rounds == trial.rungs[trial.reached - 1]
        assert len(trial.scores) == trial.reached and trial.score == trial.scores[-1]
        rounds = (folder / TRIALS / f"{trial.number:04}" / "rounds.jsonl").read_text().splitlines()
        assert len(rounds) == trial.rounds
    whole = [trial for trial in answer.trials if trial.complete]
    assert answer.best.score == max(trial.score for trial in whole if trial.score is not None)
    assert len(whole) < 5 and answer.full_runs == sum(trial.rounds for trial in answer.trials) / 4
    assert len({json.dumps(trial.settings) for trial in answer.trials}) == 5
    assert answer.to_data() == json.loads((folder / "tune.json").read_text())
    assert load(
        {**SMALL, "training": {**SMALL["training"], **yaml.safe_load(answer.best.yaml)["training"]}}
    ).training == (load(SMALL, answer.best.sets).training)


def test_only_the_validation_split_is_scored(done: tuple[Tuning, Path]) -> None:
    """The witness reads the files of all trials as text: no record tells of an evaluation on the test split."""
    _, folder = done
    files = list((folder / TRIALS).rglob("*.jsonl"))
    text = "".join(path.read_text() for path in files)
    assert (
        len(files) == 5 * len(OF_EVERY_RUN)
        and text.count('"evaluate validation"') > 5
        and '"evaluate test"' not in text
    )
    for path in (folder / TRIALS).glob("*/scenario.yaml"):
        scored = yaml.safe_load(path.read_text())["evaluation"]
        assert (scored["split"], scored["final"]) == ("validation", "validation")
    plain = edgefl.run({**SMALL, "schedule": {"name": "end-to-end", "rounds": 1}}, out=folder.parent / "plain")
    assert '"evaluate test"' in (plain.path / "rounds.jsonl").read_text()  # what the witness would have seen


def test_scores_are_those_of_an_uninterrupted_run(done: tuple[Tuning, Path], tmp_path: Path) -> None:
    answer, _ = done
    run = edgefl.run(
        SMALL, overrides=[*answer.best.sets, "evaluation.final=validation"], out=tmp_path / "whole"
    )  # fmt: skip
    accuracy = run.rounds.set_index("round")["metrics.image.accuracy"]
    best = next(trial for trial in answer.trials if trial.number == answer.best.number)
    assert [accuracy[rung] for rung in best.rungs] == list(best.scores)


def test_the_same_command_trains_nothing_again(done: tuple[Tuning, Path]) -> None:
    answer, folder = done
    times = {path: path.stat().st_mtime_ns for path in (folder / TRIALS).rglob("*") if path.is_file()}
    assert edgefl.tune(SMALL, SEARCH, trials=5, out=folder) == answer
    assert {path: path.stat().st_mtime_ns for path in (folder / TRIALS).rglob("*") if path.is_file()} == times
    assert not list((folder / TRIALS).glob("*/checkpoints"))  # of trials that never go on


def test_a_journal_that_ends_anywhere_is_gone_on_with(done: tuple[Tuning, Path], tmp_path: Path) -> None:
    """Whatever of the journal a kill left, the rest follows from it; the runs are there, so that nothing is trained."""
    answer, folder = done
    whole, random = (folder / JOURNAL).read_bytes(), Random(2)
    for size in (0, 1, len(whole) - 1, *(random.randrange(len(whole)) for _ in range(5))):
        copy = tmp_path / str(size)
        shutil.copytree(folder, copy)
        (copy / JOURNAL).write_bytes(whole[:size])
        assert same(edgefl.tune(SMALL, SEARCH, trials=5, out=copy), answer), size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"overrides": ["training.epochs=3"]}, "scenario.training.epochs: 1 -> 3"),
        (
            {"search": ["training.lr=1e-4..1e-2", SEARCH[1]]},
            "search.training.lr: 'log:0.0001..0.1' -> 'log:0.0001..0.01'",
        ),
        ({"search": [SEARCH[0]]}, "search.training.batch: 'linear:4..20' -> None"),
        ({"metric": "image.balanced_accuracy"}, "metric: 'image.accuracy' -> 'image.balanced_accuracy'"),
        ({"trials": 9}, "trials: 5 -> 9"),
        ({"seeds": 2}, "seeds: 1 -> 2"),
    ],
)
def test_another_search_is_told_apart(done: tuple[Tuning, Path], change: dict[str, Any], words: str) -> None:
    _, folder = done
    before = (folder / JOURNAL).read_bytes()
    given: dict[str, Any] = {"search": SEARCH, "trials": 5, **change}
    with pytest.raises(RunError, match="holds the trials of another search: ") as error:
        edgefl.tune(SMALL, **given, out=folder)
    assert words in str(error.value) and len(str(error.value).splitlines()) == 1 and error.value.exit_code == 2
    assert (folder / JOURNAL).read_bytes() == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"already holds files \(notes.txt, ...\); choose another folder"):
        edgefl.tune(SMALL, SEARCH, trials=2, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file is a file; a search needs a new or empty folder"):
        edgefl.tune(SMALL, SEARCH, trials=2, out=tmp_path / "file")


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[1]\n", b'{"op_code": 99}\n', b'{"op_code": 4}\n', b'{"a": 1}\n', b"\xff\n"]
)
def test_a_damaged_journal_is_refused_in_a_line(done: tuple[Tuning, Path], line: bytes, tmp_path: Path) -> None:
    _, folder = done
    copy = tmp_path / "copy"
    copy.mkdir()
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (copy / JOURNAL).write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(RunError) as error:
        edgefl.tune(SMALL, SEARCH, trials=5, out=copy)
    assert str(copy) in str(error.value) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("sections", "given", "message"),
    [
        ({"data": {**SMALL["data"], "validation": 0}}, {}, "has no validation image samples; set data.validation"),
        ({"training": {"mode": "none"}}, {}, "training.mode: none trains nothing that could be scored"),
        ({"compare": {"seed": [1, 2]}}, {}, "one scenario is tuned, and this one compares seed"),
        ({}, {"metric": "image.acuracy"}, "--metric: the evaluation has no 'image.acuracy'; did you mean"),
        ({}, {"trials": 0}, "trials must be 1 or more, not 0"),
        ({}, {"seeds": True}, "seeds must be 1 or more, not True"),
        ({}, {"jobs": 0}, "jobs must be 1 or more"),
        ({"training": {"lr": 0}}, {}, "training.lr: must be greater than 0"),
    ],
)  # fmt: skip
def test_what_cant_be_tuned(sections: dict[str, Any], given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeflError) as error:
        edgefl.tune({**SMALL, **sections}, SEARCH, out=tmp_path / "out", **given)
    assert message in str(error.value) and error.value.exit_code == 2 and not (tmp_path / "out").exists()


def test_several_kinds_need_a_metric(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"name the metric: --metric KIND.NAME; there are .*text.accuracy, mean"):
        edgefl.tune(tiny(), SEARCH, out=tmp_path / "out")
    with pytest.raises(ScenarioError, match=r"--metric: the evaluation has no 'mean.acuracy'; did you mean .mean.a"):
        edgefl.tune(tiny(), SEARCH, out=tmp_path / "out", metric="mean.acuracy")


def test_a_trial_may_be_scored_by_the_mean_over_kinds(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    scenario = tiny(
        data={**tiny()["data"], "clients": {"image": 2, "text": 2}}, schedule={"name": "end-to-end", "rounds": 1}
    )
    answer = edgefl.tune(scenario, ["training.lr=0.001,0.002"], trials=1, out=tmp_path / "out", metric="mean.accuracy")
    run = edgefl.read_run(next((tmp_path / "out").rglob("rounds.jsonl")).parent)
    scores = [values["accuracy"] for values in run.records("rounds")[-1]["metrics"].values()]
    assert len(scores) == 2 and answer.best.score == sum(scores) / 2
    assert answer.chance == sum(of["accuracy"] for of in run.evaluation.chance["validation"].values()) / 2


@pytest.mark.slow(smaller="test_a_missing_package_is_told_before_anything_is_written")
def test_without_optuna_a_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    code = (
        "import sys; sys.modules['optuna'] = None; from edgefl.console import main; "
        "main(['tune', 'small.yaml', '--search', 'training.lr=1e-4..1e-1'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2 and ended.stdout == "" and not (tmp_path / "runs").exists()
    assert ended.stderr.splitlines()[-1] == (
        "edgefl: error: edgefl tune needs a package that isn't installed: pip install optuna (or, in edgefl's "
        "checkout, run pip install '.[tune]')"
    )


# --- refused and diverged --------------------------------------------------------------------------------------------


def test_settings_that_no_budget_admits_are_refused_by_price(tmp_path: Path) -> None:
    peaks = {
        batch: max(row.peak_memory_bytes for row in edgefl.profile(SMALL, overrides=[f"training.batch={batch}"]).rows)
        for batch in (2, 20)
    }
    limit = sum(peaks.values()) // 2
    assert peaks[2] < limit < peaks[20]
    scenario = {**SMALL, "fleet": {"devices": {"raspberry-pi-4-4gb": 1.0}, "budgets": {"memory": f"{limit} B"}}}
    answer = edgefl.tune(scenario, ["training.batch=2,20", "training.lr=0.01,0.001"], trials=3, out=tmp_path / "a")
    assert {trial.settings["training.batch"] for trial in answer.trials} == {2}
    assert {each.settings["training.batch"] for each in answer.refused} == {20}
    assert {each.refused for each in answer.refused} == {
        "no budget admits it: of 4 clients, by what refuses them, memory 4"
    }
    assert answer.exhausted and len(answer.trials) == len(answer.refused) == 2
    assert not any((tmp_path / "a" / TRIALS / f"{each.number:04}").exists() for each in answer.refused)
    with pytest.raises(ScenarioError, match="each of 2 settings is refused: no budget admits it: .* memory 4"):
        edgefl.tune(scenario, ["training.batch=18,20"], trials=3, out=tmp_path / "b")


def test_refused_settings_are_twice_the_trials_at_most(tmp_path: Path) -> None:
    scenario = {**SMALL, "fleet": {"budgets": {"memory": "1 kB"}}}
    with pytest.raises(ScenarioError, match="each of 6 settings is refused"):
        edgefl.tune(scenario, ["training.lr=1e-4..1e-1"], trials=3, out=tmp_path / "a")


def test_sections_that_contradict_each_other_refuse_a_trial(tmp_path: Path) -> None:
    answer = edgefl.tune(
        {**SMALL, "schedule": {"name": "layerwise", "stages": 1, "rounds": 4}},
        ["schedule.stages=1,3"],
        trials=2,
        out=tmp_path / "a",
    )
    assert [trial.settings for trial in answer.trials] == [{"schedule.stages": 1}]
    assert len(answer.refused) == 1 and "3 stages" in answer.refused[0].refused


def test_a_diverged_trial_is_the_worst_one(tmp_path: Path) -> None:
    scenario = {**SMALL, "training": {"batch": 8, "optimizer": "sgd"}, "schedule": {"name": "end-to-end", "rounds": 2}}
    answer = edgefl.tune(scenario, ["training.lr=0.001,1e30"], trials=2, out=tmp_path / "a")
    by_lr = {trial.settings["training.lr"]: trial for trial in answer.trials}
    assert answer.best.settings == {"training.lr": 0.001} and by_lr[1e30].diverged == "the model diverged in round 1"
    assert by_lr[1e30].score is None and not by_lr[1e30].complete and by_lr[1e30].rounds == 1
    with pytest.raises(DivergedError, match="the models of all 2 trials diverged") as error:
        edgefl.tune(scenario, ["training.lr=1e29,1e30"], trials=3, out=tmp_path / "b")
    assert error.value.exit_code == 1


def test_a_trial_that_its_metric_ends_early_is_complete(tmp_path: Path) -> None:
    scenario = {**SMALL, "stop": {"metric": "image.balanced_accuracy", "target": 0.0}}
    answer = edgefl.tune(scenario, ["training.lr=0.001,0.01"], trials=2, out=tmp_path / "a")
    assert answer.metric == "image.balanced_accuracy"  # the one that the scenario follows
    assert [trial.rounds for trial in answer.trials] == [1, 1]  # of four; nothing was asked for after that
    best = next(trial for trial in answer.trials if trial.number == answer.best.number)
    assert best.complete and best.reached == 2 and best.scores[0] == best.scores[1]


@pytest.mark.slow(smaller="test_lower_is_better_by_name")
def test_a_metric_of_which_lower_values_are_better(tmp_path: Path) -> None:
    scenario = {**SMALL, "stop": {"metric": "image.accuracy", "patience": 9, "better": "lower"}}
    answer = edgefl.tune(scenario, ["training.lr=0.0001,0.001,0.01"], trials=3, out=tmp_path / "a")
    whole = [trial.score for trial in answer.trials if trial.complete and trial.score is not None]
    firsts = sorted(trial.scores[0] or 0.0 for trial in answer.trials)
    assert answer.better == "lower" and answer.best.score == min(whole)
    assert [trial.reached == 2 for trial in answer.trials] == [trial.scores[0] == firsts[0] for trial in answer.trials]


# --- ranges ----------------------------------------------------------------------------------------------------------


def searched(
    folder: Path, search: Sequence[str], score: Callable[[Mapping[str, Any]], float | None], trials: int = 16
) -> Tuning:
    """A search whose scores are those of a known function of the settings instead of a run's."""
    scenario = load({**SMALL, "schedule": {"name": "end-to-end", "rounds": 1}})
    task = tune_scenario._task(scenario, None, 1, lambda event, facts: None)
    space = parse_search_space(scenario, search)

    def run(cells: Sequence[Cell]) -> list[Outcome]:
        outcomes = []
        for cell in cells:
            advance: Advance = cell.argument
            settings = {name: getattr(advance.scenario.training, name) for name in ("lr", "weight_decay", "lr_decay")}
            outcomes.append(Outcome(cell.label, Reached(score(settings), advance.until, None, 0.0)))
        return outcomes

    store = TrialStore(optuna(), folder, {"search": list(search)}, lower=task.lower)
    under_way = TuneSearch(task, space, trials, store, lambda event, facts: None)
    under_way.run(run)
    # the answer reads chance levels from the best trial's folder
    best = under_way.best(store.trials)
    assert best is not None
    if not (run_folder := under_way.folder(best.number, 5)).exists():
        edgefl.run({**SMALL, "training": {"mode": "none"}}, out=run_folder)
    return answer_of(under_way)


@pytest.mark.parametrize(
    ("optimum", "side", "ends"), [(-4.7, "lower", (1e-3, 1e-4, 1e-5)), (0.6, "upper", (1e-2, 1e-1, 1.0))]
)
def test_an_optimum_at_the_edge_widens_the_range_twice(
    optimum: float, side: str, ends: tuple[float, ...], tmp_path: Path
) -> None:
    answer = searched(tmp_path / "a", ["training.lr=1e-3..1e-2"], lambda s: -abs(log10(s["lr"]) - optimum))
    assert [(each.side, each.old, each.new, each.after) for each in answer.widened] == [
        (side, ends[0], ends[1], 8), (side, ends[1], ends[2], 12),
    ]  # fmt: skip
    assert len(answer.trials) == 16  # no more than without
    lrs = [trial.settings["training.lr"] for trial in answer.trials]
    assert all(1e-3 <= lr <= 1e-2 for lr in lrs[:8]) and not all(1e-3 <= lr <= 1e-2 for lr in lrs[8:12])
    assert min(lrs) >= min(1e-3, *ends) and max(lrs) <= max(1e-2, *ends)
    given, best = answer.best_as_given, answer.best
    assert given is not None and 1e-3 <= given.settings["training.lr"] <= 1e-2
    assert best.score > given.score and abs(log10(best.settings["training.lr"]) - optimum) < 1


def test_a_search_that_goes_on_widens_by_the_trials_before(tmp_path: Path) -> None:
    """Wherever the journal was cut, in each of three phases, or nowhere: the same ranges, the same trials."""

    def score(settings: Mapping[str, Any]) -> float:
        return -abs(log10(settings["lr"]) - 0.6)

    whole = searched(tmp_path / "a", ["training.lr=1e-3..1e-2"], score)
    assert [each.after for each in whole.widened] == [8, 12]  # the ends of the first and of the second phase
    journal = tmp_path / "a" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    for size in (20, 40, 55, len(lines)):
        journal.write_bytes(b"".join(lines[:size]))
        again = searched(tmp_path / "a", ["training.lr=1e-3..1e-2"], score)
        assert same(again, whole), f"{size} of {len(lines)} lines"
    assert journal.read_bytes() == b"".join(lines)


def test_an_optimum_inside_leaves_the_range(tmp_path: Path) -> None:
    answer = searched(tmp_path / "a", ["training.lr=1e-4..1e-1"], lambda s: -abs(log10(s["lr"]) + 2.5))
    assert not answer.widened and not answer.at_edge and answer.best_as_given == answer.best
    assert abs(log10(answer.best.settings["training.lr"]) + 2.5) < 0.5


def test_a_range_that_the_field_ends_isnt_widened(tmp_path: Path) -> None:
    answer = searched(tmp_path / "b", ["training.lr_decay=0.05..1"], lambda s: s["lr_decay"], trials=8)
    assert [(each.new, each.why_not) for each in answer.widened] == [
        (None, "training.lr_decay: must be at most 1, not 10.0")
    ] * len(answer.widened)
    assert answer.widened and max(trial.settings["training.lr_decay"] for trial in answer.trials) == 1


@pytest.mark.slow(smaller="test_a_journal_that_ends_anywhere_is_gone_on_with")
def test_the_sampler_is_a_function_of_the_trials(tmp_path: Path) -> None:
    def score(settings: Mapping[str, Any]) -> float:
        return -abs(log10(settings["lr"]) + 2)

    search = ["training.lr=1e-4..1e-1", "training.weight_decay=linear:0..1"]
    first, second = (searched(tmp_path / name, search, score, trials=24) for name in "ab")
    assert same(first, second)
    drawn = [log10(trial.settings["training.lr"]) for trial in first.trials]
    near = [sum(abs(each + 2) < 0.5 for each in part) for part in (drawn[:12], drawn[12:])]
    assert near[1] > near[0]  # it learns


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_answer(
    done: tuple[Tuning, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, folder = done
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(SMALL))
    shutil.copytree(folder, "a")
    words = ["tune", "small.yaml", "--search", SEARCH[0], "--search", SEARCH[1], "--trials", "5", "-o", "a"]
    for more in ([], ["--as", "json"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert not ended.value.code
        out = capsys.readouterr().out
        if more:
            assert _without(json.loads(out)) == _without(answer.to_data())
            continue
        lines = out.splitlines()
        assert lines[0] == "=== small: image accuracy on validation ==="
        assert lines[2].startswith(
            f"Best: trial {answer.best.number} of 5, image accuracy {answer.best.score:.3f}, chance "
        )
        assert " ".join(f"--set {text}" for text in answer.best.sets) in lines
        rows = [line.split() for line in lines if line and line.split()[0].isdigit() and "/4" in line]
        assert {int(row[0]) for row in rows} == set(range(5)) and rows[0][-1] == f"{answer.best.score:.3f}"
        assert lines[-2] == "trials: a" and lines[-1].startswith("seconds: x") and lines[-1].endswith(" (80 %)")


def test_the_default_folder_is_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = {**SMALL, "schedule": {"name": "end-to-end", "rounds": 1}}
    folders = [edgefl.tune(scenario, ["training.lr=0.01,0.001"], trials=1).folder for _ in range(2)]
    assert folders == ["runs/small-tune", "runs/small-tune-2"]


# --- slow ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_scores_are_those_of_an_uninterrupted_run")
def test_jobs_and_seeds_change_nothing(tmp_path: Path) -> None:
    first, second = (
        edgefl.tune(SMALL, SEARCH, trials=10, seeds=2, out=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2)
    )
    assert same(first, second)
    for trial in first.trials:
        assert len(trial.seed_scores) == 2 and trial.deviation is not None
        assert trial.score == pytest.approx(sum(map(float, trial.seed_scores)) / 2)
    run = edgefl.run(SMALL, overrides=[*first.best.sets, "evaluation.final=validation", "seed=6"], out=tmp_path / "run")
    best = next(trial for trial in first.trials if trial.number == first.best.number)
    assert run.rounds["metrics.image.accuracy"].iloc[-1] == best.seed_scores[1]


CHILD = """
import json, os, signal, sys
import edgefl

given, events = json.loads(sys.argv[1])
seen = 0

def observe(name, facts):
    global seen
    seen += name in ("record", "cell", "start", "prepare")
    if seen == events:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    edgefl.tune(**given, on_progress=observe)
"""


@pytest.mark.parametrize("table", ["scratch", "host"])
def test_a_round_that_found_no_space_for_a_record_is_played_again(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round whose own record is there counts as played, so that record comes after the others."""
    scenario = {**SMALL, "schedule": {"name": "end-to-end", "rounds": 2}, "evaluation": {"every": 2}}
    given: dict[str, Any] = {"scenario": scenario, "search": ["training.lr=1e-3,1e-2"], "trials": 2}
    edgefl.tune(**given, out=tmp_path / "whole")
    append = tables.append_lines

    def full(path: Path, encoded: Sequence[bytes]) -> None:
        if path.name == f"{table}.jsonl" and encoded and json.loads(encoded[0])["round"] == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append(path, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append_lines", full)
        with pytest.raises(RunError, match=rf"can't write .*/{table}\.jsonl: No space left"):
            edgefl.tune(**given, out=tmp_path / "cut")
    edgefl.tune(**given, out=tmp_path / "cut")
    for name in ("rounds", "clients", "scratch", "eligibility"):
        first, second = (tmp_path / each / f"trials/0000/{name}.jsonl" for each in ("whole", "cut"))
        assert second.read_bytes() == first.read_bytes() != b""
    hosts = [edgefl.read_run(tmp_path / each / "trials/0000").host for each in ("whole", "cut")]
    assert [*hosts[0]["round"]] == [*hosts[1]["round"]] != []


@pytest.mark.slow(smaller="test_a_journal_that_ends_anywhere_is_gone_on_with")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_search_goes_on_to_the_same_end(jobs: int, tmp_path: Path) -> None:
    given = {"scenario": SMALL, "search": SEARCH, "trials": 6, "output": str(tmp_path / "killed"), "jobs": jobs}
    expected = edgefl.tune(**{**given, "output": tmp_path / "whole", "jobs": 1})
    random, kills = Random(jobs), 0
    while True:
        call = json.dumps([given, random.randint(3, 14)])
        ended = subprocess.run([sys.executable, "-c", CHILD, call], capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
        assert kills < 60
    assert kills >= 2
    assert same(edgefl.tune(**given), expected)


@pytest.fixture(autouse=True)
def _quiet_logging() -> Iterator[None]:
    """Optuna's own verbosity stays as it was."""
    import optuna

    before = optuna.logging.get_verbosity()
    yield
    assert optuna.logging.get_verbosity() == before
