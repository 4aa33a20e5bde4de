"""Evaluation on the clients' own held-out samples (``evaluation.clients``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import Games, granted
from edgefl_toys import Memory

import edgefl
from edgefl import models
from edgefl.errors import ScenarioError
from edgefl.methods import Method
from edgefl.planning.client_evaluation import scored_clients
from edgefl.planning.setup import Setup
from edgefl.records.reading import from_data
from edgefl.results.conservation import CheckedRound, CheckedScore, RuleCheck, check_scored
from edgefl.results.verify import verify
from edgefl.simulation import Simulation
from edgefl.work import Pass, Work

CLIENTS = {"image": 4, "text": 2, "image-text": 2}
LEFT_OUT, TOO_SMALL = 0, 1
"""Clients whose memory holds the evaluation only, and not even that."""


def setup_of(
    games: Games, every: int = 1, schedule: Mapping[str, Any] | None = None, lr: float = 1e-3, **evaluation: Any
) -> Setup:
    data = {"source": "glyphs", "clients": CLIENTS, "samples": 40, "validation": 40, "test": 40}
    setup = games.setup(
        data=data,
        schedule=schedule or {"name": "layerwise", "stages": 2, "rounds": 3},
        evaluation={"every": every, "clients": "20%", **evaluation},
        training={"batch": 8, "measure": "all", "lr": lr},
        fleet={"devices": {"raspberry-pi-4-4gb": 0.5, "raspberry-pi-3b-plus": 0.5}},
    )
    memory = np.full(sum(CLIENTS.values()), math.inf)
    memory[LEFT_OUT], memory[TOO_SMALL] = 200 * 1024, 60 * 1024
    return replace(setup, fleet=granted(setup.fleet, memory=memory))


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


@pytest.fixture(scope="module")
def played(games: Games) -> tuple[Setup, Simulation, Memory]:
    setup = setup_of(games)
    return setup, *games.real(setup)


def split(journal: Memory) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The records of training and of evaluations."""
    return journal.tables["clients"], journal.tables.get("scored", [])


def accuracy_by_hand(setup: Setup, tensors: Mapping[str, torch.Tensor], client: int) -> float:
    """Share of the held-out samples of a client that a model gets right, one sample after the other."""
    kind = setup.kind_of(client)
    module: Any = models.build(setup.method.setting.kinds[kind].model)
    module.load_state_dict(tensors, strict=False)
    module.eval()
    own: Any = setup.clients.held_out
    part, _ = own._part_offsets[kind]
    rows, right = own.rows(client), 0
    for row in rows:
        sample = part.load(kind, np.array([row]), (kind,))
        with torch.no_grad():
            right += int(module.logits(kind, sample[kind]).argmax(-1) == sample["label"])
    return right / len(rows)


def test_the_accuracy_is_that_of_a_loop_over_the_same_samples(played: tuple[Setup, Simulation, Memory]) -> None:
    setup, simulation, journal = played
    last = {r["client"]: r for r in split(journal)[1] if r["round"] == 3}
    assert set(last) == set(range(8)) - {TOO_SMALL}
    for client in (0, 2, 3, 4, 5):
        kind = setup.kind_of(client)
        tensors = {a.split("/")[1]: t for a, t in simulation.state.tensors.items() if a.startswith(f"{kind}/")}
        assert last[client]["metrics"]["accuracy"] == pytest.approx(accuracy_by_hand(setup, tensors, client))
        assert last[client]["samples"] == len(setup.clients.held_out.rows(client))  # type: ignore[union-attr]


def test_its_cost_is_what_was_measured_and_what_device_and_link_take(
    played: tuple[Setup, Simulation, Memory],
) -> None:
    setup, _, journal = played
    devices, links = ({p.name: p for p in profiles} for profiles in (setup.fleet.devices, setup.fleet.links))
    for record in split(journal)[1]:
        assert record["measured_peak_memory_bytes"] == record["peak_memory_bytes"]
        assert record["measured_forward_flops"] == record["forward_flops"] > 0 == record["backward_flops"]
        device, link = devices[record["device"]], links[record["link"]]
        seconds = link.latency_seconds + 8 * record["serialised_download_bytes"] / link.download_goodput
        assert record["download_seconds"] == pytest.approx(seconds)
        assert record["virtual_seconds"] == pytest.approx(seconds + record["compute_seconds"])
        joules = seconds * (device.idle_watts + link.download_watts) + record["compute_seconds"] * device.compute_watts
        assert record["energy_joules"] == pytest.approx(joules)


