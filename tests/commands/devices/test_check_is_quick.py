"""How long ``edgefl devices check`` takes over large models when nothing is remembered."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

QLORA = ("adapter={name: lora, rank: 8, parts: [q_proj, v_proj]}", "model.text.quantize=nf4")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.2-3b", "phi-1.5", "qwen2.5-0.5b"])
@pytest.mark.parametrize("overrides", [(), QLORA], ids=["bfloat16", "nf4"])
def test_a_large_model_takes_less_than_15_seconds(name: str, overrides: tuple[str, ...], tmp_path: Path) -> None:
    """Of processor time, the imports and the measurement of kernels included: a shared machine's clock says less."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    environment = {**os.environ, "EDGEFL_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "edgefl.cli", "devices", "check", f"finetune/{name}", *sets]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"of 30 devices fit {name}" in out
    assert any(tmp_path.rglob("*.sealed"))  # what is remembered now wasn't before
    taken = spent() - before
    assert taken < 15, taken
