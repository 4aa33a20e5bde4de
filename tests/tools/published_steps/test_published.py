"""Published training steps: networks against published counts, what is said of rows against hands, the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgefl.records.devices import Sourced
from edgefl.records.reading import decode
from edgefl.records.record import UNSET
from tools.pages.measured import recorded
from tools.published import main
from tools.published_steps.answer import Foretold, PublishedAgreement, PublishedRow
from tools.published_steps.measurements import Measurement, measurements
from tools.published_steps.predicting import (
    foretold,
    key_of,
    measured_quantities,
    published_agreement,
    published_row,
    repository_of,
)
from tools.published_steps.step import network, stated_steps, step_cost


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


@pytest.mark.slow(smaller="test_a_step_of_one_hidden_layer_costs_what_its_products_cost")
def test_the_last_layer_alone_has_no_backward_through_the_others() -> None:
    whole, last = (
        next(r for r in measurements() if r.model == "resnet50" and r.library == "timm" and r.trained == trained)
        for trained in ("all", "last layer")
    )
    assert step_cost(last, gpu=False).forward_flops == step_cost(whole, gpu=False).forward_flops
    assert step_cost(last, gpu=False).backward_flops == 2 * 16 * 2048 * 1000


def a_published(half: str, device: str, measured: float, ratio: float, unseen: float, **other: Any) -> PublishedRow:
    return PublishedRow(
        **{
            "device": device, "processor": "cortex-a72", "model": "net", "trained": "all", "batch": 1,
            "precision": "float32", "runtime": "PyTorch", "quantity": "seconds", "measured": measured,
            "predicted": measured * ratio, "ratio": ratio, "half": half, "includes": (), "reason": None,
            "foretold": Foretold(
                unseen_model=unseen, unseen_device=3 * unseen, unseen_source=unseen, unseen_class=unseen
            ),
            "source": Sourced(title="Page", url="https://x.org/a", date="2026-11-27", quote="1 s", read=True),
            **other,
        }
    )  # fmt: skip


def test_models_are_judged_on_the_held_out_half_and_devices_and_sources_on_all_rows() -> None:
    rows = [
        a_published("fitted", "one", 1.0, 1.5, 1.1),
        a_published("held-out", "one", 2.0, 1.0, 2.4),
        a_published("held-out", "two", 4.0, 1.25, 2.0),
        a_published("held-out", "two", 4.0, 9.0, 4.0, quantity="power", foretold=None),
    ]
    found = published_agreement(rows)
    known = {question.unseen: question for question in found.questions}
    assert [known[unseen].rows for unseen in ("model", "device", "source", "class")] == [2, 3, 3, 3]
    assert known["model"].median_error.value == pytest.approx(0.35)  # of 0.2 and 0.5
    assert known["device"].worst_factor == pytest.approx(7.2 / 2.0)
    assert known["device"].devices == 2
    assert found.shipped is not UNSET and found.shipped.median_error.value == pytest.approx(0.25)
    assert found.joules is UNSET
    one, two = found.by_device
    assert (one.name, one.rows, two.rows) == ("one", 2, 1)
    assert one.shipped_error == pytest.approx(0.25)
    assert one.unseen_model_error == pytest.approx(0.15)
    assert two.unseen_error == pytest.approx(0.5)
    (source,) = found.by_source
    assert (source.name, source.rows) == ("https://x.org/a", 3)


def test_rows_that_are_newer_than_the_fit_are_shown_but_judge_no_fit() -> None:
    found = published_agreement([a_published("held-out", "one", 1.0, 1.5, 1.0, foretold=None)])
    assert found.questions == [] and found.shipped is not UNSET
    assert found.by_device[0].unseen_model_error is None


def test_files_of_one_repository_are_one_source() -> None:
    folder = "https://github.com/lab/bench/tree/main/results"
    assert repository_of(folder) == repository_of("https://github.com/lab/bench") == "https://github.com/lab/bench"
    assert repository_of("https://lab.org/bench") == "https://lab.org/bench"


def test_joules_are_seconds_times_watts_between_idle_and_computing() -> None:
    row = next(row for row in measurements() if row.model == "yolov8n" and row.precision == "float32")
    watched = replace(row, watts=50.0)
    seconds, power, joules = measured_quantities([watched])
    assert [one.quantity for one in (seconds, power, joules)] == ["seconds", "power", "joules"]
    assert joules.measured_value == pytest.approx(50.0 * seconds.measured_value)
    assert power.predicted_value() == pytest.approx(seconds.device.compute_watts)  # a processor without waiting
    assert joules.predicted_value() == pytest.approx((seconds.predicted_value() or 0.0) * seconds.device.compute_watts)


def test_a_stated_step_adds_up_and_another_batch_has_no_cost() -> None:
    for step in stated_steps():
        flops, _, times, _ = np.array(step.operators).T
        assert (flops * times).sum() == step.forward_flops + step.backward_flops
        assert 4 * step.parameters <= step.memory_bytes["parameters"] < 4 * step.parameters + 512 * 1000
        # no part is larger than the sum of all at the peak
        assert max(step.memory_bytes.values()) <= step.peak_memory_bytes <= sum(step.memory_bytes.values())
    row = published_row(measured_quantities([replace(a_row("mb1-ssd"), batch=129)])[0])
    assert row.predicted is None and "the cost of mb1-ssd isn't stated for this batch" in (row.reason or "")


def test_a_network_that_nobody_described_is_listed_with_the_reason() -> None:
    unknown = replace(a_row("lenet5"), model="lenet7")
    row = published_row(measured_quantities([unknown])[0])
    assert row.predicted is None and row.ratio is None
    assert row.reason is not None and "lenet7" in row.reason and "lenet5" in row.reason


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = tmp_path / "published.png"
    device = ("--device", "jetson-xavier-nx-8gb")
    main([*device, "--out", str(drawing)])
    out = capsys.readouterr().out
    assert "the class of its processor" in out and "mb1-ssd" not in out
    with Image.open(drawing) as image:
        assert image.width > 600
    main([*device, "--full"])
    assert "273 ms" in capsys.readouterr().out  # 4 / 14.65 s a step
    main([*device, "--as", "json"])
    printed = capsys.readouterr().out
    result = json.loads(printed)
    assert decode(PublishedAgreement, printed.encode(), "answer").to_data() == result
    (row,) = result["rows"]
    assert row["measured"] == 4 / 14.65
    assert row["half"] == "held-out" or [one["unseen"] for one in result["questions"]] == ["device", "source", "class"]
    assert result["shipped"]["rows"] == 1 and result["shipped"]["tau"] is None


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--device", "jetson-xavier-nx"], "did you mean 'jetson-xavier-nx-8gb'"),
        (["--device", "phone-mid"], "nothing published was found"),
        (["--device", "jetson-orin-nano-8gb@7W"], "without a named mode: --device jetson-orin-nano-8gb"),
        (["--device", "jetson-orin-nano-8gb@8W"], "'8W'; allowed: 25W, 7W"),
        (["--out", str(tmp_path / "x.gif")], ".gif"),
    ):
        assert code_of(*arguments) == 2
        assert said in capsys.readouterr().err


def test_the_recorded_figures_are_those_of_the_file() -> None:
    """Those that need no step's cost: of predictions by fits that lack the row."""
    rows = [row for row in measurements() if row.seconds_per_step is not None]
    known = published_agreement(
        [
            a_published(
                row.half, row.device, row.seconds_per_step or 0.0, 1.0, 1.0, foretold=foretold().get(key_of(row)),
                source=Sourced(**row.source.model_dump(mode="json")),
            )
            for row in rows
        ]
    )  # fmt: skip
    held = {question["unseen"]: question for question in recorded("seconds")["questions"]}
    assert held.keys() == {question.unseen for question in known.questions}
    for question in known.questions:
        for name, value in question.to_data().items():
            assert value == pytest.approx(held[question.unseen][name]), (question.unseen, name)
