"""training.checkpointing: N blocks, against gradients without it, a closed form, and plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described, make_work, training_pass
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import ScenarioError
from edgefl.models import ModelOptions
from edgefl.scenario import load
from edgefl.work.meter.allocator_peak import AllocatorPeak

BATCH, BLOCKS, WIDTH, TOKENS = 8, 3, 16, 17
FACTS = {"image": {"channels": 1, "size": 16, "classes": 5}, "text": {"vocabulary": 40, "tokens": 6, "classes": 5}}
BASE = {
    "edgefl": 1,
    "data": {"clients": {"image": 2, "text": 2}},
    "model": {"image": {"blocks": 4}, "text": {"blocks": 2, "tokens": 8}},
}
PHI = {
    "model_type": "phi", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2,
    "num_hidden_layers": 3, "max_position_embeddings": 32, "resid_pdrop": 0.2,
}  # fmt: skip
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("image", {"image": {"patch": 4, "width": WIDTH, "heads": 2, "blocks": BLOCKS, "drop_path": 0.3}}),
    "gru": ("text", {"text": {"tower": "gru", "blocks": 2, "embedding": 8, "hidden": 8, "tokens": 6}}),
    "hf-causal": ("text", {"text": {"tower": "hf-causal", "config": PHI, "tokens": 6}}),
    "multiway": ("image", {"multiway": {"blocks": BLOCKS, "width": WIDTH, "heads": 2, "patch": 4, "tokens": 6}}),
}


def recomputing(blocks: int) -> Any:
    return make_work(
        passes=(training_pass(batch=BATCH),), model=described(blocks=BLOCKS, width=WIDTH, checkpointing=blocks)
    )


@pytest.mark.parametrize("name", TOWERS)
def test_no_gradient_depends_on_the_blocks_that_are_recomputed(name: str) -> None:
    modality, fields = TOWERS[name]
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(4, 1, 16, 16, generator=draw) if modality == "image" else torch.randint(40, (4, 6), generator=draw)

    def gradients(checkpointing: int) -> tuple[list[Tensor | None], int]:
        torch.manual_seed(1)
        described = models.describe(ModelOptions(**fields), [modality], "classify", FACTS, checkpointing=checkpointing)
        model: Any = models.build(described).train()
        ran: list[None] = []
        for block in model.tower(modality).blocks:
            block.register_forward_hook(lambda *_: ran.append(None), always_call=True)
        model.logits(modality, x).logsumexp(-1).sum().backward()
        return [p.grad for p in model.parameters()], len(ran)

    plain, blocks = gradients(False)
    for checkpointing, again in ((1, 1), (2, 2), (True, blocks)):
        less, ran = gradients(checkpointing)
        assert ran == blocks + again
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(plain, less, strict=True))  # type: ignore[arg-type]


def test_each_recomputed_block_adds_its_forward_pass_but_for_the_last_product() -> None:
    """torch stops where the last activation is there again, which is the input of the block's last layer."""
    steps = [predict(recomputing(n), Toy(64)).steps[0, "image"] for n in (False, 1, 2, 3, True)]
    block = 2 * BATCH * (12 * TOKENS * WIDTH**2 + 2 * TOKENS**2 * WIDTH)
    again = block - 2 * BATCH * 4 * TOKENS * WIDTH**2
    assert {step.forward_flops for step in steps} == {steps[0].forward_flops}
    assert [step.backward_flops - steps[0].backward_flops for step in steps] == [n * again for n in (0, 1, 2, 3, 3)]


def test_the_first_blocks_lower_the_peak_more_than_the_last() -> None:
    """In plain torch: recomputed activations of the last blocks come on top of all that is kept."""

    def peak(recomputed: range) -> int:
        torch.manual_seed(1)
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(4))
        with AllocatorPeak(CPU, blocks.parameters()) as seen:
            x = torch.rand(256, 64, requires_grad=True)
            for i, block in enumerate(blocks):
                x = checkpoint(block, x, use_reentrant=False) if i in recomputed else block(x)
            x.sum().backward()
        return int(seen.bytes)

    activations = 2 * 256 * 512 * 4  # of a block: what both layers' nonlinearity and product keep
    none, first, last = peak(range(0)), peak(range(2)), peak(range(2, 4))
    assert none - first == pytest.approx(2 * activations, rel=0.1)
    assert last - first > activations / 2


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0 blocks", "must be true, false or a number of blocks such as 10 blocks, not '0 blocks'"),
        ("3 block", "a number of blocks such as 10 blocks, not '3 block'"),
        ("some", "must be true, false or a number of blocks"),
        (3, "a number of blocks such as 10 blocks, not 3"),
        ("5 blocks", "5 blocks are more than any tower has: write at most 4, or true for all"),
    ],
)
def test_what_is_no_number_of_blocks_is_told(value: Any, says: str) -> None:
    with pytest.raises(ScenarioError, match=says) as caught:
        load({**BASE, "training": {"checkpointing": value}})
    assert caught.value.key == "training.checkpointing"


@pytest.mark.parametrize(("value", "blocks"), [("1 block", 1), ("4 blocks", 4), ("on", True), (False, False)])
def test_a_number_of_blocks_comes_back_from_what_it_resolves_to(value: Any, blocks: int) -> None:
    scenario = load({**BASE, "training": {"checkpointing": value}})
    assert scenario.training.recomputed_blocks == blocks
    assert load(scenario.to_data()) == scenario
