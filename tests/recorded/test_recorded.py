"""Records, profiles, sweeps and a fit equal those that edgefl gave before its source was reorganised.

Costs and virtual times agree to a relative 1e-12, since ``exp`` rounds differently on other processors.  Losses and
metrics agree to 0.02, since training adds in another order there.  Measured memory agrees to 0.02, since kernels take
other scratch there.  On a processor with other instruction sets than the one on which answers were recorded, what a
kernel's scratch decides isn't compared.

Records of all shipped scenarios, played without training, equal those of the version before clients became processes:
to the byte on such a processor, to six digits on others, and to a relative 1e-9 where a line is shared fairly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

import shipped  # noqa: E402 - this folder must be on the path

EXPECTED = HERE / "expected"
TRAINED = ("loss", "losses", "metrics", "measured_peak_memory_bytes", "memory_error")
"""Fields whose values come from training."""

OF_SCRATCH = (
    "memory",
    "memory_bytes",
    "peak_memory_bytes",
    "process_memory_bytes",
    "measured_peak_memory_bytes",
    "reason",
)
"""Fields that the scratch of kernels decides; a reason names the peak."""

recorded_with = json.loads((EXPECTED / "versions.json").read_text(encoding="utf-8"))
other = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != recorded_with["torch"],
    reason=f"recorded with torch {recorded_with['torch']}",
)


KERNELS = torch.backends.cpu.get_cpu_capability()
SAME_KERNELS = recorded_with["kernels"] == KERNELS
"""Whether kernels of this processor take the scratch of those with which answers were recorded."""

NAMES = sorted(str(path.relative_to(EXPECTED)) for path in EXPECTED.rglob("*.json*") if path.name != "versions.json")
QUICK = ("exits", "priced", "profile-depthfl")
"""What is recorded anew by the quick tests: a scenario that trains, one that doesn't, and an answer."""


def part_of(name: str) -> str:
    """The scenario or answer that a recorded file belongs to."""
    return Path(name).parts[0].removesuffix(".json")


