"""Every registered method keeps the contract under every registered schedule; what doesn't go together says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from edgefl_toys import declared
from resident import Resident
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.cost.predict import Predictor
from edgefl.errors import EdgeflError
from edgefl.results.verify import verify
from edgefl.runs import Run
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.testing import check_part

Tiny = Callable[..., dict[str, Any]]
METHODS, SCHEDULES = registry.names("method"), registry.names("schedule")
PAIRS = list(product(METHODS, SCHEDULES))

EXCHANGES = ("creamfl", "reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems")
OPTIONS: dict[str, dict[str, Any]] = {name: {"pairs": 10, "public_batch": 4} for name in EXCHANGES}
"""Options with which a method has less to do: three public batches rather than all."""

QUICK = {
    "fedavg": ("elastic", ["image"]),
    "fedprox": ("end-to-end", ["text"]),
    "fedmml": ("layerwise", ["image-text"]),
    "fediot": ("split", ["image", "image-text"]),
    "fedcola": ("end-to-end", ["image", "text"]),
    "fedper": ("smartfreeze", ["image"]),
    "scaffold": ("profl", ["image"]),
    "ditto": ("heterofl", ["image"]),
    "fedpac": ("progressive", ["image-text"]),
    "fedcola-mat": ("end-to-end", ["image", "text"]),
    "fednova": ("flexlora", ["image", "text"]),
    "mezo": ("frozen-prefix", ["image"]),
    "flora": ("end-to-end", ["image"]),
}
"""The schedule and the client kinds with which the quick suite takes a method; else end-to-end with pairs."""

DEAR = (
    "fedprox",
    "feddyn",
    "qfedavg",
    "fedbabu",
    "depthfl",
    "fedcola-mat",
    "creamfl",
    "reamfl-avg",
    "reamfl-iot",
    "fedmd",
    "fedet",
    "fedgems",
    "pmcmfl",
    "fedhkd",
    "ffa-lora",
    "rolora",
    "fedex-lora",
)
"""Methods that the quick suite leaves out, since they take seconds and it has another one of their family."""

ADAPTED = ("creamfl", "ditto", "fedcola", "feddyn", "fedet", "fedgems", "fedmd", "reamfl-avg", "reamfl-iot",
           "reamfl-mean", "scaffold")  # fmt: skip
"""Methods whose clients keep factors, or tensors like them, or that train no adapters by default."""
WIDTHS = "model 'multiway' can't be narrowed"
KEEPS = "set schedule.keep: false"
FACTORS = "factors of two rounds don't belong together"
LORA = ("ffa-lora", "rolora", "fedex-lora", "flora")
UNSPLIT = ("fedprox", "mezo", "scaffold", "feddyn", "qfedavg", "ditto", "fedper", "flora", "fedcola", "creamfl",
           "reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems", "local")  # fmt: skip
REFUSED = {
    **{(method, "heterofl"): "can't be narrowed: set adapter: none" for method in LORA},
    **{(method, "flexlora"): "combines factors in its own way" for method in LORA},
    **{(method, "split"): "exchange, keep or compute more under this method" for method in UNSPLIT},
    **{
        (method, "split"): "is one for all modalities, or has exits"
        for method in ("pmcmfl", "fedpac", "fedhkd", "depthfl")
    },
    **{(method, "heterofl"): WIDTHS for method in ("pmcmfl", "fedpac", "fedhkd")},
    **{(method, "flexlora"): "set complementary: none" if method == "fedcola" else FACTORS for method in ADAPTED},
    **{(method, "frozen-prefix"): KEEPS for method in ("pmcmfl", "fedpac", "fedhkd", "depthfl")},
}
"""The pairs that make no sense, each with the reason that is given."""


@pytest.fixture(scope="module", autouse=True)
def _one_worker() -> Iterator[None]:
    """One worker process for all tests here, and one predictor: methods share works, so that each is predicted once."""
    resident, predictor = Resident(), Predictor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgefl.testing.part_check.Predictor", lambda: predictor)
        patch.setattr("edgefl.testing.one_assignment.ProcessExecutor", resident)
        patch.setattr("edgefl.training.executors.ProcessExecutor", resident)
        yield
    resident.close()


# the contract ---------------------------------------------------------------------------------------------------------


def test_the_quick_suite_takes_every_schedule() -> None:
    assert set(QUICK) | set(DEAR) < set(METHODS)
    assert {schedule for method, (schedule, _) in QUICK.items() if method not in DEAR} == set(SCHEDULES)


@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.slow) if m in DEAR else m for m in METHODS])
def test_a_method_keeps_the_contract(method: str) -> None:
    schedule, kinds = QUICK.get(method, ("end-to-end", ["image-text"]))
    options = OPTIONS.get(method, {})
    report = check_part("method", method, runs=False, schedules=[schedule], kinds=kinds, processes=True, **options)
    assert report.ok and not report.refused, str(report)


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize(("method", "schedule"), PAIRS)
def test_every_method_keeps_the_contract_under_every_schedule(method: str, schedule: str) -> None:
    report = check_part("method", method, runs=False, schedules=[schedule], processes=True, **OPTIONS.get(method, {}))
    assert report.ok, str(report)
    assert (schedule in report.refused) == ((method, schedule) in REFUSED)
    assert REFUSED.get((method, schedule), "") in report.refused.get(schedule, "")


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("allocation", ["uniform", "late"])
def test_a_stage_without_rounds_is_passed_over(allocation: str) -> None:
    schedule = {"name": "layerwise", "stages": [1, 1], "rounds": 2, "allocation": allocation}
    report = check_part("method", "fedcola", runs=False, schedules=[schedule])
    assert report.ok, str(report)


# runs -----------------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The user has had enough."""


