"""FedPAC's alignment against its closed form; what travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import FACTS
from torch import Tensor
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.methods import Kind, Setting
from edgefl.methods.prototypes.fedpac import FedPAC
from edgefl.methods.prototypes.losses import alignment
from edgefl.models import ModelOptions, describe
from edgefl.testing import check_part
from edgefl.work.training_options import TrainingOptions

CLASSES, DIM = 5, 16
SMALL = {"blocks": 1, "width": DIM, "heads": 2, "patch": 8, "tokens": 6, "positions": 10, "drop_path": 0.0}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(*names: str, model: Any = None, patterns: tuple[str, ...] = (), **options: Any) -> FedPAC:
    described = ModelOptions.model_validate(model or {"multiway": SMALL})
    kinds = {
        n: Kind(n, tuple(n.split("-")), "classify", describe(described, n.split("-"), "classify", FACTS), {}, patterns)
        for n in names
    }
    return FedPAC(FedPAC.Options(**options), Setting(kinds, TrainingOptions(batch=8, epochs=2)))


def test_features_are_held_near_the_prototype_of_their_class() -> None:
    fused, table, label = draw(3, DIM, seed=1), draw(CLASSES, DIM, seed=2), torch.tensor([4, 0, 4])
    torch.testing.assert_close(alignment(fused, table, label), F.mse_loss(fused, table[label]))
    table[0] = 0  # nobody has seen this class: its sample adds nothing, and counts in the mean
    expected = (fused[[0, 2]] - table[4]).square().sum() / (3 * DIM)
    torch.testing.assert_close(alignment(fused, table, label), expected)


def test_one_table_travels_and_noise_stands_for_what_is_missing() -> None:
    fedpac = made("image-text", patterns=("image-text", "image", "text"))
    first, work = (fedpac.work("image-text", round) for round in (1, 2))
    assert {p.name: p.tensor_bytes for p in work.up}["prototypes"] == 4 * CLASSES * DIM
    assert [p.patterns[0] for p in work.passes] == ["image-text", "image", "text"] * 2 + ["image-text"]
    assert all(p.args["mask"] == "random" for p in work.passes)
    assert (first.passes[0].args["alignment"], work.passes[0].args["alignment"]) == (0, 1)
    everybody = made("image-text", patterns=("image-text", "image", "text"), prototypes_of="all")
    looks = [p for p in everybody.work("image-text", 2).passes if p.step == "class-means"]
    assert [(p.patterns[0], p.args["of"]) for p in looks] == [(n, ["fused"]) for n in ("image-text", "image", "text")]
    whole = made("image-text", patterns=("image-text", "image", "text"), mask="ignore").work("image-text", 2)
    assert {p.patterns for p in whole.passes} == {("image-text",)}
    assert [p.name for p in made("image-text", weight=0).work("image-text", 2).up] == ["model"]


def test_towers_serve_where_every_client_has_pairs() -> None:
    towers = {"image": {"width": 16, "heads": 2}, "text": {"width": 32, "heads": 2}}
    fedpac = made("image-text", model=towers)
    assert fedpac.shape("fused") == (CLASSES, 48)
    assert fedpac.work("image-text", 2).passes[0].args["widths"] == {"image": 16, "text": 32, "fused": 48}
    with pytest.raises(MethodError, match="needs the multiway model"):
        made("image", model=towers, prototypes_of="all")
    with pytest.raises(MethodError, match="there are none: set prototypes_of: all"):
        made("image")


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("options", [{"prototypes_of": "all"}, {"mask": "zero", "answers": "scores"}])
def test_every_form_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_part("method", "fedpac", runs=False, schedules=["end-to-end", "layerwise"], **options)
    assert report.ok, str(report)
