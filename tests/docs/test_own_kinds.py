"""The examples of docs/guides/own-parts.md compute what they say: each part in a run, against numbers by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional as F

import edgefl
from edgefl import models, registry
from edgefl.devices import AvailabilityOptions, availability_of
from edgefl.errors import EdgeflError, PluginError, ScenarioError
from edgefl.registry import registered
from edgefl.runs import Run
from edgefl.scenario import json_schema, load
from edgefl.setup.compose import compose
from edgefl.work.tasks import Task
from tools.pages import running

PAGE = "docs/guides/own-parts.md"
DATA = {"source": "digits", "clients": {"image": 4}, "samples": 24, "validation": 0.1, "test": 0.2}
WIDTH, BLOCKS, CLASSES = 16, 2, 10
SGD = {"optimizer": "sgd", "lr": 0.5, "batch": 24}


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[dict[str, Any]]:
    """What the page's snippets define and register; not the runs at its end."""
    known, names = dict(registered.PARTS), {"__name__": "page"}
    for block in running.blocks(PAGE):
        if block.language == "python" and "edgefl.run(" not in block.text:
            exec(compile(block.text, str(block), "exec"), names)
    yield names
    registered.PARTS.clear()
    registered.PARTS.update(known)
    registry.forget()


def scenario(**sections: Any) -> dict[str, Any]:
    return {
        "name": "own",
        "seed": 4,
        "data": DATA,
        "model": {"image": {"blocks": BLOCKS, "width": WIDTH, "heads": 2, "patch": 4}},
        "schedule": {"name": "end-to-end", "rounds": 1},
        "training": SGD,
        "round": {"cohort": 1.0},
        "executor": {"name": "inline", "device": "cpu"},
        **sections,
    }


# --- availability ----------------------------------------------------------------------------------------------------


