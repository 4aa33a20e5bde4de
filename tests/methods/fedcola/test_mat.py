"""The modality-agnostic FedCola: what is shared, how updates are weighed, and who begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors

import edgefl
from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.methods import Cohort, Kind, ServerState, Setting, Update
from edgefl.models import ModelOptions
from edgefl.testing import check_part
from edgefl.work import Item, Payload, Work
from edgefl.work.training_options import TrainingOptions

RESTS = ("attn.qkv.weight", "attn.proj.bias", "mlp.fc1.weight", "mlp.fc2.bias", "norm1.weight")
ATTENTION = "blocks.1.attn.qkv.weight"
V, L = f"image/image.{ATTENTION}", f"text/text.{ATTENTION}"
MLP_V = "image/image.blocks.0.mlp.fc1.weight"

counts = st.tuples(st.integers(1, 500), st.integers(1, 500))


def setting(**text: Any) -> Setting:
    tower = {"blocks": 2, "width": 16, "heads": 2}
    model = ModelOptions(image={**tower, "patch": 4}, text={**tower, "tokens": 6, **text}, dimension=16)
    kinds = {}
    for name in ("image", "text", "image-text"):
        towers, task = tuple(name.split("-")), "retrieve" if "-" in name else "classify"
        kinds[name] = Kind(name, towers, task, models.describe(model, towers, task, FACTS))
    return Setting(kinds, TrainingOptions(batch=8, epochs=1))


def method(name: str = "fedcola-mat", given: Setting | None = None, **options: Any) -> Any:
    kind = registry.get("method", name)
    return kind(kind.Options(**options), given or setting())


def cohort(mat: Any, image: float = 30, text: float = 50) -> Cohort:
    n = {"image": image, "text": text}
    return Cohort(n, {f"{k}/{x}": n[k] for k in n if n[k] for x in mat.setting.kinds[k].parameters()})


def updates(mat: Any, state: ServerState, samples: tuple[int, int]) -> list[Update]:
    """One client of each kind, whose parameters have all moved at random."""
    draw, found = torch.Generator().manual_seed(5), []
    for client, (kind, n) in enumerate(zip(("image", "text"), samples, strict=True)):
        values = {
            a: t + torch.randn(t.shape, generator=draw) for a, t in state.tensors.items() if a.startswith(f"{kind}/")
        }
        payload = Payload("model", tuple(Item(a, tuple(t.shape), "float32", a) for a, t in values.items()))
        work = Work(kind, {}, (), (), (payload,), (payload,))
        found.append(Update(client, kind, {kind: n}, work, {"model": values}, state.tensors))
    return found


@pytest.mark.parametrize(
    ("share", "shared"),
    [
        ("none", set()),
        ("attention", set(RESTS[:2])),
        ("vision-attention", set(RESTS[:2])),
        ("language-attention", set(RESTS[:2])),
        ("ffn", set(RESTS[2:4])),
        ("all", set(RESTS)),
    ],
)
def test_what_is_shared(share: str, shared: set[str]) -> None:
    """Norms are private unless the whole block is shared; embedding, final norm and head always are."""
    mat = method(share=share)
    assert {r for r in RESTS if mat.is_shared(f"image.blocks.0.{r}")} == shared
    assert not any(mat.is_shared(n) for n in ("image.norm.weight", "text.head.bias", "image.embedding.cls"))


@pytest.mark.parametrize("share", ["none", "all", "attention", "ffn", "vision-attention", "language-attention"])
def test_shared_parameters_stay_one(share: str) -> None:
    mat = method(share=share)
    state = mat.initial(1)
    after = mat.aggregate(state, updates(mat, state, (30, 50)))
    for rest in RESTS:
        image, text = f"image/image.blocks.1.{rest}", f"text/text.blocks.1.{rest}"
        assert_equal_tensors(state.tensors[image], state.tensors[text])  # blocks start equal, shared or not
        assert torch.equal(after.tensors[image], after.tensors[text]) == mat.is_shared(f"image.blocks.1.{rest}")


def test_only_what_is_shared_has_to_start_equal() -> None:
    tensors = method(share="attention", init="own").initial(1).tensors
    assert_equal_tensors(tensors[V], tensors[L])
    assert not torch.equal(tensors[MLP_V], tensors["text/text.blocks.0.mlp.fc1.weight"])
    assert not torch.equal(*(method(share="none", init="own").initial(1).tensors[a] for a in (V, L)))


# weights ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(n=counts, balance=st.sampled_from(["none", "mean", "scale"]), compensation=st.booleans())
def test_rows_of_what_is_shared_sum_to_one(n: tuple[int, int], balance: str, compensation: bool) -> None:
    mat = method(balance=balance, compensation=compensation)
    row = mat.mix(V, cohort(mat, *n))
    assert sum(row.values()) == pytest.approx(1)
    assert row == mat.mix(L, cohort(mat, *n))
    assert list(row) == [V, L]  # one order, so that one sum: the two stay equal to the bit
    image = n[0] / sum(n) if balance == "none" else 1 / 2
    assert row[V] == pytest.approx(image)


@settings(deadline=None, max_examples=50)
@given(n=counts)
def test_compensation_is_damped_fedavg(n: tuple[int, int]) -> None:
    """Extending every model by last round's values and averaging over the cohort damps each private update."""
    mat = method(balance="none")
    row = mat.mix(MLP_V, cohort(mat, *n))
    assert row == pytest.approx({MLP_V: n[0] / sum(n)})
    assert method(compensation=False, balance="none").mix(MLP_V, cohort(mat, *n)) == pytest.approx({MLP_V: 1})
    # the extended models' plain average: 1 n_v of (w + d), n_l of w
    w, d = 2.0, 0.7
    assert w + row[MLP_V] * d == pytest.approx((n[0] * (w + d) + n[1] * w) / sum(n))


