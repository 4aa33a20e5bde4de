"""Methods whose clients and server exchange representations: what each makes of the tables, against brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, declared, described
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.errors import EdgeflError
from edgefl.methods import ServerState, Update
from edgefl.methods.representations.fedet import confidences
from edgefl.methods.representations.fedgems import entropy
from edgefl.methods.representations.representation_method import best_match, mix_tables, weighted_sum
from edgefl.methods.representations.steps import Distill
from edgefl.models.towers.vision import import_torchvision
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.testing import check_part
from edgefl.work import Context, Pass, Work, run

PAIRS, DIM = 24, 16
NAMES = ("reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems")
ADAPTED = NAMES[3:]

Tiny = Callable[..., dict[str, Any]]


def scenario(tiny: Tiny, name: str, *, clients: Any = None, public: int = 6, model: Any = None, **method: Any) -> Any:
    given = tiny(method={"name": name, "pairs": PAIRS, **method})
    kinds = clients or {"image": 2, "text": 2, "image-text": 2}
    data = {**given["data"], "clients": kinds, "public": public, "size": 16, "samples": 24}
    return {**given, "data": data, "model": model or given["model"]}


@pytest.fixture(scope="module")
def method(tiny: Tiny) -> Callable[..., Any]:
    return lambda name, **options: compose(load(declared(scenario(tiny, name, public=PAIRS, **options)))).method


def units(samples: int, seed: int, dim: int = DIM) -> Tensor:
    return F.normalize(torch.randn(samples, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def update(of: Any, kind: str, client: int, tables: dict[str, Tensor], samples: int = 10, **more: Any) -> Update:
    work = of.work(kind, 1)
    payloads = {"representations": {f"represented.{m}": table for m, table in tables.items()}}
    return Update(client, kind, {kind: samples}, work, payloads, {}, **more)


def filled(of: Any) -> ServerState:
    state = of.initial(1)
    return state.with_tensors({a: units(PAIRS, i) for i, a in enumerate(("table/public.image", "table/public.text"))})


# what all share -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(samples=st.integers(2, 30), rows=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_matches_in_chunks_are_the_dense_ones(samples: int, rows: int, seed: int) -> None:
    table, other = units(samples, seed, 4), units(samples, seed + 1, 4)
    found = best_match(table, other, rows=rows)
    for k in range(samples):
        scores = [float(table[k].double() @ other[j].double()) for j in range(samples)]
        assert scores[int(found[k])] == pytest.approx(max(scores), abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(factors=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_what_a_weight_factor_takes_from_a_client_stays_as_it_was(factors: list[float], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tables, old = [torch.randn(5, 3, generator=draw) for _ in factors], torch.randn(5, 3, generator=draw)
    shares = torch.rand(len(factors), 5, generator=draw).softmax(0)
    work = Work("image", {}, (), ())
    sent = [(Update(i, "image", {}, work, {}, {}, weight_factor=d), tables[i]) for i, d in enumerate(factors)]
    expected = old.clone()
    for share, factor, table in zip(shares, factors, tables, strict=True):
        expected += factor * share[:, None] * (table - old)
    torch.testing.assert_close(mix_tables(sent, shares, old), expected, rtol=1e-4, atol=1e-5)


def test_without_weight_factors_a_mixture_is_the_weighted_sum() -> None:
    tables, shares = [units(5, 0), units(5, 1)], torch.rand(2, 5)
    work = Work("image", {}, (), ())
    sent = [(Update(i, "image", {}, work, {}, {}), table) for i, table in enumerate(tables)]
    assert_equal_tensors(mix_tables(sent, shares, units(5, 2)), weighted_sum(tables, shares))


def test_a_sample_counts_by_its_share_of_each_target() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(described(("image",)))
    index = torch.tensor([4, 0, 9])
    batch = {"image": torch.rand(3, 1, 16, 16), "index": index}
    share = torch.tensor([0.0] * 9 + [1.0])
    received = {"a.image": units(10, 1), "b.image": units(10, 2), "b-share.image": share}
    args = {"modalities": ["image"], "targets": {"a": 2.0, "b": 3.0}, "distance": "norm"}
    pass_ = Pass("distill", "public", ("image-text",), 3, True, args)
    ctx = Context(Work("image", {}, (), (pass_,)), model, Toy(), CPU, received)
    own = ctx.client_model.embed("image", batch["image"])
    expected = torch.zeros(())
    for row, k in enumerate(index):
        expected += 2 * (own[row] - received["a.image"][k]).norm() / 3
        expected += 3 * share[k] * (own[row] - received["b.image"][k]).norm() / 3
    torch.testing.assert_close(Distill().loss(ctx, batch, "image-text", pass_), expected)


@pytest.mark.parametrize("name", ADAPTED)
def test_a_digest_brings_clients_nearer_to_what_was_sent(tiny: Tiny, name: str) -> None:
    setup = compose(load(scenario(tiny, name, distance="norm")))
    client = int(setup.of_kind("image")[0])
    work = setup.method.work("image", 1)
    assert [p.step for p in work.passes] == ["distill", "classify", "represent"]
    digest, _, represent = work.passes
    state, source, module = setup.method.initial(1), setup.clients.client(client), models.build(work.model)
    inputs = {**state.inputs(work), "target.image": units(1, 3).expand(PAIRS, DIM)}

    def distance(passes: Sequence[Pass]) -> float:
        faster = replace(work, passes=tuple(passes), optimizer={**work.optimizer, "lr": 0.01})
        result = run(faster, inputs, source, module=module, device=CPU, seed=1)
        table = result.payloads["representations"]["represented.image"]
        return float((table - inputs["target.image"]).norm(dim=1).mean())

    assert distance([digest] * 3 + [represent]) < 0.9 * distance([represent])


@pytest.mark.parametrize("name", ADAPTED)
def test_own_tables_alone_travel_and_models_stay(method: Any, name: str) -> None:
    made, table = method(name), 4 * PAIRS * DIM
    for kind, count in (("image", 1), ("text", 1), ("image-text", 2)):
        work = made.work(kind, 1)
        assert work.keep == tuple(i.name for i in work.down[0].items)
        assert [(p.name, p.tensor_bytes) for p in work.down[1:]] == [("representations", count * table)]
        assert [(p.name, p.tensor_bytes) for p in work.up] == [("representations", count * table)]
    alone = method(name, digest=0).work("image", 1)
    assert len(alone.down) == 1 and [p.step for p in alone.passes] == ["classify", "represent"]


# each method --------------------------------------------------------------------------------------------------------


def test_reamfl_is_creamfl_without_contrast_and_gca(method: Any) -> None:
    for name, rule in (("reamfl-mean", "mean"), ("reamfl-avg", "average"), ("reamfl-iot", "iot")):
        made, same = method(name), method("creamfl", contrast=0, aggregation=rule)
        for kind in ("image", "image-text"):
            assert made.work(kind, 2) == same.work(kind, 2)
        sent = {"image": {"image": units(PAIRS, 1)}, "image-text": {"image": units(PAIRS, 2), "text": units(PAIRS, 3)}}
        of = [
            [update(m, kind, i, tables, 10 + 20 * i) for i, (kind, tables) in enumerate(sent.items())]
            for m in (made, same)
        ]
        one, other = made.aggregate(filled(made), of[0]), same.aggregate(filled(same), of[1])
        tables, same_tables = (
            {a: t for a, t in state.tensors.items() if a.startswith("table/")} for state in (one, other)
        )
        assert_equal_tensors(tables, same_tables)


def test_fedmds_consensus_is_the_mean_and_stays_where_nobody_spoke(method: Any) -> None:
    fedmd = method("fedmd")
    state = fedmd.initial(1).with_tensors({"table/consensus.text": units(PAIRS, 9)})
    tables = [units(PAIRS, i) for i in range(3)]
    after = fedmd.aggregate(state, [update(fedmd, "image", i, {"image": t}, 1 + i) for i, t in enumerate(tables)])
    torch.testing.assert_close(after.tensors["table/consensus.image"], torch.stack(tables).mean(0))
    assert after.tensors["table/consensus.text"] is state.tensors["table/consensus.text"]
    (work,) = fedmd.after(after, 1)
    assert [(p.step, p.args["modalities"]) for p in work.passes] == [("distill", ["image"])]
    assert fedmd.after(fedmd.aggregate(after, []), 2) == ()


def test_fedmds_first_consensus_is_the_servers(method: Any) -> None:
    fedmd = method("fedmd")
    first, second = fedmd.before(fedmd.initial(1), 1)[0], fedmd.before(fedmd.initial(1), 2)[0]
    assert [p.step for p in first.passes] == ["contrast", "represent"]
    assert [i.source for i in first.up[-1].items] == ["table/consensus.image", "table/consensus.text"]
    assert [p.step for p in second.passes] == ["contrast"] and len(second.up) == 1
    assert method("fedmd", server_epochs=0).before(fedmd.initial(1), 2) == ()


def test_fedets_consensus_and_diversity_by_hand(method: Any) -> None:
    fedet = method("fedet")
    state = filled(fedet)
    seen = state.tensors["table/public.text"]
    # the first two mostly find their pairs, the third another's
    tables = [F.normalize(seen + 0.3 * units(PAIRS, 5), dim=1), F.normalize(seen + 0.3 * units(PAIRS, 6), dim=1)]
    tables.append(F.normalize(seen.roll(1, 0) + 2 * units(PAIRS, 7) + 0.5, dim=1))
    after = fedet.aggregate(state, [update(fedet, "image", i, {"image": t}) for i, t in enumerate(tables)])
    disputed = 0
    for k in range(PAIRS):
        variance = [sum(float(x - t[k].mean()) ** 2 for x in t[k]) / DIM for t in tables]
        weights = [v / sum(variance) for v in variance]
        consensus = sum(w * t[k] for w, t in zip(weights, tables, strict=True))
        torch.testing.assert_close(after.tensors["table/target.image"][k], consensus, rtol=1e-4, atol=1e-5)
        agreed = int((seen @ consensus).argmax())
        apart = [c for c, t in enumerate(tables) if int((seen @ t[k]).argmax()) != agreed]
        assert float(after.tensors["table/diverse-share.image"][k]) == bool(apart)
        if apart:
            disputed += 1
            whole = sum(weights[c] for c in apart)
            diverse = sum(weights[c] / whole * tables[c][k] for c in apart)
            torch.testing.assert_close(after.tensors["table/diverse.image"][k], diverse, rtol=1e-4, atol=1e-5)
    assert disputed > 0
    (work,) = fedet.after(after, 1)
    assert work.passes[0].args["targets"] == {"target": 0.3, "diverse": pytest.approx(0.015)}
    assert method("fedet", diversity=0).after(after, 1)[0].passes[0].args["targets"] == {"target": 0.3}


@settings(deadline=None, max_examples=25)
@given(clients=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_confidences_sum_to_one_and_grow_with_variance(clients: int, seed: int) -> None:
    tables = [units(6, seed + i) * (1 + i) for i in range(clients)]
    found = confidences(tables)
    torch.testing.assert_close(found.sum(0), torch.ones(6))
    # of unit vectors it is 1 / dim less the squared mean
    flat = confidences([units(6, seed), units(6, seed + 1)])
    raw = torch.stack([1 / DIM - units(6, s).mean(1).square() for s in (seed, seed + 1)])
    torch.testing.assert_close(flat, raw / raw.sum(0), rtol=1e-4, atol=1e-6)


def test_fedgems_splits_by_what_the_server_has_right(method: Any) -> None:
    fedgems = method("fedgems")
    text = units(PAIRS, 1)
    image = torch.cat([text[: PAIRS // 2], text[PAIRS // 2 :].roll(1, 0)])  # the second half finds another's pair
    kept = units(PAIRS, 2)
    state = fedgems.initial(1).with_tensors(
        {"table/public.image": image, "table/public.text": text, "table/memory.image": kept}
    )
    tables = [units(PAIRS, 5), units(PAIRS, 6)]
    after = fedgems.aggregate(state, [update(fedgems, "image", i, {"image": t}) for i, t in enumerate(tables)]).tensors
    right = torch.tensor([1.0] * (PAIRS // 2) + [0.0] * (PAIRS - PAIRS // 2))
    assert_equal_tensors(after["table/memory-share.image"], right)
    assert_equal_tensors(after["table/ensemble-share.image"], 1 - right)
    assert_equal_tensors(after["table/ensemble-share.text"], torch.zeros(PAIRS))  # nobody spoke of texts
    assert_equal_tensors(after["table/memory.image"], torch.where(right[:, None] > 0, image, kept))
    for k in range(PAIRS):
        spread = []
        for table in tables:
            odds = (table[k] - table[k].max()).exp()
            odds = odds / odds.sum()
            spread.append(-sum(float(o) * float(o.log()) for o in odds))
        weights = torch.tensor([-s for s in spread]).softmax(0)
        expected = sum(w * t[k] for w, t in zip(weights, tables, strict=True))
        torch.testing.assert_close(after["table/ensemble.image"][k], expected, rtol=1e-4, atol=1e-5)


def test_entropy_is_largest_where_nothing_stands_out() -> None:
    table = torch.stack([torch.zeros(8), torch.tensor([50.0] + [0.0] * 7)])
    torch.testing.assert_close(entropy(table), torch.tensor([8.0, 1.0]).log(), atol=1e-4, rtol=0)


# the server's own training -------------------------------------------------------------------------------------------

OWN = {
    "optimizer": "adamp",
    "lr": 0.02,
    "lr_schedule": "cosine",
    "weight_decay": 0.1,
    "betas": [0.8, 0.98],
    "clip": 0.5,
}
SGD = {"batch": 8, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.5, "rates": {"image": 0.3}}


@pytest.mark.parametrize("name", ["creamfl", "fedmd"])
def test_the_server_trains_as_a_hand_written_loop(tiny: Tiny, name: str) -> None:
    """CLIP's loss of the public pairs by timm's AdamP, clipped, at the second of two rounds of a cosine."""
    import_torchvision()
    from timm.optim.adamp import AdamP

    given = scenario(tiny, name, server_training=OWN, distillation=0, clients={"image": 1, "text": 1})
    setup = compose(load({**given, "training": SGD}))
    work = setup.method.before(setup.method.initial(1), 2)[0]
    state, source, seed = setup.method.initial(1), setup.clients.server(), 7
    inputs = state.inputs(work)
    sent = run(work, inputs, source, module=models.build(work.model), device=CPU, seed=seed).payloads["model"]
    module: Any = models.build(work.model).train()
    module.load_state_dict({n: v.clone() for n, v in inputs.items()})
    trained = list(module.parameters())
    optimizer = AdamP(trained, lr=0.02 / 2, betas=(0.8, 0.98), weight_decay=0.1)
    steps = 0
    for _, batch in source.batches(work.passes[0], seeds.key(seed, "shuffle", 0, 0)):
        image, text = (F.normalize(module.feature(m, batch[m]), dim=1) for m in ("image", "text"))
        logits = image @ text.T / 0.07
        own = torch.arange(len(logits))
        optimizer.zero_grad()
        ((F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2).backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        steps += 1
    assert steps == 3
    for parameter, value in module.state_dict().items():
        ours = sent[parameter]
        if parameter.endswith("qkv.bias"):  # a key's bias changes no attention: its gradient is rounding
            ours, value = (torch.cat([t[:DIM], t[2 * DIM :]]) for t in (ours, value))
        torch.testing.assert_close(ours, value, atol=1e-5, rtol=1e-4)


def test_what_the_server_has_not_of_its_own_is_as_in_training(tiny: Tiny) -> None:
    def server(training: Any, **options: Any) -> Work:
        given = {**declared(scenario(tiny, "creamfl", public=PAIRS, **options)), "training": training}
        found = compose(load(given)).method
        (work,) = found.before(found.initial(1), 1)
        return work

    plain = server(SGD)
    assert plain.scalars == {"lr": 0.1, "rates": {"image": {"lr": 0.3}}, "weight_decay": 0.5, "momentum": 0.9}
    assert server(SGD, server_training={}) == plain
    own = server({**SGD, "clip": 2.0}, server_training={"lr": 0.2, "precision": "bfloat16"})
    assert own.scalars == {"lr": 0.2, "weight_decay": 0.5, "momentum": 0.9} and own.optimizer["clip"] == 2.0
    assert own.precision == "bfloat16"
    assert "clip" not in server({**SGD, "clip": 2.0}, server_training={"clip": False}).optimizer
    steps = server({"optimizer": "mezo", "epsilon": 0.01}, server_training={"optimizer": "adam"})
    assert steps.optimizer["name"] == "adam"


def test_costs_of_the_server_follow_its_training(tiny: Tiny) -> None:
    def costs(**options: Any) -> tuple[Any, Any]:
        found = edgefl.profile({**declared(scenario(tiny, "creamfl", public=PAIRS, **options)), "training": SGD})
        (row,) = [row for row in found["server_rows"] if row["when"] == "before"]
        return row["peak_memory_bytes"], [row["peak_memory_bytes"] for row in found["rows"]]

    (sgd, clients), (adam, others) = costs(), costs(server_training={"optimizer": "adamp"})
    assert adam > sgd and clients == others


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"optimizer": "adampp"}, r"server_training\.optimizer: unknown optimizer 'adampp'; did you mean 'adamp'"),
        ({"lr": 0}, r"method\.server_training\.lr: must be greater than 0"),
        ({"batch": 3}, r"method\.server_training\.batch: unknown"),
        ({"precision": "float16", "optimizer": "adamp"}, r"method\.server_training: optimizer adamp has no step in"),
        ({"lr_schedule": {"name": "step", "every": 9}}, r"server_training: lr_schedule\.every: a step after 9 rounds"),
        ({"optimizer": "mezo"}, r"server_training: optimizer mezo has no gradients .* leave out weight_decay, mom"),
    ],
    ids=str,
)
def test_training_of_the_server_that_makes_no_sense_is_said(tiny: Tiny, own: Any, message: str) -> None:
    given = declared(scenario(tiny, "creamfl", public=PAIRS, server_training=own))
    with pytest.raises(EdgeflError, match=message) as error:
        compose(load({**given, "training": {**SGD, "rates": {}}}))
    assert error.value.exit_code == 2


# what can't be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public": 0}, "needs at least 24 public image-text samples, but the data have 0: increase data.public"),
        ({"clients": {"image": 2}}, "between two modalities; the clients have image"),
        (
            {"model": {"image": {"blocks": 1, "width": 32}, "text": {"width": 16, "tokens": 12}}},
            "needs model.dimension",
        ),
    ],
)
def test_what_makes_no_sense_is_said(tiny: Tiny, name: str, change: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        compose(load(declared(scenario(tiny, name, **{"public": PAIRS, **change}))))
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", NAMES)
def test_there_is_nothing_to_aggregate_where_models_stay(tiny: Tiny, name: str) -> None:
    given = {**declared(scenario(tiny, name, public=PAIRS)), "aggregation": {"rule": "median"}}
    with pytest.raises(EdgeflError, match=f"{name} has no models to average") as error:
        compose(load(given))
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reamfl-mean", {"contrast": 0.5}, "contrast: 0.5 is not allowed, as reamfl-mean fixes it at 0: use creamfl"),
        ("reamfl-avg", {"aggregation": "gca"}, "aggregation: gca is not allowed, as reamfl-avg fixes it at average"),
        ("reamfl-iot", {"steps": "joint"}, "steps: joint is not allowed, as reamfl-iot fixes it"),
        ("fedmd", {"aggregation": "gca"}, "aggregation"),
        ("fedet", {"diversity": -1}, "diversity"),
        ("fedgems", {"server": "federated"}, "server"),
    ],
)
def test_an_option_that_contradicts_the_name_is_refused(tiny: Tiny, name: str, options: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        load(scenario(tiny, name, **options))
    assert error.value.exit_code == 2


def test_what_is_written_out_whole_can_be_read_again(tiny: Tiny) -> None:
    resolved = load(scenario(tiny, "reamfl-iot")).to_data()
    assert load(resolved).method_options.aggregation == "iot"


# runs ---------------------------------------------------------------------------------------------------------------

SMALL = {"blocks": 1, "width": 16, "heads": 2}
LARGE = {"blocks": 2, "width": 32, "heads": 2}


@pytest.mark.slow(smaller="test_a_digest_brings_clients_nearer_to_what_was_sent")
@pytest.mark.parametrize("name", ["creamfl", "fedmd", "fedet", "fedgems"])
def test_a_larger_server_learns_from_small_clients(tiny: Tiny, tmp_path: Path, name: str) -> None:
    model = {"image": SMALL, "text": {**SMALL, "width": 24, "tokens": 12}, "dimension": 8, "dimension_for": "all"}
    server = {"image": LARGE, "text": {**LARGE, "tokens": 12}, "dimension": 8}
    clients = {"image": 1, "text": 1}
    given = scenario(tiny, name, clients=clients, model=model)
    given["method"]["model"] = server
    found = edgefl.run(given, out=tmp_path / "run")
    rounds, rows = found.records("rounds"), found.records("clients")
    assert [r["outcome"] for r in rounds] == ["completed"] * 2
    measured = [c for c in rows if c["memory_error"] is not None]
    measured += [w for r in rounds for w in r["server_works"] if w["memory_error"] is not None]
    assert len(measured) >= 4 and all(
        abs(m["measured_peak_memory_bytes"] - m["peak_memory_bytes"]) <= 4096 for m in measured
    )
    # only tables travel: 24 pairs of 8 dimensions
    assert {c["upload_bytes_by_payload"].get("representations") for c in rows} == {4 * PAIRS * 8}
    assert not any(c["upload_bytes_by_payload"].get("model") for c in rows)
    assert found.weights()["server/image.blocks.1.attn.qkv.weight"].shape == (96, 32)
    assert "r@1" in found.result["metrics"]["image"]


@pytest.mark.slow(smaller="test_own_tables_alone_travel_and_models_stay")
@pytest.mark.parametrize("name", ["fedgems", "fedmd", "fedet"])
def test_without_training_the_same_is_priced(tiny: Tiny, tmp_path: Path, name: str) -> None:
    given = scenario(tiny, name, clients={"image-text": 1})
    plain = {**given, "training": {**given["training"], "mode": "none"}}
    found = edgefl.run(plain, out=tmp_path / "none")
    rounds = found.records("rounds")
    assert [[w["when"] for w in r["server_works"] if w["when"] in ("before", "after")] for r in rounds] == [
        ["before", "after"]
    ] * 2
    assert len(edgefl.profile(given)["server_rows"]) >= 3


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("creamfl", {"steps": "joint", "pcme": {"kl": 0}}),
        ("creamfl", {"server": "federated", "pcme": {"samples": 2}}),
        ("creamfl", {"steps": "joint", "old": "table", "server": "federated", "public_batch": 10}),
        ("fedmd", {"digest": 0, "server_epochs": 0}),
        ("fedmd", {"distance": "norm", "server_epochs": 2, "server_training": {"lr": 0.01}}),
        ("fedet", {"diversity": 0}),
        ("fedgems", {"distillation": 0}),
    ],
)
def test_every_form_keeps_the_contract(name: str, options: Any) -> None:
    report = check_part("method", name, runs=False, schedules=["end-to-end", "layerwise"], pairs=30, **options)
    assert report.ok, str(report)
