"""Whatever goes through modalities or kinds finds a tower, shapes and a colour for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgefl import models, registry
from edgefl.data import DataOptions, open_federation
from edgefl.data.collection import BITS
from edgefl.data.figure import COLOURS
from edgefl.modalities import KINDS, MODALITIES, SIGNALS
from edgefl.models import ModelOptions
from edgefl.models.preprocessing import Preprocessing
from edgefl.training.pretraining import PretrainOptions


def test_each_modality_has_a_tower_that_reads_it_and_fields_by_its_name() -> None:
    for name, modality in MODALITIES.items():
        assert registry.get("tower", modality.tower).modality == name
        assert all(name in section.model_fields for section in (ModelOptions, PretrainOptions, Preprocessing))
    assert set(SIGNALS) < set(MODALITIES) and sorted(BITS.values()) == [1, 2, 4, 8]


def test_each_kind_is_made_of_modalities_and_has_a_colour_of_its_own() -> None:
    assert {modality for kind in KINDS for modality in kind.split("-")} == set(MODALITIES)
    assert [*COLOURS] == [*KINDS] and len({*COLOURS.values()}) == len(KINDS)


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_batch_of_declared_data_is_what_the_default_tower_takes(modality: str) -> None:
    shapes = {"image": {"size": 32}, "text": {"vocabulary": 50}, "audio": {"bins": 32, "frames": 40}}
    data = DataOptions.model_validate({"source": "declared", "clients": {modality: 1}, "shapes": shapes})
    federation = open_federation(data, seed=1, tokens=12)
    small = {"blocks": 1, "width": 16} | ({} if modality == "motion" else {"heads": 2})
    options = ModelOptions.model_validate({modality: {**small, **({"tokens": 12} if modality == "text" else {})}})
    model: Any = models.build(models.describe(options, [modality], "classify", federation.facts_of(modality)))
    spec = federation._specs[modality][modality]
    scores = model.logits(modality, torch.zeros((2, *spec.shape), dtype=getattr(torch, spec.dtype)))
    assert scores.shape == (2, federation.classes_of(modality))