def test_a_client_downloads_what_neither_training_nor_an_evaluation_brought_it(
    games: Games, played: tuple[Setup, Simulation, Memory]
) -> None:
    setup, simulation, journal = played
    stage = setup.schedule.stages[1]
    parameters = setup.method.setting.kinds["image"].parameters()
    size = {name: 4 * math.prod(spec.shape) for name, spec in parameters.items()}
    active = sum(bytes_ for name, bytes_ in size.items() if stage.is_active(name))
    down = {r["round"]: r["download_bytes"] for r in split(journal)[1] if r["client"] == LEFT_OUT}
    # after round 1 it has the first stage's parts, which are frozen from then on
    assert down[2] == down[3] == active
    setup = setup_of(games, every=10)
    simulation, late = games.none(setup)
    changed = sum(bytes_ for name, bytes_ in size.items() if simulation.state.versions[f"image/{name}"])
    (record,) = [r for r in split(late)[1] if r["client"] == LEFT_OUT]
    assert record["download_bytes"] == changed > active


@pytest.mark.slow(smaller="test_only_evaluated_rounds_have_sums")
def test_training_takes_no_notice_of_evaluations(games: Games, played: tuple[Setup, Simulation, Memory]) -> None:
    _, of_all, journal = played
    of_one, other = games.real(setup_of(games, client_sample=1))
    assert split(other)[0] == split(journal)[0] and other.tables["eligibility"] == journal.tables["eligibility"]
    assert all(torch.equal(t, of_one.state.tensors[a]) for a, t in of_all.state.tensors.items())
    for few, many in zip(other.tables["rounds"], journal.tables["rounds"], strict=True):
        assert few["client_metrics"][0]["clients"] == 1 and many["client_metrics"][0]["clients"] == 8
        assert {**few, "client_metrics": []} == {**many, "client_metrics": []}


def test_only_evaluated_rounds_have_sums(games: Games) -> None:
    _, journal = games.none(setup_of(games, every=2))
    assert [bool(r["client_metrics"]) for r in journal.tables["rounds"]] == [False, True, True]
    assert {r["round"] for r in split(journal)[1]} == {2, 3}


def test_groups_sum_up_their_clients_as_numpy_does(played: tuple[Setup, Simulation, Memory]) -> None:
    setup, _, journal = played
    scored = [r for r in split(journal)[1] if r["round"] == 3]
    rows = {(row["by"], row["group"]): row for row in journal.tables["rounds"][-1]["client_metrics"]}
    able = [("eligibility", "eligible"), ("eligibility", "left out")]
    kinds = [("kind", "image"), ("kind", "image-text"), ("kind", "text")]
    devices = [("device", name) for name in sorted({d.name for d in setup.fleet.devices})]
    assert list(rows) == [("all", "all"), *able, *kinds, *devices, ("modality", "image"), ("modality", "text")]
    images = [r for r in scored if "image" in r["kind"]]
    for (by, group), own in {
        ("all", "all"): scored,
        ("modality", "image"): images,
        ("kind", "text"): [r for r in scored if r["kind"] == "text"],
        ("eligibility", "eligible"): [r for r in scored if r["client"] != LEFT_OUT],
    }.items():
        row = rows[by, group]
        assert row["scored"] == len(own) and row["samples"] == sum(r["samples"] for r in own)
        assert row["energy_joules"] == pytest.approx(sum(r["energy_joules"] for r in own))
        values = np.array([r["metrics"]["accuracy"] for r in own if "accuracy" in r["metrics"]])
        weights = np.array([r["samples"] for r in own if "accuracy" in r["metrics"]])
        told = row["metrics"]["accuracy"]
        assert told["clients"] == len(values)
        assert told["mean"] == pytest.approx(np.mean(values)) and told["deviation"] == pytest.approx(np.std(values))
        assert told["weighted_mean"] == pytest.approx((values * weights).sum() / weights.sum())
        assert told["worst_decile"] == pytest.approx(np.sort(values)[: math.ceil(len(values) / 10)].mean())
    assert rows["all", "all"]["too_small"] == rows["kind", "image"]["too_small"] == 1
    assert rows["eligibility", "left out"]["clients"] == 2 and rows["eligibility", "left out"]["scored"] == 1


