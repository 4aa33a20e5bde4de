"""PmcmFL's parts against closed forms; its library of prototypes; its rounds, trained and predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy, declared
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl import models
from edgefl.errors import EdgeflError, MethodError
from edgefl.methods import Kind, ServerState, Setting, Update
from edgefl.methods.prototypes.losses import TABLES, ClassifyCompleted, ClassMeans, answer_loss, prototype_contrast
from edgefl.methods.prototypes.pmcmfl import PmcmFL
from edgefl.models.multiway import MultiwayOptions, describe_multiway
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.testing import check_part
from edgefl.training import Assignment, Node
from edgefl.work import Context, Pass, Work
from edgefl.work.optimizer.learning_rates import parameter_groups
from edgefl.work.training_options import TrainingOptions

KINDS, CLASSES, DIM = ("image", "text", "image-text"), 5, 16
SMALL = {"blocks": 2, "width": DIM, "heads": 2, "patch": 4, "tokens": 6, "positions": 10, "drop_path": 0.0}
EQUAL_BY_NAME = [f"table/prototypes.{t}" for t in TABLES]

Tiny = Callable[..., dict[str, Any]]


def kinds(names: tuple[str, ...] = KINDS, task: str = "classify", facts: Any = FACTS) -> dict[str, Kind]:
    found = {}
    for name in names:
        modalities = tuple(name.split("-"))
        model = describe_multiway(MultiwayOptions(**SMALL), modalities, task, facts)
        found[name] = Kind(name, modalities, task, model)
    return found


def method(names: tuple[str, ...] = KINDS, **options: Any) -> PmcmFL:
    return PmcmFL(PmcmFL.Options(**options), Setting(kinds(names), TrainingOptions(batch=8, epochs=2)))


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# steps --------------------------------------------------------------------------------------------------------------


def test_the_losses_have_their_closed_forms() -> None:
    scores, label = draw(4, CLASSES, seed=1), torch.tensor([3, 0, 3, 1])
    p = scores.sigmoid()
    one = [-p[b, y].log() - sum((1 - p[b, c]).log() for c in range(CLASSES) if c != y) for b, y in enumerate(label)]
    torch.testing.assert_close(answer_loss(scores, label), torch.stack(one).mean())
    fused, near = draw(4, DIM, seed=2), draw(4, DIM, seed=3)
    e = torch.exp(fused.double() @ near.double().T / 7)
    expected = -(e.diagonal() / e.sum(1)).log().mean()
    torch.testing.assert_close(prototype_contrast(fused.double(), near.double(), 7.0), expected)


def context(of: Mapping[str, Tensor] | None = None) -> Context:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(kinds()["image-text"].model).eval()
    tables = {f"prototypes.{t}": draw(CLASSES, DIM, seed=i) for i, t in enumerate(TABLES)} if of is None else dict(of)
    return Context(Work("any", {}, (), ()), model, Toy(), CPU, tables)


BATCH = {
    "image": draw(4, 1, 16, 16, seed=5),
    "text": torch.arange(24).view(4, 6),
    "label": torch.tensor([3, 0, 3, 1]),
}


def loss(ctx: Context, pattern: str, **args: Any) -> Tensor:
    args = {"mask": "prototype", "contrast": 0.0, "temperature": 0.07, **args}
    pass_ = Pass("classify-completed", "private", (pattern,), 4, True, args)
    return ClassifyCompleted().loss(ctx, {n: BATCH[n] for n in (*pattern.split("-"), "label")}, pattern, pass_)


@pytest.mark.parametrize("missing", ["image", "text", None])
def test_a_prototype_of_the_class_stands_for_what_is_missing(missing: str | None) -> None:
    ctx = context()
    for table in ctx.received.values():
        table.requires_grad_()
    model: Any = ctx.model
    there = {m: BATCH[m] for m in ("image", "text") if m != missing}
    pattern, label = "-".join(there), BATCH["label"]
    h = model.features(there)
    h |= {missing: ctx.received[f"prototypes.{missing}"][label]} if missing else {}
    fused = model.fuse(h["image"], h["text"])
    task = answer_loss(model.scores(fused), label)
    torch.testing.assert_close(loss(ctx, pattern), task)
    contrast = prototype_contrast(fused, ctx.received["prototypes.fused"][label], 0.07)
    torch.testing.assert_close(loss(ctx, pattern, contrast=0.5), task + 0.5 * contrast)
    if missing:
        zero = answer_loss(model.logits(pattern, BATCH[pattern]), label)
        torch.testing.assert_close(loss(ctx, pattern, mask="zero"), zero)
        torch.manual_seed(0)
        one, other = (loss(ctx, pattern, mask="random") for _ in range(2))
        torch.manual_seed(0)
        assert loss(ctx, pattern, mask="random") == one != other


@pytest.mark.parametrize("absent", ["zero", "received"])
@pytest.mark.parametrize("of", [TABLES, ("image",), ()])
def test_a_client_sends_the_mean_features_of_its_classes(of: tuple[str, ...], absent: str) -> None:
    ctx, step = context(), ClassMeans()
    pattern = "image-text" if len(of) > 1 else "image"
    args = {"tables": list(TABLES), "of": list(of), "made": list(of), "first": True, "last": True}
    pass_ = Pass("class-means", "private", (pattern,), 3, False, {**args, "absent": absent, "mask": "zero"})
    named = (*pattern.split("-"), "label")
    whole = {n: torch.cat([BATCH[n], BATCH[n][:2]]) for n in named}
    whole["label"][4:] = -1  # the last batch is filled up
    with torch.no_grad():
        step.start(ctx, pass_)
        for first in (0, 3):
            step.loss(ctx, {n: whole[n][first : first + 3] for n in named}, pattern, pass_)
        step.finish(ctx, pass_)
        h = ctx.model.features({m: BATCH[m] for m in pattern.split("-")})  # type: ignore[operator]
        if "fused" in of:
            h["fused"] = ctx.model.fuse(h["image"], h["text"])  # type: ignore[operator]
    for table in TABLES:
        received = ctx.received[f"prototypes.{table}"]
        expected = received.clone() if absent == "received" else torch.zeros(CLASSES, DIM)
        if table in of:
            for c in (0, 1, 3):
                expected[c] = h[table][BATCH["label"] == c].mean(0)
        torch.testing.assert_close(ctx.outputs[f"prototypes.{table}"], expected)


# the server's half ----------------------------------------------------------------------------------------------------


def update(
    pmcmfl: PmcmFL, kind: str, client: int, samples: int, has: list[bool], seed: int = 0, factor: float = 1.0
) -> Update:
    """A client whose rows of classes that it lacks are zero."""
    work = pmcmfl.work(kind, 2)
    tables = {f"prototypes.{t}": draw(CLASSES, DIM, seed=seed + i) * torch.tensor(has)[:, None]
              for i, t in enumerate(TABLES)}  # fmt: skip
    base = {i.source: torch.zeros(i.shape) for p in work.down for i in p.items}
    sent = {i.name: torch.full(i.shape, float(client)) for i in work.up[0].items}
    return Update(
        client, kind, {kind: samples}, work, {"model": sent, "prototypes": tables}, base, weight_factor=factor
    )


CLIENT = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 50), st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES)
)
PLAIN = method()
FIRST = PLAIN.initial(1)


@settings(deadline=None, max_examples=30)
@given(clients=st.lists(CLIENT, min_size=1, max_size=5), absent=st.sampled_from(["left-out", "zero"]))
def test_a_prototype_is_the_mean_of_those_who_have_the_class(clients: Any, absent: str) -> None:
    pmcmfl = method(absent=absent)
    sent = [update(pmcmfl, kind, i, n, has, 10 * i) for i, (kind, n, has) in enumerate(clients)]
    for table in TABLES:
        new, old = pmcmfl.rows(FIRST, sent, table), FIRST.tensors[f"table/prototypes.{table}"]
        for c in range(CLASSES):
            with_it = [u for u, (_, _, has) in zip(sent, clients, strict=True) if has[c]]
            if not with_it:  # absent classes leave prototypes untouched
                assert_equal_tensors(new[c], old[c])
                continue
            votes = {u.client: pmcmfl.weight(u, table) for u in (with_it if absent == "left-out" else sent)}
            expected = sum(
                votes[u.client] / sum(votes.values()) * u.payloads["prototypes"][f"prototypes.{table}"][c].double()
                for u in with_it
            )
            torch.testing.assert_close(new[c].double(), expected, rtol=1e-5, atol=1e-5)


def test_weights_are_one_and_the_samples_that_a_table_is_of() -> None:
    has = [True] * CLASSES
    for kind, expected in (("image", (31, 1, 1)), ("text", (1, 31, 1)), ("image-text", (31, 31, 31))):
        assert tuple(PLAIN.weight(update(PLAIN, kind, 0, 30, has), t) for t in TABLES) == expected


def test_a_weight_factor_keeps_its_share_of_the_old_row() -> None:
    sent = update(PLAIN, "image-text", 0, 3, [True] * CLASSES, factor=0.25)
    new, old = PLAIN.rows(FIRST, [sent], "fused"), FIRST.tensors["table/prototypes.fused"]
    torch.testing.assert_close(new, 0.25 * sent.payloads["prototypes"]["prototypes.fused"] + 0.75 * old)


def test_initial_state_depends_on_the_seed_alone() -> None:
    first, second, other = (PLAIN.initial(seed).tensors for seed in (1, 1, 2))
    assert_equal_tensors(first, second)
    assert not all(torch.equal(first[a], other[a]) for a in first)


def test_every_kind_has_the_one_model() -> None:
    """FedAvg over all clients: 10 image samples at 1, 30 of pairs at 3."""
    sent = [update(PLAIN, "image", 1, 10, [False] * CLASSES), update(PLAIN, "image-text", 3, 30, [True] * CLASSES)]
    zero = ServerState.from_tensors({a: t if a.startswith("table/") else 0 * t for a, t in FIRST.tensors.items()})
    state = PLAIN.aggregate(zero, sent)
    assert all((state.tensors[a] == 2.5).all() for a in state.tensors if not a.startswith("table/"))
    assert set(state.versions.values()) == {1}
    names = [a.split("/")[1] for a in FIRST.tensors if a.startswith("text/")]
    text, image = ({n: FIRST.tensors[f"{kind}/{n}"] for n in names} for kind in ("text", "image"))
    assert len(names) > 50
    assert_equal_tensors(text, image)


def test_the_library_before_anybody_made_one() -> None:
    state = method().initial(3)
    tables = torch.stack([state.tensors[a] for a in EQUAL_BY_NAME])
    assert tables.shape == (3, CLASSES, DIM)
    assert tables.any(2).all()


# works --------------------------------------------------------------------------------------------------------------


def test_the_model_and_the_library_travel_both_ways_to_everybody() -> None:
    table = 4 * CLASSES * DIM
    for kind in KINDS:
        work = PLAIN.work(kind, 1)
        for side in (work.down, work.up):
            assert [p.name for p in side] == ["model", "prototypes"]
            assert side[1].tensor_bytes == 3 * table
        assert [p.step for p in work.passes] == ["classify-completed"] * 2 + ["class-means"]
        assert work.passes[2].args["of"] == (list(TABLES) if kind == "image-text" else [])
        assert method(prototypes_of="all").work(kind, 1).passes[2].args["of"][:1] == [kind.split("-")[0]]
        assert (work.passes[0].args["contrast"], PLAIN.work(kind, 2).passes[0].args["contrast"]) == (0, 0.01)
    masked = method(mask="random", contrast=0)
    assert [[p.name for p in side] for side in (masked.work("image", 2).down, masked.work("image", 2).up)] == [
        ["model"], ["model"]
    ]  # fmt: skip
    assert not [a for a in masked.initial(1).tensors if a.startswith("table/")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"image": {"width": 16}, "text": {"width": 16}}}, "needs the multiway model"),
        ({"tasks": {}}, r"image-text clients retrieve: set data.tasks: \{image-text: classify\}"),
        ({"mask": "ignore"}, "ignore leaves out samples that lack a modality, which are all that image clients have"),
        ({"mask": "prototypes"}, "prototype"),
        ({"absent": "skip"}, "left-out"),
        ({"payload": {"up": {"top_k": "10%"}}}, "'prototypes.image', which is not an update of a downloaded"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_trains(tiny: Tiny, change: Any, message: str) -> None:
    with pytest.raises(EdgeflError, match=message) as error:
        compose(load(declared(scenario(tiny, **change))))
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def test_without_pairs_somebody_else_makes_the_prototypes() -> None:
    with pytest.raises(MethodError, match="there are none: set contrast: 0"):
        method(("image", "text"))
    with pytest.raises(MethodError, match="there are none: set prototypes_of: all, or use none"):
        method(("image",), contrast=0)
    assert method(("image",), contrast=0, mask="zero").options.library is False
    assert method(("image", "text"), contrast=0, prototypes_of="all").options.library


def test_kinds_that_differ_in_classes_are_refused() -> None:
    facts = {**FACTS, "text": {**FACTS["text"], "classes": 4}}
    setting = Setting({**kinds(("image",)), **kinds(("text",), facts=facts)}, TrainingOptions(batch=8))
    with pytest.raises(MethodError, match="image 5, text 4"):
        PmcmFL(PmcmFL.Options(contrast=0, prototypes_of="all"), setting)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        PmcmFL.Options(contrast=-1)


# samples that lack a modality, inside a client ------------------------------------------------------------------------

LACKING = ("image-text", "image", "text")


def lacking(**options: Any) -> PmcmFL:
    """A method whose one kind of client has samples with both modalities, with images and with texts."""
    kind = replace(kinds(("image-text",))["image-text"], patterns=LACKING)
    return PmcmFL(PmcmFL.Options(**options), Setting({"image-text": kind}, TrainingOptions(batch=8, epochs=2)))


def test_an_epoch_has_pairs_first_and_prototypes_are_of_pairs() -> None:
    work = lacking().work("image-text", 2)
    assert [(p.step, p.patterns) for p in work.passes] == [
        *[("classify-completed", (pattern,)) for pattern in LACKING] * 2, ("class-means", ("image-text",))
    ]  # fmt: skip
    looks = [p for p in lacking(prototypes_of="all").work("image-text", 2).passes if p.step == "class-means"]
    assert [(p.patterns[0], p.args["of"]) for p in looks] == [
        ("image-text", list(TABLES)), ("image", ["image"]), ("text", ["text"])
    ]  # fmt: skip
    ignored = lacking(mask="ignore", contrast=0).work("image-text", 2)
    assert [p.patterns for p in ignored.passes] == [("image-text",)] * 2
    sent = replace(
        update(PLAIN, "image-text", 0, 30, [True] * CLASSES), samples={"image-text": 30, "image": 5, "text": 7}
    )
    assert [PLAIN.weight(sent, table) for table in TABLES] == [36, 38, 31]


def test_soft_answers_are_asked_for() -> None:
    work = lacking(answers="scores", prototypes_of="all").work("image-text", 2)
    for p in work.passes:
        assert p.args["fields"] == [*p.patterns[0].split("-"), "label", "target"]
    evaluation = lacking(answers="scores").evaluate("image-text", "test")
    assert all("target" in p.args["fields"] for p in evaluation.passes)
    scores, label, worth = draw(4, CLASSES, seed=1), torch.tensor([3, 0, 3, 1]), draw(4, CLASSES, seed=2).sigmoid()
    p = scores.sigmoid()
    expected = -(worth * p.log() + (1 - worth) * (1 - p).log()).sum(1).mean()
    torch.testing.assert_close(answer_loss(scores, label, worth), expected)
    hard = torch.nn.functional.one_hot(label, CLASSES).float()
    torch.testing.assert_close(answer_loss(scores, label, hard), answer_loss(scores, label))


def test_what_other_methods_add_can_be_added_here() -> None:
    both = lacking(alignment=1.0, distillation=0.05)
    args = both.work("image-text", 2).passes[0].args
    assert (args["alignment"], args["predictions"], args["representations"], args["softening"]) == (1, 0.05, 0.05, 0.5)
    assert {i.name for i in both.work("image-text", 1).up[1].items} == {
        f"prototypes.{t}" for t in (*TABLES, "predicted")
    }


# matching -------------------------------------------------------------------------------------------------------------


def matching(names: tuple[str, ...] = KINDS, **options: Any) -> PmcmFL:
    return method(names, **{"inference": "classifier", "matching": {"round": 3, "epochs": 4}, **options})


def test_matching_models_are_all_that_the_last_round_trains_and_sends() -> None:
    pmcmfl = matching()
    assert pmcmfl.work("image-text", 2) == PLAIN.work("image-text", 2)
    work = pmcmfl.work("image-text", 3)
    size = (DIM + 1) * DIM + (DIM + 1) * 2 * DIM + (2 * DIM + 1) * CLASSES
    assert [(p.name, p.tensor_bytes) for p in work.up] == [("matching", 4 * 2 * size)]
    assert [p.name for p in work.down] == ["model", "prototypes", "matching"]
    assert set(work.trainable) == {i.name for i in work.up[0].items}
    assert [p.step for p in work.passes] == ["features"] * 2 + ["match"] * 8
    assert [p.patterns for p in work.passes[:2]] == [("image-text",)] * 2
    alone = pmcmfl.work("image", 3)
    assert {i.name.split(".")[1] for i in alone.up[0].items} == {"image"}
    prior = matching(inference="prior", matching={"round": 3, "clip_epochs": 2, "mse_epochs": 5}).work("image", 3)
    assert [p.args.get("loss") for p in prior.passes] == [None, *["clip"] * 2, *["distance"] * 5]
    assert prior.up[0].items[-1].shape == (DIM,)


def test_rates_of_the_models_parts_arent_those_of_matching_models() -> None:
    training = TrainingOptions.model_validate({"batch": 8, "lr": 1e-3, "rates": {"image": 1e-7}})
    for lr, expected in ((None, 1e-3), (1e-2, 1e-2)):
        pmcmfl = matching(matching={"round": 3, "lr": lr})
        work = PmcmFL(pmcmfl.options, replace(pmcmfl.setting, training=training)).work("image", 3)
        assert {own["lr"] for own, _ in parameter_groups(work.scalars, work.trainable)} == {expected}


def test_epochs_of_matching_models_are_no_local_epochs() -> None:
    """Hundreds of them would leave no rate."""
    decaying = TrainingOptions.model_validate({"batch": 8, "lr_decay": 0.9, "lr_decay_per": "epoch"})
    pmcmfl = PmcmFL(matching().options, replace(matching().setting, training=decaying))
    assert [pmcmfl.work("image", round).scalars.get("epoch_decay") for round in (2, 3)] == [0.9, None]


def matched(pmcmfl: PmcmFL, client: int, samples: int, value: float, factor: float = 1.0) -> Update:
    work = pmcmfl.work("image", 3)
    sent = {i.name: torch.full(i.shape, value) for i in work.up[0].items}
    return Update(client, "image", {"image": samples}, work, {"matching": sent}, {}, weight_factor=factor)


def test_clients_matching_models_are_combined_by_samples() -> None:
    name = "matching.image.0.weight"
    for combine, expected in (("fedavg", 2.5), ("max-data", 3.0)):
        pmcmfl = matching(combine=combine)
        state = pmcmfl.initial(1)
        sent = [matched(pmcmfl, 1, 10, 1.0), matched(pmcmfl, 2, 30, 3.0)]
        new = pmcmfl.aggregate(state, sent)
        torch.testing.assert_close(new.tensors[f"table/{name}"], torch.full((DIM, DIM), expected))
        assert new.tensors["table/matched.image"].tolist() == [1] and not new.tensors["table/matched.text"].any()
        unmoved = "image/multiway.blocks.0.attn.q.image.weight"
        assert_equal_tensors(new.tensors[unmoved], state.tensors[unmoved])
    pmcmfl = matching(combine="ensemble", members=2)
    sent = [matched(pmcmfl, 1, 10, 1.0), matched(pmcmfl, 2, 30, 3.0), matched(pmcmfl, 3, 20, 2.0)]
    new = pmcmfl.aggregate(pmcmfl.initial(1), sent)
    assert new.tensors[f"table/ensemble.{name}"].mean((1, 2)).tolist() == [3, 2]  # the two with the most samples
    assert new.tensors["table/matched.image"].tolist() == [30, 20]
    assert_equal_tensors(new.tensors[f"table/{name}"], pmcmfl.initial(1).tensors[f"table/{name}"])


def test_an_evaluation_looks_at_pairs_in_three_ways() -> None:
    work = method(inference="l2", mix=3).evaluate("image-text", "validation")
    assert [(p.patterns[0], p.args.get("apart", False)) for p in work.passes] == [
        ("image-text", False), ("image", True), ("text", True)
    ]  # fmt: skip
    assert all(p.args["inference"] == "l2" and p.args["mix"] == 3 for p in work.passes)
    assert [p.name for p in work.down] == ["model", "prototypes"]
    assert [p.patterns for p in method().evaluate("image", "validation").passes] == [("image",)]
    asked = matching(combine="ensemble", members=3).evaluate("image", "validation").down[2]
    shapes = {i.name: (i.shape, i.source) for i in asked.items}
    assert shapes["matching.image.0.bias"] == ((3, DIM), "table/ensemble.matching.image.0.bias")
    assert shapes["matched.image"] == ((3,), "table/matched.image") and len(shapes) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inference": "classifier"}, r"set matching: \{round: N\}, with N usually the schedule's last round"),
        ({"inference": "l1", "matching": {"round": 3}}, "inference l1 needs no matching model: remove matching"),
        (
            {"inference": "oracle", "mix": 5},
            "mix: 5 mixes the classes that match best, but inference oracle matches none",
        ),
        ({"inference": "prior", "matching": {"rounds": 3}}, "rounds"),
    ],
)
def test_matching_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PmcmFL.Options(**options)


# runs ---------------------------------------------------------------------------------------------------------------


def scenario(
    tiny: Tiny, *, tasks: Any = None, model: Any = None, payload: Any = None, **options: Any
) -> dict[str, Any]:
    given = tiny(method={"name": "pmcmfl", **options})
    data = {
        **given["data"],
        "clients": {"image": 1, "image-text": 1},
        "partition": "iid",
        "tasks": {"image-text": "classify"} if tasks is None else tasks,
        "size": 16,
        "samples": 24,
    }
    multiway = {"multiway": {"blocks": 1, "width": 16, "heads": 2, "patch": 8, "tokens": 12}}
    return {**given, "data": data, "model": model or multiway, **({"payload": payload} if payload else {})}


@pytest.mark.slow(smaller="test_the_model_and_the_library_travel_both_ways_to_everybody")
def test_it_trains_and_costs_what_was_predicted(tiny: Tiny, tmp_path: Path) -> None:
    training = {"batch": 8, "lr": 3e-3}
    found = edgefl.run({**scenario(tiny), "training": training}, out=tmp_path / "run")
    rounds, clients = found.records("rounds"), found.records("clients")
    assert [r["outcome"] for r in rounds] == ["completed"] * 2
    assert all(rounds[1]["losses"][kind] < rounds[0]["losses"][kind] for kind in ("image", "image-text"))
    measured = [c["memory_error"] for c in clients if c["memory_error"] is not None]
    assert len(measured) == 4 and set(measured) == {0}  # the contrast makes round 2 a cost of its own
    weights = found.weights()
    of = {a: t for a, t in weights.items() if a.startswith("image/")}
    assert_equal_tensors({a: weights[a.replace("image/", "image-text/", 1)] for a in of}, of)
    model: Any = found.model("image-text")
    fused = weights["table/prototypes.fused"]
    assert fused.shape == (model.classes("image-text"), 16)
    # a class that pairs had is a mean of tanh, any other is as it was drawn
    first = compose(load(scenario(tiny))).method.initial(tiny()["seed"]).tensors["table/prototypes.fused"]
    changed = (fused != first).any(1)
    assert changed.any() and fused[changed].abs().max() < 1
    assert_equal_tensors(fused[~changed], first[~changed])
    assert {"accuracy", "macro_f1"} <= set(found.result["metrics"]["image-text"])


@pytest.mark.slow(smaller="test_a_prototype_of_the_class_stands_for_what_is_missing")
def test_it_learns(tiny: Tiny, tmp_path: Path) -> None:
    """Twelve rounds of all three kinds: pairs are told apart better than by chance, one in twelve."""
    given = {**scenario(tiny), "schedule": {"name": "end-to-end", "rounds": 12}}
    given["data"] = {**given["data"], "clients": {"image": 2, "text": 2, "image-text": 2}}
    given["training"] = {"batch": 8, "epochs": 3, "lr": 3e-3}
    found = edgefl.run(given, out=tmp_path / "run")
    assert found.result["metrics"]["image-text"]["accuracy"] > 0.2


CUT = ("elastic", "end-to-end", "layerwise", "progressive")
"""The schedules that can cut the multiway model."""


class Lacking(PmcmFL):
    """In a federation where samples lack modalities."""

    needs: ClassVar[Mapping[str, Any]] = {
        **PmcmFL.needs, "data": {"tasks": {"image-text": "classify"}, "missing": "40%", "samples": 60}
    }  # fmt: skip


class OnTowers(Lacking):
    """The same on a tower for each modality."""

    needs: ClassVar[Mapping[str, Any]] = {"data": Lacking.needs["data"]}


LAST = {"inference": "classifier", "matching": {"round": 1, "epochs": 2}}
PRIOR = {"inference": "prior", "matching": {"round": 1, "clip_epochs": 2, "mse_epochs": 3}}


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize(
    "options",
    [
        {"contrast": 5.0, "absent": "received"},
        {"prototypes_of": "all", "absent": "zero", "mask": "zero"},
        {"mask": "random", "contrast": 0.0},
        {"prototypes_of": "all", "contrast": 0.0, "kinds": ("image", "text")},
        {"inference": "l1", "mix": 3, "alignment": 1.0, "distillation": 0.1, "answers": "scores"},
        {**LAST, "combine": "max-data"},
        {**PRIOR, "combine": "ensemble", "members": 3, "mix": 2},
    ],
)
def test_every_form_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_part("method", "pmcmfl", runs=False, **{"processes": True, "schedules": CUT, **options})
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_a_prototype_of_the_class_stands_for_what_is_missing")
@pytest.mark.parametrize("kind", [Lacking, OnTowers])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": "ignore"},
        {"answers": "scores", "prototypes_of": "all", "distillation": 0.1, "inference": "cosine"},
        LAST,
    ],
)
def test_samples_that_lack_a_modality_keep_the_contract(kind: type[PmcmFL], options: dict[str, Any]) -> None:
    schedules = CUT if kind is Lacking else ("end-to-end", "layerwise")
    report = check_part("method", kind, runs=False, kinds=("image-text",), schedules=schedules, **options)
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_a_prototype_of_the_class_stands_for_what_is_missing")
def test_prototypes_help_where_a_modality_is_missing(tmp_path: Path) -> None:
    """One model, its texts completed in four ways: noise < what matches < the true class's prototype.

    Zeros are no worse than what matches: on another seed they are better than the nearest prototype.
    """
    given = {
        "name": "half-missing",
        "seed": 1,
        "data": {
            "source": "glyphs", "clients": {"image-text": 6}, "partition": "iid", "tasks": {"image-text": "classify"},
            "size": 16, "missing": "50%", "validation": 200, "test": 200, "samples": 300,
        },
        "model": {
            "multiway": {"blocks": 1, "width": 32, "heads": 4, "patch": 8, "tokens": 12, "drop_path": 0.0}
        },
        "schedule": {"name": "end-to-end", "rounds": 13},
        "training": {"batch": 16, "epochs": 2, "lr": 2e-3},
        "round": {"cohort": 1.0},
        "executor": {"name": "inline", "device": "cpu"},
        "evaluation": {"every": 50, "batch": 50},
        "method": {"name": "pmcmfl", "inference": "classifier", "matching": {"round": 13, "epochs": 60}},
    }  # fmt: skip
    found = edgefl.run(given, out=tmp_path / "run")
    setup, state = compose(load(given)), ServerState.from_tensors(found.weights())
    node = Node(setup.clients, CPU)
    accuracy = {}
    for inference in ("random", "l2", "classifier", "oracle"):
        options = {"matching": {"round": 13}} if inference == "classifier" else {}
        pmcmfl = PmcmFL(PmcmFL.Options(inference=inference, **options), setup.method.setting)
        work = pmcmfl.evaluate("image-text", "test")
        metrics = node.run_assignment(Assignment(work.form, work.scalars, state.inputs(work), None, 1)).metrics
        accuracy[inference] = metrics["accuracy[text]"]
    for matched in ("l2", "classifier"):
        assert accuracy["random"] < accuracy[matched] < accuracy["oracle"]
