"""HeteroFL: slices of a model and of what travels, means over those who have an element, widths by budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from combining import combine
from edgefl_games import TABLES, Games, broken_rules, changed, granted
from edgefl_toys import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl import models, registry
from edgefl.errors import EdgeflError, MethodError
from edgefl.methods import Cohort, Update
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.models import ModelOptions
from edgefl.models.tower import Attention
from edgefl.models.width import at_width
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.schedules import HeteroFL, Stage
from edgefl.testing import check_part
from edgefl.work import Item, Payload, Work
from edgefl.work.slices import Cut, covers, cut_between, fits, shape_of, take, within, write_slice

# slices ---------------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3)
"""Of each dimension how many equal parts it is made of, and their size."""


def cut_of(sizes: list[tuple[int, int]], narrow: list[int]) -> tuple[tuple[int, ...], Cut | None]:
    full, left = tuple(n * size for n, size in sizes), tuple(n * k for (n, _), k in zip(sizes, narrow, strict=True))
    parts = {i: ((size,) * n, (k,) * n) for i, ((n, size), k) in enumerate(zip(sizes, narrow, strict=True))}
    return full, cut_between(full, left, parts)


def brute(tensor: Tensor, sizes: list[tuple[int, int]], narrow: list[int]) -> Tensor:
    for dimension, ((n, size), k) in enumerate(zip(sizes, narrow, strict=True)):
        kept = [part * size + place for part in range(n) for place in range(k)]
        tensor = tensor.index_select(dimension, torch.tensor(kept))
    return tensor


@settings(max_examples=50, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_a_slice_is_the_leading_of_each_part_and_goes_back_to_its_place(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    outer = [data.draw(st.integers(1, size)) for _, size in sizes]
    inner = [data.draw(st.integers(1, k)) for k in outer]
    (full, wide), (_, narrow) = cut_of(sizes, outer), cut_of(sizes, inner)
    tensor = torch.arange(torch.Size(full).numel()).reshape(full)
    for cut, lengths in ((wide, outer), (narrow, inner)):
        found = take(tensor, cut)
        assert fits(cut, full, found.shape)
        assert_equal_tensors(found, brute(tensor, sizes, lengths))
        assert cut is None or shape_of(cut) == tuple(found.shape)
        back = torch.full(full, -1)
        write_slice(back, cut, found)
        assert int((back >= 0).sum()) == found.numel()
        assert_equal_tensors(take(back, cut), found)
    assert covers(wide, narrow) and (covers(narrow, wide) == (wide == narrow))
    assert_equal_tensors(take(take(tensor, wide), within(wide, narrow)), take(tensor, narrow))


def test_what_is_no_slice() -> None:
    for full, narrow in (((4, 2), (4,)), ((4,), (5,))):
        with pytest.raises(ValueError, match="no slice of"):
            cut_between(full, narrow)
    assert not fits(((((0, 3)),),), (2,), (3,)) and not fits(None, (2,), (3,))


# models ---------------------------------------------------------------------------------------------------------------


def described(*modalities: str, task: str = "classify", **options: Any) -> dict[str, Any]:
    tower = {"blocks": 2, "width": 16, "heads": 4, "mlp_ratio": 2}
    model = ModelOptions(image={**tower, "patch": 4}, text={**tower, "tokens": 6}, **options)
    return models.describe(model, modalities, task, FACTS)


MODELS = {
    "image": described("image"),
    "text": described("text"),
    "pair that classifies": described("image", "text", fusion={"hidden": (5,)}),
    "pair that retrieves": described("image", "text", task="retrieve"),
    "pair with projections": described("image", "text", task="retrieve", dimension=7),
}


def work_on(description: dict[str, Any]) -> Work:
    whole = models.on_meta(description)
    items = tuple(Item(n, tuple(t.shape), "float32", f"kind/{n}") for n, t in whole.state_dict().items())
    names = tuple(n for n, _ in whole.named_parameters())
    payload = Payload("model", items)
    return Work("kind", description, names, (), (payload,), (payload,), optimizer={"name": "sgd", "lr": 0.1})


def stage(width: float, scaler: bool = False) -> Stage:
    offered = HeteroFL(HeteroFL.Options(widths=sorted({1, width}), scaler=scaler), {"image": 2, "text": 2}).offered
    return offered[-1]


@pytest.mark.parametrize("share", [0.75, 0.5, 0.01])
@pytest.mark.parametrize("name", MODELS)
def test_what_travels_has_the_shapes_of_the_narrower_model(name: str, share: float) -> None:
    whole = models.on_meta(MODELS[name]).state_dict()
    work = stage(share).restrict_work(work_on(MODELS[name]))
    narrow = models.on_meta(work.model).state_dict()
    assert {i.name: i.shape for i in work.up[0].items} == {n: tuple(t.shape) for n, t in narrow.items()}
    assert all(fits(i.cut, whole[i.name].shape, i.shape) for i in (*work.up[0].items, *work.down[0].items))
    assert sum(t.numel() for t in narrow.values()) < sum(t.numel() for t in whole.values())
    assert Work.decode(work.encode()) == work


def test_the_heads_that_stay_do_as_before() -> None:
    """Attention whose input and output have nothing beyond the slice is the narrow attention with the slices."""
    torch.manual_seed(0)
    description = MODELS["image"]
    work = stage(0.5).restrict_work(work_on(description))
    cuts = {i.name.removeprefix("image.blocks.0.attn."): i.cut for i in work.up[0].items}
    whole, narrow = Attention(16, 4), Attention(8, 2)
    narrow.load_state_dict({n: take(t, cuts[n]) for n, t in whole.state_dict().items()})
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        whole.proj.weight[:, 8:] = 0
        out = whole(torch.cat([x, torch.zeros(3, 5, 8)], -1))
        torch.testing.assert_close(out[..., :8], narrow(x))


def test_the_scaler_divides_while_training_alone() -> None:
    work = stage(0.5, scaler=True).restrict_work(work_on(MODELS["image"]))
    (edit,) = work.edits
    assert edit.args["layers"] == {
        f"image.blocks.{i}.{layer}": 0.5 for i in range(2) for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    scale: Any = registry.get("edit", "scale")
    module, x = models.build(work.model), torch.randn(2, 3, 8)
    layer = module.get_submodule("image.blocks.0.attn.proj")
    with torch.no_grad():
        plain = layer(x)
        scale.apply(edit, module, {})
        torch.testing.assert_close(layer(x), 2 * plain)
        torch.testing.assert_close(layer.eval()(x), plain)
        scale.fold(edit, module)
        torch.testing.assert_close(layer.train()(x), plain)


def test_models_that_cannot_be_cut() -> None:
    gru = models.describe(ModelOptions(text={"tower": "gru", "tokens": 6}), ("text",), "classify", FACTS)
    with pytest.raises(
        MethodError, match="model.text can't be narrowed: it is a 'gru' tower; allowed: vit, transformer"
    ):
        at_width(gru, 0.5)
    with pytest.raises(MethodError, match="model 'multiway' can't be narrowed"):
        at_width({**gru, "name": "multiway"}, 0.5)
    pair = described("image", "text", task="retrieve")
    pair["towers"]["text"]["heads"] = 2
    with pytest.raises(MethodError, match=r"at width 0.75 the towers have widths \[12, 16\], but they share one norm"):
        at_width(pair, 0.75)
    work = work_on(MODELS["image"])
    table = Payload("features", (Item("features", (5, 16), "float32", "table/features"),))
    with pytest.raises(MethodError, match="'features' holds representations of the full model's width, 16"):
        stage(0.5).restrict_work(replace(work, down=(*work.down, table)))
    other = Payload("other", (Item("other", (5, 3), "float32", "kind/image.other"),))
    with pytest.raises(MethodError, match="'other' of shape"):
        stage(0.5).restrict_work(replace(work, down=(*work.down, other)))


@pytest.mark.parametrize(
    ("widths", "told"), [([0.5], "lacks 1"), ([1, 0.5, 0.5], "has a value twice"), ([1, 0], "greater than 0")]
)
def test_widths_that_are_none(widths: list[float], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        HeteroFL.Options(widths=widths)


# aggregation ----------------------------------------------------------------------------------------------------------


def own(address: str, cohort: Cohort) -> dict[str, float]:
    return {address: 1.0}


def sliced(client: int, samples: int, cut: Cut | None, base: Tensor, seed: int) -> Update:
    before = take(base, cut)
    after = before + torch.randn(before.shape, generator=torch.Generator().manual_seed(seed), dtype=base.dtype)
    payload = Payload("model", (Item("w", tuple(before.shape), "float64", "a/w", cut),))
    work = Work("a", {}, (), (), (payload,), (payload,))
    return Update(client, "a", {"a": samples}, work, {"model": {"w": after}}, {"a/w": before})


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    widths=st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=5),
    compensation=st.booleans(),
    data=st.data(),
)
def test_an_element_is_averaged_over_those_who_have_it(
    sizes: list[tuple[int, int]], widths: list[float], compensation: bool, data: st.DataObject
) -> None:
    cuts = [cut_of(sizes, [max(1, int(width * size + 0.5)) for _, size in sizes])[1] for width in widths]
    samples = [data.draw(st.integers(0, 9)) for _ in widths]
    base = torch.randn([n * size for n, size in sizes], dtype=torch.float64)
    updates = [sliced(c, n, cut, base, c) for c, (n, cut) in enumerate(zip(samples, cuts, strict=True))]
    options = AggregationOptions(compensation=compensation)
    found = combine({"a/w": base}, updates, own, options=options).get("a/w", base)
    sums, counts = torch.zeros_like(base), torch.zeros_like(base)
    for update in updates:
        change, here = torch.zeros_like(base), torch.zeros_like(base)
        write_slice(change, update.cuts().get("a/w"), dict(update.uploaded_tensors())["a/w"] - update.base["a/w"])
        write_slice(here, update.cuts().get("a/w"), torch.ones_like(update.base["a/w"]))
        sums, counts = sums + update.total * change, counts + update.total * here
    total = torch.full_like(counts, sum(samples)) if compensation else counts
    expected = base + torch.where(counts > 0, sums / total.clamp(min=1), 0)
    torch.testing.assert_close(found, expected)
    assert_equal_tensors(found, combine({"a/w": base}, updates[::-1], own, options=options).get("a/w", base))


def test_the_median_is_over_those_who_have_an_element() -> None:
    base = torch.zeros(2, dtype=torch.float64)
    updates = [sliced(c, 1, ((((0, 1)),),) if c else None, base, c) for c in range(3)]
    found = combine({"a/w": base}, updates, own, options=AggregationOptions(rule="median"))["a/w"]
    values = [float(dict(u.uploaded_tensors())["a/w"][0]) for u in updates]
    assert found.tolist() == pytest.approx([sorted(values)[1], float(dict(updates[0].uploaded_tensors())["a/w"][1])])


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def made(games: Games, schedule: dict[str, Any], method: str = "fedavg", **clients: int) -> Setup:
    data = {**games.tiny()["data"], "clients": clients or {"image": 3}, "samples": 16}
    return games.setup(data=data, schedule=schedule, method=method, evaluation={"every": 10})


@pytest.mark.slow(smaller="test_what_travels_has_the_shapes_of_the_narrower_model")
def test_the_whole_width_alone_is_end_to_end(games: Games) -> None:
    one, told = games.real(made(games, {"name": "heterofl", "widths": [1], "rounds": 2}))
    other, journal = games.real(made(games, {"name": "end-to-end", "rounds": 2}))
    for table in TABLES:
        assert [{k: v for k, v in r.items() if k != "part"} for r in told.tables[table]] == journal.tables[table]
    assert one.state.versions == other.state.versions
    assert_equal_tensors(one.state.tensors, other.state.tensors)


def test_an_asynchronous_run_mixes_a_slice_into_its_place(games: Games) -> None:
    setup = changed(
        made(games, {"name": "heterofl", "widths": [1, 0.5], "rounds": 1}, image=1), {"policy": "asynchronous"}
    )
    narrow = Planner(setup, games.predictor).plan(*setup.cell_indices(0), 1, setup.schedule.offered[1], ())
    memory = np.array([narrow.compute.peak_memory_bytes])
    setup = replace(setup, fleet=granted(setup.fleet, memory=memory))
    simulation, told = games.real(setup)
    after, before = simulation.state.tensors, setup.method.initial(setup.seed).tensors
    assert [r["scored_part"] for r in told.tables["rounds"]] == [2]
    cuts = {item.source: item.cut for payload in narrow.form.up for item in payload.items}
    assert any(cuts.values())
    for address, cut in cuts.items():
        expected = before[address].clone()
        write_slice(expected, cut, take(after[address], cut))
        assert_equal_tensors({address: after[address]}, {address: expected})
        assert not torch.equal(after[address], before[address]), address


def accuracy_by_hand(setup: Setup, tensors: Mapping[str, Tensor], width: int, split: str = "test") -> float:
    """Share of the server's images that the leading ``width`` channels of the model get right, one after the other."""
    description: Any = setup.method.setting.kinds["image"].model
    tower = description["towers"]["image"]
    heads = width // (tower["width"] // tower["heads"])
    module: Any = models.build({**description, "towers": {"image": {**tower, "width": width, "heads": heads}}}).eval()

    def leading(name: str, size: torch.Size) -> Tensor:
        tensor, corner = tensors[f"image/{name}"], tuple(map(slice, size))
        if ".qkv." in name:  # query, key and value stand below each other
            third = (slice(size[0] // 3), *corner[1:])
            return torch.cat([each[third] for each in tensor.chunk(3)])
        return tensor[corner]

    module.load_state_dict({name: leading(name, t.shape) for name, t in module.state_dict().items()})
    part: Any = setup.clients._part(split, "image")  # type: ignore[union-attr]
    rows, right = part.arrays[f"{split}.image"], 0
    for row in rows:
        sample = part.load("image", np.array([row]), ("image",))
        with torch.no_grad():
            right += int(module.logits("image", sample["image"]).argmax(-1) == sample["label"])
    return right / len(rows)


def some_narrow(games: Games, narrow: Sequence[int], clients: int, rounds: int, **sections: Any) -> Setup:
    """Clients with images of whom these have memory for half of the width; evaluated in each round."""
    data = {**games.tiny()["data"], "clients": {"image": clients}, "samples": 16, "test": 150}
    schedule = {"name": "heterofl", "widths": [1, 0.5], "rounds": rounds}
    training = {"batch": 4, "epochs": 2, "lr": 5e-3}
    setup = games.setup(data=data, schedule=schedule, evaluation={"every": 1}, training=training, **sections)
    half = Planner(setup, games.predictor).plan(*setup.cell_indices(0), 1, setup.schedule.offered[1], ())
    memory = np.full(clients, np.inf)
    memory[list(narrow)] = half.compute.peak_memory_bytes
    return replace(setup, fleet=granted(setup.fleet, memory=memory))


def test_the_score_is_that_of_the_width_that_was_trained(games: Games) -> None:
    setup = some_narrow(games, range(2), clients=2, rounds=2)
    simulation, told = games.real(setup)
    last = told.tables["rounds"][-1]
    assert [r["scored_part"] for r in told.tables["rounds"]] == [2, 2]
    tensors = simulation.state.tensors
    found = last["metrics"]["image"]["accuracy"]
    assert found == pytest.approx(accuracy_by_hand(setup, tensors, 8)) != accuracy_by_hand(setup, tensors, 16)
    # what is exported has all channels, those that nobody trained as they were drawn
    start = setup.method.initial(setup.seed).tensors
    name = "image/image.blocks.0.mlp.fc1.weight"
    assert tensors[name].shape == start[name].shape and torch.equal(tensors[name][:, 8:], start[name][:, 8:])
    assert not torch.equal(tensors[name][:32, :8], start[name][:32, :8])


def test_a_wide_client_that_joins_later_switches_the_score_also_in_a_run_that_goes_on(games: Games) -> None:
    setup = changed(some_narrow(games, [1, 2], clients=3, rounds=4), {"cohort": 1})
    simulation, told = games.real(setup)
    trained = {r["round"]: r["part"] for r in told.tables["clients"]}
    scored = {r["round"]: r["scored_part"] for r in told.tables["rounds"]}
    wide = min(round for round, part in trained.items() if part == "width 1")
    assert 1 < wide < 4 and trained[4] == "width 0.5"
    assert scored == {round: 1 if round >= wide else 2 for round in range(1, 5)}
    found = told.tables["rounds"][-1]["metrics"]["image"]["accuracy"]
    assert found == pytest.approx(accuracy_by_hand(setup, simulation.state.tensors, 16))
    for round in (wide - 1, wide):
        _, journal = games.real(setup, since=(round, *told.states[round]))
        assert journal.tables["rounds"] == [r for r in told.tables["rounds"] if r["round"] > round]
    untrained = games.none(setup)[1]
    assert {r["round"]: r["scored_part"] for r in untrained.tables["rounds"]} == scored


@pytest.mark.slow(smaller="test_an_element_is_averaged_over_those_who_have_it")
@pytest.mark.parametrize("method", ["fedavg", "fedcola"])
def test_clients_of_several_widths_and_a_run_that_goes_on(games: Games, method: str) -> None:
    kinds = {"image": 2, "text": 2, "image-text": 2}
    setup = made(games, {"name": "heterofl", "widths": [1, 0.5], "rounds": 3}, method, **kinds)
    planner = Planner(setup, games.predictor)
    memory = np.full(6, np.inf)
    for client in (0, 2, 4):
        half = planner.plan(*setup.cell_indices(client), 1, setup.schedule.offered[1], ())
        memory[client] = half.compute.peak_memory_bytes
    setup = replace(setup, fleet=granted(setup.fleet, memory=memory))
    whole, told = games.real(setup)
    assert broken_rules(setup, told) == []
    clients = told.tables["clients"]
    assert {(r["client"] % 2, r["part"]) for r in clients} == {(0, "width 0.5"), (1, "width 1")}
    measured = [r for r in clients if r["memory_error"] is not None]
    assert all(abs(r["measured_peak_memory_bytes"] - r["peak_memory_bytes"]) <= 4096 for r in measured)
    for round, (tensors, state) in told.states.items():
        again, journal = games.real(setup, since=(round, tensors, state))
        for table in TABLES:
            assert journal.tables.get(table, []) == [r for r in told.tables[table] if r["round"] > round]
        assert_equal_tensors(again.state.tensors, whole.state.tensors)
    none, _ = games.none(setup)
    assert none.state.versions == whole.state.versions


def test_a_model_that_cannot_be_cut_is_said_before_anything_is_done(tiny: Callable[..., dict[str, Any]]) -> None:
    scenario = tiny(
        model={"text": {"tower": "gru", "tokens": 12}},
        data={**tiny()["data"], "clients": {"text": 2}},
        schedule={"name": "heterofl", "rounds": 2},
    )
    with pytest.raises(EdgeflError, match="model.text can't be narrowed: it is a 'gru' tower"):
        edgefl.profile(scenario)


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("scaler", [True, False])
@pytest.mark.parametrize("method", ["fedavg", "fedcola"])
def test_the_contract_holds_at_every_width(method: str, scaler: bool) -> None:
    schedule = {"name": "heterofl", "widths": [1, 0.5], "scaler": scaler, "rounds": 2}
    report = check_part("method", method, runs=False, schedules=[schedule], processes=scaler)
    assert report.ok, str(report)
