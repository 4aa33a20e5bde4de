"""Training of kinds of clients that differs: what each trains with, what it costs, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_toys import declared

import edgefl
from edgefl.data.samples import Samples
from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass
from edgefl.work.description import TensorSpec

Tiny = Callable[..., dict[str, Any]]
TRAINING = {"batch": 8, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "rates": {"image": 0.3}, "clip": 1.0,
            "lr_schedule": {"name": "step", "every": 2}}  # fmt: skip
PAIRS = {"optimizer": "adamp", "lr": 0.02, "lr_schedule": "cosine", "weight_decay": 0.1, "clip": False}


def scenario(tiny: Tiny, training: Any, rounds: int = 4, **sections: Any) -> dict[str, Any]:
    return tiny(training=training, schedule={"name": "end-to-end", "rounds": rounds}, **sections)


def test_each_kind_trains_as_it_is_said(tiny: Tiny) -> None:
    setup = compose(load(declared(scenario(tiny, {**TRAINING, "by": {"image-text": PAIRS}}))))
    plain = compose(load(declared(scenario(tiny, TRAINING))))
    for round in (1, 4):
        for kind in ("image", "text"):
            assert setup.method.client_work(kind, round) == plain.method.client_work(kind, round)
        pairs = setup.method.client_work("image-text", round)
        assert pairs.optimizer == {"name": "adamp", "implementation": "fused"}
        rate = 0.02 * (1 + cos(pi * (round - 1) / 4)) / 2
        assert pairs.scalars == {"lr": pytest.approx(rate), "weight_decay": 0.1, "betas": [0.9, 0.999]}
    again = load(load(scenario(tiny, {**TRAINING, "by": {"image-text": PAIRS}})).to_data())
    assert again.training.of("image-text").scalars_of(1)["lr"] == 0.02


def test_costs_and_records_follow(tiny: Tiny, tmp_path: Path) -> None:
    given = scenario(tiny, {"batch": 8, "optimizer": "sgd", "by": {"image": PAIRS}}, 2)
    run = edgefl.run(given, out=tmp_path / "run")
    assert run.clients["memory_error"].dropna().abs().max() == 0
    rows = {row["kind"]: row for row in edgefl.profile(given)["rows"]}
    parameters = sum(4 * p.numel() for p in run.model("image").parameters())
    assert rows["image"]["memory_bytes"]["optimizer"] == 2 * parameters
    assert rows["text"]["memory_bytes"]["optimizer"] == 0
    rates = {(row["kind"], row["round"]): row["lr"] for row in run.records("clients")}
    assert rates["image", 1] == 0.02 and rates["image", 2] == pytest.approx(0.01) and rates["text", 2] == 0.001


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"audio": {"lr": 1}}, r"training\.by\.audio: there are no 'audio' clients"),
        ({"image": {"steps": 0}}, r"training\.by\.image\.steps: must be greater than 0"),
        ({"image": {"lr": -1}}, r"training\.by\.image\.lr: must be greater than 0"),
        ({"image": {"rates": {}}}, r"training\.by\.image\.rates: unknown"),
        ({"image": {"optimizer": {"name": "adamp", "x": 1}}}, r"training\.by\.image\.optimizer\.x: unknown"),
        (
            {"image": {"optimizer": "adamp", "precision": "float16"}},
            r"by\.image: optimizer adamp has no step",
        ),
        ({"image": {"lr_schedule": {"name": "step", "every": 4}}}, r"training\.by\.image\.lr_schedule\.every: a st"),
        ({"image": {"betas": [1, 2]}}, r"training\.by\.image\.betas: betas must be"),
        ({"image": 3}, r"training\.by\.image"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told(tiny: Tiny, kinds: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        load(scenario(tiny, {"batch": 8, "by": kinds}))
    assert error.value.exit_code == 2


def test_methods_ask_every_kind(tiny: Tiny) -> None:
    training = {"batch": 8, "optimizer": "sgd", "by": {"image": {"optimizer": "adam"}}}
    with pytest.raises(EdgeflError, match="scaffold counts steps of plain SGD"):
        compose(load(scenario(tiny, training, method="scaffold")))
    in_float64 = {"batch": 8, "precision": "float64", "by": {"image": {"precision": "bfloat16"}}}
    with pytest.raises(EdgeflError, match=r"by\.image: precision: bfloat16 beside training\.precision: float64"):
        load(scenario(tiny, in_float64))


FLEET = {"devices": {"raspberry-pi-4-4gb": 4, "jetson-orin-nano-8gb": 3}, "links": {"wifi-5": "100%"}}
OWN = {"batch": 4, "epochs": 2, "lr": 0.05}


def test_devices_train_as_it_is_said_and_others_as_before(tiny: Tiny, tmp_path: Path) -> None:
    """Each client's first round is that of a run in which all train as its device does."""
    base = {"batch": 8, "optimizer": "sgd", "lr": 0.1}
    by = {"raspberry-pi-*": OWN, "image-text": {"lr": 0.2}}
    runs = {
        name: edgefl.run(scenario(tiny, training, 1, fleet=FLEET, evaluation={"every": 1}), out=tmp_path / name)
        for name, training in (
            ("mixed", {**base, "by": by}),
            ("all small", {**base, **OWN}),
            ("none", {**base, "by": {"image-text": {"lr": 0.2}}}),
        )
    }
    rows = {name: {row["client"]: row for row in run.records("clients")} for name, run in runs.items()}
    alike = ("samples", "peak_memory_bytes", "forward_flops", "backward_flops", "virtual_seconds", "energy_joules",
             "loss", "upload_bytes", "measured_peak_memory_bytes")  # fmt: skip
    devices = set()
    for client, row in rows["mixed"].items():
        devices.add(row["device"])
        expected = rows["all small" if row["device"] == "raspberry-pi-4-4gb" else "none"][client]
        for name in alike:
            if not name.startswith("measured"):  # each run meters the first work of each cost
                assert row.get(name) == expected.get(name), (client, name)
    assert devices == set(FLEET["devices"])
    assert runs["mixed"].clients["memory_error"].dropna().abs().max() == 0


