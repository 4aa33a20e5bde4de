"""Tensors like parameters are cut, sent and sliced with them; wrappers see every update once; edits leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import do, inputs_of, make_work, training_pass
from torch import Tensor, nn

import edgefl
from edgefl import registry
from edgefl.errors import MethodError
from edgefl.registry.registered import PARTS
from edgefl.work import Context, Edit, Item, Pass, Payload, Wrapper

Tiny = Callable[..., dict[str, Any]]


def rows(tiny: Tiny, method: Any, schedule: dict[str, Any]) -> list[dict[str, Any]]:
    training = {"batch": 8, "optimizer": "sgd", "mode": "none"}
    result: list[dict[str, Any]] = edgefl.profile(tiny(method=method, schedule=schedule, training=training))["rows"]
    return result


@pytest.mark.parametrize("schedule", ["layerwise", "progressive", "heterofl"])
def test_scaffold_moves_twice_what_fedavg_moves_at_every_stage_and_width(tiny: Tiny, schedule: str) -> None:
    described = {"name": schedule, "rounds": 4, **({"stages": 2} if schedule != "heterofl" else {})}
    fedavg, scaffold = rows(tiny, "fedavg", described), rows(tiny, "scaffold", described)
    assert len({row["download_bytes"] for row in fedavg}) > 3
    for one, two in zip(fedavg, scaffold, strict=True):
        assert (two["stage"], two["kind"]) == (one["stage"], one["kind"])
        assert two["download_bytes"] == 2 * one["download_bytes"]
        assert two["upload_bytes"] == 2 * one["upload_bytes"]
        assert two["forward_flops"] == one["forward_flops"]


@pytest.mark.slow(smaller="test_wrong_personal_parts_are_refused")
def test_personal_parts_travel_neither_up_nor_down(tiny: Tiny) -> None:
    schedule = {"name": "end-to-end", "rounds": 1}
    whole, part = rows(tiny, "fedavg", schedule), rows(tiny, {"name": "fedprox", "personal": ["head"]}, schedule)
    for row, less in zip(whole, part, strict=True):
        towers = [] if row["kind"] == "image-text" else [row["kind"]]  # pairs are retrieved, without a head
        head = sum(16 * 12 + 12 for _ in towers) * 4  # weights and biases of 12 classes
        assert row["download_bytes"] - less["download_bytes"] == head
        assert row["upload_bytes"] - less["upload_bytes"] == head


@pytest.mark.parametrize(
    ("personal", "message"),
    [(["tail"], "no model has a part 'tail'; the parts are"), (["image", "text", "joint"], "nothing of the model")],
)
def test_wrong_personal_parts_are_refused(tiny: Tiny, personal: list[str], message: str) -> None:
    with pytest.raises(edgefl.errors.ScenarioError, match=message):
        edgefl.profile(tiny(method={"name": "fedavg", "personal": personal}, training={"mode": "none"}))


# --- wrappers and edits ----------------------------------------------------------------------------------------------


class Zeroing(Wrapper):
    """Sets every gradient to zero, and counts the updates that it sees."""

    def gradient(self, ctx: Context, pass_: Pass) -> None:
        super().gradient(ctx, pass_)
        for parameter in ctx.trained.values():
            assert parameter.grad is not None and not parameter.grad.requires_grad
            parameter.grad.zero_()
        ctx.metrics["seen"] = torch.tensor(float(ctx.updates + 1))


class Leaving:
    """An edit that leaves a parameter in the module."""

    @staticmethod
    def names(edit: Edit) -> set[str]:
        return set()

    @staticmethod
    def restrict(edit: Edit, active: Any, received: set[str]) -> Edit:
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        module.get_submodule("image").extra = nn.Parameter(torch.zeros(2))

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Forgets to remove it."""


class Sending(Leaving):
    """An edit that sends the parameter that it adds, and removes it."""

    @staticmethod
    def upload(edit: Edit, module: nn.Module) -> dict[str, Tensor]:
        return {"image.extra": module.get_parameter("image.extra")}

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        del module.get_submodule("image").extra


@pytest.fixture
def parts() -> Iterator[None]:
    edgefl.register("step", "zeroing")(Zeroing)
    edgefl.register("edit", "leaving")(Leaving)
    edgefl.register("edit", "sending")(Sending)
    yield
    PARTS.clear()
    registry.forget()


@pytest.mark.parametrize(("accumulation", "updates"), [(1, 4), (2, 2), (3, 2)])
def test_a_wrapper_changes_the_gradients_of_every_update_once(parts: None, accumulation: int, updates: int) -> None:
    work = make_work(
        passes=(training_pass(batch=10),),
        optimizer={"name": "sgd", "lr": 0.5, "implementation": "for-loop", "accumulation": accumulation},
    )
    trained = do(work)
    still = do(work.around("zeroing"))
    assert still.updates == trained.updates == still.metrics["seen"] == updates
    before = inputs_of(work)
    assert all(torch.equal(v, before[n]) for n, v in still.payloads["model"].items())
    assert any(not torch.equal(v, before[n]) for n, v in trained.payloads["model"].items())


def test_an_edit_must_leave_the_module_as_it_was(parts: None) -> None:
    with pytest.raises(MethodError, match=r"after fold\(\) of .*leaving.*, module 'image' isn't as it was: .*extra"):
        do(replace(make_work(), edits=(Edit("leaving"),)))


def test_an_edit_sends_what_is_gone_after_it(parts: None) -> None:
    work = replace(make_work(), edits=(Edit("sending"),))
    item = Item("image.extra", (2,), "float32", "image/image.extra")
    sent = do(replace(work, up=(*work.up, Payload("extra", (item,)))))
    assert sent.payloads["extra"]["image.extra"].tolist() == [0.0, 0.0]
