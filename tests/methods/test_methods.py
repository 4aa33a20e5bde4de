"""Aggregation against weighted means and published tables; what each method's works ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from combining import combine
from edgefl_toys import CPU, FACTS, Toy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.methods import Cohort, Kind, Method, ServerState, Setting, Update
from edgefl.models import ModelOptions
from edgefl.work import Item, Payload, Work, run
from edgefl.work.training_options import TrainingOptions

SHAPE = (4,)
N = {"image": 30.0, "text": 50.0, "image-text": 20.0}
S = sum(N.values())


def setting(width: int = 16) -> Setting:
    model = ModelOptions(
        image={"blocks": 2, "width": width, "heads": 2, "patch": 4},
        text={"blocks": 2, "width": 16, "heads": 2, "tokens": 6},
        dimension=None if width == 16 else 16,
    )
    kinds = {}
    for name in ("image", "text", "image-text"):
        towers, task = tuple(name.split("-")), "retrieve" if "-" in name else "classify"
        kinds[name] = Kind(name, towers, task, models.describe(model, towers, task, FACTS))
    return Setting(kinds, TrainingOptions(batch=8, epochs=2), model=model, facts=FACTS, public={"image-text": 20})


def method(name: str, **options: Any) -> Any:
    kind = registry.get("method", name)
    return kind(kind.Options(**options), setting())


def update(client: int, kind: str, samples: int, values: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> Update:
    payload = Payload("model", tuple(Item(a, tuple(t.shape), "float32", a) for a, t in values.items()))
    work = Work(kind, {}, (), (), (payload,), (payload,))
    return Update(client, kind, {kind: samples}, work, {"model": values}, base)


def own(address: str, cohort: Cohort) -> dict[str, float]:
    return {address: 1.0}


# combine ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(0, 2**31))
def test_an_identity_mix_is_the_weighted_mean(samples: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    base = {"k/a": torch.randn(SHAPE, generator=draw)}
    values = [torch.randn(SHAPE, generator=draw) for _ in samples]
    updates = [update(i, "k", n, {"k/a": v}, base) for i, (n, v) in enumerate(zip(samples, values, strict=True))]
    expected = sum(n * v.double() for n, v in zip(samples, values, strict=True)) / sum(samples)
    torch.testing.assert_close(combine(base, updates, own)["k/a"].double(), expected, rtol=1e-5, atol=1e-6)


def test_the_order_of_updates_changes_no_bit() -> None:
    base = {"k/a": torch.randn(1000), "k/b": torch.randn(3)}
    updates = [
        update(i, "k", n, {a: torch.randn_like(t) for a, t in base.items()}, base) for i, n in enumerate((3, 70, 11, 5))
    ]
    first = combine(base, updates, own)
    for order in permutations(updates):
        assert_equal_tensors(first, combine(base, order, own))


def test_the_mean_is_over_those_who_sent_an_address() -> None:
    base = {"k/a": torch.zeros(SHAPE), "k/b": torch.zeros(SHAPE), "k/c": torch.zeros(SHAPE)}
    one, two = torch.ones(SHAPE), 2 * torch.ones(SHAPE)
    updates = [update(0, "k", 1, {"k/a": one, "k/b": one}, base), update(1, "k", 3, {"k/a": two}, base)]
    changed = combine(base, updates, own)
    assert_equal_tensors(changed["k/a"], torch.full(SHAPE, 1.75))
    assert_equal_tensors(changed["k/b"], one)
    assert "k/c" not in changed


def test_coefficients_below_one_keep_the_rest_of_the_old_value() -> None:
    base = {"k/a": torch.ones(SHAPE)}
    changed = combine(base, [update(0, "k", 5, {"k/a": 3 * torch.ones(SHAPE)}, base)], lambda a, c: {a: 0.25})
    assert_equal_tensors(changed["k/a"], torch.full(SHAPE, 1.5))


def test_a_weight_factor_does_not_enter_the_denominator() -> None:
    base = {"k/a": torch.zeros(SHAPE)}
    fresh = update(0, "k", 1, {"k/a": torch.ones(SHAPE)}, base)
    late = replace(update(1, "k", 1, {"k/a": torch.ones(SHAPE)}, base), weight_factor=0.5)
    assert_equal_tensors(combine(base, [fresh, late], own)["k/a"], torch.full(SHAPE, 0.75))


def test_equal_updates_have_one_weight_each_and_keep_their_factors() -> None:
    """FedBuff: w + 1/K sum_i s(t_i) (w_i - w), for 1 and for 99 samples."""
    base = {"k/a": torch.zeros(SHAPE)}
    few = replace(update(0, "k", 1, {"k/a": torch.ones(SHAPE)}, base), equal=True)
    many = replace(update(1, "k", 99, {"k/a": 5 * torch.ones(SHAPE)}, base), equal=True, weight_factor=0.5)
    assert_equal_tensors(combine(base, [few, many], own)["k/a"], torch.full(SHAPE, (1 + 0.5 * 5) / 2))
    assert (few.weight, many.weight, replace(many, equal=False).weight) == (1, 1, 99)


def test_states_are_never_changed_in_place() -> None:
    base = {"k/a": torch.zeros(SHAPE)}
    state = ServerState.from_tensors(base)
    after = state.with_tensors(combine(state.tensors, [update(0, "k", 1, {"k/a": torch.ones(SHAPE)}, base)], own))
    assert not state.tensors["k/a"].any() and after.tensors["k/a"].all()
    assert (state.versions, after.versions) == ({"k/a": 0}, {"k/a": 1})


def test_samples_of_none_weigh_nothing() -> None:
    base = {"k/a": torch.zeros(SHAPE)}
    assert combine(base, [update(0, "k", 0, {"k/a": torch.ones(SHAPE)}, base)], own) == {}


# FedCola's Omega ----------------------------------------------------------------------------------------------------


def cohort(fedcola: Any, n: Mapping[str, float] = N) -> Cohort:
    addresses = {
        f"{k.name}/{x}": n[k.name] for k in fedcola.setting.kinds.values() for x in k.parameters() if n.get(k.name)
    }
    return Cohort(n, addresses)


ATTENTION = "blocks.1.attn.qkv.weight"
V, L = f"image/image.{ATTENTION}", f"text/text.{ATTENTION}"
VL_V, VL_L = f"image-text/image.{ATTENTION}", f"image-text/text.{ATTENTION}"
n_v, n_l, n_vl = N["image"], N["text"], N["image-text"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (V, {V: n_v / (n_v + n_vl), VL_V: n_vl / (n_v + n_vl)}),
        (VL_V, {V: n_v / (n_v + n_vl), VL_V: n_vl / (n_v + n_vl)}),
        (VL_L, {VL_L: n_vl / (n_vl + n_l), L: n_l / (n_vl + n_l)}),
        (L, {VL_L: n_vl / (n_vl + n_l), L: n_l / (n_vl + n_l)}),
        ("image/image.blocks.1.mlp.fc1.weight", {"image/image.blocks.1.mlp.fc1.weight": 1.0}),
        ("image-text/joint.norm.weight", {"image-text/joint.norm.weight": 1.0}),
    ],
)
def test_omega_without_compensation(row: str, expected: dict[str, float]) -> None:
    """The coefficient table of docs/concepts/methods/fedcola.md."""
    fedcola = method("fedcola", compensation=False)
    assert fedcola.mix(row, cohort(fedcola)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (V, {V: n_v / (n_v + n_vl), VL_V: n_vl / (n_v + n_vl)}),
        (VL_V, {V: n_v / S, VL_V: n_vl / S}),
        (VL_L, {VL_L: n_vl / S, L: n_l / S}),
        (L, {VL_L: n_vl / (n_vl + n_l), L: n_l / (n_vl + n_l)}),
        ("image/image.blocks.0.mlp.fc1.weight", {"image/image.blocks.0.mlp.fc1.weight": n_v / (n_v + n_vl)}),
        ("image/image.head.bias", {"image/image.head.bias": n_v / (n_v + n_vl)}),
        ("text/text.embedding.word.weight", {"text/text.embedding.word.weight": n_l / (n_vl + n_l)}),
        ("image-text/image.embedding.pos", {"image-text/image.embedding.pos": n_vl / S}),
        ("image-text/joint.norm.weight", {"image-text/joint.norm.weight": n_vl / S}),
    ],
)
def test_omega_with_compensation(row: str, expected: dict[str, float]) -> None:
    """The table of docs/concepts/methods/fedcola.md, the paper's fourth row corrected."""
    fedcola = method("fedcola")
    assert fedcola.mix(row, cohort(fedcola)) == pytest.approx(expected)


