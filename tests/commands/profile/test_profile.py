from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

import edgefl
from edgefl.commands.profile.clients_table import print_clients
from edgefl.commands.profile.rounds_table import print_profile
from edgefl.devices import load_device, load_link
from edgefl.errors import EdgeflError, ScenarioError, UnknownName
from edgefl.scenario import load
from edgefl.setup.compose import compose

ROW = set(
    "kind stage rounds peak_memory_bytes memory_bytes runtime_overhead_bytes process_memory_bytes forward_flops "
    "backward_flops fvcore_macs fvcore_macs_per_sample download_bytes upload_bytes download_bytes_by_payload "
    "upload_bytes_by_payload download_bytes_by_part upload_bytes_by_part serialised_download_bytes "
    "serialised_upload_bytes virtual_seconds energy_joules".split()
)
TOTAL = set(
    "kind rounds peak_memory_bytes traffic_bytes serialised_traffic_bytes fvcore_macs_per_sample_all_rounds "
    "fvcore_macs forward_flops backward_flops download_bytes upload_bytes serialised_download_bytes "
    "serialised_upload_bytes download_bytes_by_payload upload_bytes_by_payload download_bytes_by_part "
    "upload_bytes_by_part virtual_seconds energy_joules".split()
)
DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2, "image-text": 2}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
TWO_STAGES = {"name": "layerwise", "stages": 2, "rounds": 5}

Tiny = Callable[..., dict[str, Any]]


