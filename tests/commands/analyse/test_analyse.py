from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tensors import assert_equal_tensors

import edgefl
from edgefl import seeds
from edgefl.commands.analyse.answer import Worth
from edgefl.commands.analyse.shapley import coalitions, metrics_of, shapley
from edgefl.commands.analyse.table import print_analysis
from edgefl.commands.analyse.trained_federation import Trained, _norm, cosine, gradient, gradient_works
from edgefl.console import main
from edgefl.errors import EdgeflError, RunError, ScenarioError, UnknownName
from edgefl.runs.progress import silent
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]

# values --------------------------------------------------------------------------------------------------------------

PLAYERS = ("image", "text", "image-text", "audio")


@st.composite
def games(draw: st.DrawFn) -> tuple[list[str], dict[frozenset[str], float]]:
    players = list(PLAYERS[: draw(st.integers(1, 4))])
    value = st.floats(-10, 10, allow_nan=False)
    return players, {who: draw(value) for who in coalitions(players, players).values()}


@given(games())
@settings(max_examples=40, deadline=None)
def test_values_are_mean_gains_over_all_orders(game: Any) -> None:
    players, value = game
    found = shapley(value, players)
    orders = list(permutations(players))
    for player in players:
        gains = []
        for order in orders:
            before = frozenset(order[: order.index(player)])
            gains.append(value[before | {player}] - value[before])
        assert found[player] == pytest.approx(sum(gains) / len(orders), abs=1e-9)
    assert sum(found.values()) == pytest.approx(value[frozenset(players)] - value[frozenset()], abs=1e-9)


@given(games(), st.floats(-5, 5))
@settings(max_examples=30, deadline=None)
def test_equals_have_equal_values_and_who_adds_nothing_has_none(game: Any, gain: float) -> None:
    players, value = game
    first, last = players[0], players[-1]
    # the first adds the same to every coalition, so that its value is that
    added = {who: value[who - {first}] + gain * (first in who) for who in value}
    assert shapley(added, players)[first] == pytest.approx(gain, abs=1e-9)
    swap = {first: last, last: first}

    def swapped(who: frozenset[str]) -> frozenset[str]:
        return frozenset(swap.get(player, player) for player in who)

    even = {who: value[who] + value[swapped(who)] for who in value}
    found = shapley(even, players)
    assert found[first] == pytest.approx(found[last], abs=1e-9)
    # additive: the value of a sum of games is the sum of the values
    both = shapley({who: value[who] + even[who] for who in value}, players)
    assert both == pytest.approx({p: shapley(value, players)[p] + found[p] for p in players}, abs=1e-8)


def test_every_subset_has_a_name() -> None:
    assert list(coalitions(["image", "text", "image-text"], ["image", "text", "image-text"])) == [
        "everybody", "image+text", "image+image-text", "text+image-text", "image", "text", "image-text", "nobody",
    ]  # fmt: skip
    assert list(coalitions(["image"], ["image"])) == ["everybody", "nobody"]


def test_kinds_that_are_no_players_are_in_every_coalition() -> None:
    named = coalitions(["image", "text"], ["image", "image-text", "text"])
    assert named == {
        "everybody": {"image", "text"}, "image+image-text": {"image"}, "image-text+text": {"text"}, "image-text": set()
    }  # fmt: skip


def test_who_is_left_out_is_a_kind_of_the_scenario(tiny: Tiny) -> None:
    with pytest.raises(ScenarioError, match="round.leave_out: there are no 'images' clients; did you mean 'image'"):
        load(tiny(round={"leave_out": ["images"]}))
    with pytest.raises(ScenarioError, match="text is listed twice"):
        load(tiny(round={"leave_out": ["text", "text"]}))


# a run looked at -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tiny: Tiny) -> dict[str, Any]:
    """Two kinds, one round, one block."""
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**tiny()["data"], "clients": {"image": 2, "image-text": 1}, "samples": 16, "size": 16, "partition": "iid"}
    model = {"image": tower, "text": {**tower, "tokens": 12}}
    return tiny(data=data, model=model, schedule={"name": "end-to-end", "rounds": 1})


