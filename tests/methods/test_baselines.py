"""Central and local training against plain loops of torch, and by hand sums over the clients' own models.

Only the order of the samples is taken from edgefl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import seeds
from edgefl.errors import EdgeflError
from edgefl.planning.setup import Setup
from edgefl.records.record import UNSET
from edgefl.results.facts import facts_of
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
LR, EPOCHS, ROUNDS, CLIENTS = 0.05, 2, 2, 3


def scenario_of(tiny: Tiny, method: str, clients: int = CLIENTS, **more: Any) -> dict[str, Any]:
    return tiny(
        data={
            "source": "glyphs", "clients": {"image": clients}, "partition": {"quantity": 2.0}, "size": 8,
            "samples": 30, "validation": 20, "test": 40, **more.pop("data", {}),
        },
        model={"image": {"blocks": 1, "width": 8, "heads": 2, "patch": 4}},
        method=method,
        schedule={"name": "end-to-end", "rounds": ROUNDS},
        training={"batch": 10, "epochs": EPOCHS, "optimizer": "sgd", "lr": LR, "implementation": "for-loop"},
        round={"cohort": "100%"},
        **more,
    )  # fmt: skip


def composed(scenario: dict[str, Any]) -> tuple[Setup, nn.Module]:
    """The set-up, and a model with its first weights."""
    setup = compose(load({"edgefl": 1, **scenario}))
    module = edgefl.models.build(setup.method.setting.kinds["image"].model)
    first = setup.method.initial(setup.seed).tensors
    module.load_state_dict({a.removeprefix("image/"): t for a, t in first.items()})
    return setup, module


def train(module: nn.Module, epochs: Iterable[Iterable[tuple[str, dict[str, Tensor]]]]) -> None:
    """SGD with a new optimizer, as torch's documentation has it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, foreach=False)
    for epoch in epochs:
        for _, batch in epoch:
            optimizer.zero_grad()
            F.cross_entropy(module.logits("image", batch["image"]), batch["label"]).backward()
            optimizer.step()


def accuracy(setup: Setup, module: nn.Module, split: str) -> float:
    source, every = setup.clients.server(), Pass("classify", split, ("image",), 40, False)
    with torch.no_grad():
        right = [
            (module.logits("image", batch["image"]).argmax(1) == batch["label"])[batch["label"] >= 0]
            for _, batch in source.batches(every, 0)
        ]
    return float(torch.cat(right).double().mean())


def test_local_training_is_a_loop_of_each_client(tiny: Tiny, tmp_path: Path) -> None:
    """To the bit; the scores are the mean and the deviation of what the loops' models score."""
    scenario = scenario_of(tiny, "local")
    run = edgefl.run(scenario, out=tmp_path / "run")
    setup, _ = composed(scenario)
    scores = []
    for client in range(CLIENTS):
        module, source = composed(scenario)[1], setup.clients.client(client)
        size = source.size(Pass("classify", "private", ("image",), 1))
        for round in range(1, ROUNDS + 1):
            seed = seeds.key(setup.seed, "training", client, round)
            pass_ = Pass("classify", "private", ("image",), min(10, size))
            train(module, (source.batches(pass_, seeds.key(seed, "shuffle", 0, epoch)) for epoch in range(EPOCHS)))
        kept = run.client_tensors()[client]
        assert {n: t.tolist() for n, t in kept.items()} == {n: t.tolist() for n, t in module.state_dict().items()}
        scores.append(accuracy(setup, module, "test"))
    metrics = run.result.metrics["image"]
    assert len(set(scores)) > 1
    assert metrics["accuracy"] == pytest.approx(np.mean(scores), abs=1e-6)
    assert metrics["accuracy_deviation"] == pytest.approx(np.std(scores), abs=1e-6)
    assert run.result.totals.carried_download_bytes == run.result.totals.carried_upload_bytes == 0


