from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from rich.console import Console

import edgefl
from edgefl import registry
from edgefl.commands.compare.table import print_comparison
from edgefl.commands.run.table import print_summary
from edgefl.console.display import Lines
from edgefl.errors import RunError
from edgefl.methods.fedavg import FedAvg
from edgefl.registry.registered import PARTS
from edgefl.results.facts import compare_runs, evaluation_of, facts_of, facts_to_compare, summary
from edgefl.runs import Run
from edgefl.runs.digests import file_digest
from edgefl.work import Context, Pass, Work
from edgefl.work.scoring import ScoreClassify

Tiny = Callable[..., dict[str, Any]]


def shown(found: dict[str, Any]) -> str:
    file = io.StringIO()
    print_summary(found, Console(file=file, width=100, no_color=True, color_system=None, markup=False))
    return file.getvalue()


@pytest.fixture(scope="module")
def comparison(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Text clients of which some can't hold the whole model; both schedules side by side."""
    scenario = tiny(
        data={"source": "glyphs", "clients": {"text": 4}, "samples": 40, "validation": 40, "test": 40},
        compare={"schedule": [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}]},
    )
    peaks = {
        label: max(r["peak_memory_bytes"] for r in part["rows"])
        for label, part in edgefl.profile(scenario)["combinations"].items()
    }
    scenario["fleet"] = {"budgets": {"memory": f"{(peaks['end-to-end'] + peaks['layerwise']) // 2} B"}}
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("comparison") / "run")


def test_facts_agree_with_the_records(layerwise_run: Any) -> None:
    facts = facts_of(layerwise_run)
    rounds, clients = layerwise_run.records("rounds"), layerwise_run.records("clients")
    assert facts["rounds"] == len(rounds) == 4 and facts["outcomes"] == {"completed": 4}
    assert facts["virtual_seconds"] == pytest.approx(layerwise_run.result["virtual_seconds"])
    for name in ("carried_download_bytes", "carried_upload_bytes", "executed_flops", "energy_joules", "finished"):
        assert facts["totals"][name] == pytest.approx(layerwise_run.result["totals"][name])
    assert sum(row["client_rounds"] for row in facts["costs"]) == len(clients)
    for row in facts["costs"]:
        mine = [c for c in clients if (c["stage"], c["kind"]) == (row["stage"], row["kind"])]
        assert row["peak_memory_bytes"] == max(c["peak_memory_bytes"] for c in mine)
        moved = sum(c["carried_download_bytes"] for c in mine) / len(mine)
        assert row["carried_download_bytes"] == pytest.approx(moved)
    assert facts["everyone"]["clients"] == 7 and facts["everyone"]["took_part"] == len({c["client"] for c in clients})
    assert facts["metrics"] == layerwise_run.result["metrics"] and facts["metrics_split"] == "test"
    json.dumps(summary(layerwise_run).to_data())


@pytest.mark.parametrize("schedule", ["elastic", "heterofl", "flexlora"])
def test_the_cost_table_names_the_part_that_clients_trained(tiny: Tiny, tmp_path: Path, schedule: str) -> None:
    needs = dict(registry.get("schedule", schedule).needs)
    scenario = tiny(training={"mode": "none", "batch": 8}) | needs | {"schedule": {"name": schedule, "rounds": 1}}
    offered = {row["stage"]: row["part"] for row in edgefl.profile(scenario)["rows"]}
    run = edgefl.run(scenario, out=tmp_path / "run")
    costs = facts_of(run)["costs"]
    assert costs and [row["part"] for row in costs] == [offered[row["stage"]] for row in costs]
    table = shown(summary(run)).partition("Cost of a client's round")[2].partition("Peaks:")[0]
    assert f"{costs[0]['stage']}, {costs[0]['part']}" in " ".join(table.split())


