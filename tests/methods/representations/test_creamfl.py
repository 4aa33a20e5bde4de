"""CreamFL's parts against closed forms; its rounds, with the server's own model and with the clients' average."""

from __future__ import annotations

from collections.abc import Callable
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
from edgefl import models
from edgefl.errors import EdgeflError, MethodError
from edgefl.methods import ServerState, Update
from edgefl.methods.representations.creamfl import gca_scores
from edgefl.methods.representations.representation_method import weighted_sum
from edgefl.methods.representations.steps import ContrastPublic, Distill, Joint, embed_as_before, inter_loss, intra_loss
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.testing import check_part
from edgefl.work import Context, Pass, Work
from edgefl.work.paired_batches import companion
from edgefl.work.steps import Contrast

PAIRS, DIM = 24, 16

Tiny = Callable[..., dict[str, Any]]


def scenario(
    tiny: Tiny, kinds: dict[str, int] | None = None, *, public: int = 6, tasks: Any = None, **method: Any
) -> dict[str, Any]:
    given = tiny(method={"name": "creamfl", "pairs": PAIRS, **method})
    clients = kinds or {"image": 2, "text": 2, "image-text": 2}
    data = {**given["data"], "clients": clients, "public": public, "size": 16, "samples": 24, "tasks": tasks or {}}
    return {**given, "data": data}