def test_compensated_rows_of_the_pair_model_sum_to_their_modalitys_share() -> None:
    fedcola = method("fedcola")
    assert sum(fedcola.mix(VL_V, cohort(fedcola)).values()) == pytest.approx((n_v + n_vl) / S)
    assert sum(fedcola.mix(VL_L, cohort(fedcola)).values()) == pytest.approx((n_l + n_vl) / S)


@pytest.mark.parametrize("row", [V, L, VL_V, VL_L])
def test_range_all_counts_the_pair_clients_twice(row: str) -> None:
    fedcola = method("fedcola", range="all", compensation=False)
    total = n_v + 2 * n_vl + n_l
    mixed = fedcola.mix(row, cohort(fedcola))
    assert mixed == pytest.approx({V: n_v / total, VL_V: n_vl / total, VL_L: n_vl / total, L: n_l / total})
    assert sum(mixed.values()) == pytest.approx(1)


@pytest.mark.parametrize("scope", ["none", "attention", "mlp", "blocks"])
@settings(deadline=None, max_examples=20)
@given(n=st.tuples(*[st.integers(0, 500)] * 3))
def test_rows_without_compensation_sum_to_one(scope: str, n: tuple[int, int, int]) -> None:
    fedcola = method("fedcola", collaborate=scope, compensation=False)
    counts = cohort(fedcola, dict(zip(N, map(float, n), strict=True)))
    for row in (V, VL_V, VL_L, L, "text/text.blocks.0.mlp.fc1.bias", "text/text.blocks.0.norm1.bias"):
        mixed = fedcola.mix(row, counts)
        assert sum(mixed.values()) == pytest.approx(
            1 if any(counts.by_address.get(a) for a in fedcola.siblings(row)) else 0
        )