def scenario_of(tiny: Tiny, method: str, schedule: str) -> dict[str, Any]:
    """A few rounds of six clients, of budgets apart where that makes a difference."""
    needs, own = registry.get("method", method).needs, {"name": method, **OPTIONS.get(method, {})}
    data = {**tiny()["data"], "clients": {"image": 2, "text": 2, "image-text": 2}, "samples": 16, "public": 24}
    sections = {
        "method": own,
        "schedule": {"name": schedule, "rounds": 3 if schedule == "profl" else 2},
        "evaluation": {"every": 1},
    }
    scenario = tiny(**{**sections, **needs, "data": {**data, **needs.get("data", {})}})
    scenario |= registry.get("schedule", schedule).needs | {"schedule": scenario["schedule"]}
    offers = schedule in ("elastic", "flexlora", "heterofl") and (method, schedule) not in REFUSED
    if offers and method != "central":  # of whose clients nobody takes part
        peaks: dict[str, list[int]] = {}
        does = compose(load(scenario)).method
        for row in edgefl.profile(scenario)["rows"]:
            if does.participates(row["kind"], 1):
                peaks.setdefault(row["kind"], []).append(row["peak_memory_bytes"])
        # everybody can do something, and not everybody everything
        least, most = max(min(each) for each in peaks.values()), max(max(each) for each in peaks.values())
        scenario["fleet"] = {"budgets": {"memory": f"{least}..{most * 6 // 5} B"}}
    return scenario


def files(run: Run) -> dict[str, bytes]:
    names = [f"{table}.jsonl" for table in ("rounds", "clients", "eligibility")]
    return {name: (run.path / name).read_bytes() for name in (*names, "result.json", "weights.safetensors")}


@pytest.mark.slow(smaller="test_a_run_that_was_stopped_leaves_the_files_of_one_that_was_not")
@pytest.mark.parametrize(("method", "schedule"), PAIRS)
def test_a_run_in_workers_that_was_cut_off_leaves_the_files_of_one_that_was_not(
    tiny: Tiny, tmp_path: Path, method: str, schedule: str
) -> None:
    scenario = scenario_of(tiny, method, schedule)
    if reason := REFUSED.get((method, schedule)):
        with pytest.raises(EdgeflError, match=reason):
            edgefl.run(scenario, out=tmp_path / "whole")
        assert not (tmp_path / "whole").exists()
        return
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    trained = [record for record in whole.records("clients") if record["loss"] is not None]
    metered = [record for record in trained if record["measured_peak_memory_bytes"] is not None]
    # of a method without clients that train the server's works are measured, and no record of a client
    assert (metered or method == "central") and all(
        abs(record["measured_peak_memory_bytes"] - record["peak_memory_bytes"]) <= 4096 for record in metered
    )
    if "fleet" in scenario and trained:
        assert len({record["part"] for record in trained}) > 1

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise Stopped

    workers = {"executor": {"name": "processes", "workers": 1, "device": "cpu"}}
    with pytest.raises(Stopped):
        edgefl.run({**scenario, **workers}, out=tmp_path / "cut", on_progress=stop)
    began: list[int] = []
    resumed = edgefl.run(
        resume=tmp_path / "cut", on_progress=lambda event, facts: event == "start" and began.append(facts["round"])
    )
    assert began == [1]
    assert files(resumed) == files(whole)
    kept, again = whole.client_tensors(), resumed.client_tensors()
    assert set(again) == set(kept)
    for client, values in kept.items():
        assert_equal_tensors(again[client], values)
    report = verify(whole.path)
    assert report["valid"], report