class Agreement(ScoreClassify):
    """Cohen's kappa beside the accuracy; of texts kappa alone, in [-1, 1]."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        super().finish(ctx, pass_)
        counts = sum(ctx.outputs[self._confusion(pass_, pattern)] for pattern in pass_.patterns)
        shares = torch.as_tensor(counts) / torch.as_tensor(counts).sum()
        by_chance = (shares.sum(0) * shares.sum(1)).sum()
        if pass_.patterns == ("text",):
            ctx.metrics.clear()
        ctx.metrics["cohen_kappa"] = (shares.diagonal().sum() - by_chance) / (1 - by_chance)


class Agreeing(FedAvg):
    """FedAvg scored by ``Agreement``."""

    class Options(FedAvg.Options):
        name: Literal["agreeing"] = "agreeing"  # type: ignore[assignment]

    def evaluate(self, kind: str, split: str) -> Work:
        work = super().evaluate(kind, split)
        return replace(work, passes=tuple(replace(each, step="agreement") for each in work.passes))


@pytest.fixture
def agreeing(tiny: Tiny) -> Iterator[dict[str, Any]]:
    edgefl.register("step", "agreement")(Agreement)
    edgefl.register("method", "agreeing")(Agreeing)
    data = {"source": "glyphs", "clients": {"image": 2, "text": 2}, "samples": 40, "validation": 40, "test": 40}
    yield tiny(data=data, method="agreeing", evaluation={"every": 1, "clients": "25%"})
    PARTS.clear()
    registry.forget()


@pytest.mark.slow(smaller="test_columns_are_those_of_the_metrics_and_patterns_have_lines_of_their_own")
def test_metrics_of_ones_own_are_in_every_table(agreeing: dict[str, Any], tmp_path: Path) -> None:
    run = edgefl.run({**agreeing, "compare": {"training.batch": [4, 8]}}, out=tmp_path / "run")
    values = {label: each.result["metrics"] for label, each in run.runs.items()}
    assert all(set(kinds["text"]) == {"cohen_kappa"} for kinds in values.values())
    table = shown(summary(run))
    of_runs, _, _ = table.partition("Comparison of the runs")
    for section in of_runs.split("Metrics:")[1:]:
        servers, _, clients = section.partition("Clients' own")
        assert "cohen kappa" in servers and "cohen kappa" in clients
    assert all(f"{kinds[kind]['cohen_kappa']:.3f}" in of_runs for kinds in values.values() for kind in kinds)
    (compared,) = [line for line in table.splitlines() if line.strip().startswith("text cohen kappa")]
    assert [f"{kinds['text']['cohen_kappa']:.3f}" for kinds in values.values()] == compared.split()[-2:]
    assert "macro" not in table  # records have it
    result = edgefl.compare([run.path])
    assert {"image.accuracy", "image.cohen_kappa", "text.cohen_kappa"} <= set(result["metrics"])
    file = io.StringIO()
    print_comparison(result, console=Console(file=file, width=200, no_color=True, color_system=None))
    first, *_ = file.getvalue().split("\n\n")
    assert first.count("cohen_kappa") == 2
    page = Path(edgefl.report(run).file).read_text(encoding="utf-8")
    assert "text: cohen kappa" in page and "image: cohen kappa" in page
    last = edgefl.run(agreeing, out=tmp_path / "one", on_progress=(lines := Lines(io.StringIO())))
    of_clients = shown(summary(last)).partition("Clients' own held-out samples")[2]
    assert of_clients.count("cohen kappa") >= 2
    assert f"text cohen kappa {last.result['metrics']['text']['cohen_kappa']:.3f}" in lines.scores()


def test_chance_is_one_of_the_classes_and_ten_of_the_pairs(layerwise_run: Any) -> None:
    facts = facts_of(layerwise_run)
    assert facts["chance"]["image"] == facts["chance"]["text"] == {"accuracy": 1 / 12, "balanced_accuracy": 1 / 12}
    assert facts["chance"]["image-text"]["r@10"] == pytest.approx(10 / facts["test_samples"]["image-text"])
    many = {"test": {"image-text": 2000}}
    assert recall_by_guessing(layerwise_run, many) == pytest.approx(10 / 500), "no more pairs are ranked"
    few = {"test": {"image-text": 40}}
    assert recall_by_guessing(layerwise_run, few) == pytest.approx(10 / 40)
    lacking = Run(layerwise_run.path)
    lacking.scenario["evaluation"]["missing"] = {"image-text": {"patterns": {"image-text": 0.5, "text": 0.5}}}
    assert recall_by_guessing(lacking, few) == pytest.approx(10 / 20), "incomplete pairs aren't ranked"


def recall_by_guessing(run: Run, samples: dict[str, dict[str, int]]) -> float:
    return evaluation_of(run, samples)["chance"]["test"]["image-text"]["r@10"]


def test_what_was_tested_is_read_from_the_folder(layerwise_run: Run, tmp_path: Path) -> None:
    known = facts_of(layerwise_run)
    assert known["test_samples"] == layerwise_run.evaluation["samples"]["test"]
    assert known["chance"] == layerwise_run.evaluation["chance"]["test"]
    begun = tmp_path / "begun"
    shutil.copytree(layerwise_run.path, begun)
    (begun / "evaluation.json").unlink()  # written once the data are open
    nothing = facts_of(edgefl.read_run(begun))
    assert nothing["test_samples"] == {} and nothing["chance"].keys() == {"image", "text"}


def test_whom_the_other_schedule_lets_in(comparison: Any) -> None:
    found = summary(comparison)
    end_to_end, layerwise = found["runs"]["end-to-end"], found["runs"]["layerwise"]
    assert end_to_end["outcomes"] == {"nobody eligible": 2}
    assert end_to_end["stages"][0]["kinds"]["text"]["refused_by"] == {"memory": 4}
    assert layerwise["everyone"]["eligible_always"] == 4
    gained = found["compared"]["gained"]["layerwise"]
    assert gained["clients"] == gained["of_clients"] == gained["took_part"] == 4
    assert gained["samples"] == gained["of_samples"] > 0 and gained["updates"] == 8
    text = shown(found)
    assert "layerwise admits 4 of 4 clients that end-to-end never admits" in text
    assert "rounds not completed: nobody eligible 2" in text
    assert "0 of 4" in text and "4 of 4" in text
    assert max(map(len, text.splitlines())) <= 100


def test_clients_are_compared_only_where_they_are_the_same(comparison: Any) -> None:
    runs = {label: facts_to_compare(run, label) for label, run in comparison.runs.items()}
    assert compare_runs(runs).gained
    runs["layerwise"] = replace(runs["layerwise"], same_clients=[4, *runs["layerwise"].same_clients[1:]])
    assert compare_runs(runs).gained == {}


def test_a_run_that_was_cut_off_is_shown_as_far_as_it_came(layerwise_run: Any, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(layerwise_run.path, cut)
    (cut / "result.json").unlink()
    lines = (cut / "rounds.jsonl").read_text().splitlines(keepends=True)
    (cut / "rounds.jsonl").write_text("".join(lines[:1]))
    text = shown(summary(edgefl.read_run(cut)))
    assert "1 rounds" in text and "No evaluation yet" in text
    assert f"edgefl run --resume {cut}" in text.replace("\n", "")
    for name in ("rounds", "clients", "eligibility"):
        (cut / f"{name}.jsonl").write_text("")
    assert "no round has finished yet" in shown(summary(edgefl.read_run(cut)))


def test_a_line_for_each_round(layerwise_run: Any) -> None:
    file = io.StringIO()
    progress = Lines(file)
    progress("prepare", {"what": "drawing"})
    progress("prepare", {"what": "drawing"})
    progress("combination", {"label": "b", "index": 1, "of": 2, "folder": "runs/x"})
    progress("start", {"rounds": 4, "round": 0})
    assert progress.share == 0.5 and progress.eta == "--"
    records = layerwise_run.records("rounds")
    for record in records:
        progress("record", record)
    first, *lines = file.getvalue().splitlines()
    assert first == "drawing" and len(lines) == 5 and progress.folder == "runs/x"
    assert lines[0].startswith("b (2 of 2): round 1/4, stage 1, clock ") and "eligible 7/7, ETA" in lines[0]
    assert "ETA" in lines[2] and "ETA" not in lines[3] and lines[4].startswith("  test: image acc")
    assert max(map(len, lines)) <= 80
    assert progress.share == 1.0


def test_lines_of_progress_fit_a_narrow_terminal_whatever_the_label_is(layerwise_run: Any) -> None:
    file = io.StringIO()
    progress = Lines(file)
    label = "method=fedcola, schedule=layerwise, training.batch=16, fleet.budgets.memory=8MiB"
    progress("combination", {"label": label, "index": 1, "of": 2, "folder": "runs/x"})
    progress("start", {"rounds": 4, "round": 0})
    record = layerwise_run.records("rounds")[-1]
    metrics = {f"kind-{i}": {"accuracy": 0.5, "r@10": 0.25} for i in range(5)}
    progress("record", {**record, "metrics": metrics, "finished": 1, "selected": 3})
    first, second, *scores = file.getvalue().splitlines()
    assert first == f"{label} (2 of 2):" and "finished 1/3" in second and len(second) <= 80
    assert len(scores) == 3 and max(map(len, scores)) <= 80
    assert ", ".join(line.strip() for line in scores) == progress.scores()


def test_a_long_round_tells_how_many_clients_have_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    file, now = io.StringIO(), [0.0]
    monkeypatch.setattr("edgefl.console.display.time.monotonic", lambda: now[0])
    progress = Lines(file)
    progress("combination", {"label": "a", "index": 0, "of": 1})
    progress("start", {"rounds": 2, "round": 0})
    progress("round", {"round": 1, "stage": 1, "selected": 9, "now": 0.0})
    for done, at in ((1, 5.0), (3, 15.0), (4, 20.0), (9, 31.0)):
        now[0] = at
        progress("trained", {"round": 1, "done": done, "of": 9})
    assert progress.share == pytest.approx(0.45) and progress.elapsed_text == "0:31"
    assert file.getvalue().splitlines() == [
        "a: round 1/2: 3 of 9 clients trained, ETA --",  # too few clients to tell
        "a: round 1/2: all 9 clients trained, the server is at work, ETA 37.9 s",  # 31 s for 0.9 / 2 of the rounds
    ]


def test_the_pace_of_one_batch_of_cells_is_not_that_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shares, progress = [0.0], [0.0, 0.0], Lines(io.StringIO())
    monkeypatch.setattr("edgefl.console.display.time.monotonic", lambda: now[0])

    def cell(index: int, share: float, started: bool = False) -> None:
        shares[index] = share
        facts = {"label": str(index), "status": "", "started": started, "done": 0, "of": 2, "running": {}}
        progress("cell", {**facts, "share": sum(shares) / 2})

    cell(0, 0.0, started=True)
    cell(1, 0.5, started=True)  # resumed: half of it was played before
    assert progress.eta == "--"
    now[0] = 10.0
    cell(0, 0.5)
    assert progress.eta == "20 s"  # half a cell in 10 s, and two halves are left
    cell(0, 1.0), cell(1, 1.0)
    shares[:] = [0.0, 0.0]
    now[0] = 1000.0
    cell(0, 0.0, started=True)
    assert progress.eta == "--"
    now[0] = 1001.0
    cell(0, 0.5)
    assert progress.eta == "3 s"
    cell(0, 0.0, started=True)  # its worker was lost: 1 s was work for half a cell, and two are left
    assert progress.eta == "4 s"


def test_cells_that_were_played_before_give_no_pace() -> None:
    """Of sums of these shares an ulp remains."""
    shares, progress = [0.0] * 6, Lines(io.StringIO())
    for index, played in enumerate([0, 7, 5, 17, 18, 5]):
        shares[index] = played / 20
        facts = {"label": str(index), "status": "", "started": True, "done": 0, "of": 6, "running": {}}
        progress("cell", {**facts, "share": sum(shares) / 6})
        assert progress.eta == "--"


def test_nor_is_that_of_one_batch_of_runs_one_after_the_other(
    layerwise_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, progress, record = [0.0], Lines(io.StringIO()), layerwise_run.records("rounds")[0]
    monkeypatch.setattr("edgefl.console.display.time.monotonic", lambda: now[0])
    for seconds, left in ((10.0, ["70 s", "10 s"]), (1.0, ["7 s", "1 s"])):
        told = []
        for index, played in ((0, 0), (1, 2)):  # the second is resumed: two of its four rounds were played before
            progress("combination", {"label": str(index), "index": index, "of": 2})
            progress("start", {"rounds": 4, "round": played})
            assert index or progress.eta == "--"
            for number in range(played + 1, 5):
                now[0] += seconds
                progress("record", {**record, "round": number})
                told += [progress.eta] * (number == played + 1)
        assert told == left
        now[0] += 1000.0


def test_columns_are_those_of_the_metrics_and_patterns_have_lines_of_their_own(layerwise_run: Any) -> None:
    found = summary(layerwise_run)
    (facts,) = found["runs"].values()
    assert "soft score" not in shown(found) and "R@1 sum" not in shown(found)
    scores = {"accuracy": 0.5, "soft_score": 0.25, "accuracy[image-text]": 0.625, "accuracy[image]": 0.125}
    facts = replace(facts, metrics={"image": {"accuracy": 0.5, "macro_f1": 0.5}, "image-text": scores})
    found = replace(found, runs={"tiny": facts})
    lines = shown(found).splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["kind", "accuracy"])
    assert lines[at].split() == ["kind", "accuracy", "soft", "score", "samples"]
    assert [line.split()[-3] for line in lines[at + 3 : at + 6]] == ["0.500", "0.625", "0.125"]
    assert "with image and text" in lines[at + 4] and "with image " in lines[at + 5]
    scores = {"r@1": 0.25, "r@10": 0.5, "r@1_both": 0.75, "r@1_sum": 1.25, "accuracy": 0.5}
    found = replace(found, runs={"tiny": replace(facts, metrics={"image-text": scores})})
    assert "1.250" in shown(found) and "0.750" not in shown(found) and max(map(len, shown(found).splitlines())) <= 100


@pytest.mark.parametrize(("table", "field"), [("rounds", "metrics"), ("clients", "peak_memory_bytes"),
                                              ("eligibility", "eligible")])  # fmt: skip
def test_a_record_that_lacks_a_field_is_named(layerwise_run: Any, tmp_path: Path, table: str, field: str) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(layerwise_run.path, changed)
    first, second, *others = (changed / f"{table}.jsonl").read_text().splitlines()
    record = json.loads(second)
    del record[field]
    (changed / f"{table}.jsonl").write_text("\n".join([first, json.dumps(record), *others]) + "\n")
    with pytest.raises(RunError, match=f"{table}.jsonl:2: field '{field}' is missing"):
        summary(edgefl.read_run(changed))


def test_a_record_with_a_value_of_another_kind_is_refused(layerwise_run: Any, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(layerwise_run.path, changed)
    text = (changed / "rounds.jsonl").read_text()
    (changed / "rounds.jsonl").write_text(text.replace('"selected":', '"selected":"x","s":'))
    with pytest.raises(RunError, match=r"rounds.jsonl:1: field 'selected': expected `int`, got `str`"):
        summary(edgefl.read_run(changed))


def test_what_no_type_sees_of_a_changed_file_is_told_and_a_mistake_of_our_own_is_not_called_a_change(
    layerwise_run: Any, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(layerwise_run.path, changed)
    evaluation = json.loads((changed / "evaluation.json").read_text())
    del evaluation["chance"]["test"]  # the split of the last round
    (changed / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(RunError, match="changed: evaluation.json has changed since the run finished: no 'test'"):
        summary(edgefl.read_run(changed))
    evaluation["chance"]["test"] = {"image": {"accuracy": None}}
    (changed / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(RunError, match=r"evaluation.json: field 'chance.*': expected `float`, got `null`"):
        summary(edgefl.read_run(changed))
    del evaluation["chance"]["test"]
    (changed / "evaluation.json").write_text(json.dumps(evaluation))
    files = json.loads((changed / "files.json").read_text())
    files["files"]["evaluation.json"] = file_digest(changed / "evaluation.json")
    (changed / "files.json").write_text(json.dumps(files))
    with pytest.raises(
        RunError, match="or edgefl reads them wrongly .*: no 'test'"
    ) as told:  # as if edgefl wrote it so
        summary(edgefl.read_run(changed))
    assert isinstance(told.value.__cause__, KeyError)