def by_kind(entries: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(entry["kind"], []).append(entry)
    return found


def test_rows_and_totals_have_the_documented_fields_and_are_json(tiny: Tiny) -> None:
    found = edgefl.profile(tiny(data=DECLARED, schedule=TWO_STAGES, method="fedcola"))
    assert [(r["stage"], r["kind"]) for r in found["rows"]] == [
        (stage, kind) for stage in (1, 2) for kind in ("image", "text", "image-text")
    ]
    for row in found["rows"]:
        assert row.to_data().keys() >= ROW
        assert sum(row["memory_bytes"].values()) == row["peak_memory_bytes"]
        by_class = row["compute_seconds_by_class"]
        assert sum(by_class.values()) == pytest.approx(row["compute_seconds"])  # without throttling
        assert {"product", "attention", "normalisation", "optimizer", "loading"} <= by_class.keys()
        assert (
            row["process_memory_bytes"] == row["peak_memory_bytes"] + load_device(row["device"]).runtime_overhead_bytes
        )
    for entry in found["rows"] + found["totals"]:
        for name in ("download_bytes", "upload_bytes"):
            assert sum(entry[f"{name}_by_payload"].values()) == sum(entry[f"{name}_by_part"].values()) == entry[name]
    assert all(total.to_data().keys() == TOTAL for total in found["totals"])
    assert json.loads(json.dumps(found.to_data())) == found.to_data()


def test_under_end_to_end_all_rounds_are_alike(tiny: Tiny) -> None:
    scenario = tiny(data=DECLARED, schedule={"name": "end-to-end", "rounds": 7}, training={"epochs": 3})
    found = edgefl.profile(scenario, kind="image-text")
    for row, total in zip(found["rows"], found["totals"], strict=True):
        assert total["traffic_bytes"] == 7 * (row["download_bytes"] + row["upload_bytes"])
        serialised = row["serialised_download_bytes"] + row["serialised_upload_bytes"]
        assert total["serialised_traffic_bytes"] == 7 * serialised
        assert total["peak_memory_bytes"] == row["peak_memory_bytes"]
        assert total["fvcore_macs_per_sample_all_rounds"] == 7 * 3 * row["fvcore_macs_per_sample"]


def test_under_layerwise_frozen_parts_travel_once_more(tiny: Tiny) -> None:
    whole = by_kind(edgefl.profile(tiny(data=DECLARED))["rows"])
    found = edgefl.profile(tiny(data=DECLARED, schedule=TWO_STAGES))
    for total in found["totals"]:
        first, second = by_kind(found["rows"])[total["kind"]]
        assert (first["rounds"], second["rounds"]) == (2, 3)
        usual = sum(r["rounds"] * (r["download_bytes"] + r["upload_bytes"]) for r in (first, second))
        # what stage 1 trained last, its blocks and the embeddings, is frozen and newer than the client's copy
        frozen = whole[total["kind"]][0]["download_bytes"] - second["download_bytes"]
        assert total["traffic_bytes"] == usual + frozen


def test_final_blocks_are_counted_where_they_are_delivered(tiny: Tiny) -> None:
    scenario = tiny(data=DECLARED, schedule=TWO_STAGES)
    delivering = tiny(data=DECLARED, schedule={**TWO_STAGES, "deliver_final": True})
    before, after = (edgefl.profile(s)["totals"] for s in (scenario, delivering))
    kinds = compose(load(delivering)).method.setting.kinds
    for plain, delivered in zip(before, after, strict=True):
        last = sum(s.bytes for name, s in kinds[plain["kind"]].parameters().items() if ".blocks.1." in name)
        # the first stage's blocks come at its end rather than with the next round: the last stage's are what is added
        assert delivered["traffic_bytes"] == plain["traffic_bytes"] + last


def test_a_stage_without_rounds_has_a_row_and_no_part_in_the_totals(tiny: Tiny) -> None:
    schedule = {"name": "progressive", "stages": 2, "allocation": [4, 0]}
    found = edgefl.profile(tiny(data=DECLARED, schedule=schedule), kind="image-text")
    for total in found["totals"]:
        first, second = by_kind(found["rows"])[total["kind"]]
        assert second["rounds"] == 0 and second["peak_memory_bytes"] > first["peak_memory_bytes"]
        assert total["peak_memory_bytes"] == first["peak_memory_bytes"]
        assert total["traffic_bytes"] == 4 * (first["download_bytes"] + first["upload_bytes"])


def test_time_and_energy_are_of_the_device_and_link_that_are_named(tiny: Tiny) -> None:
    scenario = tiny(data=DECLARED, fleet={"devices": {"raspberry-pi-4-4gb": 5, "phone-mid": 1}, "links": "lte"})
    usual = edgefl.profile(scenario)["rows"][0]
    assert (usual["device"], usual["link"]) == ("raspberry-pi-4-4gb", "lte")
    row = edgefl.profile(scenario, device="raspberry-pi-zero-2w", link="wifi-5")["rows"][0]
    assert (row["device"], row["link"]) == ("raspberry-pi-zero-2w", "wifi-5")
    link, device = load_link("wifi-5"), load_device("raspberry-pi-zero-2w")
    down = link.latency_seconds + 8 * row["serialised_download_bytes"] / link.download_goodput
    up = link.latency_seconds + 8 * row["serialised_upload_bytes"] / link.upload_goodput
    assert (row["download_seconds"], row["upload_seconds"]) == pytest.approx((down, up))
    joules = row["compute_seconds"] * device.compute_watts + (down + up) * device.idle_watts
    assert row["energy_joules"] == pytest.approx(joules + down * link.download_watts + up * link.upload_watts)
    assert row["compute_seconds"] > usual["compute_seconds"]
    with pytest.raises(UnknownName, match="did you mean 'raspberry-pi-zero-2w'"):
        edgefl.profile(scenario, device="raspberry-pi-zero-2")


def test_the_profile_is_what_the_run_recorded(layerwise_run: Any) -> None:
    rows = {(r["stage"], r["kind"]): r for r in edgefl.profile(layerwise_run.scenario)["rows"]}
    compared = 0
    for record in layerwise_run.records("clients"):
        row = rows[record["stage"], record["kind"]]
        if record["samples"] != row["samples"]:
            continue
        compared += 1
        for field in ("peak_memory_bytes", "forward_flops", "backward_flops", "upload_bytes"):
            assert record[field] == row[field]
    assert compared


def test_a_comparison_is_profiled_as_written_and_combination_by_combination(tiny: Tiny) -> None:
    scenario = tiny(
        data=DECLARED, compare={"schedule": ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 4}]}
    )
    found = edgefl.profile(scenario)
    assert list(found["combinations"]) == ["end-to-end", "layerwise"]
    assert found["rows"] == found["combinations"]["end-to-end"]["rows"]
    assert len(found["combinations"]["layerwise"]["rows"]) == 6


