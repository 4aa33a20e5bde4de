"""A step in the backward pass: the ordinary step's weights to the bit, gradients that don't live on, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import models, registry
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError, MethodError
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.schedules import Layerwise
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline
from edgefl.work import Context, Pass, Work, execute
from edgefl.work.steps import ClassifyStep

Tiny = Callable[..., dict[str, Any]]
TEXTS = {"source": "names", "clients": {"text": 2}, "samples": 24, "validation": 20, "test": 20, "vocabulary": 100,
         "tasks": {"text": "next-token"}}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}  # fmt: skip


@pytest.fixture
def registered() -> Iterator[None]:
    yield
    PARTS.clear()
    registry.forget()


def optimizer(name: str = "adamw", implementation: str = "fused", **more: Any) -> dict[str, Any]:
    return {"name": name, "lr": 1e-2, "implementation": implementation, **more}


def in_backward(work: Work) -> Work:
    return replace(work, optimizer={**work.optimizer, "step_in_backward": True})


def weights(work: Work) -> dict[str, Tensor]:
    result = do(work)
    assert result.updates == 10
    return dict(result.payloads["model"])


def second_stage() -> Work:
    return Layerwise(Layerwise.Options(stages=2, rounds=2), {"image": 2}).stages[1].restrict_work(make_work())


WORKS = {
    "adamw": lambda: make_work(optimizer=optimizer()),
    "adamw, foreach": lambda: make_work(optimizer=optimizer(implementation="foreach", weight_decay=0.1)),
    "adam, for-loop": lambda: make_work(optimizer=optimizer("adam", "for-loop", weight_decay=0.1)),
    "sgd": lambda: make_work(optimizer=optimizer("sgd")),
    "momentum, foreach": lambda: make_work(optimizer=optimizer("sgd", "foreach", momentum=0.9)),
    "momentum, fused": lambda: make_work(optimizer=optimizer("sgd", momentum=0.9, weight_decay=0.1)),
    "rates by part": lambda: make_work(
        optimizer=optimizer(rates={"blocks": {"lr": 1e-3}, "head": {"lr": 0.1, "weight_decay": 0.2}})
    ),
    "checkpointing": lambda: make_work(model=described(checkpointing=True)),
    "autocast": lambda: make_work(precision="bfloat16"),
    "gates": lambda: make_work(gate="trainable"),
    "a pair": lambda: make_work(("image", "text")),
    "proximal": lambda: make_work(passes=(training_pass(proximal=0.1),) * 2, reference=True),
    "a frozen half": second_stage,
}


@pytest.mark.parametrize("case", WORKS)
def test_the_weights_are_those_of_the_ordinary_step(case: str) -> None:
    work = WORKS[case]()
    ordinary, alone = weights(work), weights(in_backward(work))
    assert ordinary.keys() == alone.keys()
    for name, value in ordinary.items():
        assert_equal_tensors(alone[name], value)
    start = inputs_of(work)
    assert any(not torch.equal(value, start[name]) for name, value in ordinary.items())


LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "tied words": {},
    "tied words, recomputed blocks": {"training": {"checkpointing": True}},
    "bfloat16": {"text": {"dtype": "bfloat16"}},
    "lora beside bfloat16": {"text": {"dtype": "bfloat16"}, "adapter": {"name": "lora", "rank": 2}},
    "ditto": {"method": "ditto"},  # whose own model begins with a new state of the optimizer
}


@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_a_client_trains_a_language_model_as_by_the_ordinary_step(tiny: Tiny, case: str) -> None:
    given = dict(LANGUAGE_MODELS[case])
    text = {"tower": "hf-causal", "config": LLAMA, "tokens": 8, **given.pop("text", {})}
    training = {"batch": 8, **given.pop("training", {})}
    ordinary, alone = (
        sent(tiny(data=TEXTS, model={"text": text}, training={**training, "step_in_backward": alone}, **given))
        for alone in (False, True)
    )
    assert ordinary.keys() == alone.keys() != set()
    for name, value in ordinary.items():
        assert_equal_tensors(alone[name], value)


def sent(scenario: dict[str, Any]) -> dict[str, Tensor]:
    """What a client sends after its first round, and what it keeps."""
    setup = compose(load(scenario))
    work = setup.method.client_work("text", 1).limit_batches(setup.clients.client(0).size)
    tensors = setup.method.initial(setup.seed).tensors
    inputs = {i.name: tensors[i.source] for p in work.down for i in p.items if i.source in tensors}
    result = Inline(setup.clients, "cpu").submit(Assignment(work.form, work.scalars, inputs, 0, 1)).result()
    assert result.updates
    return {**{n: value for payload in result.payloads.values() for n, value in payload.items()}, **result.kept}


def test_a_shared_parameter_steps_once_when_its_gradient_is_whole() -> None:
    """By hand: w of two uses, of which one is recomputed in the backward pass, moves by -lr (dL1/dw + dL2/dw)."""
    work = in_backward(make_work(optimizer=optimizer("sgd"), passes=(training_pass(),)))
    module = models.build(work.model)
    inputs = inputs_of(work)
    ((_, batch),) = list(Toy(8).batches(work.passes[0], 0))
    twice: Any = models.build(work.model)
    twice.load_state_dict(inputs)
    twice.image.blocks[1] = twice.image.blocks[0]
    F.cross_entropy(twice.logits("image", batch["image"]), batch["label"]).backward()
    shared: Any = module
    shared.image.blocks[1] = shared.image.blocks[0]
    names = [name for name, _ in shared.named_parameters()]
    work = replace(work, trainable=tuple(names), up=())
    execute(work, inputs, Whole(batch), module=module, device=CPU, seed=0)
    for (name, value), moved in zip(twice.named_parameters(), module.parameters(), strict=True):
        assert value.grad is not None and value.grad.any(), name
        torch.testing.assert_close(moved, value - 1e-2 * value.grad, rtol=0, atol=1e-8)


class Whole(Toy):
    """The one batch that is given."""

    def __init__(self, batch: Mapping[str, Tensor]):
        super().__init__(8)
        object.__setattr__(self, "batch", batch)

    def batches(self, pass_: Pass, seed: int) -> Any:
        yield "image", dict(self.batch)  # type: ignore[attr-defined]


def test_no_gradient_lives_on() -> None:
    """At most the largest gradient is there at a time, and none after a step."""
    model = described(blocks=4, width=64)
    work = make_work(model=model, optimizer=optimizer("sgd"), passes=(training_pass(batch=1),) * 2)
    largest = max(4 * p.numel() for p in models.build(model).parameters())
    total = sum(4 * p.numel() for p in models.build(model).parameters())
    ordinary, alone = predict(work, Toy()), predict(in_backward(work), Toy())
    assert ordinary.memory_bytes["gradients"] > total / 2
    assert alone.memory_bytes["gradients"] <= largest
    saved = ordinary.peak_memory_bytes - alone.peak_memory_bytes
    assert saved > total / 2
    module = models.build(model)
    execute(in_backward(work), inputs_of(work), Toy(), module=module, device=CPU, seed=0)
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in module.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"accumulation": 2}, r"step_in_backward frees .* and accumulation needs all of them"),
        ({"clip": 1.0}, r"and clip needs all of them"),
        ({"precision": "float16"}, r"and precision: float16 needs all of them"),
        ({"clip": 1.0, "accumulation": 2}, r"and accumulation and clip need all of them"),
        ({"optimizer": "mezo"}, r"mezo has no gradients .* leave out step_in_backward"),
    ],
    ids=["accumulation", "clip", "float16", "two", "mezo"],
)
def test_what_needs_all_gradients_is_refused(tiny: Tiny, training: dict[str, Any], says: str) -> None:
    with pytest.raises(EdgeflError, match=says):
        load(tiny(training={**training, "step_in_backward": True}))


def test_an_optimizer_that_may_look_at_several_parameters_is_refused(tiny: Tiny, registered: None) -> None:
    edgefl.register("optimizer", "nadam")(torch.optim.NAdam)
    load(tiny(training={"optimizer": "nadam"}))
    with pytest.raises(EdgeflError, match="one parameter at a time, but optimizer nadam may look at several"):
        load(tiny(training={"optimizer": "nadam", "step_in_backward": True}))


def test_a_step_that_changes_gradients_is_refused(tiny: Tiny) -> None:
    scenario = tiny(method="scaffold", training={"optimizer": "sgd", "step_in_backward": True})
    with pytest.raises(
        EdgeflError, match=r"leaves no gradients, which the step 'control' .*set training\.step_in_back"
    ):
        edgefl.profile(scenario)


class Detached(ClassifyStep):
    """Reads a parameter's value past its gradient, after the parameter has moved."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Any:
        head: Any = ctx.client_model.get_submodule("image.head")
        x = ctx.client_model.feature(pattern, batch[pattern])
        x = nn.functional.linear(x, head.weight.detach()[:, :16]).sum() + x
        return F.cross_entropy(head(x), batch["label"])


@pytest.mark.parametrize("runs", [predict, do], ids=["predicted", "trained"])
def test_a_value_that_is_read_after_its_step_is_an_error(registered: None, runs: Any) -> None:
    edgefl.register("step", "detached")(Detached)
    work = make_work(passes=(replace(training_pass(), step="detached"),), optimizer=optimizer("sgd"))
    runs(work, Toy())
    with pytest.raises(MethodError, match=r"set training\.step_in_backward: false"):
        runs(in_backward(work), Toy())
