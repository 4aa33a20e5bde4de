"""Training of kinds of clients that differs: what each trains with, what it costs, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
from edgefl_toys import declared

import edgefl
from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
TRAINING = {"batch": 8, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "rates": {"image": 0.3}, "clip": 1.0,
            "lr_schedule": {"name": "step", "every": 2}}  # fmt: skip
PAIRS = {"optimizer": "adamp", "lr": 0.02, "lr_schedule": "cosine", "weight_decay": 0.1, "clip": False}


def scenario(tiny: Tiny, training: Any, rounds: int = 4, **sections: Any) -> dict[str, Any]:
    return tiny(training=training, schedule={"name": "end-to-end", "rounds": rounds}, **sections)


def test_each_kind_trains_as_it_is_said(tiny: Tiny) -> None:
    setup = compose(load(declared(scenario(tiny, {**TRAINING, "kinds": {"image-text": PAIRS}}))))
    plain = compose(load(declared(scenario(tiny, TRAINING))))
    for round in (1, 4):
        for kind in ("image", "text"):
            assert setup.method.client_work(kind, round) == plain.method.client_work(kind, round)
        pairs = setup.method.client_work("image-text", round)
        assert pairs.optimizer == {"name": "adamp", "implementation": "fused"}
        rate = 0.02 * (1 + cos(pi * (round - 1) / 4)) / 2
        assert pairs.scalars == {"lr": pytest.approx(rate), "weight_decay": 0.1, "betas": [0.9, 0.999]}
    again = load(load(scenario(tiny, {**TRAINING, "kinds": {"image-text": PAIRS}})).to_data())
    assert again.training.of("image-text").scalars_of(1)["lr"] == 0.02


def test_costs_and_records_follow(tiny: Tiny, tmp_path: Path) -> None:
    given = scenario(tiny, {"batch": 8, "optimizer": "sgd", "kinds": {"image": PAIRS}}, 2)
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
        ({"audio": {"lr": 1}}, r"training\.kinds\.audio: there are no 'audio' clients"),
        ({"imge": {"lr": 1}}, r"training\.kinds\.imge: there are no 'imge' clients; did you mean 'image'"),
        ({"image": {"lr": -1}}, r"training\.kinds\.image\.lr: must be greater than 0"),
        ({"image": {"epochs": 3}}, r"training\.kinds\.image\.epochs: unknown"),
        ({"image": {"optimizer": {"name": "adamp", "x": 1}}}, r"training\.kinds\.image\.optimizer\.x: unknown"),
        (
            {"image": {"optimizer": "adamp", "precision": "float16"}},
            r"kinds\.image: optimizer adamp has no step",
        ),
        ({"image": {"lr_schedule": {"name": "step", "every": 4}}}, r"training\.kinds\.image\.lr_schedule\.every: a st"),
        ({"image": {"betas": [1, 2]}}, r"training\.kinds\.image\.betas: betas must be"),
        ({"image": 3}, r"training\.kinds\.image"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told(tiny: Tiny, kinds: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        load(scenario(tiny, {"batch": 8, "kinds": kinds}))
    assert error.value.exit_code == 2


def test_methods_ask_every_kind(tiny: Tiny) -> None:
    training = {"batch": 8, "optimizer": "sgd", "kinds": {"image": {"optimizer": "adam"}}}
    with pytest.raises(EdgeflError, match="scaffold counts steps of plain SGD"):
        compose(load(scenario(tiny, training, method="scaffold")))
    in_float64 = {"batch": 8, "precision": "float64", "kinds": {"image": {"precision": "bfloat16"}}}
    with pytest.raises(EdgeflError, match=r"kinds\.image: precision: bfloat16 beside training\.precision: float64"):
        load(scenario(tiny, in_float64))