def test_overrides_apply_to_a_scenario_that_is_loaded_already(tiny: Tiny) -> None:
    loaded = load(tiny(data=DECLARED))
    small, large = (edgefl.profile(loaded, [f"training.batch={n}"], kind="image")["rows"][0] for n in (4, 16))
    assert small["peak_memory_bytes"] < large["peak_memory_bytes"]
    with pytest.raises(ScenarioError, match="batch"):
        edgefl.profile(loaded, ["training.batch=-1"])


def test_flash_attention_is_for_training_alone(tiny: Tiny) -> None:
    """An evaluation is in float32, which a GPU's flash kernel doesn't take."""
    wanted = {"attention": "flash", "precision": "bfloat16"}
    found = edgefl.profile(tiny(data=DECLARED, training=wanted, executor={"device": "cuda"}), kind="image")
    assert found["rows"] and found["server_rows"]


# combinations that can't be run ---------------------------------------------------------------------------------------


def test_a_combination_that_a_method_refuses_is_said_and_the_others_are_profiled(tiny: Tiny) -> None:
    scenario = tiny(method="fedcola", compare={"adapter": ["none", {"name": "lora", "rank": 2}]})
    alone = edgefl.profile(tiny(method="fedcola"))
    found = edgefl.profile(scenario)
    (part,) = found.combinations.values()
    assert list(found.combinations) == ["none"]
    assert all(getattr(alone, name) == value for name, value in vars(part).items())
    assert list(found["refused"]) == ["lora"] and "trains whole layers" in found["refused"]["lora"]
    assert "refused" not in alone
    clients = edgefl.profile(scenario, clients=True)
    assert list(clients["combinations"]) == ["none"] and clients["refused"] == found["refused"]
    for show, result in ((print_profile, found), (print_clients, clients)):
        out = io.StringIO()
        show(result, Console(width=100, file=out))
        assert "can't be run: lora: method: complementary: blocks trains whole layers" in out.getvalue()


def test_where_every_combination_is_refused_the_error_is_the_methods(tiny: Tiny) -> None:
    loras = [{"name": "lora", "rank": rank} for rank in (2, 4)]
    with pytest.raises(EdgeflError, match="an adapter leaves them as they are: set complementary: none"):
        edgefl.profile(tiny(method="fedcola", compare={"adapter": loras}))


@pytest.mark.parametrize("turn", [1, -1])
def test_of_equally_common_devices_and_links_the_slowest_is_profiled(tiny: Tiny, turn: int) -> None:
    def first(shares: dict[str, str]) -> dict[str, str]:
        return dict(list(shares.items())[::turn])

    half = {"devices": {"macbook-air-m1": "50%", "raspberry-pi-4-4gb": "50%"}, "links": {"wifi-5": "50%", "lte": "50%"}}
    most = {"devices": {"macbook-air-m1": "75%", "raspberry-pi-4-4gb": "25%"}, "links": {"wifi-5": "75%", "lte": "25%"}}
    for shares, expected in ((half, ("raspberry-pi-4-4gb", "lte")), (most, ("macbook-air-m1", "wifi-5"))):
        found = edgefl.profile(tiny(data=DECLARED, fleet={key: first(value) for key, value in shares.items()}))
        assert {(row.device, row.link) for row in found.rows} == {expected}