def test_verification_finds_a_changed_score(played: tuple[Setup, Simulation, Memory]) -> None:
    _, _, journal = played
    record = journal.tables["rounds"][-1]
    scored = [dict(r) for r in split(journal)[1] if r["round"] == 3]

    def broken() -> int:
        check = RuleCheck("scored", "")
        round = from_data(CheckedRound, record, "rounds.jsonl:3")
        clients = [from_data(CheckedScore, each, "scored.jsonl") for each in scored]
        check_scored(check, round.round, round.client_metrics, "rounds.jsonl:3", clients)
        return check.broken

    assert broken() == 0
    scored[0]["metrics"] = {**scored[0]["metrics"], "accuracy": scored[0]["metrics"]["accuracy"] + 0.01}
    assert broken() == 5  # of all, the left out, its kind, its device and its modality


class Personal(Method):
    """FedAvg whose clients keep their heads."""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        own = tuple(item.name for item in work.up[0].items if ".head." in item.name)
        return replace(work, keep=own, up=(work.up[0].only(lambda item: item.name not in own),))


class Telling(Method):
    """FedAvg whose clients score themselves on what they trained on."""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        if kind != "image":
            return work
        return replace(work, passes=(*work.passes, Pass("score-classify", "private", (kind,), 8, False)))


def with_method(games: Games, method: type[Method], **evaluation: Any) -> Setup:
    setup = setup_of(games, schedule={"name": "end-to-end", "rounds": 2}, lr=0.03, **evaluation)
    return replace(setup, method=method(setup.method.options, setup.method.setting))


@pytest.mark.slow(smaller="test_the_accuracy_is_that_of_a_loop_over_the_same_samples")
def test_what_a_client_keeps_belongs_to_the_model_that_it_scores(games: Games) -> None:
    setup = with_method(games, Personal)
    simulation, journal = games.real(setup)
    last = {r["client"]: r for r in split(journal)[1] if r["round"] == 2}
    kept = simulation.run.parts.learning.kept  # type: ignore[attr-defined]
    accuracies = []
    for client in (2, 3, 4, 5):
        kind = setup.kind_of(client)
        tensors = {a.split("/")[1]: t for a, t in simulation.state.tensors.items() if a.startswith(f"{kind}/")}
        mine = kept.client_values(client, setup.method.client_work(kind, 1).keep).tensors()
        own = {**tensors, **mine}
        assert mine and any(not torch.equal(own[name], tensors[name]) for name in mine)
        assert last[client]["metrics"]["accuracy"] == pytest.approx(accuracy_by_hand(setup, own, client))
        accuracies.append((accuracy_by_hand(setup, own, client), accuracy_by_hand(setup, tensors, client)))
        sizes = setup.method.setting.kinds[kind].parameters().items()
        assert last[client]["download_bytes"] == sum(4 * math.prod(s.shape) for n, s in sizes if ".head." not in n)
    assert any(own != shared for own, shared in accuracies)


@pytest.mark.slow(smaller="test_groups_sum_up_their_clients_as_numpy_does")
def test_metrics_that_a_training_step_wrote_are_in_the_record(games: Games) -> None:
    _, journal = games.real(with_method(games, Telling))
    trained, _ = split(journal)
    assert trained
    for record in trained:
        if record["kind"] == "image":
            assert 0 <= record["metrics"]["accuracy"] <= 1
        else:
            assert "metrics" not in record


