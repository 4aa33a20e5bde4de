"""A round's resources in the modality-agnostic paper: ratios to Uni-FedAVG, from closed forms and from the profile."""

from __future__ import annotations

from typing import Any

import pytest

from edgefl.scenario import load
from edgefl.setup.compose import compose
from tools.paper_tables.mcfl_resources import JOINT, both_ways, flops, mean
from tools.paper_tables.mcfl_resources import TABLE as OLD_TABLE
from tools.paper_tables.profiles import Profiles

IMAGE, TEXT = 21_704_164, 33_033_220  # parameters of a client's model (test_fedcola_colayer.py)
MODELS = 2 * 4 * 4 * (IMAGE + TEXT)  # bytes both ways of four clients of each kind
TABLE = 4 * 500 * 384


def method(name: str) -> Any:
    return compose(load(f"papers/mcfl-resources-{name}")).method


def moved(name: str, round: int) -> int:
    """Bytes both ways of four clients of each kind that takes part."""
    chosen = method(name)
    works = [chosen.work(k, round) for k in chosen.setting.kinds if chosen.participates(k, round)]
    return 4 * sum(p.tensor_bytes for w in works for p in (*w.down, *w.up))


def test_bytes_of_a_round() -> None:
    assert moved("fedavg", 1) == moved("fedcola", 1) == moved("fedcola-warmup", 6) == MODELS
    assert moved("fedcola-warmup", 5) == 2 * 4 * 4 * IMAGE
    assert moved("creamfl", 1) == MODELS + 8 * 3 * TABLE
    assert round(moved("creamfl", 1) / MODELS, 4) == 1.0105


PROFILES = Profiles()


@pytest.mark.slow(smaller="test_bytes_of_a_round")
def test_ratios_of_computation() -> None:
    """The table of docs/evidence/papers/mcfl-resources.md."""
    base = flops(PROFILES, "fedavg")
    assert base == pytest.approx(2.489e15, rel=1e-3)
    assert flops(PROFILES, "fedcola") == base
    assert flops(PROFILES, "fedcola-warmup") / base == pytest.approx(0.969, abs=5e-4)
    assert flops(PROFILES, "creamfl") / base == pytest.approx(1.181, abs=5e-4)
    assert flops(PROFILES, "creamfl", OLD_TABLE) / base == pytest.approx(1.151, abs=5e-4)
    joint = (
        flops(PROFILES, "creamfl", JOINT) / base,
        flops(PROFILES, "creamfl", JOINT, OLD_TABLE) / base,
    )
    assert joint == pytest.approx((2.354, 2.032), abs=5e-4)  # published: 1.97
    assert mean(PROFILES, "creamfl", "fvcore_macs") / mean(PROFILES, "fedavg", "fvcore_macs") == pytest.approx(
        1.182, abs=5e-4
    )
    assert both_ways(PROFILES, "creamfl") == MODELS + 8 * 3 * TABLE


@pytest.mark.slow(smaller="test_bytes_of_a_round")
def test_macs_of_a_client_have_their_closed_form() -> None:
    """Three forwards a private sample; four a public one, with the old model's; one to represent it."""
    own = {"image": 5 * 3072 * 3, "text": 5 * 7488 * 3}
    macs = {
        name: {row["kind"]: row["fvcore_macs"] for row in PROFILES.profile_of(f"mcfl-resources-{name}")["rows"]}
        for name in ("fedavg", "creamfl")
    }
    heads = {"image": 384 * 100, "text": 384 * 4}  # not used for public samples, nor by the server's model
    forward = {kind: macs["fedavg"][kind] / samples for kind, samples in own.items()}
    for kind in own:
        extra = (5 * 448 * 4 + 512) * (forward[kind] - heads[kind])
        # products with the tables belong to no part of the model
        assert macs["creamfl"][kind] == pytest.approx(macs["fedavg"][kind] + extra, rel=1e-12)
        assert macs["creamfl"][kind] / macs["fedavg"][kind] == pytest.approx(
            {"image": 1.2056, "text": 1.0843}[kind], abs=5e-5
        )
    (totals,) = PROFILES.profile_of("mcfl-resources-creamfl")["round_totals"]
    # the server's model normalises what is read, two tokens; a classifier all 197 or 40
    norms = 5 * 384 * (197 + 40 - 2)
    server = 3200 * (sum(forward[kind] - heads[kind] for kind in own) - norms)
    assert totals["by_kind"]["server"]["fvcore_macs"] == pytest.approx(server, rel=1e-12)