def test_works_are_planned_by_group_and_not_by_client(tiny: Tiny) -> None:
    training = {"batch": 8, "optimizer": "sgd", "by": {"raspberry-pi-*": OWN, "jetson-*": {"steps": 3}}}
    method = compose(load(declared(scenario(tiny, training, fleet=FLEET)))).method
    assert sum(map(len, method.variants.values())) <= 3 * 2
    assert {str(variant) for of in method.variants.values() for variant in of} == {"raspberry-pi-*", "jetson-*"}


def test_a_round_has_so_many_steps(tiny: Tiny, tmp_path: Path) -> None:
    """Of 40 samples in batches of 8: by the FLOPs of one step, as predicted for all and as measured for one."""
    data = {"source": "declared", "clients": {"image": 1}, "samples": 40, "shapes": {"image": {"size": 8}}}

    def flops(amount: dict[str, Any]) -> int:
        (row,) = edgefl.profile(scenario(tiny, {"batch": 8, **amount}, 1, data=data))["rows"]
        return int(row["forward_flops"] + row["backward_flops"])

    one = flops({"steps": 1})
    amounts = {"epochs": {1: 5, 2: 10, 1.5: 7, 0.5: 2, 0.1: 1}, "steps": {3: 3, 12: 12}}
    for name, values in amounts.items():
        for amount, steps in values.items():
            assert flops({name: amount}) == steps * one, (name, amount)
    real = {**data, "source": "glyphs", "shapes": None, "validation": 20, "test": 20}
    run = edgefl.run(scenario(tiny, {"batch": 8, "steps": 12}, 1, data=real), out=tmp_path / "run")
    (row,) = run.records("clients")
    assert row["measured_forward_flops"] == row["forward_flops"]
    assert row["measured_backward_flops"] == row["backward_flops"]


def test_steps_go_through_the_samples_again_in_another_order() -> None:
    rows = np.arange(10)

    def fields(data: str, whole: str, pattern: str, chosen: Any, names: Any) -> dict[str, torch.Tensor]:
        return {"image": torch.from_numpy(chosen), "label": torch.zeros(len(chosen), dtype=torch.int64)}

    source = Samples("toy", {"image": {"image": TensorSpec((), "int64"), "label": TensorSpec((), "int64")}},
                     lambda data, pattern: rows, fields)  # fmt: skip
    seen = [
        b["image"].tolist()
        for _, b in source.batches(Pass("classify", "private", ("image",), 3, True, {"steps": 8}), 5)
    ]
    assert len(seen) == 8
    for epoch in (seen[:3], seen[3:6]):
        assert len({sample for batch in epoch for sample in batch}) == 9
    assert seen[:3] != seen[3:6]
    short = [
        b["image"].tolist()
        for _, b in source.batches(Pass("classify", "private", ("image",), 3, True, {"steps": 2}), 5)
    ]
    assert short == seen[:2]


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"by": {"imge": {"lr": 1}}}, r"training\.by\.imge: no kind of client and no device of the fleet is 'imge'; "
                                      r"did you mean 'image'\?; there are: image, text, image-text, jetson-orin"),
        ({"steps": 4, "lr_decay": 0.9, "lr_decay_per": "epoch"}, "lr_decay_per: epoch counts epochs: leave out steps"),
        ({"epochs": 0}, r"training\.epochs"),
        ({"epochs": -0.5}, r"training\.epochs"),
    ],
)  # fmt: skip
def test_amounts_and_devices_that_do_not_fit_are_refused(tiny: Tiny, training: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message):
        compose(load(declared(scenario(tiny, {"batch": 8, **training}, fleet=FLEET))))


def test_fit_asks_for_the_training_of_its_device(tiny: Tiny) -> None:
    given = declared(scenario(tiny, {"batch": 8, "by": {"jetson-*": {"batch": 4}}}, fleet=FLEET))
    with pytest.raises(EdgeflError, match=r"training\.by: fit takes one device: set training\.by=\{\}"):
        edgefl.fit(given, device="raspberry-pi-4-4gb")
