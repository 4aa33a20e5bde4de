"""Who attacks: a share of all clients, the same ones for a seed, and what a person is told of wrong options."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from edgefl import registry
from edgefl.devices import FailureOptions, Fleet, FleetOptions, draw_failures
from edgefl.devices.attackers import AttackOptions, draw_attackers, parse_attack
from edgefl.errors import UnknownName
from edgefl.work import Item, Payload


def attack(share: float | str, kind: str = "sign-flip", **more: object) -> AttackOptions:
    options: AttackOptions = parse_attack({"share": share, "name": kind, **more})
    return options


@pytest.mark.parametrize(
    ("share", "clients", "count"),
    [(0, 10, 0), ("20%", 10, 2), ("25%", 10, 3), ("24%", 10, 2), ("1%", 10, 1), (1, 7, 7), ("30%", 1, 1), (0.5, 0, 0)],
)
def test_a_share_is_rounded_to_clients_but_never_to_none(share, clients, count):
    drawn = draw_attackers(attack(share), clients, 3)
    assert drawn.dtype == bool and drawn.shape == (clients,) and drawn.sum() == count


def test_the_seed_decides_and_a_larger_share_only_adds_attackers():
    some, more = (draw_attackers(attack(share), 1000, 5) for share in ("10%", "30%"))
    assert np.array_equal(some, draw_attackers(attack("10%", "label-flip"), 1000, 5))
    assert np.all(more[some])
    other = draw_attackers(attack("10%"), 1000, 6)
    assert (some & other).sum() < 40  # about 10 by chance
    assert not draw_attackers(None, 9, 1).any()


def test_a_fleet_has_them_and_fails_as_without_them():
    plain = FleetOptions.model_validate({"failures": {"upload": "20%"}})
    hostile = FleetOptions.model_validate({"failures": {"upload": "20%", "attack": {"share": 0.2, "name": "scaling"}}})
    assert Fleet.draw(plain, 50, 1).attackers is None
    drawn = Fleet.draw(hostile, 50, 1)
    assert drawn.attackers is not None and drawn.attackers.sum() == 10
    both = [draw_failures(options.failures, 1, 2, np.arange(50)).phase for options in (plain, hostile)]
    assert np.array_equal(*both)


def test_factors_and_their_defaults():
    given = [
        attack(0.1, "sign-flip"),
        attack(0.1, "sign-flip", factor=3),
        attack(0.1, "scaling"),
        attack(0.1, "scaling", factor=0.5),
        attack(0.1, "label-flip"),
    ]
    payload = Payload("model", (Item("w", (2,), "float32", "k/w"),))
    value, base = {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([1.0, 2.0])}
    sent = [
        registry.get("attack", options.name)(options).attacked_upload(payload, value, base)["w"].tolist()
        for options in given
    ]
    assert sent == [[-1, 4], [-5, 8], [21, -18], [2, 1], [3, 0]]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"share": 0.1, "name": "label-flip", "factor": 2}, "factor belongs to sign-flip or scaling"),
        ({"share": 1.1, "name": "scaling"}, "between 0 and 1"),
        ({"share": 0.1, "name": "scaling", "factor": 0}, "greater than 0"),
        ({"share": 0.1, "name": "scaling", "factor": float("inf")}, "finite"),
        ({"share": 0.1}, "Field required"),
        ({"name": "scaling"}, "Field required"),
        ({"share": 0.1, "name": "scaling", "rounds": 3}, "Extra inputs"),
    ],
)
def test_what_a_person_is_told(written, said):
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate({"failures": {"attack": written}})
    assert any(said in error["msg"] for error in caught.value.errors())


def test_an_unknown_attack_is_told_with_the_nearest():
    with pytest.raises(UnknownName, match="unknown attack 'sign-flop'; did you mean 'sign-flip'"):
        FleetOptions.model_validate({"failures": {"attack": {"share": 0.1, "name": "sign-flop"}}})


def test_options_round_trip_through_json():
    options = FailureOptions.model_validate({"attack": {"share": "10%", "name": "scaling", "factor": 4}})
    assert FailureOptions.model_validate(json.loads(options.model_dump_json())) == options
    assert FailureOptions.model_validate({"attack": None}) == FailureOptions()
