"""CreamFL's traffic of representations: FedCola's table, and bytes that follow the public set and the dimension."""

from __future__ import annotations

from typing import Any

import pytest

import edgefl
from edgefl.scenario import load
from edgefl.setup.compose import compose

MIB = 2**20
MODELS = 21_704_164 + 33_033_220  # parameters of FedCola's image and text models (test_fedcola_colayer.py)


def traffic(overrides: list[str]) -> dict[str, tuple[int, int]]:
    """Bytes of representations down and up, by kind; nothing is predicted."""
    method = compose(load("papers/fedcola-creamfl", overrides)).method
    found = {}
    for kind in method.setting.kinds:
        work = method.work(kind, 1)
        down, up = ([p.tensor_bytes for p in side if p.name == "representations"] for side in (work.down, work.up))
        found[kind] = sum(down), sum(up)
    return found


def test_fedcolas_download_of_one_image_and_one_text_client() -> None:
    """211.74 MiB: their models, and both modalities' 500 representations of 384 floats for each of the two."""
    method = compose(load("papers/fedcola-creamfl")).method
    down = {k: sum(p.tensor_bytes for p in method.work(k, 1).down) for k in ("image", "text")}
    assert sum(down.values()) == 4 * (MODELS + 4 * 500 * 384)
    assert round(sum(down.values()) / MIB, 2) == 211.74


@pytest.mark.slow(smaller="test_bytes_are_linear_in_the_public_set_and_the_dimension")
def test_the_profile_says_the_same() -> None:
    rows = edgefl.profile("papers/fedcola-creamfl")["rows"]
    assert round(sum(r["download_bytes"] for r in rows if r["kind"] != "image-text") / MIB, 2) == 211.74
    assert {r["kind"]: r["upload_bytes"] for r in rows}["image"] == 4 * (21_704_164 + 500 * 384)


@pytest.mark.parametrize(("pairs", "dimension"), [(50_000, 512), (50_000, 256), (100_000, 512), (500, 96)])
def test_bytes_are_linear_in_the_public_set_and_the_dimension(pairs: int, dimension: int) -> None:
    """As in the original everybody has a projection to one dimension, and clients with pairs send two tables."""
    small = {"tower": "vit", "blocks": 1, "width": 32, "heads": 2, "patch": 16}
    model: dict[str, Any] = {
        "image": small,
        "text": {"tower": "transformer", "blocks": 1, "width": 64, "heads": 2, "tokens": 40},
        "dimension": dimension,
        "dimension_for": "all",
    }
    found = traffic([f"model={model}", f"data.public={pairs}", "method={name: creamfl, server: own}"])
    table = 4 * pairs * dimension
    assert found == {"image": (2 * table, table), "text": (2 * table, table), "image-text": (2 * table, 2 * table)}
    if dimension == 512 and pairs == 50_000:
        assert table == 102_400_000 and round(table / MIB, 2) == 97.66