def test_without_training_evaluations_have_costs_and_no_scores(
    games: Games, played: tuple[Setup, Simulation, Memory]
) -> None:
    _, journal = games.none(setup_of(games))
    trained, untrained = split(played[2])[1], split(journal)[1]
    names = ("client", "round", "kind", "peak_memory_bytes", "forward_flops", "download_bytes", "energy_joules")
    assert [[r[n] for n in names] for r in trained] == [[r[n] for n in names] for r in untrained]
    assert all("metrics" not in r for r in untrained)


def test_a_run_without_held_out_samples_has_no_such_records(games: Games) -> None:
    _, journal = games.none(games.setup())
    assert not split(journal)[1] and all("client_metrics" not in r for r in journal.tables["rounds"])


def test_a_sample_of_clients_is_drawn_once(games: Games) -> None:
    whole, three, half = (
        scored_clients(setup_of(games, **o)) for o in ({}, {"client_sample": 3}, {"client_sample": "50%"})
    )
    assert whole.tolist() == list(range(8))
    assert len(set(three.tolist())) == 3
    assert np.bincount(np.repeat([0, 1, 2], [4, 2, 2])[half]).tolist() == [2, 1, 1]
    setup = setup_of(games, client_sample=3)
    _, journal = games.none(setup)
    by_round = {n: [r["client"] for r in split(journal)[1] if r["round"] == n] for n in (1, 2, 3)}
    assert all(set(clients) <= set(three.tolist()) for clients in by_round.values())
    assert by_round[1] == by_round[2] == by_round[3]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"clients": "100%"}, "less than 100%"),
        ({"client_sample": 3}, "set clients"),
        ({"clients": "20%", "client_sample": "0%"}, "more than 0"),
        ({"clients": "1%"}, "holds nothing out: no client has more than 40 samples"),
    ],
)
def test_a_wrong_share_is_refused(games: Games, evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        games.setup(evaluation=evaluation)


class Stopped(Exception):
    """The user has had enough."""


@pytest.mark.slow(smaller="test_only_evaluated_rounds_have_sums")
def test_files_are_equal_in_workers_and_after_a_stop_and_are_read_as_tables(
    games: Games, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = games.tiny(
        schedule={"name": "layerwise", "stages": 2, "rounds": 4}, evaluation={"every": 2, "clients": "20%"}
    )
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    workers = {"name": "processes", "workers": 2, "device": "cpu"}
    others = [edgefl.run({**scenario, "executor": workers}, out=tmp_path / "workers")]

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        edgefl.run(scenario, out=tmp_path / "cut", on_progress=stop)
    others.append(edgefl.run(resume=tmp_path / "cut"))
    for other in others:
        for name in ("rounds.jsonl", "clients.jsonl", "scored.jsonl", "eligibility.jsonl", "weights.safetensors"):
            assert (other.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert verify(whole.path).valid

    clients, scored, groups = whole.clients, whole.client_evaluations, whole.client_metrics
    assert len(clients) == 4 * 7 and "when" not in clients and "client_metrics" not in whole.rounds
    assert len(scored) == 2 * 7 and set(scored["round"]) == {2, 4} and scored["metrics.accuracy"].notna().sum() == 10
    assert {"metrics.accuracy.worst_decile", "by", "group", "scored"} <= set(groups)
    first = edgefl.run(games.tiny(), out=tmp_path / "without")
    assert first.client_evaluations.empty and first.client_metrics.empty

    from edgefl.commands.run.table import print_summary
    from edgefl.drawing.page import write_page
    from edgefl.results.facts import summary

    print_summary(summary(whole))
    assert "Clients' own held-out samples, after round 4" in capsys.readouterr().out
    write_page(whole, tmp_path / "page.html")
    assert "How well clients are served" in (tmp_path / "page.html").read_text()
    files = edgefl.export(whole.path, "csv", tmp_path / "csv").files
    assert {"client_evaluations.csv", "client_metrics.csv"} <= {Path(f).name for f in files}
