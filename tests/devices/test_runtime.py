"""Runtimes of the profile library: what they replace in a device, and what a person is told about a wrong one."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from edgefl.devices import (
    PYTORCH,
    available_memory_bytes,
    device_names,
    library_folder,
    load_device,
    load_runtime,
    read_runtime,
    runtime_names,
    with_runtime,
)
from edgefl.errors import DeviceError, UnknownName

LEAN = ("executorch", "mnn", "onnxruntime")
FILE = """title: "One"
overhead_bytes:
  {value: 20 MB, range: 10..30 MB, confidence: estimated, source: {title: t, date: 2026-11-22, quote: "20 MB"}}
"""


def test_the_library_has_three_lean_runtimes_each_with_an_address_and_a_range() -> None:
    assert runtime_names() == [PYTORCH, *LEAN]
    assert {path.stem for path in (library_folder() / "runtimes").glob("*.yaml")} == set(LEAN)
    for name in LEAN:
        fact = load_runtime(name).fact
        assert fact.source.url is not None and fact.source.read and len(fact.source.quote) > 40
        assert fact.low < load_runtime(name).overhead_bytes < fact.high
        assert fact.confidence == "estimated"  # sizes of libraries: none is a process's measured resident memory


@pytest.mark.parametrize("name", device_names())
def test_a_runtime_replaces_the_overhead_and_nothing_else(name: str) -> None:
    device = load_device(name)
    assert with_runtime(device, PYTORCH) is device
    for runtime, overhead in (("executorch", 16_000_000), ("mnn", 3_200_000), ("onnxruntime", 27_000_000), (5, 5)):
        other = with_runtime(device, runtime)
        assert other.runtime_overhead_bytes == overhead
        # rows of phones are of MNN, so its efficiencies are known and others take PyTorch's
        own = ("processor", "flops_per_second") if runtime == "mnn" else ()
        known = {name: getattr(device, name) for name in own}
        assert replace(other, runtime_overhead_bytes=device.runtime_overhead_bytes, **known) == device
        assert available_memory_bytes(other) == max(device.usable_memory_bytes - overhead, 0)
        assert other.facts.keys() >= device.facts.keys() - {"runtime_overhead_bytes"}
    assert len(fields(device)) > 15  # the comparison above covers them all


def test_a_runtime_of_ones_own_is_a_file(tmp_path: Path) -> None:
    (path := tmp_path / "one.yaml").write_text(FILE)
    assert read_runtime(path).overhead_bytes == 20_000_000
    assert with_runtime(load_device("raspberry-pi-zero-2w"), str(path)).runtime_overhead_bytes == 20_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE.replace("20 MB,", "40 MB,"), "one.yaml:2: overhead_bytes: the value 40 MB lies outside its range"),
        (FILE.replace("overhead_bytes", "overhead"), "one.yaml:2: overhead is not a field of a runtime"),
        ('title: "One"\n', "one.yaml: overhead_bytes is missing from a runtime"),
        (FILE.replace("20 MB,", "-1 MB,"), "one.yaml:2: overhead_bytes: '-1 MB' is negative"),
        ("[1]\n", "one.yaml: a runtime is a mapping with a title and overhead_bytes"),
    ],
)
def test_a_wrong_file_is_told_in_lines(tmp_path: Path, text: str, said: str) -> None:
    (path := tmp_path / "one.yaml").write_text(text)
    with pytest.raises(DeviceError) as caught:
        load_runtime(str(path))
    assert said in str(caught.value).splitlines()[0]


def test_a_misspelt_runtime_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown runtime 'onnx-runtime'; did you mean 'onnxruntime'"):
        load_runtime("onnx-runtime")
