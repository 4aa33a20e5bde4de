"""FedCola under a layer-wise schedule: what each client kind moves, computes and holds, stage by stage."""

from __future__ import annotations

from typing import Any

import pytest

import edgefl
from tools.paper_tables.fedcola_layerwise import OPTIONS, SCHEDULES, profiles_by_schedule
from tools.paper_tables.profiles import Profiles

MIB = 2**20
DOWNLOAD = {  # of one image and one text client, stage 1 and every later one, MiB
    "none": (73.426, 27.235),
    "attention": (82.449, 36.258),
    "mlp": (91.455, 45.264),
    "blocks": (100.502, 54.311),
}

WIDTH = 384
BLOCK = 12 * WIDTH**2 + 13 * WIDTH  # parameters
PARTNER = {"none": 0, "attention": 4 * WIDTH**2 + 4 * WIDTH, "mlp": 8 * WIDTH**2 + 5 * WIDTH, "blocks": BLOCK}
EMBEDDING = {"image": (768 * WIDTH + WIDTH) + WIDTH + 197 * WIDTH, "text": (30522 + 40 + 2 + 2) * WIDTH}
HEAD = {"image": WIDTH * 100 + 100, "text": WIDTH * 4 + 4}
NORM = 2 * WIDTH


def own(kind: str, blocks: int, stage: int) -> int:
    """Bytes of what is active of a client's own model, with this many blocks of each tower."""
    parts = kind.split("-")
    rest = NORM + HEAD.get(kind, 0)  # pairs are retrieved: no head, one norm
    return 4 * (rest + sum(blocks * BLOCK + (EMBEDDING[m] if stage == 1 else 0) for m in parts))


def partner(kind: str, blocks: int, option: str) -> int:
    return 4 * blocks * PARTNER[option] if kind in HEAD else 0


@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_active_travels(option: str, travelled: Any) -> None:
    found = travelled(f"papers/fedcola-layerwise-{option}")
    for kind, stages in found.active.items():
        assert stages == [(own(kind, 2, s) + partner(kind, 2, option), own(kind, 2, s)) for s in range(1, 7)]
    together = [sum(found.active[k][s][0] for k in ("image", "text")) for s in range(6)]
    assert [round(b / MIB, 3) for b in together] == [DOWNLOAD[option][0]] + [DOWNLOAD[option][1]] * 5


@pytest.mark.parametrize("option", OPTIONS)
def test_a_client_in_every_round(option: str, travelled: Any) -> None:
    """What is frozen comes once more, in the first round of the next stage; partners of frozen blocks never."""
    found = travelled(f"papers/fedcola-layerwise-{option}")
    for kind, stages in found.active.items():
        active = 5 * sum(down for down, _ in stages)
        frozen = 4 * sum(5 * 2 * BLOCK + EMBEDDING[m] for m in kind.split("-"))
        assert found.down[kind] == active + frozen
        assert found.up[kind] == 5 * sum(up for _, up in stages)


@pytest.mark.parametrize("option", OPTIONS)
def test_progressive_sends_all_that_is_attached(option: str, travelled: Any) -> None:
    found = travelled(f"papers/fedcola-layerwise-{option}", "schedule={name: progressive, stages: 6, rounds: 30}")
    for kind, stages in found.active.items():
        assert stages == [
            (own(kind, 2 * s, 1) + partner(kind, 2 * s, option), own(kind, 2 * s, 1)) for s in range(1, 7)
        ]


# --- MACs ------------------------------------------------------------------------------------------------------------

TOKENS = {"image": 197, "text": 40}
FIRST = {"image": 196 * 768 * WIDTH, "text": 5 * 40 * WIDTH}  # patches; the norm of the text embedding
LAST = {
    "image": 5 * 197 * WIDTH + WIDTH * 100,
    "text": 5 * 40 * WIDTH + WIDTH * 4,
    "image-text": 2 * 5 * WIDTH,  # one norm, on what is read
}


def block_macs(modality: str) -> int:
    tokens = TOKENS[modality]
    return 12 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH + 2 * 5 * tokens * WIDTH