@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_central_training_is_a_loop_over_all_samples(tiny: Tiny, tmp_path: Path, clients: int) -> None:
    """To the bit, whoever holds which samples: each once, though a client may share some under ``shared``."""
    scenario = scenario_of(tiny, "central", clients)
    run = edgefl.run(scenario, out=tmp_path / "run")
    setup, module = composed(scenario)
    rows = np.sort(np.concatenate([setup.clients.rows(client) for client in range(clients)]))
    part = setup.clients._part_offsets["image"][0]
    for round in range(1, ROUNDS + 1):
        seed = seeds.key(setup.seed, "server before", round, 0)
        epochs = []
        for epoch in range(EPOCHS):
            order = seeds.generator(seeds.key(seed, "shuffle", 0, epoch), "shuffle", 0).permutation(len(rows))
            taken = [rows[order[at : at + 10]] for at in range(0, len(rows) - 9, 10)]
            epochs.append([("image", part.load("image", each, ("image", "label"))) for each in taken])
        train(module, epochs)
    final = {a.removeprefix("image/"): t for a, t in run.weights().items()}
    assert all(torch.equal(final[n], t) for n, t in module.state_dict().items())
    assert run.result.metrics["image"]["accuracy"] == pytest.approx(accuracy(setup, module, "test"), abs=1e-6)
    assert run.result.totals.finished == run.result.totals.carried_bytes == 0
    assert facts_of(run).server_flops


def test_central_training_equals_a_client_that_holds_all(tiny: Tiny, tmp_path: Path) -> None:
    """Of one batch, in which the order of samples changes the rounding alone."""
    training = {"batch": 30, "epochs": 3, "optimizer": "sgd", "lr": LR}
    alone, central = (
        edgefl.run({**scenario_of(tiny, name, 1, data={"partition": "iid"}), "training": training}, out=tmp_path / name)
        for name in ("fedavg", "central")
    )  # fmt: skip
    for name, value in alone.weights().items():
        torch.testing.assert_close(central.weights()[name], value, rtol=1e-5, atol=1e-6)


def test_the_server_computes_what_a_client_would_that_holds_all(tiny: Tiny, tmp_path: Path) -> None:
    """Of declared samples: three clients of 30 beside one of 90."""
    runs = []
    for method, clients, samples in (("central", 3, 30), ("fedavg", 1, 90)):
        scenario = scenario_of(tiny, method)
        scenario["data"] = {"source": "declared", "clients": {"image": clients}, "samples": samples}
        scenario["data"]["shapes"] = {"image": {"size": 8}}
        scenario["training"]["mode"] = "none"
        runs.append(facts_of(edgefl.run(scenario, out=tmp_path / method)))
    central, alone = runs
    assert central.server_flops == alone.totals.executed_flops > 0
    assert alone.server_flops is UNSET and central.totals.executed_flops == 0


def test_an_interrupted_local_run_goes_on_with_each_clients_model(tiny: Tiny, tmp_path: Path) -> None:
    """To the metrics of one that wasn't interrupted."""
    scenario = scenario_of(tiny, "local", evaluation={"every": 1})
    scenario["schedule"]["rounds"] = 3
    whole = edgefl.run(scenario, out=tmp_path / "whole")

    def interrupt(event: str, facts: Mapping[str, Any]) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "parts", on_progress=interrupt)
    assert 0 < len(edgefl.read_run(tmp_path / "parts").rounds) < 3
    assert edgefl.run(resume=tmp_path / "parts").result.metrics == whole.result.metrics


PAIRS = {"source": "glyphs", "clients": {"image-text": 3}, "samples": 40, "tasks": {"image-text": "classify"}}


@pytest.mark.parametrize(
    ("method", "more", "message"),
    [
        ({"name": "central", "personal": ["head"]}, {}, "no clients that could keep"),
        ("central", {"data": {**PAIRS, "missing": {"text": "30%"}}}, "some of image-text lack a modality"),
    ],
)
def test_what_central_training_has_no_place_for_is_refused(
    tiny: Tiny, method: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(EdgeflError, match=message):
        compose(load({"edgefl": 1, **tiny(method=method, **more)}))