REST = tuple(sorted({part_of(name) for name in NAMES} - set(QUICK)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """The folder with some recordings, made when they are first asked for."""

    @cache
    def made(parts: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("recorded") / "now"
        command = [sys.executable, HERE / "record.py", folder, "--only", *parts]
        subprocess.run(command, check=True, capture_output=True)
        return folder

    return made


def content(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    values = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return json.loads(json.dumps(values, sort_keys=True))  # the order of fields isn't promised


def differences(
    before: Any, after: Any, path: str = "", trained: bool = False, *, same_kernels: bool = True
) -> list[str]:
    """Where two answers differ; the order of keys counts.  Fields ``OF_SCRATCH`` are compared with ``same_kernels``."""
    if type(before) is not type(after):
        return [f"{path}: {before!r}, now {after!r}"]
    if isinstance(before, dict):
        if list(before) != list(after):
            return [f"{path}: fields {list(before)}, now {list(after)}"]
        return [
            line
            for key in before
            if same_kernels or key not in OF_SCRATCH
            for line in differences(
                before[key], after[key], f"{path}.{key}", trained or key in TRAINED, same_kernels=same_kernels
            )
        ]
    if isinstance(before, list):
        if len(before) != len(after):
            return [f"{path}: {len(before)} entries, now {len(after)}"]
        return [
            line
            for i, pair in enumerate(zip(before, after, strict=True))
            for line in differences(*pair, f"{path}[{i}]", trained, same_kernels=same_kernels)
        ]
    if isinstance(before, float) or (trained and isinstance(before, int)):
        same = isclose(before, after, rel_tol=0.02, abs_tol=0.02) if trained else isclose(before, after, rel_tol=1e-12)
    else:
        same = before == after
    return [] if same else [f"{path}: {before!r}, now {after!r}"]


@other
@pytest.mark.parametrize(
    "name", [name if part_of(name) in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_answers_are_as_recorded(name: str, recorded: Callable[[tuple[str, ...]], Path]) -> None:
    folder = recorded(QUICK if part_of(name) in QUICK else REST)
    assert differences(content(EXPECTED / name), content(folder / name), same_kernels=SAME_KERNELS) == []


@other
@pytest.mark.parametrize("parts", [QUICK, pytest.param(REST, marks=pytest.mark.slow)], ids=["quick", "rest"])
def test_nothing_else_is_recorded(parts: tuple[str, ...], recorded: Callable[[tuple[str, ...]], Path]) -> None:
    folder = recorded(parts)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {name for name in NAMES if part_of(name) in parts}


def test_a_difference_is_seen() -> None:
    before = {"a": [1, 2.0], "metrics": {"image": 0.5}}
    assert differences(before, before) == []
    assert differences(before, {"a": [1, 2.0000001], "metrics": {"image": 0.5}}) == [".a[1]: 2.0, now 2.0000001"]
    assert differences(before, {"a": [2, 2.0], "metrics": {"image": 0.51}}) == [".a[0]: 1, now 2"]
    assert differences(before, {"metrics": {"image": 0.5}, "a": [1, 2.0]}) != []
    peaks = [{"peak_memory_bytes": peak, "flops": 7} for peak in (1, 2)]
    assert differences(*peaks) == [".peak_memory_bytes: 1, now 2"] and differences(*peaks, same_kernels=False) == []
    assert differences(peaks[0], {**peaks[1], "flops": 8}, same_kernels=False) == [".flops: 7, now 8"]


# --- shipped scenarios, without training -----------------------------------------------------------------------------

SHIPPED: dict[str, Any] = json.loads(shipped.DIGESTS.read_text(encoding="utf-8"))
SHORT = (
    "asynchronous", "relays", "tour", "papers/orderings-eligibility",
    "suites/robustness/attackers/multi-krum", "suites/robustness/none/trimmed-mean", "suites/robustness/crashes/mean",
    "suites/robustness/missing pictures/mean", "suites/robustness/stragglers/mean",
)  # fmt: skip
LONG = tuple(name for name in SHIPPED if name not in SHORT)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[str, Any]]:
    """The digests of some scenarios, which are played when they are first asked for.

    Annotations aren't checked in their process: the checks hold tensors for longer, and so change peaks of memory.
    """

    @cache
    def made(names: tuple[str, ...]) -> dict[str, Any]:
        file = tmp_path_factory.mktemp("shipped") / "now.json"
        # a scenario's author knows what it warns of, such as small budgets
        subprocess.run([sys.executable, "-W", "ignore", HERE / "shipped.py", file, *names], check=True)
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return answer

    return made


@other
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED]
)
def test_records_of_a_shipped_scenario_are_those_of_the_version_before(
    name: str, played: Callable[[tuple[str, ...]], dict[str, Any]]
) -> None:
    now = played(SHORT if name in SHORT else LONG)[name]
    # kernels in half precision differ among processors with AVX-512 too: some have AMX
    in_half = shipped.documents()[name].get("training", {}).get("precision", "float32") in ("float16", "bfloat16")
    assert shipped.differences(SHIPPED[name], now, same_kernels=SAME_KERNELS and not in_half) == []


def turned(value: Any) -> Any:
    """The document with the keys of all mappings the other way round, but for ``compare``, whose runs they order."""
    if isinstance(value, dict):
        return {key: value[key] if key == "compare" else turned(value[key]) for key in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "name",
    ["relays", *(pytest.param(name, marks=pytest.mark.slow) for name in ("asynchronous", "million", "quickstart"))],
)
def test_the_order_of_keys_means_nothing(name: str, tmp_path: Path) -> None:
    document = shipped.documents()[name]
    before, now = (shipped.play(each, tmp_path / str(i)) for i, each in enumerate((document, turned(document))))
    assert shipped.differences(before, now, same_kernels=True) == []


def test_every_shipped_scenario_is_recorded_or_left_out_with_a_reason() -> None:
    assert shipped.documents().keys() == SHIPPED.keys()
    files = {
        path.relative_to(shipped.SCENARIOS).with_suffix("").as_posix() for path in shipped.SCENARIOS.rglob("*.yaml")
    }
    suites = {name.rpartition("/")[0] for name in SHIPPED if name.startswith("suites/")}
    played = {name for name in SHIPPED if not name.startswith("suites/")}
    assert files == played | set(shipped.LEFT_OUT) | {"/".join(suite.split("/")[:2]) for suite in suites}


def test_a_difference_of_records_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "clients.jsonl"

    def digests(client: int, seconds: float, memory: int, shared: bool = False) -> dict[str, Any]:
        file.write_text(json.dumps({"client": client, "seconds": seconds, "memory": memory}) + "\n")
        return {"clients.jsonl": shipped.digests(file, shared)}

    def told(before: dict[str, Any], now: dict[str, Any], same_kernels: bool = True) -> list[str]:
        return shipped.differences(before, now, same_kernels=same_kernels)

    before, shared = digests(1, 0.5, 7), digests(1, 0.5, 7, shared=True)
    assert told(before, deepcopy(before)) == [] and told(shared, deepcopy(shared)) == []
    near, far, other = digests(1, 0.5 + 1e-15, 7), digests(1, 0.50001, 7), digests(2, 0.5, 7)
    assert told(before, near) == told(before, far) == told(before, other) == ["clients.jsonl: its bytes differ"]
    assert told(before, digests(1, 0.5 + 1e-15, 8), same_kernels=False) == []
    for each in (far, other):
        assert told(before, each, same_kernels=False) == ["clients.jsonl: its values differ"]
    assert told(shared, digests(1, 0.5 + 1e-10, 7, shared=True)) == []
    assert told(shared, digests(1, 0.5 + 1e-8, 7, shared=True)) == ["clients.jsonl: a float was 0.5 and is 0.50000001"]
    assert told(shared, digests(1, 0.5, 8, shared=True)) == ["clients.jsonl: its rest differs"]
    assert told(before, {}) == ["clients.jsonl: only recorded"]