def test_scaled_counts_make_modalities_equal() -> None:
    balanced = method(balance="scale")
    assert balanced.mix(MLP_V, cohort(balanced, 10, 1000)) == pytest.approx({MLP_V: 1 / 2})
    mean = method(balance="mean")
    assert mean.mix(MLP_V, cohort(mean, 10, 30)) == pytest.approx({MLP_V: 1 / 4})


@pytest.mark.parametrize(
    ("share", "source", "part"), [("vision-attention", V, 3 / 8), ("language-attention", L, 5 / 8)]
)
def test_one_modality_decides_its_attention(share: str, source: str, part: float) -> None:
    for compensation, expected in ((False, 1.0), (True, part)):
        mat = method(share=share, compensation=compensation, balance="none")
        assert mat.mix(V, cohort(mat)) == mat.mix(L, cohort(mat)) == pytest.approx({source: expected})
        absent = cohort(mat, *((0, 50) if source == V else (30, 0)))
        assert mat.mix(V, absent) == mat.mix(L, absent) == {}


def test_a_cohort_of_one_modality_moves_what_is_shared_as_fedavg() -> None:
    mat = method()
    assert mat.mix(L, cohort(mat, 30, 0)) == pytest.approx({V: 1})
    assert mat.mix(MLP_V, cohort(mat, 30, 0)) == pytest.approx({MLP_V: 1})
    assert mat.mix("text/text.blocks.0.mlp.fc1.weight", cohort(mat, 30, 0)) == {}


def test_nothing_shared_and_nothing_weighed_is_fedavg_bit_for_bit() -> None:
    mat, fedavg = method(share="none", compensation=False, balance="none"), method("fedavg")
    state = mat.initial(1)
    sent = updates(mat, state, (30, 50))
    ours, theirs = mat.aggregate(state, sent).tensors, fedavg.aggregate(state, sent).tensors
    assert_equal_tensors(ours, theirs)


# rounds -------------------------------------------------------------------------------------------------------------


def test_who_takes_part_and_what_trains_in_warm_up() -> None:
    mat = method(warmup={"modality": "image", "rounds": 2, "heat": 1})
    assert [[mat.participates(k, r) for k in ("image", "text", "image-text")] for r in (1, 2, 3, 4)] == [
        [True, False, False],
        [True, False, False],
        [True, True, False],
        [True, True, False],
    ]
    united = method(warmup={"modality": "image", "rounds": 2, "draw": "union"})
    assert [[united.is_drawn(k, r) for k in ("image", "text", "image-text")] for r in (2, 3)] == [
        [True, True, False]
    ] * 2
    assert [[mat.is_drawn(k, r) for k in ("image", "text")] for r in (2, 3)] == [[True, False], [True, True]]
    assert not united.participates("text", 2)
    whole = set(mat.work("text", 4).trainable)
    frozen = whole - set(mat.work("text", 3).trainable)
    assert frozen == {
        f"text.blocks.{b}.attn.{x}.{y}" for b in (0, 1) for x in ("qkv", "proj") for y in ("weight", "bias")
    }
    assert mat.work("text", 3).up == mat.work("text", 4).up  # what is frozen is sent all the same
    assert set(mat.work("image", 3).trainable) == set(mat.work("image", 4).trainable)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            {"width": 32},
            {},
            r"blocks.0.attn.proj.bias is \(16,\) in image and \(32,\) in text; give the towers blocks of",
        ),
        ({"blocks": 3}, {}, "blocks.2.attn.proj.bias is absent in image"),
        (
            {},
            {"warmup": {"modality": "audio"}},
            "warmup.modality needs audio clients; there are only image, text clients",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(given: Any, options: Any, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        method(given=setting(**given), **options)


def test_unequal_towers_go_with_nothing_shared() -> None:
    assert method(given=setting(width=32), share="none").initial(1)


@pytest.mark.slow(smaller="test_who_takes_part_and_what_trains_in_warm_up")
def test_it_trains_through_its_warm_up(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    given = tiny(
        method={"name": "fedcola-mat", "warmup": {"modality": "image", "rounds": 1, "heat": 1}},
        schedule={"name": "end-to-end", "rounds": 3},
    )
    given["data"] = {**given["data"], "clients": {"image": 2, "text": 2}}
    found = edgefl.run(given, out=tmp_path / "run")
    clients = found.records("clients")
    assert [{c["kind"] for c in clients if c["round"] == r} for r in (1, 2, 3)] == [{"image"}, *[{"image", "text"}] * 2]
    assert {c["memory_error"] for c in clients if c["memory_error"] is not None} == {0}
    weights = found.weights()
    assert_equal_tensors(weights[V], weights[L])
    # clients that keep the shared part frozen hold less memory
    text = {c["round"]: c["peak_memory_bytes"] for c in clients if c["kind"] == "text"}
    assert text[2] < text[3]


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize(
    "options",
    [
        {"share": "all", "balance": "mean"},
        {"share": "vision-attention", "warmup": {"modality": "image", "rounds": 2, "heat": 4}},
        {"share": "ffn", "compensation": False, "balance": "none", "warmup": {"modality": "text", "rounds": 1}},
        {"share": "none"},
    ],
)
def test_every_form_keeps_the_contract(options: Any) -> None:
    report = check_part("method", "fedcola-mat", runs=False, **options)
    assert report.ok, str(report)