# what doesn't go together ---------------------------------------------------------------------------------------------


def attack(kind: str) -> dict[str, Any]:
    return {"failures": {"attack": {"share": "30%", "name": kind}}}


TOWER = {"blocks": 2, "width": 16, "heads": 2}
TOWERS = {"image": TOWER, "text": {**TOWER, "tokens": 12}}
APART = {"image": TOWER, "text": {**TOWER, "width": 24, "tokens": 12}, "dimension": 16}
GRU = {"image": TOWER, "text": {"tower": "gru", "tokens": 12}, "dimension": 16}
MULTIWAY = {"multiway": {**TOWER, "tokens": 12}}
ONE, SINGLE, PAIRED = {"clients": {"image": 3}}, {"clients": {"image": 2, "text": 2}}, {"clients": {"image-text": 3}}
PUBLIC, CLASSIFY = {"public": 24}, {"tasks": {"image-text": "classify"}}
ANSWERS = {"model": MULTIWAY, "data": CLASSIFY}

PRIVATE: Mapping[str, Mapping[str, Any]] = {
    "aggregation": {"clip": 1.0, "noise": 1.0},
    "privacy": {"delta": 1e-3, "accountant": "rdp"},
    "round": {"selection": "poisson", "weighting": "equal", "cohort": 0.5},
}


def private(given: Mapping[str, Mapping[str, Any]] = PRIVATE, **sections: Any) -> dict[str, Any]:
    """Sections of a run with noise; of those that are ``given`` some fields are changed."""
    return {**sections, **{name: {**fields, **sections.get(name, {})} for name, fields in given.items()}}


