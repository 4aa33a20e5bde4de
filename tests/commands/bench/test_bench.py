"""``edgefl bench`` on small real runs: which cells are trained, their scores, who is best, and how it goes on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from scipy.stats import ttest_rel

import edgefl
from edgefl.commands.bench.answer import BenchAnswer, BenchFleet
from edgefl.commands.bench.chart import charts_of_bench
from edgefl.commands.bench.suite_folder import suite_folder
from edgefl.commands.bench.table import sections
from edgefl.commands.bench.winners import _read
from edgefl.console import main
from edgefl.errors import EdgeflError, RunError, ScenarioError
from edgefl.records.record import UNSET
from edgefl.scenario.suite import read_suite
from tests.toys.answers import read_back

BASE: dict[str, Any] = {
    "seed": 4,
    "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 20, "size": 16, "partition": "iid",
             "validation": 20, "test": 30},
    "model": {"image": {"tower": "vit", "blocks": 2, "width": 8, "heads": 2, "patch": 8}},
    "training": {"batch": 10, "lr": 1e-2},
    "fleet": {"budgets": {"within_device": False}},
    "round": {"cohort": "100%"},
    "schedule": {"name": "end-to-end", "rounds": 2},
    "executor": {"name": "inline", "device": "cpu"},
}  # fmt: skip
SUITE: dict[str, Any] = {
    "edgefl": 1,
    "name": "toys",
    "scenario": BASE,
    "seeds": 2,
    "metric": "image.accuracy",
    "variants": {"end-to-end": {}, "layer-wise": {"schedule": {"name": "layerwise", "stages": 2, "rounds": 2}}},
    "budget": "memory",
    "small": ["100%", "50%"],
    "target": 0.01,
}


def write(folder: Path, **changes: Any) -> Path:
    """A suite's file; a field that is None is left out."""
    suite = {name: value for name, value in {**SUITE, **changes}.items() if value is not None}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    return folder / "suite.yaml"


def score(folder: Path) -> float:
    """The accuracy after the last round, from the run's records."""
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    return float(last["metrics"]["image"]["accuracy"])