@pytest.mark.parametrize(
    ("scope", "shared"),
    [
        ("none", set()),
        ("attention", {"attn.qkv.weight", "attn.proj.bias"}),
        ("mlp", {"mlp.fc1.weight", "mlp.fc2.bias"}),
        ("blocks", {"attn.qkv.weight", "attn.proj.bias", "mlp.fc1.weight", "mlp.fc2.bias", "norm1.weight"}),
    ],
)
def test_what_is_shared(scope: str, shared: set[str]) -> None:
    fedcola = method("fedcola", collaborate=scope)
    rests = {"attn.qkv.weight", "attn.proj.bias", "mlp.fc1.weight", "mlp.fc2.bias", "norm1.weight"}
    assert {r for r in rests if fedcola.is_shared(f"image.blocks.0.{r}")} == shared
    assert not any(fedcola.is_shared(n) for n in ("image.norm.weight", "image.head.bias", "image.embedding.cls"))


def test_compensation_over_all_stacks_is_refused() -> None:
    options = registry.get("method", "fedcola").Options
    with pytest.raises(ValidationError, match="not defined for range 'all'"):
        options(range="all")
    assert options(range="all", compensation=False).range == "all"


def test_aggregation_is_omega_times_the_deltas() -> None:
    fedcola = method("fedcola")
    state = fedcola.initial(1)
    updates, delta = [], {"image": 1.0, "text": 10.0, "image-text": 100.0}
    for client, (kind, n) in enumerate(N.items()):
        values = {a: t + delta[kind] for a, t in state.tensors.items() if a.startswith(f"{kind}/")}
        updates.append(update(client, kind, int(n), values, state.tensors))
    after = fedcola.aggregate(state, updates)
    moved = {a: float((after.tensors[a] - t).mean()) for a, t in state.tensors.items()}
    assert moved[V] == pytest.approx((n_v * 1 + n_vl * 100) / (n_v + n_vl), rel=1e-4)
    assert moved[VL_V] == pytest.approx((n_v * 1 + n_vl * 100) / S, rel=1e-4)
    assert moved[VL_L] == pytest.approx((n_l * 10 + n_vl * 100) / S, rel=1e-4)
    assert moved["text/text.head.bias"] == pytest.approx(10 * n_l / (n_l + n_vl), rel=1e-4)
    assert set(after.versions.values()) == {1}


# works --------------------------------------------------------------------------------------------------------------


def test_partners_come_from_the_other_single_modality_kind() -> None:
    fedcola = method("fedcola", complementary="attention")
    work = fedcola.work("image", 1)
    sources = {i.source for i in work.down[1].items}
    assert sources == {
        f"text/text.blocks.{b}.attn.{x}.{y}" for b in (0, 1) for x in ("qkv", "proj") for y in ("weight", "bias")
    }
    assert fedcola.work("image-text", 1).edits == ()
    assert {i.source.split("/")[0] for i in work.up[0].items} == {"image"}