UNPRIVATE: list[tuple[dict[str, Any], str]] = [
    ({"aggregation": {"clip": None}}, "aggregation: noise is a multiple of clip, .* add clip"),
    ({"aggregation": {"clip": None, "noise": None}, "privacy": {"epsilon": 8}}, "limited length only: add .*clip"),
    ({"aggregation": {"noise": None}}, "privacy.delta: nothing is counted without noise"),
    ({"privacy": {"delta": None}}, "aggregation.noise: nobody knows what it hides .* add privacy.delta"),
    ({"privacy": {"delta": None, "epsilon": 8}}, "epsilon holds but for a chance of delta: add delta"),
    ({"privacy": {"epsilon": 1}}, r"privacy.epsilon: round 1 alone spends 2.687 of 1, with noise 1 and 1 of 2 clients"),
    ({"privacy": {"accountant": "pld"}, "aggregation": {"noise": 0.05}}, "pld counts 0.1 or more"),
    ({"aggregation": {"non_finite": "keep"}}, "an infinite update can't be clipped: write non_finite: reject"),
    ({"aggregation": {"rule": "median"}}, "median compares updates, and their sum alone is private: write rule: mean"),
    *(({"round": {"selection": name}}, f"which chance {name} draws a client: write selection: poisson")
      for name in ("round-robin", "power-of-choice", "oort")),
    ({"round": {"selection": "random"}, "privacy": {"accountant": "pld"}}, "pld doesn't count cohorts of a fixed size"),
    ({"round": {"policy": "buffered", "selection": "random"}}, "rounds of buffered overlap"),
    ({"round": {"weighting": None}}, "samples would weigh an update beyond clip: write weighting: equal"),
    ({"round": {"selection": "random", "over_selection": 1.0}}, "an update counts or not by the speed of others"),
    ({"round": {"quorum": 2}}, "a round that is left out tells how many came: write quorum: 1"),
    ({"method": "scaffold", "training": {"optimizer": "sgd"}}, "scaffold sends control/.* isn't clipped"),
    ({"method": "fedhkd", **ANSWERS}, "fedhkd sends prototypes.* isn't clipped with the model"),
    ({"method": "qfedavg"}, "qfedavg makes something else of updates than their sum"),
    ({"method": "mezo", "training": {"optimizer": "mezo"}}, "mezo sends .* isn't clipped with the model"),
    ({"method": "fednova", "training": {"optimizer": "sgd"}}, "fednova weighs updates by what clients report"),
    ({"method": "fedcola-mat"}, "fedcola-mat draws cohorts of its own"),
    ({"schedule": "flexlora", "adapter": "lora"}, "flexlora multiplies the factors of each update"),
    ({"model": {"image": {"tower": "resnet"}, "dimension": 32}, "data": {"clients": {"image": 2}}},
     r"image\.embedding\.bn1\.running_mean is a statistic of BatchNorm"),
    ({"fleet": {"relays": 2}}, "each relay has a sum of its own: leave it out"),
    ({"schedule": {"name": "split", "server": "shared"}}, "one half that clients train in turn has no noise"),
    ({"schedule": "split", "round": {"deadline": "1 h"}}, "clients wait for each other at the server"),
    ({"fleet": {"availability": {"markov": {"on": "2 h", "off": "6 h"}}}}, "who arrives depends on the clock"),
    ({"fleet": {"battery": {}}}, "fleet.battery: who arrives depends on the clock"),
    ({"fleet": {"server_link": {"upload": "1 Mbit/s"}}, "round": {"deadline": "1 h"}}, "leave out it or round.dead"),
    ({"fleet": {"budgets": {"energy_total": "1 kJ"}}}, "leave out limits per day or job"),
    ({"fleet": {"budgets": {"bytes_per_round": "1 MB"}}, "schedule": {"name": "layerwise", "stages": 2}},
     "a budget of bytes depends on the copies that a client holds"),
]  # fmt: skip
"""Runs with noise that would promise too much."""
SECURE: Mapping[str, Mapping[str, Any]] = {
    "aggregation": {"clip": 1.0, "secure": "secagg"},
    "round": {"weighting": "equal", "cohort": 1.0},
    "privacy": {},
}
INSECURE: list[tuple[dict[str, Any], str]] = [
    ({"aggregation": {"clip": None}}, "aggregation: secure sums integers of a range that clip gives: add clip"),
    ({"aggregation": {"neighbours": 3}}, r"neighbours belongs to secure: secagg\+"),
    ({"aggregation": {"noise": 1.0}, "privacy": {"delta": 1e-3, "accountant": "rdp"}}, "leave out one of both"),
    ({"aggregation": {"rule": "krum"}}, "krum compares updates, and their sum alone is private"),
    ({"payload": {"up": "int8"}}, "payload.up: masked integers are sent as they are"),
    (
        {"round": {"policy": "buffered"}},
        "rounds of buffered overlap, and noise and masks are for the sum of one cohort",
    ),
    ({"round": {"weighting": None}}, "samples would weigh an update beyond clip"),
    ({"round": {"cohort": 0.4}}, "the sum of one image client hides nothing: ask for two or more of each kind"),
    ({"method": "fednova", "training": {"optimizer": "sgd"}}, "fednova weighs updates by what clients report"),
    ({"fleet": {"relays": 2}}, "each relay has a sum of its own: leave it out"),
    ({"schedule": "split"}, "the server sees each batch of a split model: leave it out"),
]
"""Secure sums of what is no sum."""


