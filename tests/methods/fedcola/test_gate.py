"""FedCola's gate: what is uploaded computes what the gated model computed, and nothing of it stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, do, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch import Tensor, nn

from edgefl import models
from edgefl.errors import MethodError
from edgefl.methods.fedcola.gate import Gate, GatedLinear
from edgefl.work import Edit, Item, Pass, Payload, run


def gated() -> tuple[nn.Module, Edit]:
    work = make_work(gate="trainable")
    module = models.build(work.model)
    Gate.apply(work.edits[0], module, inputs_of(work))
    return module, work.edits[0]


def structure(module: nn.Module) -> list[tuple[str, type]]:
    return [(name, type(part)) for name, part in module.named_modules()]


def assert_plain(module: nn.Module, model: Any) -> None:
    fresh = models.build(model)
    assert structure(module) == structure(fresh)
    assert list(module.state_dict()) == list(fresh.state_dict())


def test_merged_weights_compute_what_the_gated_layers_did() -> None:
    module, edit = gated()
    for name, parameter in module.named_parameters():
        if name.endswith(".gate"):
            assert parameter.shape == (1,)
            nn.init.constant_(parameter, 0.37)
    images = torch.rand(4, 1, 16, 16)
    before = module.logits("image", images)  # type: ignore[operator]
    Gate.fold(edit, module)
    torch.testing.assert_close(module.logits("image", images), before)  # type: ignore[operator]
    assert_plain(module, make_work().model)


def test_at_gate_zero_a_gated_layer_is_the_plain_one() -> None:
    work = make_work(gate="trainable")
    module = models.build(work.model)
    images = torch.rand(4, 1, 16, 16)
    plain = module.logits("image", images)  # type: ignore[operator]
    Gate.apply(work.edits[0], module, inputs_of(work))
    assert_equal_tensors(module.logits("image", images), plain)  # type: ignore[operator]


def test_the_partners_first_gradient_is_zero_and_the_gates_is_not() -> None:
    module, edit = gated()
    module.logits("image", torch.rand(4, 1, 16, 16)).square().sum().backward()  # type: ignore[operator]
    for layer in edit.args["layers"]:
        part: Any = module.get_submodule(layer)
        assert isinstance(part, GatedLinear)
        assert not part.partner.grad.any() and part.gate.grad.any()


@pytest.mark.parametrize("partner", ["trainable", "frozen"])
def test_a_run_uploads_the_plain_model_and_leaves_it_plain(partner: str) -> None:
    work = make_work(gate=partner)
    module = models.build(work.model)
    result = do(work, module=module)
    assert_plain(module, work.model)
    state = module.state_dict()
    assert_equal_tensors(result.payloads["model"], state)
    assert list(result.payloads["model"]) == list(state)


def test_the_upload_computes_what_the_client_trained() -> None:
    """Gates, partners and weights move; a second pass without training sees the gated model's outputs."""
    seen: list[Tensor] = []

    class Listening(Toy):
        def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
            yield from super().batches(pass_, seed)
            if not pass_.train:
                gates = [p for n, p in module.named_parameters() if n.endswith(".gate")]
                assert all(gate.item() for gate in gates)
                seen.append(module.logits("image", images))  # type: ignore[operator]

    images = torch.rand(4, 1, 16, 16)
    scoring = Pass("score-classify", "validation", ("image",), 16, False)
    work = make_work(passes=(training_pass(), scoring), gate="trainable")
    module = models.build(work.model)
    result = do(work, Listening(), module=module)
    fresh = models.build(work.model)
    fresh.load_state_dict(dict(result.payloads["model"]))
    fresh.eval()
    torch.testing.assert_close(fresh.logits("image", images), seen[0])  # type: ignore[operator]


def test_a_failing_step_leaves_no_edit_behind() -> None:
    work = make_work(passes=(Pass("toy-broken", "private", ("image",), 8),), gate="trainable")
    module = models.build(work.model)
    with pytest.raises(ValueError, match="the toy is broken"):
        do(work, module=module)
    assert_plain(module, work.model)
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in module.parameters())


def test_a_missing_partner_is_named_and_no_other_gate_stays() -> None:
    work = make_work(gate="trainable")
    inputs = inputs_of(work)
    del inputs["image.blocks.1.mlp.fc2.partner"]
    module = models.build(work.model)
    with pytest.raises(MethodError, match=r"needs image.blocks.1.mlp.fc2.partner"):
        run(work, inputs, Toy(), module=module, device=CPU, seed=1)
    assert_plain(module, work.model)


def test_a_layer_that_is_not_linear_is_refused() -> None:
    with pytest.raises(MethodError, match=r"image.norm is a LayerNorm"):
        Gate.apply(Edit("gate", {"layers": ["image.norm"]}), models.build(make_work().model), {})


def test_restrict_keeps_active_layers_whose_partner_came() -> None:
    edit = Edit("gate", {"layers": ["image.blocks.0.attn.qkv", "image.blocks.1.attn.qkv"]})
    received = {"image.blocks.0.attn.qkv.partner", "image.blocks.1.attn.qkv.partner"}
    kept = Gate.restrict(edit, lambda name: ".1." in name, received)
    assert kept == Edit("gate", {"layers": ["image.blocks.1.attn.qkv"]})
    assert Gate.restrict(edit, lambda name: True, set()) is None
    assert Gate.names(kept) == {"image.blocks.1.attn.qkv.partner", "image.blocks.1.attn.qkv.gate"}


def test_partners_that_are_no_parameter_of_the_layer_are_ignored() -> None:
    """The paper counts biases and norms of the partner too: they travel, and a gate has no use for them."""
    work = make_work(gate="frozen")
    bias = Item("image.blocks.0.attn.qkv.partner_bias", (48,), "float32", "other/image.blocks.0.attn.qkv.bias")
    more = Payload("partner", (*work.down[1].items, bias), "trained")
    wider = make_work(gate="frozen").__class__(**{**work.__dict__, "down": (work.down[0], more)})
    plain, extra = do(work), do(wider)
    assert_equal_tensors(plain.payloads["model"], extra.payloads["model"])