@pytest.mark.parametrize(
    ("scope", "payload", "floats"),
    [
        ("attention", "all", 2 * (4 * 256 + 64)),
        ("attention", "weights", 2 * 4 * 256),
        ("mlp", "all", 2 * (8 * 256 + 80)),
        ("blocks", "all", 2 * (12 * 256 + 13 * 16)),
        ("blocks", "weights", 2 * 12 * 256),
    ],
)
def test_the_partner_payload_has_the_co_layers_size(scope: str, payload: str, floats: int) -> None:
    work = method("fedcola", complementary=scope, partner_payload=payload).work("text", 1)
    assert work.down[1].tensor_bytes == 4 * floats


def test_frozen_partners_do_not_train_but_their_gates_do() -> None:
    frozen, trained = (set(method("fedcola", partner=p).work("image", 1).trainable) for p in ("frozen", "trainable"))
    assert {n.rsplit(".", 1)[1] for n in trained - frozen} == {"partner"}
    assert sum(n.endswith(".gate") for n in frozen) == 8


def test_text_blocks_may_start_as_the_image_blocks() -> None:
    same, apart = method("fedcola").initial(3).tensors, method("fedcola", text_init="random").initial(3).tensors
    assert_equal_tensors(same[V], same[L])
    assert_equal_tensors(same[V], same[VL_L])
    assert not torch.equal(apart[V], apart[L])
    assert_equal_tensors(apart[V], apart[VL_V])


# a method that needs other models than these has a test of its own
@pytest.mark.parametrize("name", [n for n in registry.names("method") if not registry.get("method", n).needs])
def test_initial_state_depends_on_the_seed_alone(name: str) -> None:
    first, second, other = (method(name).initial(seed).tensors for seed in (1, 1, 2))
    assert_equal_tensors(first, second)
    assert not torch.equal(first[V], other[V])


def trained(work: Work, state: ServerState) -> dict[str, Tensor]:
    inputs = {i.name: state.tensors[i.source] for p in work.down for i in p.items}
    result = run(work, inputs, Toy(), module=models.build(work.model), device=CPU, seed=7)
    return dict(result.payloads["model"])


def test_fedprox_without_mu_is_fedavg_bit_for_bit() -> None:
    avg, prox = method("fedavg"), method("fedprox", mu=0)
    state = avg.initial(1)
    for kind in ("image", "text", "image-text"):
        a, b = trained(avg.work(kind, 1), state), trained(prox.work(kind, 1), state)
        assert_equal_tensors(a, b)
    strong = trained(method("fedprox", mu=10).work("image", 1), state)
    assert not all(torch.equal(t, strong[n]) for n, t in trained(avg.work("image", 1), state).items())


def test_learning_rates_decay_by_round() -> None:
    chosen: Method = registry.get("method", "fedavg")(
        registry.get("method", "fedavg").Options(),
        Setting(setting().kinds, TrainingOptions(lr=0.1, lr_decay=0.5, clip=2.0, optimizer="sgd", momentum=0.9)),
    )
    assert [chosen.work("image", r).scalars["lr"] for r in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])
    assert chosen.work("image", 1).optimizer["clip"] == 2.0


def test_blocks_of_other_widths_cannot_be_partners() -> None:
    from edgefl.errors import MethodError

    kind = registry.get("method", "fedcola")
    wide = kind(kind.Options(), setting(32))
    with pytest.raises(MethodError, match="give both towers the same width, or set complementary: none"):
        wide.work("image", 1)
    assert kind(kind.Options(complementary="none"), setting(32)).work("image", 1).edits == ()


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.9}, {"rates": {"head": 0.1}}])
def test_methods_that_count_steps_need_plain_sgd_with_one_rate(method: str, training: dict[str, Any]) -> None:
    given, of = setting(), registry.get("method", method)
    plain = replace(given, training=TrainingOptions(optimizer="sgd"))
    assert of(of.Options(), plain).plain_sgd
    other = replace(given, training=TrainingOptions(**{"optimizer": "sgd", **training}))
    with pytest.raises(
        MethodError, match=f"{method} counts steps of plain SGD: set training.optimizer: sgd, and leave"
    ):
        of(of.Options(), other)
    clipped = replace(given, training=TrainingOptions(optimizer="sgd", clip=1.0))
    with pytest.raises(MethodError, match=rf"{method} counts steps of plain SGD: leave training\.clip out"):
        of(of.Options(), clipped)
