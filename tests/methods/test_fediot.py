"""FedIoT's coefficients, by hand; one multiway model for everybody; what can't be shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from edgefl_toys import FACTS
from tensors import assert_equal_tensors

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.methods import Kind, Setting, Update
from edgefl.methods.prototypes.prototype_method import LibraryMethod
from edgefl.models import ModelOptions
from edgefl.testing import check_part
from edgefl.work import Item, Payload, Work
from edgefl.work.training_options import TrainingOptions

FedIoT = registry.get("method", "fediot")
TOWERS = {"image": {"blocks": 2, "width": 16, "heads": 2, "patch": 4},
          "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 6}}  # fmt: skip
KINDS = ("image", "text", "image-text")
ATTENTION, MLP, NORM = "image.blocks.1.attn.qkv.weight", "image.blocks.1.mlp.fc1.bias", "image.blocks.0.norm1.weight"
EMBEDDING = "image.embedding.cls"


def setting(model: Mapping[str, Any] = TOWERS, task: str = "retrieve", **facts: Any) -> Setting:
    options = ModelOptions.model_validate(model)
    kinds = {}
    for name in KINDS:
        towers, does = tuple(name.split("-")), task if "-" in name else "classify"
        kinds[name] = Kind(name, towers, does, models.describe(options, towers, does, {**FACTS, **facts}))
    return Setting(kinds, TrainingOptions(batch=8))


def method(made: Setting | None = None, **options: Any) -> Any:
    return FedIoT(FedIoT.Options(**options), made or setting())


def update(fediot: Any, client: int, kind: str, samples: Mapping[str, int], state: Any, change: float) -> Update:
    """An update that changes every number of a kind's model by as much."""
    spec = fediot.setting.kinds[kind].parameters()
    items = tuple(Item(n, s.shape, s.dtype, f"{kind}/{n}") for n, s in spec.items())
    payload = Payload("model", items)
    base = {i.source: state.tensors[i.source] for i in items}
    values = {i.name: base[i.source] + change for i in items}
    return Update(client, kind, samples, Work(kind, {}, (), (), (payload,), (payload,)), {"model": values}, base)


def movement(fediot: Any, clients: list[tuple[str, Mapping[str, int], float]], equal: bool = False) -> dict[str, float]:
    """How far each address goes when these clients' models change so much."""
    state = fediot.initial(1)
    updates = [update(fediot, i, *c[:2], state, c[2]) for i, c in enumerate(clients)]  # type: ignore[misc]
    after = fediot.aggregate(state, [replace(u, equal=equal) for u in updates])
    return {a: float((t - state.tensors[a]).double().mean()) for a, t in after.tensors.items()}


COHORT = [("image", {"image": 30}, 1.0), ("image", {"image": 10}, 5.0), ("image-text", {"image-text": 20}, 100.0)]


@pytest.mark.parametrize(
    ("share", "together"),
    [
        (None, {ATTENTION, MLP, NORM}),
        ("attention", {ATTENTION}),
        ("mlp", {MLP}),
        ("all", {ATTENTION, MLP, NORM, EMBEDDING}),
        ("none", set()),
    ],
)
def test_samples_of_pairs_count_a_hundred_times_in_what_is_shared(share: str | None, together: set[str]) -> None:
    moved = movement(method(share=share), COHORT)
    alone, mixed = (30 * 1 + 10 * 5) / 40, (30 * 1 + 10 * 5 + 2000 * 100) / 2040
    for name in (ATTENTION, MLP, NORM, EMBEDDING):
        expected = (mixed, mixed) if name in together else (alone, 100.0)
        assert (moved[f"image/{name}"], moved[f"image-text/{name}"]) == pytest.approx(expected, rel=1e-4)
    # what one kind alone has, and who has the modality and no client in the cohort
    assert moved["image/image.head.bias"] == pytest.approx(alone, rel=1e-4)
    text = "text.blocks.0.attn.qkv.weight"
    assert moved[f"image-text/{text}"] == pytest.approx(100, rel=1e-4)
    assert moved[f"text/{text}"] == pytest.approx(100 if share not in ("none", "mlp") else 0, rel=1e-4)


def test_a_weight_of_one_is_fedavg_over_the_stacks_of_a_modality() -> None:
    moved = movement(method(pair_weight=1), COHORT)
    assert moved[f"image/{NORM}"] == pytest.approx((30 + 50 + 2000) / 60, rel=1e-4)


def test_a_client_with_pairs_weighs_a_hundred_clients_in_an_equal_buffer() -> None:
    moved = movement(method(), COHORT, equal=True)
    assert moved[f"image/{NORM}"] == pytest.approx((1 + 5 + 100 * 100) / 102, rel=1e-4)
    assert moved["image/image.head.bias"] == pytest.approx((1 + 5) / 2, rel=1e-4)


# one model for everybody ----------------------------------------------------------------------------------------------

MULTIWAY = {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 8, "tokens": 6}}
ONE = setting(MULTIWAY, "classify", **{"image-text": {"classes": 5}})


def test_a_multiway_model_is_one_for_all_weighted_by_pairs_and_singles() -> None:
    fediot = method(ONE)
    moved = movement(fediot, [
        ("image", {"image": 50}, 1.0),
        ("image-text", {"image-text": 2, "image": 30, "text": 10}, 10.0),
        ("text", {"text": 10}, 3.0),
    ])  # fmt: skip
    expected = (50 * 1 + (200 + 40) * 10 + 10 * 3) / (50 + 240 + 10)
    assert moved and all(m == pytest.approx(expected, rel=1e-3) for m in moved.values())


def test_it_stays_one_model_to_the_bit() -> None:
    fediot = method(ONE)
    state = fediot.initial(1)
    updates = [
        update(fediot, 0, "image", {"image": 7}, state, 0.3),
        update(fediot, 1, "text", {"text": 5}, state, -1.7),
    ]
    after = fediot.aggregate(state, updates).tensors
    one, *others = ({a.split("/", 1)[1]: t for a, t in after.items() if a.startswith(f"{kind}/")} for kind in KINDS)
    for other in others:
        assert_equal_tensors(other, one)
    again = fediot.aggregate(state, updates[::-1]).tensors
    assert_equal_tensors(after, again)


# what can't be shared -------------------------------------------------------------------------------------------------


def test_unequal_widths_are_refused() -> None:
    wide = setting({**TOWERS, "image": {**TOWERS["image"], "width": 32}, "dimension": 16})
    mixed = replace(wide, kinds={**setting().kinds, "image": wide.kinds["image"]})
    with pytest.raises(
        MethodError, match=r"averages image\.blocks\.0\..* is \(\d+.*\) in image and .* in image-text; give"
    ):
        method(mixed)
    method(mixed, share="none")


def test_a_share_that_finds_nothing_is_refused() -> None:
    tower = {"tower": "gru", "hidden": 8, "embedding": 4, "tokens": 6}
    recurrent = setting({**TOWERS, "text": tower, "dimension": 16, "dimension_for": "all"})
    told = "share: attention matches no layers in the text tower, which text and image-text clients have in common"
    with pytest.raises(MethodError, match=told):
        method(recurrent, share="attention")
    method(recurrent, share="all")


class OneModel(FedIoT):  # type: ignore[misc,valid-type]
    """FedIoT in PmcmFL's setting."""

    needs = LibraryMethod.needs


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("share", [None, "attention", "mlp", "all", "none"])
def test_it_keeps_the_contract_with_towers_and_with_one_model(share: str | None) -> None:
    for name in ("fediot", OneModel):
        report = check_part("method", name, runs=False, share=share)
        assert report.ok, str(report)