def macs(kind: str, schedule: str, stage: int) -> int:
    """A sample's in a local epoch, whatever the co-layers: a gate is no matrix product."""
    parts = kind.split("-")
    depth = 12 if schedule == "end-to-end" else 2 * stage
    forward = LAST[kind] + sum(FIRST[m] + depth * block_macs(m) for m in parts)
    if schedule == "layerwise" and stage > 1:
        return forward + 2 * (LAST[kind] + sum(2 * block_macs(m) for m in parts))
    return 3 * forward


# --- predicted -------------------------------------------------------------------------------------------------------

PROFILES = Profiles()


def schedules(option: str) -> dict[str, Any]:
    """Profiles by schedule."""
    return profiles_by_schedule(PROFILES, option)


@pytest.mark.slow(smaller="test_what_is_active_travels")
def test_one_row_as_the_profile_has_it() -> None:
    (row,) = edgefl.profile("papers/fedcola-layerwise-attention", stage=2, kind="text")["rows"]
    assert row["fvcore_macs_per_sample"] == macs("text", "layerwise", 2)
    assert row["download_bytes"] == own("text", 2, 2) + partner("text", 2, "attention")
    frozen = 4 * (2 * BLOCK + EMBEDDING["text"])
    gates, unused = 4 * 2 * 2, 4 * 2 * (3 * WIDTH + WIDTH)  # a partner's biases travel, but no gated layer has them
    assert row["memory_bytes"]["parameters"] == row["download_bytes"] + frozen + gates - unused


@pytest.mark.slow(smaller="test_what_is_active_travels")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("option", OPTIONS)
def test_the_profile_has_these_macs_and_bytes(option: str, schedule: str) -> None:
    rows = schedules(option)[schedule]["rows"]
    assert len(rows) == 3 * (1 if schedule == "end-to-end" else 6)
    for row in rows:
        kind, stage = row["kind"], row["stage"]
        assert row["fvcore_macs_per_sample"] == macs(kind, schedule, stage)
        blocks = {"end-to-end": 12, "progressive": 2 * stage, "layerwise": 2}[schedule]
        up = own(kind, blocks, stage if schedule == "layerwise" else 1)
        assert (row["download_bytes"], row["upload_bytes"]) == (up + partner(kind, blocks, option), up)


GATED = {"none": (0, 0), "attention": (2, 4), "mlp": (2, 8), "blocks": (4, 12)}
"""Gates of a block, and weights that they gate as multiples of width x width."""


@pytest.mark.slow(smaller="test_what_is_active_travels")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("option", OPTIONS[1:])
def test_a_gated_weight_is_held_four_times(option: str, schedule: str) -> None:
    """Beside no co-layers: the partner's weight, its two moments and the weight that results; five numbers a gate."""
    gates, weights = GATED[option]
    for row, plain in zip(schedules(option)[schedule]["rows"], schedules("none")[schedule]["rows"], strict=True):
        more = row["peak_memory_bytes"] - plain["peak_memory_bytes"]
        if row["kind"] == "image-text":
            assert more == 0
            continue
        blocks = {"end-to-end": 12, "progressive": 2 * row["stage"], "layerwise": 2}[schedule]
        assert more == pytest.approx(blocks * (4 * 4 * weights * WIDTH**2 + 4 * 5 * gates), abs=4)


@pytest.mark.slow(smaller="test_what_is_active_travels")
@pytest.mark.parametrize("option", OPTIONS)
def test_layer_wise_needs_a_fifth_of_the_memory(option: str) -> None:
    peaks = {
        schedule: {t["kind"]: t["peak_memory_bytes"] for t in schedules(option)[schedule]["totals"]}
        for schedule in SCHEDULES
    }
    assert peaks["progressive"] == peaks["end-to-end"]
    for kind, whole in peaks["end-to-end"].items():
        assert peaks["layerwise"][kind] / whole == pytest.approx(0.225, abs=0.03)


@pytest.mark.slow(smaller="test_what_is_active_travels")
def test_a_text_clients_peak_is_in_stage_1() -> None:
    """Where its word embedding trains, which is three times as large as two blocks."""
    rows = [r for r in schedules("none")["layerwise"]["rows"] if r["kind"] == "text"]
    assert max(rows, key=lambda r: r["peak_memory_bytes"])["stage"] == 1
