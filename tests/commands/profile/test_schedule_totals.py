"""What a profile adds up: by part, over a schedule, over a round's clients and the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import edgefl
from edgefl.commands.profile.schedule_totals import stretches
from edgefl.cost.predict import Predictor
from edgefl.devices import load_device
from edgefl.errors import MethodError
from edgefl.methods import ServerState
from edgefl.methods.fedavg import FedAvg
from edgefl.planning.planner import Planner
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Work

Tiny = Callable[..., dict[str, Any]]

SHAPES = {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}
DECLARED = {"source": "declared", "clients": {"image": 4, "text": 2, "image-text": 2}, "samples": 44,
            "validation": 30, "shapes": SHAPES}  # fmt: skip
ADDED_UP = ("fvcore_macs", "forward_flops", "backward_flops", "download_bytes", "upload_bytes")


@pytest.fixture(scope="module")
def layerwise(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, method="fedcola", schedule={"name": "layerwise", "stages": 2, "rounds": 5},
                training={"batch": 8, "epochs": 2}, round={"cohort": 0.5})  # fmt: skip


@pytest.fixture(scope="module")
def found(layerwise: dict[str, Any]) -> dict[str, Any]:
    return edgefl.profile(layerwise)


def test_parts_of_traffic_follow_from_the_names_of_parameters(layerwise: dict[str, Any], found: dict[str, Any]) -> None:
    kinds = compose(load(layerwise)).method.setting.kinds
    first = {row["kind"]: row for row in found["rows"] if row["stage"] == 1}
    for kind, row in first.items():
        sizes = {name: spec.bytes for name, spec in kinds[kind].parameters().items()}
        for part in ("embedding", "norm", "head"):
            own = sum(n for name, n in sizes.items() if name.split(".")[1] == part)
            assert row["upload_bytes_by_part"][part] == row["download_bytes_by_part"][part] == own
        blocks = sum(n for name, n in sizes.items() if ".blocks.0." in name)
        assert row["upload_bytes_by_part"]["blocks"] == blocks
        # the partner's block comes along
        partner = row["download_bytes_by_payload"].get("partner", 0)
        assert row["download_bytes_by_part"]["blocks"] == blocks + partner
        assert bool(partner) == (kind != "image-text")
    assert all(row["download_bytes_by_part"]["embedding"] == 0 for row in found["rows"] if row["stage"] == 2)


def test_macs_of_a_round_are_those_of_a_sample_times_the_samples_used(found: dict[str, Any]) -> None:
    for row in found["rows"]:  # 44 samples make 5 batches of 8 in each of 2 epochs
        assert row["fvcore_macs"] == 2 * 40 * row["fvcore_macs_per_sample"] > 0


def test_totals_are_rounds_times_rows_and_what_else_travels(found: dict[str, Any]) -> None:
    for total in found["totals"]:
        rows = [row for row in found["rows"] if row["kind"] == total["kind"]]
        assert total["rounds"] == 5
        for name in ("forward_flops", "backward_flops", "fvcore_macs", "upload_bytes"):
            assert total[name] == sum(row["rounds"] * row[name] for row in rows)
        assert total["traffic_bytes"] == total["download_bytes"] + total["upload_bytes"]
        serialised = total["serialised_download_bytes"] + total["serialised_upload_bytes"]
        assert total["serialised_traffic_bytes"] == serialised
        # what stage 1 trained comes down once more, and takes time: everything else is in the rows
        extra = total["download_bytes"] - sum(row["rounds"] * row["download_bytes"] for row in rows)
        assert extra > 0
        lasted = sum(row["rounds"] * row["virtual_seconds"] for row in rows)
        assert lasted < total["virtual_seconds"] < 1.5 * lasted


def test_a_round_adds_up_its_cohort(found: dict[str, Any]) -> None:
    for total, stage in zip(found["round_totals"], (1, 2), strict=True):
        assert total["stage"] == stage and total["selected"] == {"image": 2, "text": 1, "image-text": 1}
        rows = {row["kind"]: row for row in found["rows"] if row["stage"] == stage}
        for name in ADDED_UP:
            assert total[name] == sum(total["selected"][kind] * row[name] for kind, row in rows.items())
            assert total[name] == sum(part[name] for part in total["by_kind"].values())
            assert total["by_kind"]["server"][name] == 0


def test_an_evaluation_is_the_servers_and_apart(found: dict[str, Any]) -> None:
    rows = found["server_rows"]
    assert [(r["stage"], r["kind"], r["when"]) for r in rows] == [
        (stage, kind, "evaluate validation") for stage in (1, 2) for kind in ("image", "text", "image-text")
    ]
    for row in rows:
        assert sum(row["memory_bytes"].values()) == row["peak_memory_bytes"]
        assert (
            row["process_memory_bytes"] == row["peak_memory_bytes"] + load_device(row["device"]).runtime_overhead_bytes
        )
        assert row["forward_flops"] >= 2 * row["fvcore_macs"] * 0.9 and row["backward_flops"] == 0
        assert row["compute_seconds"] > 0


def test_clients_of_different_sizes_count_by_their_mean(tiny: Tiny) -> None:
    scenario = tiny(data={"source": "glyphs", "clients": {"text": 3}, "partition": {"quantity": 0.5},
                          "validation": 40, "test": 40}, round={"cohort": 2})  # fmt: skip
    setup = compose(load(scenario))
    samples = [int(n) for n in setup.clients.client_samples]
    assert len(set(samples)) > 1
    found = edgefl.profile(scenario)
    (row,), (total,) = found["rows"], found["round_totals"]
    # a client with less than a batch trains on all it has
    used = [8 * (n // 8) if n >= 8 else n for n in samples]
    assert total["selected"] == {"text": 2}
    assert Fraction(total["fvcore_macs"]) == pytest.approx(2 * sum(used) / 3 * row["fvcore_macs_per_sample"])
    assert row["samples"] == max(samples)


def test_without_strata_places_are_shared_by_size(tiny: Tiny) -> None:
    data = {**DECLARED, "clients": {"image": 4, "text": 2}}
    found = edgefl.profile(tiny(data=data, round={"cohort": 3, "stratify": False}))
    (total,) = found["round_totals"]
    assert total["selected"] == {"image": 2, "text": 1}
    found = edgefl.profile(tiny(data=data, round={"cohort": 2, "stratify": False}))
    assert found["round_totals"][0]["selected"] == {"image": pytest.approx(4 / 3), "text": pytest.approx(2 / 3)}


def test_a_cohort_by_kind_is_the_expected_one(tiny: Tiny) -> None:
    data = {**DECLARED, "clients": {"image": 8, "text": 4}}
    found = edgefl.profile(tiny(data=data, round={"cohort": {"image": "50%", "text": 1}}))
    assert found["round_totals"][0]["selected"] == {"image": 4, "text": 1}


class Looking(FedAvg):
    """A method whose server decides by what its tensors say."""

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        trained = any(bool(tensor.any()) for tensor in state.tensors.values())
        return [self.work(kind, round) for kind in self.setting.kinds if trained]


def test_a_server_that_asks_for_values_is_told_that_a_profile_has_shapes(tiny: Tiny) -> None:
    setup = compose(load(tiny(data=DECLARED)))
    looking = replace(setup, method=Looking(setup.method.options, setup.method.setting))
    with pytest.raises(MethodError, match=r"after\(\) of Looking .* shapes but no values"):
        stretches(Planner(looking, Predictor()))


@pytest.mark.slow(smaller="test_totals_are_rounds_times_rows_and_what_else_travels")
def test_rounds_that_differ_are_told_apart_and_the_server_is_charged(tiny: Tiny) -> None:
    """CreamFL: the server's model is nobody's, its tables travel; the modality-agnostic FedCola warms up first."""
    data = {**DECLARED, "public": 24}
    found = edgefl.profile(tiny(data=data, method="creamfl", round={"cohort": 1.0}))
    works = [row for row in found["server_rows"] if not row["when"].startswith("evaluate")]
    assert {row["when"] for row in works} == {"before", "after"} and all(row["fvcore_macs"] > 0 for row in works)
    (total,) = found["round_totals"]
    server = total["by_kind"]["server"]
    assert server["forward_flops"] == sum(row["forward_flops"] for row in works)
    assert server["backward_flops"] == sum(row["backward_flops"] for row in works) > 0
    assert server["download_bytes"] == 0
    for row in found["rows"]:
        assert row["upload_bytes_by_part"]["tables"] == row["upload_bytes_by_payload"]["representations"]


def test_what_is_narrowed_is_narrower_in_every_split(
    tiny: Tiny, layerwise: dict[str, Any], found: dict[str, Any]
) -> None:
    narrow = edgefl.profile({**layerwise, "payload": {"down": "float16", "up": "int8"}}, stage=2, kind="image")
    (row,) = narrow["rows"]
    (plain,) = (r for r in found["rows"] if (r["stage"], r["kind"]) == (2, "image"))
    for way in ("download", "upload"):
        by_part = row[f"{way}_bytes_by_part"]
        assert sum(by_part.values()) == sum(row[f"{way}_bytes_by_payload"].values()) == row[f"{way}_bytes"]
    assert row["download_bytes_by_part"]["blocks"] == plain["download_bytes_by_part"]["blocks"] // 2
    assert plain["upload_bytes"] // 4 < row["upload_bytes"] < plain["upload_bytes"] // 3
    assert row["peak_memory_bytes"] == plain["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("wanted", "left"), [({"kind": "text"}, 2), ({"stage": 2}, 3), ({"stage": 1, "kind": "image"}, 1)]
)
def test_a_filter_leaves_rows_out_and_the_sums_that_need_them(
    layerwise: dict[str, Any], found: dict[str, Any], wanted: dict[str, Any], left: int
) -> None:
    some = edgefl.profile(layerwise, **wanted)
    kept = [row for row in found["rows"] if all(row[name] == value for name, value in wanted.items())]
    assert some["rows"] == kept and len(kept) == left
    expected = [] if "stage" in wanted else [t for t in found["totals"] if t["kind"] == wanted["kind"]]
    assert some["totals"] == expected
    expected = [] if "kind" in wanted else [t for t in found["round_totals"] if t["stage"] == wanted["stage"]]
    assert some["round_totals"] == expected