def units(samples: int, seed: int, dim: int = DIM) -> Tensor:
    return F.normalize(torch.randn(samples, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture(scope="module")
def method(tiny: Tiny) -> Callable[..., Any]:
    def make(kinds: dict[str, int] | None = None, **options: Any) -> Any:
        return compose(load(declared(scenario(tiny, kinds, public=PAIRS, **options)))).method

    return make


# aggregation --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(samples=st.integers(2, 40), rows=st.integers(1, 50), seed=st.integers(0, 2**31))
def test_scores_in_chunks_are_the_dense_ones(samples: int, rows: int, seed: int) -> None:
    table, other = units(samples, seed), units(samples, seed + 1)
    logits = table.double() @ other.double().T
    masked = logits.masked_fill(torch.eye(samples, dtype=torch.bool), -torch.inf)
    dense = logits.diagonal() - masked.exp().sum(1).log()
    found = gca_scores(table, other, rows=rows)
    torch.testing.assert_close(found.double(), dense, rtol=1e-4, atol=1e-5)


def update(creamfl: Any, kind: str, client: int, seed: int, samples: int = 10) -> Update:
    own = creamfl.setting.kinds[kind].modalities
    tables = {f"represented.{m}": units(PAIRS, seed + len(m)) for m in own}
    work = creamfl.work(kind, 1)
    payloads = {p.name: tables for p in work.up if p.name == "representations"}
    model = [p for p in work.up if p.name == "model"]
    payloads |= {p.name: {i.name: torch.zeros(i.shape) for i in p.items} for p in model}
    return Update(client, kind, {kind: samples}, work, payloads, {})


def filled(creamfl: Any) -> ServerState:
    state = creamfl.initial(1)
    return state.with_tensors({f"table/public.{m}": units(PAIRS, i) for i, m in enumerate(("image", "text"))})


def test_gca_gives_each_sample_to_whoever_finds_its_pair(method: Any) -> None:
    creamfl = method()
    state = filled(creamfl)
    sent = [update(creamfl, "image", 0, 10), update(creamfl, "image-text", 1, 20)]
    after = creamfl.aggregate(state, sent)
    seen = state.tensors["table/public.text"].double()
    tables = [u.payloads["representations"]["represented.image"].double() for u in sent]
    expected = torch.zeros(PAIRS, DIM, dtype=torch.float64)
    for k in range(PAIRS):
        scores = []
        for table in tables:
            others = [torch.dot(table[k], seen[j]).exp() for j in range(PAIRS) if j != k]
            scores.append(torch.dot(table[k], seen[k]) - torch.stack(others).sum().log())
        alpha = torch.stack(scores).softmax(0)
        expected[k] = sum(a * table[k] for a, table in zip(alpha, tables, strict=True))
    torch.testing.assert_close(after.tensors["table/target.image"].double(), expected, rtol=1e-4, atol=1e-6)
    # the only text representations are the second client's
    torch.testing.assert_close(
        after.tensors["table/target.text"], sent[1].payloads["representations"]["represented.text"]
    )


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [("mean", (1 / 2, 1 / 2)), ("average", (30 / 40, 10 / 40)), ("iot", (30 / 1030, 1000 / 1030))],
)
def test_other_aggregations_are_weighted_means(method: Any, aggregation: str, shares: tuple[float, float]) -> None:
    creamfl = method(aggregation=aggregation)
    sent = [update(creamfl, "image", 0, 10, 30), update(creamfl, "image-text", 1, 20, 10)]
    after = creamfl.aggregate(filled(creamfl), sent)
    expected = sum(
        share * u.payloads["representations"]["represented.image"] for share, u in zip(shares, sent, strict=True)
    )
    torch.testing.assert_close(after.tensors["table/target.image"], expected)


@pytest.mark.parametrize("aggregation", ["gca", "mean", "average", "iot"])
def test_clients_that_agree_are_taken_at_their_word(method: Any, aggregation: str) -> None:
    creamfl = method(aggregation=aggregation)
    sent = [update(creamfl, "text", i, 5, 10 + i) for i in range(3)]
    after = creamfl.aggregate(filled(creamfl), sent)
    torch.testing.assert_close(
        after.tensors["table/target.text"], sent[0].payloads["representations"]["represented.text"]
    )


def test_a_modality_that_nobody_sent_is_not_distilled(method: Any) -> None:
    creamfl = method()
    state = filled(creamfl)
    image = creamfl.aggregate(state, [update(creamfl, "image", 0, 10)])
    (work,) = creamfl.after(image, 1)
    assert [p.args["modalities"] for p in work.passes] == [["image"]]
    assert [i.source for i in work.down[-1].items] == ["table/target.image"]
    assert image.tensors["table/target.text"] is state.tensors["table/target.text"]
    both = creamfl.aggregate(image, [update(creamfl, "image-text", 0, 10)])
    assert creamfl.after(both, 2)[0].passes[0].args["modalities"] == ["image", "text"]
    assert creamfl.after(creamfl.aggregate(both, []), 3) == ()


def test_weighed_is_a_sum_over_clients() -> None:
    tables = [units(5, 0), units(5, 1)]
    shares = torch.rand(2, 5)
    torch.testing.assert_close(weighted_sum(tables, shares), torch.einsum("cs,csd->sd", shares, torch.stack(tables)))


# steps --------------------------------------------------------------------------------------------------------------


def test_the_two_contrasts_have_their_closed_forms() -> None:
    own, table, near, before = units(6, 0), units(20, 1), units(6, 2), units(6, 3)
    index = torch.tensor([3, 0, 19, 7, 7, 2])
    inter = [-torch.log(torch.exp(own[b] @ table[k] / 0.5) / torch.exp(table @ own[b] / 0.5).sum())
             for b, k in enumerate(index)]  # fmt: skip
    torch.testing.assert_close(inter_loss(own, table, index, 0.5), torch.stack(inter).mean())
    p, q = torch.exp((own * near).sum(1) / 0.5), torch.exp((own * before).sum(1) / 0.5)
    torch.testing.assert_close(intra_loss(own, near, before, 0.5), -torch.log(p / (p + q)))


def context(args: dict[str, Any], **tables: Tensor) -> tuple[Context, Pass]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(described(("image", "text")))
    pass_ = Pass("any", "public", ("image-text",), 6, True, args)
    named = {name.replace("_", "."): table for name, table in tables.items()}
    whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    reference = {n: t.detach().clone() for n, t in whole.items()}
    work = Work("any", {}, (), (pass_,))
    return Context(work, model, Toy(), CPU, named, reference), pass_


def batch() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    return {
        "image": torch.rand(6, 1, 16, 16, generator=draw),
        "text": torch.randint(0, 40, (6, 6), generator=draw),
        "index": torch.tensor([5, 1, 0, 9, 3, 2]),
    }


def test_a_client_with_pairs_adds_up_both_directions() -> None:
    args = {"modalities": ["image", "text"], "others": ["text", "image"], "inter": True, "intra": True,
            "temperature": 0.5, "weight": 0.25, "rescale": False}  # fmt: skip
    ctx, pass_ = context(args, public_image=units(10, 1), public_text=units(10, 2))
    given = batch()
    loss = ContrastPublic().loss(ctx, given, "image-text", pass_)
    image, text = (ctx.client_model.embed(m, given[m]) for m in ("image", "text"))
    inter = inter_loss(image, ctx.received["public.text"], given["index"], 0.5) + inter_loss(
        text, ctx.received["public.image"], given["index"], 0.5
    )
    # at first a client is as it was
    intra = torch.cat(
        [intra_loss(own, ctx.received[f"public.{m}"][given["index"]], own.detach(), 0.5)
         for m, own in (("image", image), ("text", text))]
    ).mean()  # fmt: skip
    torch.testing.assert_close(loss, 0.25 * (inter + intra))
    rescaled = ContrastPublic().loss(ctx, given, "image-text", replace(pass_, args={**args, "rescale": True}))
    torch.testing.assert_close(rescaled, 0.25 * 2 * intra)


def test_distillation_is_a_distance_to_the_targets() -> None:
    ctx, pass_ = context(
        {"modalities": ["text"], "targets": {"target": 2.0}, "distance": "mse"}, target_text=units(10, 1)
    )
    given = batch()
    apart = ctx.client_model.embed("text", given["text"]) - ctx.received["target.text"][given["index"]]
    torch.testing.assert_close(Distill().loss(ctx, given, "image-text", pass_), 2 * apart.square().mean())
    far = replace(pass_, args={**pass_.args, "distance": "norm"})
    torch.testing.assert_close(Distill().loss(ctx, given, "image-text", far), 2 * apart.norm(dim=1).mean())


def test_the_frozen_copy_stays_as_it_was_batch_norm_included() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        rep = {"dimension": 8, "hidden": [12], "batch_norm": True, "dropout": 0.5}
        description = described(("image",))
        description = {**description, "towers": {"image": {**description["towers"]["image"], "rep": rep}}}
        model = models.build(description)
        given = torch.rand(6, 1, 16, 16)
        first = model.eval().embed("image", given)
        whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        ctx = Context(
            Work("image", {}, (), ()), model, Toy(), CPU, {}, {n: t.detach().clone() for n, t in whole.items()}
        )
        model.train()
        for _ in range(3):
            model.embed("image", 5 * torch.rand(6, 1, 16, 16))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        moved = {n: t.clone() for n, t in model.named_buffers()}
        assert_equal_tensors(embed_as_before(ctx, "image", given), first)
    assert model.training and not torch.allclose(model.eval().embed("image", given), first)
    assert_equal_tensors(dict(model.named_buffers()), moved)


# works --------------------------------------------------------------------------------------------------------------


def test_private_models_stay_and_tables_travel(method: Any) -> None:
    creamfl = method()
    table = 4 * PAIRS * DIM
    for kind, up in (("image", 1), ("text", 1), ("image-text", 2)):
        work = creamfl.work(kind, 1)
        assert work.keep == tuple(i.name for i in work.down[0].items)
        assert [(p.name, p.tensor_bytes) for p in work.down[1:]] == [("representations", 2 * table)]
        assert [(p.name, p.tensor_bytes) for p in work.up] == [("representations", up * table)]
    assert {i.source.split("/")[0] for w in creamfl.before(creamfl.initial(1), 1) for i in w.down[0].items} == {
        "server"
    }


def test_the_average_travels_and_pairs_only_train_where_the_server_has_no_data(method: Any) -> None:
    creamfl = method(server="federated")
    assert [p.name for p in creamfl.work("image-text", 1).up] == ["model"]
    assert [p.step for p in creamfl.work("image-text", 1).passes] == ["contrast"]
    assert [p.name for p in creamfl.work("image", 1).up] == ["model", "representations"]
    (before,), (after,) = creamfl.before(creamfl.initial(1), 1), creamfl.after(creamfl.initial(1), 1)
    assert (before.kind, before.trainable, [p.step for p in before.passes]) == ("image-text", (), ["represent"])
    assert [p.step for p in after.passes] == ["distill"]
    assert {i.source.split("/")[0] for i in after.up[0].items} == {"image-text"}


@pytest.mark.parametrize(
    ("options", "tables", "steps"),
    [
        ({"inter": False}, ["public.image"], ["classify", "contrast-public", "represent"]),
        ({"intra": False}, ["public.text"], ["classify", "contrast-public", "represent"]),
        ({"contrast": 0}, [], ["classify", "represent"]),
        ({"old": "table"}, ["public.image", "public.text"], ["represent", "classify", "contrast-public", "represent"]),
    ],
)
def test_what_a_client_does_not_use_does_not_travel(method: Any, options: Any, tables: Any, steps: Any) -> None:
    work = method(**options).work("image", 1)
    assert [i.name for p in work.down[1:] for i in p.items] == tables
    assert [p.step for p in work.passes] == steps
    assert work.reference == (options.get("old") != "table" and options.get("intra", True) and bool(tables))


def test_the_server_may_train_last(method: Any) -> None:
    first, last = method(server_epochs=2), method(order="server-last")
    state = first.initial(1)
    assert [p.step for p in first.before(state, 1)[0].passes] == ["contrast", "contrast", "represent"]
    assert [p.step for p in first.after(state, 1)[0].passes] == ["distill"]
    assert [p.step for p in last.before(state, 1)[0].passes] == ["represent"]
    assert [p.step for p in last.after(state, 1)[0].passes] == ["contrast", "distill"]


def test_joint_steps_add_the_contrast_of_public_samples_to_the_private_loss(method: Any) -> None:
    separate, joint = method().work("image-text", 1), method(steps="joint").work("image-text", 1)
    assert [p.step for p in joint.passes] == ["joint", "represent"]
    assert (joint.down, joint.up, joint.keep, joint.reference) == (
        separate.down, separate.up, separate.keep, separate.reference
    )  # fmt: skip
    assert companion(joint.passes[0]) == separate.passes[1]
    assert Work.decode(joint.encode()) == joint
    ctx, _ = context({}, public_image=units(10, 1), public_text=units(10, 2))
    given, other = batch(), {name: value.roll(1, 0) for name, value in batch().items()}
    both = {**given, **{f"beside.{name}": value for name, value in other.items()}}
    alone = Contrast().loss(ctx, given, "image-text", separate.passes[0])
    contrast = ContrastPublic().loss(ctx, other, "image-text", separate.passes[1])
    torch.testing.assert_close(Joint().loss(ctx, both, "image-text", joint.passes[0]), alone + contrast)


def test_probabilistic_embeddings_are_of_clients_with_pairs_alone(method: Any) -> None:
    creamfl = method(pcme={"samples": 3})
    pairs, image = creamfl.work("image-text", 1), creamfl.work("image", 1)
    assert [p.step for p in pairs.passes] == ["contrast-probabilistic", "contrast-public", "represent"]
    assert pairs.passes[0].args == {"samples": 3, "kl": 1e-5}
    assert [p.step for p in image.passes] == ["classify", "contrast-public", "represent"]
    assert "joint.head.scale" in pairs.keep and pairs.model["name"] == "probabilistic"
    assert image.model["name"] == creamfl.before(creamfl.initial(1), 1)[0].model["name"] == "towers"
    again = type(creamfl)(creamfl.options, creamfl.setting)
    assert again.work("image-text", 1) == pairs


def test_each_epoch_is_followed_by_one_on_public_samples(tiny: Tiny) -> None:
    given = scenario(tiny)
    work = compose(load({**given, "training": {"batch": 8, "epochs": 3}})).method.work("image", 1)
    assert [p.step for p in work.passes] == ["classify", "contrast-public"] * 3 + ["represent"]


def test_a_table_of_old_representations_says_what_the_frozen_copy_says() -> None:
    args = {"modalities": ["text"], "others": ["image"], "inter": False, "intra": True,
            "temperature": 0.5, "weight": 1.0, "rescale": False}  # fmt: skip
    ctx, pass_ = context(args, public_text=units(10, 2))
    given = batch()
    ctx.output("before.text", (10, DIM))[given["index"]] = ctx.client_model.embed("text", given["text"]).detach()
    with torch.no_grad():
        for parameter in ctx.model.parameters():
            parameter.add_(0.1)
    by_table = ContrastPublic().loss(ctx, given, "image-text", pass_)
    ctx.outputs.clear()
    torch.testing.assert_close(by_table, ContrastPublic().loss(ctx, given, "image-text", pass_))


# what can't be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public": 0}, r"needs at least 24 public image-text samples, but the data have 0: increase data.public"),
        ({"kinds": {"image": 2, "text": 2}, "server": "federated"}, "there are none: add data.clients.image-text"),
        ({"kinds": {"image": 2}}, "between two modalities; the clients have image"),
        (
            {"model": {"image": {"width": 32}, "text": {"width": 32, "tokens": 12}}},
            "have 16 dimensions, but the server's have 32",
        ),
        ({"model": {"image": {}, "text": {"tokens": 9}}}, "reads 9 tokens, but public texts have the clients' 12"),
        ({"server": "federated", "clients": "private"}, "clients can't be private"),
        ({"server": "federated", "order": "server-last"}, "order applies to server: own only"),
        ({"aggregation": "gcc"}, "gca"),
        ({"kinds": {"image": 2, "text": 2}, "pcme": {}}, "pcme is the loss of clients with pairs, and there are none"),
        ({"tasks": {"image-text": "classify"}, "pcme": {}}, "of retrieval by two towers; image-text clients classify"),
        ({"pcme": {"samples": 0}}, "samples"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_trains(tiny: Tiny, change: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        compose(load(declared(scenario(tiny, **{"public": PAIRS, **change}))))
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value) or not isinstance(error.value, MethodError)


# runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_private_models_stay_and_tables_travel")
@pytest.mark.parametrize("server", ["own", "federated"])
def test_it_trains_and_costs_what_was_predicted(tiny: Tiny, tmp_path: Path, server: str) -> None:
    given = scenario(tiny, {"image": 1, "text": 1, "image-text": 1}, server=server)
    found = edgefl.run(given, out=tmp_path / "run")
    rounds, clients = found.records("rounds"), found.records("clients")
    assert [r["outcome"] for r in rounds] == ["completed"] * 2
    assert {w["when"] for w in rounds[0]["server_works"]} == {"before", "after"}
    measured = [c for c in clients if c["memory_error"] is not None]
    measured += [w for r in rounds for w in r["server_works"] if w["memory_error"] is not None]
    assert len(measured) >= 5 and all(
        abs(m["measured_peak_memory_bytes"] - m["peak_memory_bytes"]) <= 4096 for m in measured
    )
    table = 4 * PAIRS * DIM
    for c in clients:
        both = c["kind"] == "image-text"
        moved = {k: c["download_bytes_by_payload"].get(k, 0) for k in ("model", "representations")}
        assert moved["representations"] == (0 if both and server == "federated" else 2 * table)
        assert bool(moved["model"]) == (server == "federated")
    weights = found.weights()
    for modality in ("image", "text"):
        for name in ("public", "target"):
            assert weights[f"table/{name}.{modality}"].norm(dim=1).max() <= 1 + 1e-5
        assert weights[f"table/public.{modality}"].norm(dim=1) == pytest.approx(1, abs=1e-5)
    assert "r@1" in found.result["metrics"]["image-text"]
    evaluations = [w for w in rounds[-1]["server_works"] if w["when"].startswith("evaluate")]
    # the server's own model stands for every kind, and is scored once
    assert len(evaluations) == (1 if server == "own" else 3)
    assert set(found.result["metrics"]) == {"image", "text", "image-text"}


def test_the_servers_own_model_is_evaluated_for_whichever_kind_is_asked_for(tiny: Tiny) -> None:
    given = scenario(tiny, {"image": 1, "text": 1, "image-text": 1}, server="own")
    rows = edgefl.profile(given, kind="text", stage=1)["server_rows"]
    assert sum(row["when"].startswith("evaluate") for row in rows) == 1


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize(
    "options",
    [
        {"server": "federated"},
        {"server": "federated", "old": "table", "distance": "norm"},
        {"clients": "averaged", "order": "server-last", "aggregation": "iot", "rescale": True},
        {"clients": "averaged", "public_batch": 10},
        {"contrast": 0, "aggregation": "mean", "distillation": 0},
        {
            "model": {
                "image": {"blocks": 1, "width": 16, "heads": 2},
                "text": {"blocks": 3, "width": 16, "heads": 2, "tokens": 8},
                "dimension": 12,
            }
        },
    ],
)
def test_every_form_keeps_the_contract(options: Any) -> None:
    report = check_part("method", "creamfl", runs=False, schedules=["end-to-end", "layerwise"], pairs=30, **options)
    assert report.ok, str(report)