def test_owls_take_part_in_their_half_of_the_day(tmp_path: Path) -> None:
    """The parity of the half days that have passed when a client is asked is its own."""
    given = scenario(
        training="none",
        schedule={"name": "end-to-end", "rounds": 8},
        round={"cohort": 2},
        fleet={"devices": "raspberry-pi-4-4gb", "availability": {"night-owls": {"day": 0.1}}},
    )
    run = edgefl.run(given, out=tmp_path / "run")
    asked = [(row["client"], row["dispatched_virtual_seconds"]) for row in run.records("clients")]
    assert len(asked) >= 8 and len({client % 2 for client, _ in asked}) == 2
    assert all(int(at // 0.05) % 2 == client % 2 for client, at in asked)
    assert load(run.path / "scenario.yaml") == load(given)
    again = edgefl.run(run.path / "scenario.yaml", out=tmp_path / "again")
    assert again.records("clients") == run.records("clients")


def test_owls_answer_all_questions_by_hand() -> None:
    made = availability_of(AvailabilityOptions.model_validate({"night-owls": {"day": 10}}), 4, 1)
    assert made.available([0, 1, 0, 1], [0.0, 0.0, 5.0, 7.5]).tolist() == [True, False, False, True]
    assert made.leaves([0, 1], 2.0).tolist() == [5.0, 2.0]
    assert made.returns([0, 1], 2.0).tolist() == [2.0, 5.0]
    on, until = made.state(np.arange(3), 12.0)
    assert on.tolist() == [True, False, True] and until.tolist() == [15.0] * 3


@pytest.mark.parametrize(
    ("availability", "told"),
    [
        ({"night-owl": {}}, "fleet.availability.night-owl: unknown key 'night-owl'; did you mean 'night-owls'"),
        ("night-owl", "fleet.availability: unknown availability 'night-owl'; did you mean 'night-owls'"),
        ({"night-owls": {"days": 3}}, "fleet.availability.night-owls.days: unknown key 'days'; did you mean 'day'"),
        ({"night-owls": {"day": 0}}, "fleet.availability.night-owls.day: must be greater than 0, not 0"),
        ({"night-owls": {"day": True}}, "fleet.availability.night-owls.day: must be a number, not true"),
        ({"night-owls": {}, "diurnal": {}}, "diurnal and night-owls are given together"),
        ({}, "nothing is given; write one of always, diurnal: {...}, markov: {...}, trace: {...}, night-owls: {...}"),
    ],
)
def test_what_is_wrong_with_an_availability_is_told(availability: Any, told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(scenario(fleet={"availability": availability}))
    assert told in str(caught.value)


def test_an_availability_that_gives_nonsense_is_refused(page: dict[str, Any]) -> None:
    class Backwards(page["NightOwls"]):  # type: ignore[misc, name-defined]
        def until(self, clients: Any, at: Any) -> Any:
            return clients % 2 == 0, at

    with pytest.raises(PluginError, match="a later time than it is asked about"):
        Backwards(None).available([0, 1], 3.0)


# --- attack ----------------------------------------------------------------------------------------------------------


def change_by_hand(setup: Any, client: int) -> dict[str, torch.Tensor]:
    """A client's change in one step of SGD: - rate times the gradient of the mean cross-entropy of its samples."""
    kind = setup.method.setting.kinds["image"]
    module: Any = models.build(kind.model)
    state = {a.removeprefix("image/"): t for a, t in setup.method.initial(setup.seed).tensors.items()}
    module.load_state_dict(state, strict=False)
    source = setup.clients.client(client)
    ((_, batch),) = source.batches(setup.method.client_work("image", 1).limit_batches(source.size).passes[0], 1)
    loss = F.cross_entropy(module.classify("image", batch), batch["label"], ignore_index=-1)
    named = dict(module.named_parameters())
    return {
        name: -0.5 * gradient
        for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)
    }


def test_a_change_sent_back_moves_the_mean_as_by_hand(tmp_path: Path) -> None:
    """Of four clients of 24 samples one sends -3 times its change: the mean of d1, d2, d3 and -3 d4."""
    attack = {"name": "three-back", "share": "25%"}
    run = edgefl.run(scenario(fleet={"failures": {"attack": attack}}), out=tmp_path / "run")
    rows = run.records("clients")
    assert [row["samples"] for row in rows] == [24] * 4 and [r["attack"] for r in rows].count("three-back") == 1
    setup = compose(load(scenario()))
    first = {a.removeprefix("image/"): t for a, t in setup.method.initial(setup.seed).tensors.items()}
    changes = {row["client"]: change_by_hand(setup, row["client"]) for row in rows}
    factor = {row["client"]: -3.0 if row["attack"] else 1.0 for row in rows}
    moved = 0.0
    for address, value in run.weights().items():
        name = address.removeprefix("image/")
        expected = first[name] + sum(factor[c] * change[name] for c, change in changes.items()) / 4
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=2e-6)
        moved = max(moved, float((value - first[name]).abs().max()))
    assert moved > 0.01


def test_what_is_wrong_with_an_attack_is_told(tiny: Callable[..., dict[str, Any]]) -> None:
    for attack, told in (
        ({"name": "three-bak", "share": 0.5}, "attack.name: unknown attack 'three-bak'; did you mean 'three-back'"),
        ({"name": "three-back", "share": 0.5, "time": 2}, "attack.time: unknown key 'time'; did you mean 'times'"),
        ({"name": "three-back", "share": 0.5, "times": -1}, "attack.times: must be greater than 0, not -1"),
        ({"name": "three-back"}, "attack.share: is missing"),
        ({"share": 0.5}, "attack.name: is missing"),
    ):
        with pytest.raises(ScenarioError) as caught:
            load(scenario(fleet={"failures": {"attack": attack}}))
        assert told in str(caught.value)
    data = {"source": "glyphs", "clients": {"image": 2, "text": 2, "image-text": 2}, "public": 20}
    with pytest.raises(ScenarioError, match="three-back changes nothing; write name: label-flip"):
        compose(
            load(tiny(data=data, method="fedmd", fleet={"failures": {"attack": {"name": "three-back", "share": 1}}}))
        )


# --- task ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> Run:
    given = scenario(
        data={**DATA, "tasks": {"image": "rotation"}},
        schedule={"name": "end-to-end", "rounds": 6},
        training={"batch": 24, "lr": 5e-3},
    )
    return edgefl.run(given, out=tmp_path_factory.mktemp("turning") / "run")


def test_a_pretext_task_is_scored_as_by_hand(turning: Run) -> None:
    """Of all test pictures in four turns, made by hand, how many the model names rightly."""
    setup = compose(load(turning.path / "scenario.yaml"))
    work = setup.method.evaluate("image", "test")
    images = torch.cat([batch["image"][batch["label"] >= 0]
                        for _, batch in setup.clients.server().batches(work.passes[0], 1)])  # fmt: skip
    module = turning.model("image")
    with torch.no_grad():
        right = [int((module(images.rot90(turn, (2, 3))).argmax(-1) == turn).sum()) for turn in range(4)]
    assert module(images[:1]).shape == (1, 4)
    accuracy = turning.result["metrics"]["image"]["accuracy"]
    assert accuracy == pytest.approx(sum(right) / (4 * len(images)), abs=1e-6) and accuracy > 0.4


def test_a_task_costs_what_its_steps_do(turning: Run) -> None:
    """Four times the pictures; a head of 4 scores in place of 10."""
    rows = {
        task: edgefl.profile(scenario(data={**DATA, "tasks": {"image": task}}))["rows"][0]
        for task in ("rotation", "classify")
    }
    assert rows["classify"]["upload_bytes"] - rows["rotation"]["upload_bytes"] == 4 * 6 * (WIDTH + 1)
    assert 3.9 < rows["rotation"]["forward_flops"] / rows["classify"]["forward_flops"] < 4.0
    measured = [row for row in turning.records("clients") if row["measured_peak_memory_bytes"] is not None]
    assert measured and all(row["measured_peak_memory_bytes"] == row["peak_memory_bytes"] for row in measured)


def test_what_is_wrong_with_a_task_is_told() -> None:
    for task, told in (
        ("rotatoin", "data.tasks.image: unknown task 'rotatoin'; did you mean 'rotation'"),
        ("retrieve", "image clients can't retrieve: retrieval needs two modalities"),
    ):
        with pytest.raises(ScenarioError) as caught:
            load(scenario(data={**DATA, "tasks": {"image": task}}))
        assert told in str(caught.value)

    @edgefl.register("task", "regress")
    class Regress(Task):
        like = "regression"  # type: ignore[assignment]
        step, score = "classify", "score-classify"

    with pytest.raises(EdgeflError, match="the task 'regress' .* is like 'regression'; allowed: classify, retrieve"):
        load(scenario(data={**DATA, "tasks": {"image": "regress"}}))
    data = {**DATA, "public": 0.2, "tasks": {"image": "rotation"}}
    with pytest.raises(ScenarioError, match="fedmd can't train image clients for rotation"):
        compose(load(scenario(data=data, method="fedmd")))


# --- adapter ---------------------------------------------------------------------------------------------------------


def test_a_bottleneck_is_what_is_sent_and_what_trains(tmp_path: Path) -> None:
    """Its bytes in closed form: down and up nets of each block, and the head; nothing else moves."""
    given = scenario(adapter={"name": "bottleneck", "width": 8}, schedule={"name": "end-to-end", "rounds": 2})
    run = edgefl.run(given, out=tmp_path / "run")
    own = BLOCKS * (WIDTH * 8 + 8 + 8 * WIDTH + WIDTH) + (WIDTH + 1) * CLASSES
    assert {row["upload_bytes"] for row in run.records("clients")} == {4 * own}
    assert {row["download_bytes"] for row in run.records("clients")} == {4 * own}
    first = compose(load(given)).method.initial(4).tensors
    for address, value in run.weights().items():
        trained = ".bottleneck." in address or ".head." in address
        assert torch.equal(value, first[address]) != trained, address


def test_an_adapted_model_begins_as_the_model_and_keeps_its_net(tmp_path: Path, page: dict[str, Any]) -> None:
    given = scenario(adapter={"name": "bottleneck", "width": 8})
    setup = compose(load(given))
    described = setup.method.setting.kinds["image"].model
    plain: Any = models.build({name: value for name, value in described.items() if name != "adapter"})
    adapted: Any = models.build(described)
    state = {a.removeprefix("image/"): t for a, t in setup.method.initial(4).tensors.items()}
    adapted.load_state_dict(state, strict=False)
    plain.load_state_dict({name: state[name] for name, _ in plain.named_parameters()}, strict=False)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(adapted.eval().logits("image", images), plain.eval().logits("image", images))
    run = edgefl.run(given, out=tmp_path / "run")
    leaving = run.model("image")
    assert any("bottleneck" in name for name, _ in leaving.named_parameters())
    with torch.no_grad():
        assert not torch.equal(leaving(images), plain.logits("image", images))


@pytest.mark.parametrize("schedule", ["layerwise", "progressive"])
def test_a_stage_sends_the_nets_of_its_blocks(schedule: str) -> None:
    given = scenario(adapter={"name": "bottleneck", "width": 8}, schedule={"name": schedule, "stages": 2})
    net, head = WIDTH * 8 + 8 + 8 * WIDTH + WIDTH, (WIDTH + 1) * CLASSES
    sent = [row["upload_bytes"] // 4 for row in edgefl.profile(given)["rows"]]
    assert sent == [net + head, (1 if schedule == "layerwise" else 2) * net + head]


def test_what_is_wrong_with_an_adapter_is_told() -> None:
    for adapter, told in (
        ("bottlenek", "adapter.name: unknown adapter 'bottlenek'; did you mean 'bottleneck'"),
        (
            {"name": "bottleneck", "rank": 3},
            "adapter.rank: unknown key 'rank'; allowed: also, deliver_base, dtype, name, width",
        ),
        ({"name": "bottleneck", "width": 0}, "adapter.width: must be 1 or more"),
    ):
        with pytest.raises(ScenarioError) as caught:
            load(scenario(adapter=adapter))
        assert told.partition("must")[0] in str(caught.value)
    with pytest.raises(ScenarioError, match="flexlora offers ranks of LoRA's factors"):
        compose(load(scenario(adapter="bottleneck", schedule={"name": "flexlora", "ranks": [2]})))


# --- in worker processes ---------------------------------------------------------------------------------------------

WORKERS = {"name": "processes", "workers": 1, "device": "cpu"}
IN_USE: list[dict[str, Any]] = [
    {"adapter": "bottleneck"},
    {"data": {**DATA, "tasks": {"image": "rotation"}}},
    {"fleet": {"failures": {"attack": {"name": "three-back", "share": 0.5}}}},
    {"evaluation": {"metrics": ["weighted_f1"]}},
    {"method": "dropping"},
]


@pytest.mark.parametrize("sections", IN_USE, ids=lambda sections: str(next(iter(sections))))
def test_what_workers_cant_import_is_refused(sections: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match="worker processes can't import the .*, which a notebook or a program's own"
    ):
        edgefl.run(scenario(executor=WORKERS, **sections), out=tmp_path / "run")


@pytest.mark.slow(smaller="test_what_workers_cant_import_is_refused")
def test_workers_train_as_this_process_does(tmp_path: Path) -> None:
    """The page's attack and adapter in a module, whose parts workers import."""
    code = [
        block.text
        for block in running.blocks(PAGE)
        if block.language == "python" and ('"three-back")' in block.text or '"bottleneck")' in block.text)
    ]
    (tmp_path / "backwards.py").write_text("import edgefl\nfrom pydantic import Field\n\n" + "\n\n".join(code))
    renamed = (tmp_path / "backwards.py").read_text().replace('"three-back"', '"back"').replace('"bottleneck"', '"net"')
    (tmp_path / "backwards.py").write_text(renamed)
    sections = {
        "adapter": {"name": "net", "width": 3},
        "fleet": {"failures": {"attack": {"name": "back", "share": 0.5, "times": 2}}},
    }
    registry.load_plug_in(tmp_path / "backwards.py")
    try:
        runs = [
            edgefl.run(scenario(executor=executor, **sections), out=tmp_path / str(executor["name"])).weights()
            for executor in (WORKERS, {"name": "inline", "device": "cpu"})
        ]
    finally:
        registry.unload_plug_ins()
    assert runs[0].keys() == runs[1].keys() and all(
        torch.equal(value, runs[1][name]) for name, value in runs[0].items()
    )


# --- the others ------------------------------------------------------------------------------------------------------


def test_weighted_f1_is_sklearns(page: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    true, predicted = rng.integers(0, 5, 200), rng.integers(0, 5, 200)
    confusion = torch.zeros(5, 5)
    confusion.index_put_((torch.tensor(true), torch.tensor(predicted)), torch.ones(200), accumulate=True)
    assert float(page["weighted_f1"](confusion)) == pytest.approx(f1_score(true, predicted, average="weighted"))


def test_the_schema_has_the_fields_of_each() -> None:
    definitions = json_schema()["$defs"]
    owls = definitions["fleet.AvailabilityOptions"]["properties"]["night-owls"]["anyOf"][0]
    assert "day" in str(owls) or "day" in definitions[owls["$ref"].rpartition("/")[2]]["properties"]
    words = definitions["fleet"]["properties"]["availability"]["anyOf"][0]
    assert words == {"enum": ["always", "night-owls"]}
    attacks = definitions["fleet.FailureOptions"]["properties"]["attack"]["anyOf"]
    kinds = {form["properties"]["name"]["const"]: form for form in attacks if "properties" in form}
    assert kinds.keys() == {"sign-flip", "scaling", "label-flip", "three-back"}
    assert "times" in kinds["three-back"]["properties"] and "factor" not in kinds["three-back"]["properties"]
    assert "rotation" in definitions["data"]["properties"]["tasks"]["additionalProperties"]["enum"]
    assert "width" in definitions["adapter.bottleneck"]["properties"]
    steps, cosine = (definitions[f"training.lr_schedule.{name}"]["properties"] for name in ("step", "cosine"))
    assert "every" in steps and "every" not in cosine and "floor" in cosine and "floor" not in steps