@pytest.fixture(scope="module")
def analysed(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("analysed")
    figure = folder / "figure.png"
    return folder / "all", edgefl.analyse(small, out=folder / "all", figure=figure, clients=2)


def test_kinds_that_share_nothing_are_worth_nothing_to_each_other(analysed: Any) -> None:
    _, found = analysed
    assert found["shapley"]["players"] == ["image", "image-text"]
    for row in found["shapley"]["rows"]:
        worth, value = row["players"], row["values"]
        total = sum(one["shapley"] for one in worth.values())
        assert total == pytest.approx(value["everybody"] - value["nobody"], abs=1e-12)
        # under FedAvg per kind a model is its own clients' alone, whoever else is there
        other = "image-text" if row["kind"] == "image" else "image"
        assert worth[other] == Worth(
            shapley=0, lost=0, alone=0, shapley_std=None, lost_std=None, alone_std=None
        )  # fmt: skip
        own = worth[row["kind"]]
        assert own["shapley"] == pytest.approx(own["lost"], abs=1e-12) and own["lost"] == own["alone"]


def test_one_model_for_several_kinds_is_scored_once(analysed: Any) -> None:
    run = edgefl.read_run(analysed[0] / "everybody")
    apart = [("image", "accuracy"), ("image", "balanced_accuracy"), ("image-text", "r@1"), ("image-text", "r@10")]
    assert metrics_of(run, None, [["image"], ["image-text"]]) == [([kind], name) for kind, name in apart]
    assert metrics_of(run, None, [["image-text", "image"]]) == [
        (["image-text", "image"], name) for _, name in apart[2:]
    ]
    assert metrics_of(run, "image.accuracy", [["image-text", "image"]]) == [(["image"], "accuracy")]
    assert metrics_of(run, "mean.accuracy", [["image"], ["image-text"]]) == [(["mean"], "accuracy")]


def test_what_was_found_is_printed_kept_and_drawn(analysed: Any) -> None:
    folder, found = analysed
    out = io.StringIO()
    print_analysis(found, Console(file=out, width=100, no_color=True))
    text = out.getvalue()
    for title in (
        "Contribution of each client kind to the metrics (test split)",
        "Gradient norm",
        "Agreement of the clients",
        "Agreement between kinds",
        "no matching: fedavg matches no",
    ):
        assert title in text
    assert max(map(len, text.splitlines())) <= 100
    assert json.loads((folder / "analysis.json").read_text()) == json.loads(
        json.dumps(found.to_data(), allow_nan=False)
    )
    assert (folder.parent / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert found["gradients"]["stages"] == [] and "attention output" not in text
    for row in (*found["gradients"]["rows"], *found["drift"]["within"]):
        assert row["clients"] == (2 if row["kind"] == "image" else 1)
    alone = [row for row in found["drift"]["within"] if row["kind"] == "image-text"]
    assert alone and all(row["consistency"] == pytest.approx(1) for row in alone)
    assert all(0 < row["consistency"] <= 1 and row["moved"] > 0 for row in found["drift"]["within"])
    for row in found["drift"]["between"]:
        assert row["kinds"] == ["image", "image-text"] and row["tower"] == "image"
        assert -1 <= row["cosine"] <= 1 and 0 < row["distance"] < 1


def test_the_gradient_is_autograds_own(analysed: Any) -> None:
    folder, found = analysed
    run = edgefl.read_run(folder / "everybody")
    scenario = load(run.path / "scenario.yaml")
    trained = Trained.from_run(run, scenario, lambda _: None)
    mine, weights = gradient(trained, "image", 0, 1)
    model: Any = run.model("image").train()
    source = trained.setup.clients.client(0)
    (pass_,) = (p for p in trained.setup.method.work("image", 1).limit_batches(source.size).passes)
    assert isinstance(pass_, Pass)
    shuffle = seeds.key(seeds.key(scenario.seed, "analysis gradient", 0), "shuffle", 0, 0)
    batches = list(source.batches(pass_, shuffle))
    with torch.random.fork_rng([]):
        losses = [
            torch.nn.functional.cross_entropy(model.classify(pattern, batch), batch["label"])
            for pattern, batch in batches
        ]
        torch.stack(losses).mean().backward()
    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    assert_equal_tensors({name: mine[name].float() for name in parameters}, gradients, rtol=1e-4, atol=1e-7)
    assert_equal_tensors({name: weights[name].float() for name in parameters}, parameters)
    names = [name for name in mine if name.startswith("image.head")]
    (row,) = (r for r in found["gradients"]["rows"] if r["kind"] == "image" and r["part"] == "head")
    other, _ = gradient(trained, "image", 1, 1)
    assert row["norm"] == pytest.approx((_norm(mine, names) + _norm(other, names)) / 2)


@pytest.mark.parametrize("schedule", ["layerwise", "progressive"])
def test_what_clients_noted_is_told_of_the_last_round_of_each_stage(tiny: Tiny, tmp_path: Path, schedule: str) -> None:
    tower = {"blocks": 2, "width": 16, "heads": 2}
    scenario = tiny(
        data={**tiny()["data"], "clients": {"image": 2, "text": 2}, "samples": 16, "size": 16},
        model={"image": tower, "text": {**tower, "tokens": 12}},
        training={"batch": 8, "note_gradients": True},
        schedule={"name": schedule, "stages": 2, "rounds": 4},
    )
    found = edgefl.analyse(scenario, only=["gradients"], out=tmp_path / "out", figure=tmp_path / "figure.png")
    lines = [json.loads(line) for line in (tmp_path / "out" / "everybody" / "clients.jsonl").read_text().splitlines()]

    def mean(kind: str, round: int, block: int) -> float:
        name = f"gradient[{kind}.blocks.{block - 1}]"
        norms = [line["metrics"][name] for line in lines if line["kind"] == kind and line["round"] == round]
        assert len(norms) == 2
        return sum(norms) / 2

    expected = []
    for kind in ("image", "text"):
        trained = [(1, 2, 1), *([(2, 4, 1)] if schedule == "progressive" else []), (2, 4, 2)]
        for stage, round, block in trained:
            norm = mean(kind, round, block)
            expected.append((kind, stage, f"block {block}", 2, norm, norm / mean(kind, 4, 2)))
    rows = [(r.kind, r.stage, r.part, r.clients, r.norm, r.relative) for r in found.gradients.stages]
    assert len({row[4] for row in rows}) == len(rows) == len(expected)
    for row, own in zip(rows, expected, strict=True):
        assert row == (*own[:4], pytest.approx(own[4]), pytest.approx(own[5]))
    out = io.StringIO()
    print_analysis(found, Console(file=out, width=100, no_color=True))
    assert "Gradient of the attention output at each stage" in out.getvalue()
    assert "block 2, stage 2" in out.getvalue() and (tmp_path / "figure.png").exists()


def test_the_gradient_is_of_the_whole_loss_where_exits_teach_each_other(tiny: Callable[..., dict[str, Any]]) -> None:
    setup = compose(load(tiny(method="depthfl")))
    work, source = setup.method.work("image", 1), setup.clients.client(0)
    up = setup.method.model_payload("image")
    (found, _), *_ = gradient_works(work.limit_batches(source.size), work.trainable, up, source)
    assert found.scalars["distillation"] == work.scalars["distillation"] > 0


def test_updates_are_compared_by_angle() -> None:
    one = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    assert cosine(one, one, ["a", "b"]) == pytest.approx(1)
    assert cosine(one, {"a": torch.tensor([0.0, 2.0]), "b": torch.zeros(1)}, ["a", "b"]) == 0
    assert cosine(one, {"a": -one["a"], "b": one["b"]}, ["a", "b"]) == pytest.approx((16 - 9) / 25)
    assert cosine(one, {"a": torch.zeros(2), "b": torch.zeros(1)}, ["a", "b"]) is None


def test_runs_are_found_again(analysed: Any, small: dict[str, Any], tmp_path: Path) -> None:
    folder, found = analysed
    heard: list[str] = []

    def hear(event: str, facts: Mapping[str, Any]) -> None:
        heard.append(event)

    again = edgefl.analyse(small, only=["shapley"], out=folder, metric="image.accuracy", on_progress=hear)
    assert "record" not in heard
    (row,) = again["shapley"]["rows"]
    assert row in found["shapley"]["rows"] and "drift" not in again
    with pytest.raises(UnknownName, match="unknown metric 'image.acuracy'; did you mean 'image.accuracy'"):
        edgefl.analyse(small, only=["shapley"], out=folder, metric="image.acuracy")
    with pytest.raises(RunError, match="holds the run of another scenario; choose another --out"):
        edgefl.analyse(small, only=["shapley"], out=folder, overrides=["seed=4"])
    # the same of the run itself
    given_run = edgefl.analyse(folder / "everybody", only=["gradients"], out=tmp_path / "beside")
    assert [r["kind"] for r in given_run["gradients"]["rows"]] == [r["kind"] for r in found["gradients"]["rows"]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"only": ["shaply"]}, "unknown analysis 'shaply'; did you mean 'shapley'"),
        ({"only": ["matching"]}, r"fedavg matches no prototypes \(pmcmfl does\)"),
        ({"overrides": ["training.mode=none"]}, "training: none"),
        ({"only": ["shapley"], "overrides": ["data.clients.image-text=0"]}, "there is one kind of clients, image"),
        ({"figure": "a.gif"}, "its name ends in .gif"),
        ({"seeds": 0}, "seeds must be 1 or more, not 0"),
        ({"players": ["image,txt"]}, "unknown kind of clients 'txt'"),
        ({"players": ["image-text"]}, "players: image-text alone has nobody to share with: name two kinds or more"),
        ({"players": ["image,image-text"], "only": ["drift"]}, "--players is only for shapley"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(
    small: dict[str, Any], tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(EdgeflError, match=told) as error:
        edgefl.analyse(small, out=tmp_path / "none", **change)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    assert not (tmp_path / "none").exists()


def test_two_players_share_by_a_closed_form(tiny: Tiny, tmp_path: Path) -> None:
    """FedCola's: pairs are in every coalition, and phi_image = ((v(i) - v(none)) + (v(i, t) - v(t))) / 2."""
    tower = {"blocks": 1, "width": 16, "heads": 2}
    scenario = tiny(
        data={**tiny()["data"], "clients": {"image": 1, "text": 1, "image-text": 1}, "samples": 16, "size": 16},
        model={"image": tower, "text": {**tower, "tokens": 12}},
        method={"name": "fedcola", "complementary": "none", "collaborate": "attention", "compensation": False},
        schedule={"name": "end-to-end", "rounds": 1},
    )
    found = edgefl.analyse(scenario, only=["shapley"], players=["text", "image"], out=tmp_path / "out")
    names = ("everybody", "image+image-text", "text+image-text", "image-text")
    assert found.shapley.players == ["image", "text"]
    for row in found.shapley.rows:
        assert tuple(row.values) == names
        scores = {name: edgefl.read_run(tmp_path / "out" / name).result.metrics[row.kind][row.metric] for name in names}
        both, image, text, none = (scores[name] for name in names)
        assert row.players["image"].shapley == pytest.approx(((image - none) + (both - text)) / 2)
        assert row.players["text"].shapley == pytest.approx(((text - none) + (both - image)) / 2)
        assert row.players["image"].alone == pytest.approx(image - none)
    assert any(len(set(row.values.values())) > 1 for row in found.shapley.rows)
    value = dict(
        zip(coalitions(["image", "text"], ["image", "text"]).values(), (91.96, 84.5, 85.9, 81.08), strict=True)
    )
    assert shapley(value, ["image", "text"]) == pytest.approx(
        {"image": ((84.5 - 81.08) + (91.96 - 85.9)) / 2, "text": ((85.9 - 81.08) + (91.96 - 84.5)) / 2}
    )
    out = io.StringIO()
    print_analysis(found, Console(file=out, width=100, no_color=True))
    assert "image-text: only these take part" in out.getvalue()


def test_only_a_finished_run_is_analysed(analysed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = analysed
    cut = tmp_path / "cut"
    shutil.copytree(folder / "everybody", cut)
    (cut / "result.json").unlink()
    with pytest.raises(SystemExit) as end:
        main(["analyse", str(cut)])
    assert end.value.code == 2 and "isn't finished: continue it with edgefl run --resume" in capsys.readouterr().err
    with pytest.raises(RunError, match="a finished run keeps its scenario"):
        edgefl.analyse(folder / "everybody", overrides=["seed=4"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="is empty: it holds no run"):
        edgefl.analyse(tmp_path / "empty")
    (cut / "compare.json").write_text(json.dumps({"runs": [{"label": "a", "folder": "a", "sets": {}}]}))
    with pytest.raises(RunError, match="holds several runs"):
        edgefl.analyse(cut)


def test_beside_a_read_only_run_the_way_out_is_told_before_anything_runs(analysed: Any, tmp_path: Path) -> None:
    """A file system that is mounted read-only, since permissions don't hold for root."""
    folder, _ = analysed
    shutil.copytree(folder / "everybody", tmp_path / "place" / "run")
    for options in ("bind", "remount,bind,ro"):
        place = str(tmp_path / "place")
        done = subprocess.run(["mount", "-o", options, place, place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system can't be mounted here: {done.stderr.strip()}")
    try:
        with pytest.raises(RunError, match="can't write the analysis to .*Read-only.*choose another folder with --out"):
            edgefl.analyse(tmp_path / "place" / "run", seeds=1)
        assert [path.name for path in (tmp_path / "place").iterdir()] == ["run"]
    finally:
        subprocess.run(["umount", "-l", place], check=True)


# everything ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_what_was_found_is_printed_kept_and_drawn")
def test_several_seeds_and_a_stop_in_between(small: dict[str, Any], tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    heard: list[str] = []

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        heard.append(event)
        if heard.count("record") == 3:
            raise Stopped

    with pytest.raises(Stopped):
        edgefl.analyse(small, only=["shapley"], out=tmp_path / "a", seeds=2, on_progress=stop)
    with pytest.warns(RuntimeWarning, match="image-text has no checkpoint: it begins at round 1"):
        found = edgefl.analyse(small, only=["shapley"], out=tmp_path / "a", seeds=2, on_progress=silent)
    whole = edgefl.analyse(small, only=["shapley"], out=tmp_path / "b", seeds=2)
    assert found["shapley"] == whole["shapley"] and found["shapley"]["seeds"] == [3, 4]
    assert (tmp_path / "a" / "seed-4" / "image" / "result.json").exists()
    for row in found["shapley"]["rows"]:
        mine = row["players"][row["kind"]]
        each = [
            edgefl.analyse(small, only=["shapley"], out=tmp_path / "b" / where, overrides=[f"seed={seed}"])
            for seed, where in ((3, ""), (4, "seed-4"))
        ]
        values = [
            r["players"][row["kind"]]["shapley"]
            for one in each
            for r in one["shapley"]["rows"]
            if (r["kind"], r["metric"]) == (row["kind"], row["metric"])
        ]
        assert mine["shapley"] == pytest.approx(sum(values) / 2)
        assert mine["shapley_std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


@pytest.mark.slow(smaller="test_equals_have_equal_values_and_who_adds_nothing_has_none")
def test_who_is_left_out_changes_nobody_elses_draws(tiny: Tiny, tmp_path: Path) -> None:
    def asked(name: str, **more: Any) -> list[tuple[int, int]]:
        data = {**tiny()["data"], "clients": {"image": 6, "text": 6, "image-text": 6}, "samples": 8}
        scenario = tiny(data=data, training={"batch": 8, "mode": "none"}, round={"cohort": 0.34, **more},
                        schedule={"name": "end-to-end", "rounds": 4})  # fmt: skip
        run = edgefl.run(scenario, out=tmp_path / name)
        return [(c["round"], c["client"]) for c in run.records("clients")]

    everybody = asked("all")
    for size in (1, 2, 3):
        for kinds in combinations(("image", "text", "image-text"), size):
            first = {"image": 0, "text": 6, "image-text": 12}
            gone = {client for kind in kinds for client in range(first[kind], first[kind] + 6)}
            left = [(round, client) for round, client in everybody if client not in gone]
            assert asked("+".join(kinds), leave_out=list(kinds)) == left
    assert len(everybody) == 24


@pytest.mark.slow(smaller="test_runs_are_found_again")
def test_matching_says_what_the_run_itself_reached(tiny: Tiny, tmp_path: Path) -> None:
    data = {
        **tiny()["data"], "clients": {"image": 1, "image-text": 2}, "partition": "iid", "size": 16, "samples": 24,
        "tasks": {"image-text": "classify"},
    }  # fmt: skip
    model = {"multiway": {"blocks": 1, "width": 16, "heads": 2, "patch": 8, "tokens": 12}}
    method = {"name": "pmcmfl", "inference": "classifier", "matching": {"round": 2, "epochs": 2}}
    run = edgefl.run(tiny(data=data, model=model, method=method), out=tmp_path / "run")
    found = edgefl.analyse(run, only=["matching", "gradients"], figure=tmp_path / "figure.svg")
    assert found["folder"] == str(tmp_path / "run-analysis")
    assert {row["inference"] for row in found["matching"]["rows"]} == {
        "zero", "l1", "l2", "cosine", "classifier", "oracle"
    }  # fmt: skip
    for row in found["matching"]["rows"]:
        metrics, pattern = run.result["metrics"][row["kind"]], row["pattern"]
        if row["own"]:
            assert row["accuracy"] == metrics.get(f"accuracy[{pattern}]", metrics["accuracy"])
            assert all(value == metrics.get(f"matched@{k}[{pattern}]") for k, value in row["matched"].items())
        if row["inference"] == "oracle" or "-" in pattern:
            assert set(row["matched"].values()) == {None}
        elif row["inference"] in ("l1", "cosine"):
            assert 0 <= row["matched"]["1"] <= row["matched"]["20"] <= 1
    # the last round trains matching models: gradients are of the one before
    assert {r["tower"] for r in found["gradients"]["rows"]} == {"multiway", "joint"}


@pytest.mark.slow(smaller="test_one_model_for_several_kinds_is_scored_once")
def test_clients_that_keep_their_models_are_looked_at_with_them(tiny: Tiny, tmp_path: Path) -> None:
    data = {**tiny()["data"], "public": 24, "samples": 24, "size": 16}
    scenario = tiny(method={"name": "creamfl", "pairs": 16}, data=data)
    found = edgefl.analyse(scenario, only=["gradients", "drift"], out=tmp_path / "all")
    assert all(row["distance"] is None and row["cosine"] is not None for row in found["drift"]["between"])
    run = edgefl.read_run(tmp_path / "all" / "everybody")
    trained = Trained.from_run(run, load(run.path / "scenario.yaml"), lambda _: None)
    _, weights = gradient(trained, "image", 0, 2)
    weights = {name: weight.float() for name, weight in weights.items()}
    assert_equal_tensors(weights, {name: trained.kept[0][name] for name in weights})
    first = run.weights()
    assert not all(torch.equal(weights[name], first[f"image/{name}"]) for name in weights)


@pytest.mark.slow(smaller="test_what_was_found_is_printed_kept_and_drawn")
def test_the_command_prints_json(analysed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = analysed
    with pytest.raises(SystemExit) as end:
        main(["analyse", str(folder / "everybody"), "--only", "drift,gradients", "--as", "json", "-o", str(folder)])
    assert end.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert {"gradients", "drift"} < found.keys() and "shapley" not in found
