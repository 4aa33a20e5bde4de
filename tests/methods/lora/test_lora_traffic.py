"""What clients receive and send under FFA-LoRA, RoLoRA, FedEx-LoRA and FLoRA, by closed forms; and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import EdgeflError
from edgefl.results.verify import verify

Tiny = Callable[..., dict[str, Any]]
RANK, COHORT, WIDTH, CLASSES = 2, 2, 16, 12
SIDES = ((WIDTH, 3 * WIDTH), (WIDTH, 4 * WIDTH))
"""Inputs and outputs of a block's layers with factors."""
A, B = (4 * RANK * sum(sides[i] for sides in SIDES) for i in (0, 1))
W, HEAD = 4 * sum(inputs * outputs for inputs, outputs in SIDES), 4 * (WIDTH * CLASSES + CLASSES)
"""Bytes of a block's factors A and B, and of their weights, and of the head, in float32."""
BLOCKS = 2


def scenario_of(tiny: Tiny, method: Any, **more: Any) -> dict[str, Any]:
    sections = {
        "data": {"source": "glyphs", "clients": {"image": 5}, "samples": 8, "size": 16, "validation": 20, "test": 20},
        "model": {"image": {"blocks": BLOCKS, "width": WIDTH, "heads": 2, "patch": 8}},
        "adapter": {"name": "lora", "rank": RANK, "parts": ["attn.qkv", "mlp.fc1"], "also": ["head"]},
        "method": method,
        "schedule": {"name": "end-to-end", "rounds": 6},
        "training": {"batch": 8, "mode": "none"},
        "round": {"cohort": COHORT},
    }
    return tiny(**{**sections, **more})


def down(method: str, round: int, last: int) -> int:
    """Bytes down of all blocks in a round, for a client that last took part in round ``last``, 0 for never."""
    if method == "ffa-lora":
        return B
    if method == "rolora":  # the factor of the last round; and the other one, where it was missed
        other, missed = (A, B) if round % 2 else (B, A)
        return other + (missed if last < round - 1 and round > 2 else 0)
    if method == "fedex-lora":
        return A + B + W
    stack = COHORT * (A + B)
    return stack + (W if last < round - 1 and round > 2 else 0)  # before round 3 only the first stack was merged


UP = {"ffa-lora": (B, B), "rolora": (A, B), "fedex-lora": (A + B, A + B), "flora": (A + B, A + B)}
"""Bytes up of a block in even and odd rounds."""


DEAR = pytest.mark.slow(smaller="test_a_frozen_stage_is_merged_once")


@pytest.mark.parametrize(
    "method", [*("rolora", "flora"), *(pytest.param(m, marks=DEAR) for m in ("ffa-lora", "fedex-lora"))]
)
def test_traffic_is_that_of_the_closed_form(tiny: Tiny, tmp_path: Path, method: str) -> None:
    run = edgefl.run(scenario_of(tiny, method), out=tmp_path / "run")
    last, kinds = Counter[int](), Counter[bool]()
    for row in sorted(run.records("clients"), key=lambda row: (row["round"], row["client"])):
        round, client = row["round"], row["client"]
        assert row["download_bytes"] == BLOCKS * down(method, round, last[client]) + HEAD, row
        assert row["upload_bytes"] == BLOCKS * UP[method][round % 2] + HEAD, row
        kinds[last[client] < round - 1 and round > 2] += 1
        last[client] = round
    assert min(kinds[True], kinds[False]) > 1  # some clients had missed a round, and some hadn't
    assert verify(run.path).valid


def test_a_frozen_stage_is_merged_once(tiny: Tiny) -> None:
    """Layer-wise, two rounds a stage: a client that takes part in all receives the first block's last stack once."""
    schedule = {"name": "layerwise", "stages": 2, "rounds": 4, "allocation": "uniform"}
    expected = {
        "ffa-lora": [B, B, 2 * B, B],
        "rolora": [A, B, A + A, B],  # in round 3 the first block's A is new
        "fedex-lora": [A + B + W, A + B + W, 2 * (A + B + W), A + B + W],
        "flora": [COHORT * (A + B) * n for n in (1, 1, 2, 1)],
    }
    for method, blocks in expected.items():
        given = scenario_of(tiny, method, schedule=schedule, round={"cohort": 1.0})
        given["data"] = {**given["data"], "clients": {"image": COHORT}}
        (row,) = edgefl.profile(given).totals
        assert row.download_bytes == sum(blocks) + 4 * HEAD, method


QUANTISED = {"image": {"blocks": BLOCKS, "width": 64, "heads": 2, "patch": 8, "quantize": "nf4"}}


@pytest.mark.parametrize(
    ("method", "more", "message"),
    [
        ("ffa-lora", {"adapter": "none"}, r"adapter.name.*ffa-lora trains .* alone; write adapter: \{name: lora\}"),
        ("flora", {"adapter": "dora"}, r"flora trains LoRA's factors alone; write adapter: \{name: lora\}"),
        ("rolora", {"schedule": {"name": "flexlora", "ranks": [2]}}, "rolora combines factors .* write end-to-end"),
        ("flora", {"aggregation": "krum"}, "flora adds up products of factors; .* write method: ffa-lora or rolora"),
        ("fedex-lora", {"aggregation": {"optimizer": "adam"}}, "fedex-lora adds up products of factors"),
        ("fedex-lora", {"model": QUANTISED}, "fedex-lora changes the weights beside the factors"),
        ({"name": "flora", "personal": ["image.blocks.1"]}, {}, "image.blocks.1 has factors, which flora combines"),
        ("flora", {"adapter": {"name": "lora", "deliver_base": "first"}}, "adapter.deliver_base.*flora's clients have"),
        ("flora", {"fleet": {"relays": 2}}, "flora reads each update"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused(tiny: Tiny, method: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as refused:
        edgefl.validate(scenario_of(tiny, method, **more))
    assert "\n" not in str(refused.value)