def runs_of(folder: Path) -> dict[str, int]:
    """When each run's result was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in sorted(folder.glob("runs/*/result.json"))}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchAnswer, Path]:
    """The answer of the suite, and its folder."""
    folder = tmp_path_factory.mktemp("bench")
    return edgefl.bench(write(folder), out=folder / "out"), folder / "out"


def fleets(answer: BenchAnswer, share: float) -> list[BenchFleet]:
    return [fleet for fleet in answer.fleets if fleet.small_share == share]


def test_fleets_are_the_intervals_between_what_works_take(done: tuple[BenchAnswer, Path]) -> None:
    answer, _ = done
    read_back(BenchAnswer, json.dumps(answer.to_data()))
    peaks: dict[str, list[int]] = {}
    for variant in SUITE["variants"]:
        fields = SUITE["variants"][variant]
        profile = edgefl.profile({**BASE, **fields})
        peaks[variant] = sorted({row.peak_memory_bytes for row in profile.rows})
    assert {each.variant: each.needs for each in answer.variants} == peaks
    ends = sorted({amount for amounts in peaks.values() for amount in amounts})
    for share in (1.0, 0.5):
        found = [(fleet.low, fleet.high) for fleet in fleets(answer, share)]
        whole = list(zip([0, *ends], [*ends, None], strict=True))
        assert found == (whole[1:] if share == 1 else whole)  # where all are small and none fits, nobody trains


def test_who_can_train_follows_from_memory(done: tuple[BenchAnswer, Path]) -> None:
    answer, _ = done
    needs = {each.variant: each.needs for each in answer.variants}
    for fleet in answer.fleets:
        for row in fleet.rows:
            fits = [amount for amount in needs[row.variant] if amount <= fleet.low]
            assert row.eligible_share == (1 if fits else 1 - fleet.small_share)
            assert (None not in row.runs) == (row.eligible_share > 0) == (row.mean is not None)


def test_cells_in_which_all_do_the_same_are_one_run(done: tuple[BenchAnswer, Path]) -> None:
    answer, folder = done
    rows = {(fleet.small_share, fleet.low, row.variant): row for fleet in answer.fleets for row in fleet.rows}
    free = max(fleet.low for fleet in answer.fleets)
    assert rows[1.0, free, "end-to-end"].runs == rows[0.5, free, "end-to-end"].runs
    assert rows[0.5, 0, "end-to-end"].runs == rows[0.5, min(needs(answer, "layer-wise")), "end-to-end"].runs
    used = {run for row in rows.values() for run in row.runs if run}
    assert used == {f"runs/{name}" for name in runs_of(folder)} and len(used) == answer.trained
    assert answer.cells == sum(run is not None for row in rows.values() for run in row.runs) > answer.trained


def needs(answer: BenchAnswer, variant: str) -> list[float]:
    return [float(amount) for each in answer.variants if each.variant == variant for amount in each.needs or ()]


def test_scores_are_those_of_the_runs_and_winners_those_of_scipy(done: tuple[BenchAnswer, Path]) -> None:
    answer, folder = done
    for fleet in answer.fleets:
        scores = {
            row.variant: [score(folder / run) for run in row.runs if run] for row in fleet.rows if None not in row.runs
        }
        for row in fleet.rows:
            if None not in row.runs:
                assert row.scores == scores[row.variant]
                assert row.mean == pytest.approx(fmean(scores[row.variant]))
        best = max(scores, key=lambda name: fmean(scores[name]))
        assert answer.chance is not None
        guesses = {row.variant for row in fleet.rows if row.mean is None or row.mean - row.half_width <= answer.chance}
        assert not guesses & {fleet.winner, *fleet.tied}
        if best in guesses:
            assert fleet.winner is None and fleet.gap is None
            continue
        assert (fleet.winner or fleet.tied[0]) in (
            name for name in scores if fmean(scores[name]) == fmean(scores[best])
        )
        for name in scores.keys() - {best}:
            gap = np.subtract(scores[best], scores[name])
            if fleet.winner is not None:
                assert not gap.std() or ttest_rel(scores[best], scores[name]).pvalue < 0.05
            assert fleet.gap is not None and fleet.gap <= gap.mean() + 1e-12


def test_a_run_equals_one_at_another_budget_of_its_interval(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, folder = done
    fleet = fleets(answer, 1.0)[0]
    [row] = [row for row in fleet.rows if row.variant == "layer-wise"]
    assert fleet.high is not None and fleet.low < fleet.high - 2
    scenario = {**BASE, **SUITE["variants"]["layer-wise"]}
    scenario["fleet"] = {"budgets": {"within_device": False, "memory": f"{int(fleet.high) - 1} B"}}
    edgefl.run(scenario, out=tmp_path / "inside")
    scenario["fleet"] = {"budgets": {"within_device": False, "memory": f"{int(fleet.high)} B"}}
    edgefl.run(scenario, out=tmp_path / "beyond")
    weights = [load_file(path / "weights.safetensors") for path in (folder / str(row.runs[0]), tmp_path / "inside")]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].tobytes() == weights[1][name].tobytes() for name in weights[0])
    beyond = load_file(tmp_path / "beyond" / "weights.safetensors")
    assert any(weights[0][name].tobytes() != beyond[name].tobytes() for name in beyond)


def test_costs_until_the_target_are_those_of_the_rounds(done: tuple[BenchAnswer, Path]) -> None:
    answer, folder = done
    assert answer.costs
    for cost in answer.costs:
        [row] = [
            r for fleet in answer.fleets if fleet.fleet == cost.fleet for r in fleet.rows if r.variant == cost.variant
        ]
        totals = []
        for seed, run in enumerate(row.runs):
            flights = [json.loads(line) for line in (folder / str(run) / "clients.jsonl").read_text().splitlines()]
            moved, reached = 0, None
            for line in (folder / str(run) / "rounds.jsonl").read_text().splitlines():
                record = json.loads(line)
                mine = [flight for flight in flights if flight["round"] == record["round"]]
                moved += sum(flight["carried_download_bytes"] + flight["carried_upload_bytes"] for flight in mine)
                if reached is None and record["metrics"].get("image", {}).get("accuracy", -1) >= 0.01:
                    reached = moved
            assert cost.bytes[seed] == reached
            totals.append(moved)
        assert row.bytes == pytest.approx(fmean(totals))
        assert cost.reached == sum(each is not None for each in cost.bytes)


def test_a_target_is_counted_on_one_split_which_its_title_says(done: tuple[BenchAnswer, Path]) -> None:
    answer, _ = done
    assert (answer.split, answer.target_split) == ("test", "validation")
    titles = [section.title for section in sections(answer)]
    assert any(title.startswith("Costs until image accuracy on validation is 0.01") for title in titles)
    charts = {chart.name: chart for chart in charts_of_bench(answer)}
    assert charts["staircase"].panels[0].y.title == "image accuracy on test"


def test_a_run_that_stopped_before_its_last_evaluation_has_no_score(
    done: tuple[BenchAnswer, Path], tmp_path: Path
) -> None:
    _, folder = done
    first = sorted((folder / "runs").iterdir())[0]
    shutil.copytree(first, tmp_path / "run")
    assert _read(tmp_path / "run", "image.accuracy").score == score(first)
    # as a run whose model diverges in round 2 leaves it, where only every second round is evaluated
    (tmp_path / "run" / "result.json").unlink()
    rounds = tmp_path / "run" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().splitlines(keepends=True)[0])
    played = _read(tmp_path / "run", "image.accuracy")
    assert played.facts.metrics["image"]["accuracy"] is not None and played.score is None


def test_the_same_call_trains_nothing_and_says_the_same(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, folder = done
    before = runs_of(folder)
    again = edgefl.bench(write(tmp_path), out=folder)
    assert runs_of(folder) == before
    assert {**again.to_data(), "seconds": 0} == {**answer.to_data(), "seconds": 0}
    assert json.loads((folder / "bench.json").read_text()) == again.to_data()


def test_a_changed_suite_trains_what_it_adds(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, folder = done
    shutil.copytree(folder, tmp_path / "out")
    before = runs_of(tmp_path / "out")
    variants = {**SUITE["variants"], "slow": {"training.lr": 1e-4}}
    more = edgefl.bench(write(tmp_path, variants=variants, small=["100%"]), out=tmp_path / "out")
    after = runs_of(tmp_path / "out")
    assert before.items() <= after.items() and {name[:4] for name in after.keys() - before.keys()} == {"slow"}
    assert [row.mean for row in more.fleets[-1].rows[:2]] == [row.mean for row in fleets(answer, 1.0)[-1].rows]
    assert [row.variant for row in more.fleets[-1].rows] == [*variants]


def test_a_suite_may_take_its_fields_from_another(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, folder = done
    shutil.copytree(folder, tmp_path / "out")
    before = runs_of(tmp_path / "out")
    write(tmp_path)
    free = {"edgefl": 1, "name": "free", "suite": "suite.yaml", "small": ["100%"], "at": ["1 GiB"]}
    (tmp_path / "free.yaml").write_text(yaml.safe_dump(free), encoding="utf-8")
    rich = edgefl.bench(tmp_path / "free.yaml", out=tmp_path / "out")
    assert runs_of(tmp_path / "out") == before and rich.suite == "free"
    [fleet] = rich.fleets
    assert [row.scores for row in fleet.rows] == [row.scores for row in fleets(answer, 1.0)[-1].rows]
    again = edgefl.bench(tmp_path / "out" / "suite.yaml", out=tmp_path / "out")  # what was run, with its defaults
    assert {**again.to_data(), "seconds": 0} == {**rich.to_data(), "seconds": 0}


def test_a_variant_that_cannot_be_run_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    variants = {"end-to-end": {}, "deep": {"schedule": {"name": "layerwise", "stages": 9, "rounds": 9}}}
    answer = edgefl.bench(write(tmp_path, variants=variants, seeds=1, small=None), out=tmp_path / "out")
    assert answer.variants[0].refused is UNSET
    assert "9 stages are more than the 2 blocks" in str(answer.variants[1].refused)
    assert [row.variant for row in answer.fleets[0].rows] == ["end-to-end"]
    with pytest.raises(ScenarioError):
        edgefl.bench(write(tmp_path, variants={"deep": variants["deep"]}), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_kept_under_conditions(tmp_path: Path) -> None:
    conditions = {"none": {}, "slower": {"training.lr": 1e-4}}
    suite = write(tmp_path, budget=None, small=None, conditions=conditions, target=None)
    answer = edgefl.bench(suite, out=tmp_path / "out")
    assert [fleet.fleet for fleet in answer.fleets] == ["none", "slower"]
    for place, row in enumerate(answer.fleets[1].rows):
        reference = answer.fleets[0].rows[place]
        assert reference.kept_share == 1 and row.mean is not None and reference.mean
        assert row.kept_share == pytest.approx(row.mean / reference.mean)
    assert answer.trained == answer.cells == 8


@pytest.mark.slow(smaller="test_variants_of_memory_are_eight_tuned_alike_over_ten_seeds")
def test_a_suite_tunes_each_variant_by_equally_many_trials(tmp_path: Path) -> None:
    tune = {"search": ["training.lr=1e-4..1e-1"], "trials": 4}
    answer = edgefl.bench(write(tmp_path, tune=tune, small=None), out=tmp_path / "out", jobs=2)
    for each in answer.variants:
        [folder] = (tmp_path / "out" / "tune").glob(f"{each.variant}-*")
        tuned = json.loads((folder / "tune.json").read_text())
        assert each.trials == 4 == len(tuned["trials"])
        scores = [trial["score"] for trial in tuned["trials"] if trial["complete"]]
        assert each.tuned_score == max(scores)
        rates = {
            yaml.safe_load((tmp_path / "out" / str(run) / "scenario.yaml").read_text())["training"]["lr"]
            for fleet in answer.fleets for row in fleet.rows if row.variant == each.variant for run in row.runs if run
        }  # fmt: skip
        assert rates == {tuned["best"]["settings"]["training.lr"]}
    before = runs_of(tmp_path / "out")
    again = edgefl.bench(write(tmp_path, tune=tune, small=None), out=tmp_path / "out")
    assert runs_of(tmp_path / "out") == before
    assert {**again.to_data(), "seconds": 0} == {**answer.to_data(), "seconds": 0}


@pytest.mark.slow(smaller="test_the_same_call_trains_nothing_and_says_the_same")
def test_killed_at_any_time_it_ends_as_it_would_have(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, _ = done
    suite = write(tmp_path)
    command = [sys.executable, "-m", "edgefl", "bench", str(suite), "-o", str(tmp_path / "out"), "--jobs", "2"]
    for seconds in (5, 8, 11):
        running = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
    again = edgefl.bench(suite, out=tmp_path / "out")
    left = ("seconds", "folder")
    assert {k: v for k, v in again.to_data().items() if k not in left} == {
        k: v for k, v in answer.to_data().items() if k not in left
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [1, 2, 1]}, r"suite.yaml:\d+: seeds: seed 1 is listed twice"),
        ({"seeds": 0}, "seeds: must be from 1 to 1000 seeds"),
        ({"metric": "image.acuracy"}, r"metric: .*no 'image.acuracy'; did you mean"),
        ({"target": float("nan")}, "target: must be a finite number"),
        ({"budget": "bytes"}, "budget: must be 'memory' or 'flops'"),
        ({"budget": None}, "small: needs a budget"),
        ({"small": ["0%"]}, "a share of small devices is more than 0 %"),
        ({"small": ["50%", 0.5]}, "50 % is listed twice"),
        ({"at": ["6 apples"]}, "at: .*apples"),
        ({"variants": {}}, "variants: must be a mapping with at least 1 key"),
        ({"variants": {"a": {"seed": 3}}}, r"variants.a.seed: isn't set here: all run over the same"),
        ({"variants": {"a": {"trainig.lr": 3}}}, r"unknown section 'trainig'; did you mean 'training'"),
        ({"variants": {"a": {"training.lr": "fast"}}}, r"suite.yaml:\d+: training.lr: must be a number, not 'fast'"),
        ({"conditions": {"x": {}}}, "has a budget and conditions; write two suites"),
        ({"scenario": {**BASE, "fleet": {"budgets": {"memory": "5 MiB"}}}}, "fleet.budgets.memory already"),
        ({"scenario": {**BASE, "compare": {"seed": [1, 2]}}}, "scenario: compares seed"),
        ({"scenario": "nowhere"}, "no such file or shipped scenario"),
        ({"tune": {"search": ["training.lr=1..0.1"]}}, r"tune.search: .*is empty"),
        ({"tune": {"search": ["training.lr=0.1..1"], "trails": 3}}, "trails"),
        ({"suite": "nowhere"}, "no such file, shipped scenario or suite; allowed: bandwidth, memory"),
        ({"varients": {}}, "unknown key 'varients'; did you mean 'variants'"),
    ],
)
def test_a_wrong_suite_is_told_in_a_line(change: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeflError) as found:
        edgefl.bench(write(tmp_path, **change), out=tmp_path / "out")
    assert re.search(message, str(found.value)) and "\n" not in str(found.value)
    assert found.value.exit_code == 2 and not (tmp_path / "out").exists()


def test_fleets_on_which_nobody_trains_are_told_with_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"at: no client can train any variant .*the least that a work takes is 6"):
        edgefl.bench(write(tmp_path, small=None, at=["1 KiB"]), out=tmp_path / "out")


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(RunError, match="already holds files"):
        edgefl.bench(write(tmp_path), out=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_what_a_killed_call_left_is_taken_up_and_half_a_file_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("writer.lock", ".partial-suite.yaml"):  # before the suite stood there
        (out / name).write_text("half")
    suite = read_suite(write(tmp_path))
    with suite_folder(suite, out):
        (out / ".partial-4f-bench.html").write_text("half a page")
    with suite_folder(suite, out):
        assert {path.name for path in out.iterdir()} == {"writer.lock", "suite.yaml"}


def test_the_command_prints_what_it_wrote(
    done: tuple[BenchAnswer, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = done
    with pytest.raises(SystemExit) as ended:
        main(["bench", str(write(tmp_path)), "-o", str(folder), "--figure", str(tmp_path / "stairs.svg")])
    out = capsys.readouterr().out
    assert (
        ended.value.code == 0
        and "memory of these" in out
        and (tmp_path / "stairs.svg").read_bytes().startswith(b"<?xml")
    )
    assert (folder / "bench.html").read_text().count("<html") == 1 and (folder / "bench.csv").exists()
    with pytest.raises(SystemExit) as ended:
        main(["bench", str(tmp_path / "none.yaml")])
    assert ended.value.code == 2 and "no such file, shipped scenario or suite" in capsys.readouterr().err


def test_a_run_that_fails_is_named_and_the_others_have_ended(done: tuple[BenchAnswer, Path], tmp_path: Path) -> None:
    answer, folder = done
    shutil.copytree(folder, tmp_path / "out")
    [row] = [row for row in fleets(answer, 1.0)[-1].rows if row.variant == "end-to-end"]
    for each in (tmp_path / "out" / str(row.runs[0])).iterdir():
        each.unlink() if each.is_file() else shutil.rmtree(each)
    (tmp_path / "out" / str(row.runs[0]) / "thesis.txt").write_text("words")  # the run's folder is taken
    with pytest.raises(RunError, match=r"1 of \d+ runs failed: end-to-end, .*already holds files.*the same command"):
        edgefl.bench(write(tmp_path), out=tmp_path / "out")
    told = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [*told["failed"]] == [str(row.runs[0]).removeprefix("runs/")] and told["trained"] == answer.trained - 1


@pytest.mark.slow(smaller="test_scores_are_those_of_the_runs_and_winners_those_of_scipy")
def test_scores_on_clients_are_those_of_their_records(tmp_path: Path) -> None:
    scenario = {**BASE, "evaluation": {"clients": "20%"}}
    answer = edgefl.bench(write(tmp_path, scenario=scenario, budget=None, small=None), out=tmp_path / "out")
    [fleet] = answer.fleets
    for row in fleet.rows:
        worst = []
        for run in map(str, row.runs):
            lines = (tmp_path / "out" / run / "scored.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            last = [each for each in records if each["round"] == max(each["round"] for each in records)]
            worst.append(min(each["metrics"]["accuracy"] for each in last))  # a tenth of four clients is one
        assert row.worst_decile == pytest.approx(fmean(worst))


def test_references_are_trained_beside_the_variants_and_not_ranked(tmp_path: Path) -> None:
    """Their scores are those of runs of the scenario under these methods, and a repeated call trains nothing."""
    alone = {
        method: edgefl.run({"edgefl": 1, "name": method, **BASE, "method": method}, out=tmp_path / method)
        for method in ("central", "local")
    }
    suite = write(tmp_path, seeds=1, variants={"end-to-end": {}}, budget=None, small=None, target=None,
                  references=["central", "local"])  # fmt: skip
    answer = edgefl.bench(suite, out=tmp_path / "out")
    found = {each.reference: each for each in answer.references}
    assert {name: each.scores for name, each in found.items()} == {
        name: [run.result.metrics["image"]["accuracy"]] for name, run in alone.items()
    }
    assert found["local"].deviation == alone["local"].result.metrics["image"]["accuracy_deviation"]
    assert found["central"].deviation is UNSET
    assert [row.variant for fleet in answer.fleets for row in fleet.rows] == ["end-to-end"]
    assert {name for _, name in charts_of_bench(answer)[0].panels[0].across} >= {"central", "local"}
    before = runs_of(tmp_path / "out")
    assert len(before) == 3
    edgefl.bench(suite, out=tmp_path / "out")
    assert runs_of(tmp_path / "out") == before


def test_an_unknown_reference_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"references\[0\]: must be 'central' or 'local', not 'alone'"):
        edgefl.bench(write(tmp_path, references=["alone"]), out=tmp_path / "out")