REFUSALS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "`pmcmfl`, `fedpac`, `fedhkd` under `heterofl`": [
        ({"method": name, "schedule": "heterofl", **ANSWERS}, WIDTHS) for name in ("pmcmfl", "fedpac", "fedhkd")
    ],
    "`heterofl` with any tower but `vit` and `transformer`": [
        ({"model": GRU, "schedule": "heterofl"}, "model.text can't be narrowed: it is a 'gru' tower")
    ],
    "`heterofl` with towers of different heads under one norm": [
        (
            {
                "model": {"image": TOWER, "text": {**TOWER, "heads": 4, "tokens": 12}},
                "schedule": {"name": "heterofl", "widths": [1, 0.25]},
            },
            "the towers have widths .*, but they share one norm",
        )
    ],
    "`frozen-prefix` that keeps activations, under `depthfl` or with the multiway model": [
        ({"method": "depthfl", "schedule": "frozen-prefix"}, KEEPS),
        ({"schedule": "frozen-prefix", **ANSWERS}, KEEPS),
        ({"method": "pmcmfl", "schedule": "frozen-prefix", **ANSWERS}, KEEPS),
    ],
    "`flexlora` without LoRA, or with ranks that don't go up to its own": [
        ({"schedule": "flexlora"}, "set adapter: .name: lora"),
        ({"schedule": "flexlora", "adapter": {"name": "lora", "rank": 4}}, "must go up to adapter.rank, 4"),
        ({"schedule": "flexlora", "adapter": "lora", "aggregation": {"rule": "krum"}}, "krum compares factors"),
    ],
    "`flexlora` where `personal` keeps factors on the clients": [
        ({"method": "ditto", "schedule": "flexlora", "adapter": "lora"}, FACTORS),
        ({"method": "fedmd", "data": PUBLIC, "schedule": "flexlora", "adapter": "lora"}, FACTORS),
        (
            {"method": {"name": "fedavg", "personal": ["image.blocks"]}, "schedule": "flexlora", "adapter": "lora"},
            FACTORS,
        ),
    ],
    "`creamfl` and its kin under `heterofl` without `model.dimension`": [
        ({"method": "creamfl", "data": PUBLIC, "schedule": "heterofl"}, "representations of the full model's width"),
        ({"method": "fedmd", "data": PUBLIC, "schedule": "heterofl"}, "representations of the full model's width"),
    ],
    "`layerwise`, `progressive`, `elastic` with more stages than a tower has blocks": [
        ({"schedule": {"name": name, "stages": 3}}, "3 stages are more than the 2 blocks")
        for name in ("layerwise", "progressive", "elastic")
    ],
    "`depthfl` with fewer `exits` than stages": [
        ({"method": {"name": "depthfl", "exits": 1}, "schedule": name}, "no exit is within the first blocks")
        for name in ("layerwise", "progressive", "elastic")
    ],
    "`depthfl` with more `exits` than blocks": [
        ({"method": {"name": "depthfl", "exits": 3}}, "method.exits is 3, but the")
    ],
    "`depthfl` with the multiway model": [({"method": "depthfl", **ANSWERS}, "depthfl needs a model of towers")],
    "`pmcmfl`, `fedpac`, `fedhkd` with towers, unless all clients have pairs": [
        ({"method": name, "data": CLASSIFY}, f"{name} needs the multiway model") for name in ("pmcmfl", "fedpac")
    ],
    "`pmcmfl`, `fedpac`, `fedhkd` with pairs that retrieve": [
        ({"method": name, "model": MULTIWAY}, f"{name} classifies, but image-text clients retrieve")
        for name in ("pmcmfl", "fedhkd")
    ],
    "`pmcmfl`, `fedpac`, `fedhkd` without pairs": [
        ({"method": "pmcmfl", "model": MULTIWAY, "data": SINGLE}, "there are none: set contrast: 0"),
        ({"method": "fedpac", "model": MULTIWAY, "data": SINGLE}, "there are none: set prototypes_of: all"),
    ],
    "`mask: ignore` with clients of one modality": [
        ({"method": {"name": "pmcmfl", "mask": "ignore"}, **ANSWERS}, "mask: ignore leaves out samples")
    ],
    "`classifier` or `prior` without `matching`, `matching` without them, `mix` above 1 where nothing is matched": [
        ({"method": {"name": "pmcmfl", "inference": "classifier"}, **ANSWERS}, "classifier needs matching models"),
        (
            {"method": {"name": "pmcmfl", "inference": "zero", "matching": {"round": 1}}, **ANSWERS},
            "needs no matching model: remove matching",
        ),
    ],
    "`matching` from a round after the last": [
        (
            {"method": {"name": "pmcmfl", "inference": "classifier", "matching": {"round": 9}}, **ANSWERS},
            "would be trained from round 9 on, but the schedule ends with round 2",
        )
    ],
    "`creamfl` and its kin with clients of one modality alone": [
        ({"method": name, "data": {**ONE, **PUBLIC}}, f"{name} exchanges representations between two modalities")
        for name in ("creamfl", "fedmd")
    ],
    "`creamfl` and its kin without public pairs": [
        ({"method": name}, "the data have 0: increase data.public") for name in ("creamfl", "reamfl-avg", "fedgems")
    ],
    "`creamfl` and its kin with towers of different widths and no common dimension": [
        ({"method": "creamfl", "data": PUBLIC, "model": APART}, "set model.dimension, and model.dimension_for: all")
    ],
    "`aggregation` (but `non_finite`) with clients who keep their models": [
        ({"method": name, "data": PUBLIC, "aggregation": "median"}, "clients keep theirs")
        for name in ("creamfl", "fedmd")
    ],
    "the attacks `sign-flip` and `scaling` with clients who keep their models": [
        ({"method": name, "data": PUBLIC, "fleet": attack(kind)}, f"so {kind} changes nothing; write name: label-flip")
        for name, kind in (("creamfl", "sign-flip"), ("fedmd", "scaling"))
    ],
    "the attack `label-flip` where all clients retrieve": [
        ({"data": PAIRED, "fleet": attack("label-flip")}, "label-flip changes nothing, since image-text clients")
    ],
    "`server: federated` without pairs, or with private clients": [
        ({"method": {"name": "creamfl", "server": "federated"}, "data": {**SINGLE, **PUBLIC}}, "there are none"),
        (
            {"method": {"name": "creamfl", "server": "federated", "clients": "private"}, "data": PUBLIC},
            "clients can't be private",
        ),
    ],
    "`pcme` without pairs that retrieve": [
        ({"method": {"name": "creamfl", "pcme": {}}, "data": {**SINGLE, **PUBLIC}}, "pcme is the loss of clients"),
        ({"method": {"name": "creamfl", "pcme": {}}, "data": {**PUBLIC, **CLASSIFY}}, "pcme is a loss of retrieval"),
    ],
    "`contrast` or another aggregation with `reamfl-*`": [
        ({"method": {"name": "reamfl-mean", "contrast": 1}, "data": PUBLIC}, "use creamfl instead"),
        ({"method": {"name": "reamfl-avg", "aggregation": "gca"}, "data": PUBLIC}, "use creamfl instead"),
    ],
    "`fedcola`'s gates, or `range: all`, between towers that aren't of one shape, or between adapters on "
    "layers of other names": [
        ({"method": "fedcola", "model": APART}, "complementary training needs blocks of the same shape"),
        (
            {"method": {"name": "fedcola", "range": "all", "compensation": False}, "model": APART},
            "range: all averages the same layers of all modalities",
        ),
        ({"method": "fedcola", "model": GRU}, "blocks of the tower gru of text clients have no"),
        ({"method": "fedcola", **ANSWERS}, "blocks of the one encoder of image clients have no"),
    ],
    "`fedcola`'s `compensation` with `range: all`": [
        ({"method": {"name": "fedcola", "range": "all"}}, "compensation is not defined for range 'all'")
    ],
    "`fedcola-mat` with towers that aren't of one shape": [
        ({"method": "fedcola-mat", "model": APART}, "shared parameters need the same shape in all modalities")
    ],
    "`fedcola-mat` without clients of one modality, or of the one that decides": [
        ({"method": "fedcola-mat", "data": PAIRED}, "needs clients of one modality each, and there are none"),
        ({"method": {"name": "fedcola-mat", "share": "language-attention"}, "data": ONE}, "share needs text clients"),
    ],
    "`fediot` sharing layers that a common tower doesn't have": [
        ({"method": {"name": "fediot", "share": "attention"}, "model": GRU}, "matches no layers in the text tower")
    ],
    "a median, a trimmed mean, Krum or multi-Krum where attackers are simulated and a round never has as many updates "
    "as [withstand one](../concepts/methods/aggregation.md#how-many-attackers-a-round-withstands)": [
        (
            {
                "aggregation": rule,
                "data": {"clients": {"image": 2}},
                "round": {"cohort": 1.0},
                "fleet": {"failures": {"attack": {"share": 0.5, "name": "sign-flip"}}},
            },
            f"{rule} withstands no attacker in rounds of at most 2 updates",
        )
        for rule in ("median", "trimmed-mean", "krum", "multi-krum")
    ],
    "a median, a trimmed mean, Krum, multi-Krum or `compensation` under `asynchronous`": [
        ({"aggregation": "median", "round": {"policy": "asynchronous"}}, "median needs several updates"),
        ({"aggregation": "trimmed-mean", "round": {"policy": "asynchronous"}}, "trimmed-mean needs several"),
        ({"aggregation": "krum", "round": {"policy": "asynchronous"}}, "krum needs several updates"),
        ({"aggregation": "multi-krum", "round": {"policy": "asynchronous"}}, "multi-krum needs several updates"),
        (
            {"aggregation": {"compensation": True}, "round": {"policy": "asynchronous"}},
            "compensation needs all updates of a cohort",
        ),
    ],
    "`combine: ensemble` or `max-data` under `asynchronous`": [
        ({"method": "creamfl", "data": PUBLIC, "round": {"policy": "asynchronous"}}, "the server learns from the repr"),
        (
            {
                "method": {
                    "name": "pmcmfl",
                    "inference": "prior",
                    "matching": {"round": 2},
                    "combine": "ensemble",
                },
                **ANSWERS,
                "round": {"policy": "asynchronous"},
            },
            "combine: ensemble selects from all",
        ),
    ],
    "`over_selection` or a `quorum` where nobody waits for a cohort": [
        ({"round": {"policy": "asynchronous", "over_selection": 0.5}}, "over_selection is only for a synchronous"),
        ({"round": {"policy": "buffered", "quorum": 2}}, "quorum is only for rounds that end by time"),
    ],
    "`round.weighting` under `asynchronous` and `semi-synchronous`": [
        (
            {"round": {"policy": policy, "weighting": weighting}},
            f"weighting is only for policy: synchronous or buffered; {policy} weighs updates by samples",
        )
        for policy in ("asynchronous", "semi-synchronous")
        for weighting in ("equal", "samples")
    ],
    "`selection: poisson` where rounds overlap, or with `over_selection`": [
        ({"round": {"policy": "buffered", "selection": "poisson"}}, "poisson draws whole cohorts, and buffered fills"),
        ({"round": {"selection": "poisson", "over_selection": 0.5}}, "poisson draws a cohort of any size"),
    ],
    "noise and `secure` that [would promise too much](../guides/privacy.md#what-is-refused)": [
        *((private(**sections), reason) for sections, reason in UNPRIVATE),
        *((private(SECURE, **sections), reason) for sections, reason in INSECURE),
    ],
    "`power-of-choice` and `oort` by losses without training": [
        ({"training": {"mode": "none"}, "round": {"selection": name}}, f"{name} selects by losses")
        for name in ("power-of-choice", "oort")
    ],
    "`payload.up: top_k` with tables": [
        ({"method": "creamfl", "data": PUBLIC, "payload": {"up": {"top_k": 0.1}}}, "is not an update of a downloaded"),
        ({"method": "pmcmfl", **ANSWERS, "payload": {"up": {"top_k": 0.1}}}, "is not an update of a downloaded"),
    ],
    "`payload.down: top_k`": [({"payload": {"down": {"top_k": 0.1}}}, "a download is not an update")],
    "a list of learning rates that isn't one for each stage": [
        ({"training": {"rates": {"image": [1e-3, 1e-4]}}}, "lists 2 learning rates, but the schedule has 1 stage")
    ],
    "`pretrain` of a tower that isn't there, or without public samples": [
        ({"pretrain": {"image": {"epochs": 1}}, **ANSWERS}, "the model has no image tower to pre-train"),
        ({"pretrain": {"image": {"epochs": 1}}}, "but there are 0: increase data.public"),
    ],
}
"""Every row of the docs' list, with scenarios of it and what they are told."""


