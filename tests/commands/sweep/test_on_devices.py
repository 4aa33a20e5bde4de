"""What ``edgefl sweep --devices`` computes for a large model when nothing is remembered: why it takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sweeps import check_of

from edgefl.machine import kernel_scratch
from edgefl.work import Call


@pytest.mark.slow(smaller="test_every_device_of_the_library_has_a_row_for_each_kind")
def test_a_large_model_is_predicted_once_and_a_kernel_runs_once_for_all_layers_and_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[Call] = []
    on_cpu = kernel_scratch._on_cpu

    def counted(calls: Sequence[Call | None]) -> Sequence[object]:
        run.extend(filter(None, calls))
        return on_cpu(calls)

    monkeypatch.setattr(kernel_scratch, "_on_cpu", counted)
    kernels = []
    for layers in (6, 24):
        monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / str(layers)))
        run.clear()
        sets = [f"model.text.config.num_hidden_layers={layers}", "compare=null"]
        found = check_of("finetune/qwen2.5-0.5b", overrides=sets)
        assert len(found.rows) >= 30
        # the cost of one work, and what its kernels take
        assert len(list((tmp_path / str(layers) / "costs").iterdir())) == 2
        assert 0 < len({*run}) == len(run) < 50
        kernels.append({*run})
    # with more layers the gradient of all embeddings lies below the peak, so its call isn't run
    few, many = kernels
    assert many <= few and [call.operator for call in few - many] == ["aten.zeros_like.default"]
