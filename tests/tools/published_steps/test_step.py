"""The steps of published measurements against closed forms: attention that isn't fused, and networks of no library."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgefl.cost.client_cost import ComputeCost
from edgefl.errors import DeviceError
from edgefl.operator_classes import OperatorClass
from tools.published_steps.measurements import Measurement, measurements
from tools.published_steps.step import network, step_cost

VIT = next(row for row in measurements() if row.model == "vit_tiny_patch16_224")
BATCH, TOKENS, WIDTH, HEADS, DEPTH, HIDDEN = 2, 197, 192, 3, 12, 768


def of_class(cost: ComputeCost, kind: OperatorClass) -> tuple[float, float]:
    """FLOPs and bytes of a class of operators."""
    flops, moved, times, kinds = cost.operators.T
    return tuple(float((each * times)[kinds == kind].sum()) for each in (flops, moved))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def costs() -> dict[str, ComputeCost]:
    row = replace(VIT, batch=BATCH)
    return {version: step_cost(replace(row, framework=f"PyTorch {version}"), gpu=False) for version in ("1.13", "2.0")}


def test_attention_before_pytorch_2_is_two_products_forward_and_four_backward(costs: dict[str, ComputeCost]) -> None:
    product = 2 * BATCH * TOKENS**2 * WIDTH  # of all heads: scores, or what they weigh
    assert of_class(costs["1.13"], OperatorClass.ATTENTION)[0] == DEPTH * 6 * product
    assert of_class(costs["2.0"], OperatorClass.ATTENTION)[0] == DEPTH * 7 * product  # the scores again
    assert costs["1.13"].forward_flops == costs["2.0"].forward_flops
    dense = 2 * BATCH * TOKENS * WIDTH * (4 * WIDTH + 2 * HIDDEN)  # of a block: queries, keys, values, output, MLP
    patches, classes = 2 * BATCH * 196 * WIDTH * 3 * 16**2, 2 * BATCH * WIDTH * 1000
    assert costs["1.13"].forward_flops == DEPTH * (dense + 2 * product) + patches + classes


def test_scores_are_written_and_read_where_attention_is_not_fused(costs: dict[str, ComputeCost]) -> None:
    scores = 4 * BATCH * HEADS * TOKENS**2
    # softmax reads and writes them, forward and backward; so does each product
    more = costs["1.13"].operators[:, 1] @ costs["1.13"].operators[:, 2]
    fewer = costs["2.0"].operators[:, 1] @ costs["2.0"].operators[:, 2]
    assert DEPTH * 9 * scores < more - fewer < DEPTH * 16 * scores
    # and the weights of all blocks are kept for the backward pass
    assert costs["1.13"].peak_memory_bytes - costs["2.0"].peak_memory_bytes > (DEPTH - 1) * scores


def test_whether_attention_is_fused_does_not_outlive_the_network(costs: dict[str, ComputeCost]) -> None:
    from timm.layers import use_fused_attn  # after torchvision, which edgefl imports without its compiled part

    before = use_fused_attn(), use_fused_attn(experimental=True)
    with torch.device("meta"):
        blocks = network(replace(VIT, framework="PyTorch 1.13")).module.blocks
    assert not blocks[0].attn.fused_attn
    assert (use_fused_attn(), use_fused_attn(experimental=True)) == before


def a_step(model: str) -> tuple[Measurement, ComputeCost]:
    row = replace(next(row for row in measurements() if row.model == model), batch=2)
    return row, step_cost(row, gpu=True)


def test_lenet_and_the_mlp_have_the_flops_of_their_layers() -> None:
    row, cost = a_step("lenet5")
    layers = [2 * 28**2 * 6 * 25, 2 * 10**2 * 16 * 6 * 25, *(2 * i * o for i, o in ((400, 120), (120, 84), (84, 10)))]
    assert cost.forward_flops == row.batch * sum(layers)
    assert cost.backward_flops == row.batch * (2 * sum(layers) - layers[0])  # no gradient of the images
    row, cost = a_step("mlp-784-256-128-64-10")
    layers = [2 * i * o for i, o in ((784, 256), (256, 128), (128, 64), (64, 10))]
    assert cost.forward_flops == row.batch * sum(layers)
    with torch.device("meta"):
        assert sum(p.numel() for p in network(row).module.parameters()) == sum(layers) // 2 + 10


def test_networks_of_mnn_have_the_flops_of_their_source() -> None:
    """Sums over the layers of tools/train/source/models, with the strides that an option keeps until it is reset."""
    alexnet = [54**2 * 96 * 3 * 121, 26**2 * 256 * 96 * 25, *(12**2 * 9 * p for p in (256 * 384, 384**2, 384 * 256))]
    row, cost = a_step("mnn-alexnet")
    assert cost.forward_flops == 2 * row.batch * (sum(alexnet) + 256 * 5 * 5 * 4096 + 4096 * 10)
    fires = ((56, 96, 16, 64), (56, 128, 16, 64), (56, 128, 32, 128), (28, 256, 32, 128), (28, 256, 48, 192),
             (28, 384, 48, 192), (28, 384, 64, 256), (14, 512, 64, 256))  # fmt: skip
    inside = sum(side**2 * squeezed * (inner + 10 * wide) for side, inner, squeezed, wide in fires)
    row, cost = a_step("mnn-squeezenet")
    assert cost.forward_flops == 2 * row.batch * (112**2 * 96 * 3 * 49 + inside + 7**2 * 512 * 10)
    inceptions = (
        (14, 192, 64, 96, 128, 16, 32, 32), (14, 256, 128, 128, 192, 32, 96, 64), (7, 480, 192, 96, 208, 16, 48, 64),
        (7, 512, 160, 112, 224, 24, 64, 64), (7, 512, 128, 128, 256, 24, 64, 64), (7, 512, 112, 144, 288, 32, 64, 64),
        (7, 528, 256, 160, 320, 32, 128, 128), (4, 832, 256, 160, 320, 32, 128, 128),
        (4, 832, 384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    inside = sum(s**2 * (i * (a + b + d + f) + 9 * b * c + 25 * d * e) for s, i, a, b, c, d, e, f in inceptions)
    row, cost = a_step("mnn-googlenet")
    assert cost.forward_flops == 2 * row.batch * (112**2 * 64 * 3 * 49 + 28**2 * 192 * 64 * 9 + inside + 1024 * 10)


def test_a_model_in_half_precision_has_float32_copies_which_one_kernel_updates() -> None:
    row = replace(next(row for row in measurements() if row.model == "lenet5"), batch=2, framework="PyTorch 1.13")
    half = replace(row, precision="float16", half_model=True, optimizer="FusedAdam")
    whole, cost = step_cost(row, gpu=False), step_cost(half, gpu=False)
    assert cost.forward_flops == whole.forward_flops
    assert (whole.memory_bytes["parameters"], cost.memory_bytes["parameters"]) == (4 * 61_706, 6 * 61_706)
    assert of_class(cost, OperatorClass.CONVOLUTION)[1] == of_class(whole, OperatorClass.CONVOLUTION)[1] / 2
    kernels = [each.operators[each.operators[:, 3] == OperatorClass.OPTIMIZER, 2].sum() for each in (whole, cost)]
    assert kernels == [8 * 10, 4]  # of ten parameters; on lists two copies, the count of steps, and the update


def test_without_kernels_on_lists_an_optimizer_updates_one_tensor_after_the_other() -> None:
    row = replace(next(row for row in measurements() if row.model == "lenet5"), batch=2, framework="PyTorch 2.4")
    has, lacks = (step_cost(row, gpu=True, lists=lists).operators for lists in (True, False))
    old = step_cost(replace(row, framework="PyTorch 1.13"), gpu=True).operators
    assert lacks.tolist() == old.tolist() and has[:, 2].sum() < lacks[:, 2].sum() - 50


def test_the_first_resnet_computes_less_than_the_later_one() -> None:
    """3.86 and 4.09 billion multiplications a picture, as published; both have the same weights."""
    row = next(row for row in measurements() if row.model == "resnet50-v1" and row.input == (3, 224, 224))
    row = replace(row, batch=2)
    cost = step_cost(row, gpu=True)
    later = step_cost(replace(row, library="torchvision", model="resnet50"), gpu=True)
    assert cost.forward_flops / (2 * row.batch) == pytest.approx(3.86e9, rel=0.01)
    assert later.forward_flops / (2 * row.batch) == pytest.approx(4.09e9, rel=0.01)
    assert cost.memory_bytes["parameters"] == later.memory_bytes["parameters"]


def test_the_shufflenet_for_small_pictures_keeps_their_size_in_its_first_layers() -> None:
    row, cost = a_step("shufflenet_v2_x1_0-cifar")
    flops, _, times, kinds = cost.operators.T
    first = 2 * row.batch * 32 * 32 * 24 * 3 * 9  # 24 channels at all 32 x 32 places
    assert first in flops[kinds == OperatorClass.CONVOLUTION]
    assert times[kinds == OperatorClass.DEPTHWISE_CONVOLUTION].sum() == 2 * (3 + 16)  # three blocks have two


@pytest.mark.parametrize(
    ("model", "parameters"),
    [("distilbert-base-uncased", 66_959_624), ("bert-large-uncased", 335_150_088)],
)
def test_texts_are_classified_by_the_published_networks(model: str, parameters: int) -> None:
    row = next(row for row in measurements() if row.model == model and row.classes == 8)
    with torch.device("meta"):
        assert sum(p.numel() for p in network(row).module.parameters()) == parameters


def of_images(model: str, library: str = "torchvision", *, size: int) -> Measurement:
    row = next(row for row in measurements() if row.model == "resnet50-v1")
    return replace(row, model=model, library=library, batch=2, input=(3, size, size), classes=1000)


@pytest.mark.slow(smaller="test_losses_of_auxiliary_heads_are_weighted_as_published")
def test_googlenets_auxiliary_heads_are_trained_with_it() -> None:
    """Each has a convolution of 1 x 1 to 128 channels on 4 x 4 places, and two layers; all three losses count."""
    with_heads, without = (
        step_cost(of_images(*names, size=32), gpu=False)
        for names in (("googlenet", "torchvision"), ("googlenet-plain", "other"))
    )
    layers = [(channels * 128 * 16, 2048 * 1024, 1024 * 1000) for channels in (512, 528)]
    assert with_heads.forward_flops - without.forward_flops == 2 * 2 * sum(map(sum, layers))
    assert with_heads.backward_flops - without.backward_flops == 2 * 2 * 2 * sum(map(sum, layers))
    weights = sum(channels * 128 + 2 * 128 + 2049 * 1024 + 1025 * 1000 for channels in (512, 528))
    assert with_heads.memory_bytes["parameters"] - without.memory_bytes["parameters"] == 4 * weights


@pytest.mark.parametrize(
    ("name", "size", "weights"), [("googlenet", 32, (1, 0.3, 0.3)), ("inception_v3", 299, (1, 0.4))]
)
def test_losses_of_auxiliary_heads_are_weighted_as_published(name: str, size: int, weights: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    built = network(of_images(name, size=size))
    batch = {"image": torch.randn(2, 3, size, size), "label": torch.tensor([3, 5])}
    torch.manual_seed(1)  # of dropout
    loss = built.loss(built.module, batch)
    torch.manual_seed(1)
    heads = built.module(batch["image"])
    log = [torch.log_softmax(scores, 1)[[0, 1], batch["label"]].mean() for scores in heads]
    torch.testing.assert_close(loss, -sum(w * each for w, each in zip(weights, log, strict=True)))


def test_inception_needs_pictures_of_its_size() -> None:
    with pytest.raises(DeviceError, match="pictures of 299 pixels or more, .* the measurement has 298"):
        network(of_images("inception_v3", size=298))


def test_every_last_layer_is_found() -> None:
    rows = [row for row in measurements() if row.trained == "last layer"]
    assert len(rows) == 35
    for model in ("efficientformer_l1", "fastvit_t8", "mobilevitv2_050"):
        row = replace(next(row for row in rows if row.model == model), batch=1)
        with torch.device("meta"):
            built = network(row)
        names = [name for name, _ in built.module.named_parameters() if name.startswith(built.last)]
        assert len(names) == (4 if model == "efficientformer_l1" else 2)  # it has two heads