@pytest.mark.parametrize("what", REFUSALS)
def test_what_makes_no_sense_says_why_before_anything_is_done(tiny: Tiny, what: str) -> None:
    for sections, reason in REFUSALS[what]:
        given = {**tiny(), **sections, "data": {**tiny()["data"], **sections.get("data", {})}}
        if "pretrain" not in sections:
            given = declared(given)
        if isinstance(name := given["schedule"], str):
            given["schedule"] = {"name": name, "rounds": 2}
        with pytest.raises(EdgeflError, match=reason) as refused:
            compose(load(given))
        assert "\n" not in str(refused.value)


ASKED = {
    "`pmcmfl`, `fedpac`, `fedhkd` under `heterofl`",
    "`frozen-prefix` that keeps activations, under `depthfl` or with the multiway model",
    "`aggregation` (but `non_finite`) with clients who keep their models",
    "the attacks `sign-flip` and `scaling` with clients who keep their models",
    "`payload.up: top_k` with tables",
}
"""Refusals that stand in the page's tables made from the code."""


def test_the_docs_list_what_is_refused() -> None:
    text = (Path(__file__).parent.parent / "docs" / "reference" / "refusals.md").read_text(encoding="utf-8")
    section = text.split("## Options, data and models\n", 1)[1]
    written = re.findall(r"^\| (.*?) \| .+ \|$", section, re.MULTILINE)[2:]
    assert written == [what for what in REFUSALS if what not in ASKED] and REFUSALS.keys() >= ASKED
