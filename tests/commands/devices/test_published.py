"""Published training steps: networks against published counts, fitted factors against known ones, the command."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from edgefl.commands.devices.factors import classes, corrected, described, fitted, residual_factor
from PIL import Image
from scipy.stats import kendalltau

from edgefl.cli import main
from edgefl.commands.devices.published import Held, against, held, kendall_tau, plain, summary
from edgefl.commands.devices.published_step import network, stated_steps, step_cost
from edgefl.devices.measurements import Measurement, measurements
from edgefl.devices.profile import device_names, load_device

TOOL = Path(__file__).resolve().parents[3] / "tools" / "fit_rates.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_rates", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code


def a_row(model: str, device: str | None = None) -> Measurement:
    return next(row for row in measurements() if row.model == model and device in (None, row.device))


DESCRIBED = {row.architecture: row for row in measurements() if row.architecture}


@pytest.mark.parametrize("row", [row for text, row in DESCRIBED.items() if "parameters" in text], ids=lambda r: r.model)
def test_parameters_are_as_many_as_the_source_says(row: Measurement) -> None:
    said = re.search(r"([\d,.]+)( M)? parameters", row.architecture or "")
    assert said is not None
    stated = next((s for s in stated_steps() if (s.model, s.classes) == (row.model, row.classes)), None)
    if stated is not None:
        # Keras counts the running statistics too
        count = stated.parameters + (stated.running_statistics if row.model == "fer-cnn" else 0)
    else:
        with torch.device("meta"):
            count = sum(p.numel() for p in network(row).module.parameters())
    number = float(said[1].replace(",", ""))
    assert count == number if not said[2] else count == pytest.approx(number * 1e6, rel=0.02)


@pytest.mark.parametrize("model", ["yolo11m", "yolov8n"])
def test_forward_flops_are_what_the_log_says(model: str) -> None:
    row = next(r for r in measurements() if r.model == model and "GFLOPs" in (r.architecture or ""))
    said = re.search(r"([\d.]+) GFLOPs", row.architecture or "")
    assert said is not None
    assert step_cost(row, gpu=True).forward_flops / row.batch == pytest.approx(float(said[1]) * 1e9, rel=0.02)


def test_a_step_of_one_hidden_layer_costs_what_its_products_cost() -> None:
    cost = step_cost(a_row("mlp-784-128-10"), gpu=False)
    first, second = 2 * 32 * 784 * 128, 2 * 32 * 128 * 10
    assert cost.forward_flops == first + second
    assert cost.backward_flops == first + 2 * second  # no gradient of the images
    parameters = 784 * 128 + 128 + 128 * 10 + 10
    assert cost.memory_bytes["parameters"] == 4 * parameters
    assert cost.memory_bytes["optimizer"] == pytest.approx(8 * parameters, abs=64)


def test_the_last_layer_alone_has_no_backward_through_the_others() -> None:
    whole, last = (
        next(r for r in measurements() if r.model == "resnet50" and r.library == "timm" and r.trained == trained)
        for trained in ("all", "last layer")
    )
    assert step_cost(last, gpu=False).forward_flops == step_cost(whole, gpu=False).forward_flops
    assert step_cost(last, gpu=False).backward_flops == 2 * 16 * 2048 * 1000


def test_every_device_is_in_at_most_one_class_and_every_measured_one_has_a_class() -> None:
    listed = [device for one in classes().by_name.values() for device in one.devices]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(device_names())
    assert {row.device for row in measurements()} <= set(listed)


def test_factors_multiply_the_rate_of_the_precision_and_the_seconds_per_operator() -> None:
    device = load_device("server-a5000")
    assert corrected(device, "float32", {"float16": 2.0}) is device
    assert corrected(device, "tf32", {"tf32": 2.0}).flops_per_second == 2 * device.flops_per_second
    half = corrected(device, "float16", {"float16": 2.0, "tf32": 3.0, "seconds_per_operator": 4.0})
    assert half.float16_flops_per_second == 2 * device.rate("float16")
    assert half.flops_per_second == device.flops_per_second
    assert half.seconds_per_operator == 4 * device.seconds_per_operator


def test_the_fit_finds_factors_that_made_the_measurements(tool: ModuleType) -> None:
    wanted = {"float32": 0.5, "seconds_per_operator": 3.0}
    rows = [h for h in held([r for r in measurements() if r.device == "jetson-nano-4gb"]) if h.quantity == "seconds"]
    made = []
    for h in rows:
        seconds = h.predicted(wanted)
        assert seconds is not None
        row = replace(h.row, measured="seconds_per_step", value=seconds)
        made.append(Held(row, h.device, h.cost))
    assert tool.fit(made) == {"jetson": pytest.approx(wanted, rel=2e-3)}


@pytest.mark.slow
def test_the_committed_factors_are_what_the_tool_fits(tool: ModuleType) -> None:
    assert (TOOL.parents[1] / "profiles" / "factors" / "fitted.yaml").read_text() == tool.written()


def test_tau_is_scipys() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        first, second = rng.integers(0, 6, 12), rng.integers(0, 6, 12)
        assert kendall_tau(first, second) == pytest.approx(kendalltau(first, second).statistic)


def test_the_error_of_a_class_is_the_root_mean_square_of_its_logarithms() -> None:
    known = against([0.5, 2.0, 1.0, 4.0])
    assert (known.rows, known.low, known.high, known.median) == (4, 0.5, 4.0, 1.5)
    assert known.error == pytest.approx(2 ** np.sqrt(6 / 4), rel=5e-3)


def test_the_summary_is_by_half_and_leaves_out_what_is_not_seconds() -> None:
    rows = [
        {"half": "fitted", "quantity": "seconds", "measured": m, "predicted": p, "ratio": p / m,
         "fitted_predicted": m, "fitted_ratio": 1.0}
        for m, p in ((1.0, 1.5), (2.0, 1.0), (3.0, 3.3))
    ]  # fmt: skip
    rows.append({**rows[0], "quantity": "power", "ratio": 9.0})
    before, after, none, _ = summary(rows)
    assert (before["rows"], before["median_error"], before["worst_error"]) == (
        3,
        pytest.approx(0.5),
        pytest.approx(0.5),
    )
    assert before["tau"] == pytest.approx(1 / 3)
    assert (after["median_error"], after["tau"]) == (0.0, 1.0)
    assert (none["half"], none["rows"], none["tau"]) == ("held-out", 0, None)


def test_a_stated_step_adds_up_and_another_batch_has_no_cost() -> None:
    for step in stated_steps():
        flops, _, times = np.array(step.operators).T
        assert (flops * times).sum() == step.forward_flops + step.backward_flops
        assert 4 * step.parameters <= step.memory_bytes["parameters"] < 4 * step.parameters + 512 * 1000
        # no part is larger than the sum of all at the peak
        assert max(step.memory_bytes.values()) <= step.peak_memory_bytes <= sum(step.memory_bytes.values())
    row = plain(held([replace(a_row("mb1-ssd"), batch=129)])[0])
    assert row["predicted"] is None and "the cost of mb1-ssd isn't stated for this batch" in row["reason"]


def test_a_network_that_nobody_described_is_listed_with_the_reason() -> None:
    unknown = replace(a_row("lenet5"), model="lenet7")
    row = plain(held([unknown])[0], {})
    assert row["predicted"] is None and row["ratio"] is None
    assert "lenet7" in row["reason"] and "lenet5" in row["reason"]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = tmp_path / "published.png"
    assert code_of("devices", "validate", "--device", "jetson-xavier-nx-8gb", "--plot", str(drawing)) == 0
    out = capsys.readouterr().out
    assert "mb1-ssd" in out and "14.65" not in out and "273 ms" in out  # 4 / 14.65 s a step
    with Image.open(drawing) as image:
        assert image.width > 600
    assert code_of("devices", "validate", "--device", "jetson-xavier-nx-8gb", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["measured"] for row in result["rows"]] == [4 / 14.65]
    assert {one["half"]: one["rows"] for one in result["summary"]} == {"fitted": 1, "held-out": 0}


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--device", "jetson-xavier-nx"], "did you mean 'jetson-xavier-nx-8gb'"),
        (["--device", "phone-mid"], "nothing published was found"),
        (["--device", "jetson-orin-nano-8gb@7W"], "without a named mode: --device jetson-orin-nano-8gb"),
        (["--device", "jetson-orin-nano-8gb@8W"], "'8W'; allowed: 25W, 7W"),
        (["--plot", str(tmp_path / "x.gif")], ".gif"),
    ):
        assert code_of("devices", "validate", *arguments) == 2
        assert said in capsys.readouterr().err


def test_show_says_what_a_device_was_held_against(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("devices", "show", "server-a5000") == 0
    shown = " ".join(capsys.readouterr().out.split())
    known = fitted().devices["server-a5000"]
    assert f"held against: {known.rows} published measurements of seconds" in shown
    assert f"{known.median:g} in the median, {known.low:g} to {known.high:g}" in shown
    assert described("phone-mid")["held_against"] is None
    assert "held_against" not in described("lte")


def test_residuals_are_known_where_a_class_has_enough_held_out_rows() -> None:
    assert residual_factor("raspberry-pi-4-2gb") == fitted().classes["cortex-a72"].error
    assert residual_factor("jetson-orin-nano-8gb") is None  # one row
    assert residual_factor("phone-mid") is None
    assert residual_factor("of-my-own") is None
