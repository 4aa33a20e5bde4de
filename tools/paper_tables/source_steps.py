"""Training steps as sources of published memory wrote them, where their programs keep more than edgefl's.

A step is plain torch: it runs on fake tensors by the rules of a GPU's allocator, and in a test on real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from edgefl.cost.caching_allocator import CachingAllocator
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import replace_tensors
from edgefl.models.tower import RECOMPUTING
from edgefl.models.towers.vision import import_torchvision
from edgefl.work import CUDA_ROUNDING, Meter
from edgefl.work.attention import attention
from edgefl.work.meter.allocator_peak import AllocatorPeak, MemoryEvent
from edgefl.work.optimizer.eight_bit import ReferenceAdamW8bit

CPU = torch.device("cpu")
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class SourceStep:
    """A model, how a batch of it is made and what its loss is, and what the loop around it keeps.

    ``gradients`` says how long they live: until the optimizer's step, until the next backward pass begins, or always
    (set to zero, as before torch 2.0).  ``softmax_input`` is kept by versions before torch 1.11, which computed the
    softmax's gradient from both.  ``averaged`` is a second copy of the weights.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Callable[[Sequence[Tensor]], torch.optim.Optimizer]
    accumulation: int = 1
    autocast: torch.dtype | None = None
    dtype: torch.dtype = torch.float32
    gradients: Literal["step", "forward", "always"] = "step"
    softmax_input: bool = False
    averaged: bool = False


class SourceMemory(NamedTuple):
    """Bytes at the highest moment of two updates: allocated, and reserved by torch's caching allocator."""

    allocated: int
    reserved: int


def memory(step: SourceStep) -> SourceMemory:
    """What a step takes on a GPU, without one: its storages are replayed by the rules of the allocator."""
    allocator, most = CachingAllocator(), 0
    for event in _events(step, "cuda"):
        allocator.add([event])
        most = max(most, allocator.allocated)
    return SourceMemory(most, allocator.peak)


def live_peak(step: SourceStep) -> int:
    """The most bytes of storages on a CPU, without data."""
    return max(accumulate(event.size for event in _events(step, "cpu")))


def real_peak(step: SourceStep) -> int:
    """The peak of torch's CPU allocator while the step really runs."""
    torch.manual_seed(1)
    module = step.build().to(step.dtype).train()
    with AllocatorPeak(CPU, [*module.parameters(), *module.buffers()]) as seen:
        _run(step, module, None)
    return int(seen.bytes)


def _events(step: SourceStep, kernels: str) -> list[MemoryEvent]:
    events: list[MemoryEvent] = []
    with torch.device("meta"):
        built = step.build().to(step.dtype).train()
    meter = Meter(CUDA_ROUNDING if kernels == "cuda" else 1, events=events)
    with PredictionMode(), torch.random.fork_rng([]), attention("device", CPU, kernels):
        module = replace_tensors(built, lambda old: torch.empty(old.shape, dtype=old.dtype))
        _run(step, module, meter)
    return events


def _run(step: SourceStep, module: nn.Module, meter: Meter | None) -> None:
    """Two updates; ``meter`` sees all storages, those of parameters and gradients too."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = step.optimizer(parameters)
    second = [p.detach().clone() for p in module.parameters()] if step.averaged else []
    if meter is not None:
        for tensors in (module.parameters(), module.buffers(), second):
            meter.adopt(tensors, "parameters")
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda p: meter.adopt([p.grad], "gradients"))
    with meter.step(0, "all") if meter is not None else nullcontext():
        for index in range(2 * step.accumulation):
            batch = step.batch()
            if meter is not None:
                meter.adopt(batch.values(), "inputs")
            with _Softmaxes() if step.softmax_input else nullcontext():
                with torch.autocast("cpu", dtype=step.autocast, enabled=step.autocast is not None):
                    loss = step.loss(module, batch)
                if step.gradients == "forward" and step.accumulation == 1:
                    optimizer.zero_grad()
                loss.backward()
            if (index + 1) % step.accumulation == 0:
                optimizer.step()
                if step.gradients != "forward" or step.accumulation > 1:
                    optimizer.zero_grad(set_to_none=step.gradients != "always")


class AdamOf2_0(torch.optim.Optimizer):
    """The operators of Adam on lists in torch 2.0, which copied the roots of the second moments to add epsilon.

    Its rates are constants.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("first", "second")}
        gradients = [p.grad for p in parameters]
        first, second = ([self.state[p][name] for p in parameters] for name in ("first", "second"))
        torch._foreach_mul_(first, 0.9)
        torch._foreach_add_(first, gradients, alpha=0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(second)
        torch._foreach_div_(roots, 0.03)
        divisors = torch._foreach_add(roots, 1e-8)
        torch._foreach_addcdiv_(parameters, first, divisors, -1e-3)


class _KeepingSoftmax(torch.autograd.Function):
    """A softmax that keeps its input beside its output; of a half precision under autocast the output is float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, to_float: bool) -> Tensor:
        """Along ``dim``."""
        out = torch.ops.aten._softmax(x, dim, to_float)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradient in the dtype of the input."""
        x, out = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, out, ctx.dim, x.dtype), None, None


class _Softmaxes(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.softmax, torch.softmax, torch.Tensor.softmax):
            x, dim = args[0], (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
            keeping: Any = _KeepingSoftmax.apply
            return keeping(x, dim, torch.is_autocast_enabled("cpu") and x.dtype != torch.float32)
        return func(*args, **(kwargs or {}))


class _Recomputed(nn.Module):
    """A layer that the backward pass computes again, in the modes of the forward pass."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer."""
        return checkpoint(self.layer, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _modes(RECOMPUTING.get())


@contextmanager
def _modes(gpu: AbstractContextManager[object] | None) -> Iterator[None]:
    with gpu or nullcontext(), _Softmaxes():
        yield


# --- the sources' models ---------------------------------------------------------------------------------------------


def images(size: int, dtype: torch.dtype = torch.float32, pixels: int = 224) -> Callable[[], Batch]:
    """Batches of ``size`` pictures."""
    return lambda: {
        "image": torch.zeros(size, 3, pixels, pixels, dtype=dtype), "label": torch.zeros(size, dtype=torch.long)
    }  # fmt: skip


def image_loss(module: nn.Module, batch: Batch) -> Tensor:
    """The cross-entropy of pictures."""
    return F.cross_entropy(module(batch["image"]).float(), batch["label"])


def torchvision_vit(**sizes: Any) -> Callable[[], nn.Module]:
    """torchvision's ViT-L/16 of 10 classes, or another size."""

    def build() -> nn.Module:
        import_torchvision()
        from torchvision.models import VisionTransformer

        large = {"image_size": 224, "patch_size": 16, "num_layers": 24, "num_heads": 16, "hidden_dim": 1024,
                 "mlp_dim": 4096, "num_classes": 10}  # fmt: skip
        made: nn.Module = VisionTransformer(**{**large, **sizes})
        return made

    return build


def timm_net(name: str, **more: Any) -> Callable[[], nn.Module]:
    """A net of timm whose attention is written out."""

    def build() -> nn.Module:
        import_torchvision()
        import timm

        layers: Any = timm.layers
        before = layers.use_fused_attn(), layers.use_fused_attn(experimental=True)
        layers.set_fused_attn(False)
        try:
            return timm.create_model(name, **more)
        finally:
            layers.set_fused_attn(*before)

    return build


def bert(checkpointing: bool = False, **sizes: Any) -> Callable[[], nn.Module]:
    """transformers' BERT-large that classifies texts, or another size, with attention written out."""

    def build() -> nn.Module:
        import_torchvision()
        import transformers

        large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        library: Any = transformers
        config = library.BertConfig(attn_implementation="eager", **{**large, **sizes})
        module = library.BertForSequenceClassification(config)
        if checkpointing:
            encoder = module.bert.encoder
            encoder.layer = nn.ModuleList(map(_Recomputed, encoder.layer))
        return module  # type: ignore[no-any-return]

    return build


def texts(size: int, tokens: int = 512) -> Callable[[], Batch]:
    """Batches of ``size`` texts; the mask in float32 is added to scores, which are float32 then under autocast too."""
    return lambda: {
        "input_ids": torch.zeros(size, tokens, dtype=torch.long), "labels": torch.zeros(size, dtype=torch.long),
        "attention_mask": torch.zeros(size, 1, 1, tokens),
    }  # fmt: skip


def text_loss(module: nn.Module, batch: Batch) -> Tensor:
    """The loss that the model gives."""
    loss: Tensor = module(**batch).loss
    return loss


class _LitgptBlock(nn.Module):
    """A block of Phi-1.5 as litgpt runs it: queries, keys and values in one tensor, and LoRA over dropped inputs."""

    def __init__(self, width: int, heads: int, rank: int):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.fc, self.out = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.requires_grad_(False)
        self.first = nn.Parameter(torch.zeros(2 * rank, width))
        self.second = nn.Parameter(torch.zeros(2 * width, rank))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, tokens, dim]``."""
        normed = self.norm(x)
        size, tokens, width = x.shape
        low = F.linear(F.dropout(normed, 0.05), self.first)
        high = F.conv1d(low.transpose(1, 2), self.second[..., None], groups=2).transpose(1, 2)
        padded = high.new_zeros(size * tokens, 3 * width)
        places = torch.arange(2 * width)
        change = padded.index_copy(1, places, high.reshape(size * tokens, 2 * width)).view(size, tokens, 3 * width)
        qkv = self.qkv(normed) + change * 2.0
        heads = qkv.view(size, tokens, self.heads, 3, -1).permute(0, 2, 3, 1, 4)
        query, key, value = (part.reshape(size, self.heads, tokens, -1) for part in heads.split(1, 2))
        out = F.scaled_dot_product_attention(_turned(query), _turned(key), value, is_causal=True)
        attended = self.proj(out.transpose(1, 2).reshape(size, tokens, width))
        made: Tensor = self.out(F.gelu(self.fc(normed), approximate="tanh")) + attended + x
        return made


def _turned(x: Tensor) -> Tensor:
    """Rotary positions on the first half of each head; their angles depend on the place alone."""
    half = x.shape[-1] // 2
    turned, left = x[..., :half], x[..., half:]
    angles = torch.zeros(x.shape[2], half, dtype=x.dtype)
    one, two = turned.chunk(2, -1)
    return torch.cat([turned * angles.cos() + torch.cat([-two, one], -1) * angles.sin(), left], -1)


class Litgpt(nn.Module):
    """Phi-1.5 with LoRA of rank 8 on queries and values, as litgpt trains it, or another size."""

    def __init__(self, width: int = 2048, blocks: int = 24, heads: int = 32, vocabulary: int = 51_200):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.blocks = nn.ModuleList(_LitgptBlock(width, heads, 8) for _ in range(blocks))
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, vocabulary).requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Scores of 128 tokens at a time."""
        tokens = self.embedding(x)
        for block in self.blocks:
            tokens = block(tokens)
        return [self.head(part) for part in self.norm(tokens).split(128, 1)]


def litgpt_loss(module: nn.Module, batch: Batch) -> Tensor:
    """The loss in chunks; Lightning gives scores in float32, which the program's variable holds until the next ones."""
    scores = [part.float() for part in module(batch["text"])]
    vars(module)["held"] = scores
    pairs = zip(scores, batch["text"].split(128, 1), strict=True)
    return torch.cat([F.cross_entropy(s.flatten(0, 1), t.flatten(), reduction="none") for s, t in pairs]).mean()


def litgpt(size: int, tokens: int = 1_044, **sizes: int) -> SourceStep:
    """A step of litgpt with ``size`` texts, all in bfloat16."""
    return SourceStep(
        lambda: Litgpt(**sizes), lambda: {"text": torch.zeros(size, tokens, dtype=torch.long)}, litgpt_loss,
        lambda p: torch.optim.AdamW(p, foreach=True), dtype=torch.bfloat16,
    )  # fmt: skip


def adamw(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """AdamW, a parameter after the other."""
    return torch.optim.AdamW(parameters, foreach=False)


def adamw_8bit(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """AdamW with states of 8 bits."""
    return ReferenceAdamW8bit(parameters, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)


MESA_NETS = {
    "DeiT-Ti (Mesa)": "deit_tiny_patch16_224", "DeiT-S (Mesa)": "deit_small_patch16_224",
    "DeiT-B (Mesa)": "deit_base_patch16_224", "Swin-Ti (Mesa)": "swin_tiny_patch4_window7_224",
}  # fmt: skip


def source_steps() -> dict[str, SourceStep]:
    """The steps by the name of a ``StepRun``; MMPretrain's isn't among them, since nothing of it is known to differ."""
    half = torch.bfloat16
    mixed: dict[str, Any] = {"autocast": half}
    ones: dict[str, Any] = {"accumulation": 4}

    def hugging_face(size: int, optimizer: Any = adamw, checkpointing: bool = False, **more: Any) -> SourceStep:
        return SourceStep(
            bert(checkpointing), texts(size), text_loss, optimizer, gradients="always", softmax_input=True, **more
        )

    def rasbt(size: int, **more: Any) -> SourceStep:
        dtype = more.get("dtype", torch.float32)
        return SourceStep(torchvision_vit(), images(size, dtype), image_loss, AdamOf2_0, gradients="forward", **more)

    def mesa(name: str) -> SourceStep:
        return SourceStep(
            timm_net(name, drop_path_rate=0.1), images(128), image_loss, adamw, gradients="always", softmax_input=True,
            averaged=name.startswith("deit"), **mixed,
        )  # fmt: skip

    return {
        "BERT-large, batch 4": hugging_face(4),
        "BERT-large, 4 x 1": hugging_face(1, **ones),
        "BERT-large, 4 x 1, checkpointing": hugging_face(1, checkpointing=True, **ones),
        "BERT-large, batch 4, float16": hugging_face(4, **mixed),
        "BERT-large, 4 x 1, checkpointing, float16": hugging_face(1, checkpointing=True, **ones, **mixed),
        "BERT-large, batch 4, 8-bit AdamW": hugging_face(4, adamw_8bit),
        "ViT-L/16 (rasbt), batch 64": rasbt(64),
        "ViT-L/16 (rasbt), batch 64, autocast": rasbt(64, **mixed),
        "ViT-L/16 (rasbt), batch 64, bfloat16": rasbt(64, dtype=half),
        "ViT-L/16 (rasbt), batch 16, bfloat16": rasbt(16, dtype=half),
        "ViT-L/16 (rasbt), 4 x 4, bfloat16": rasbt(4, dtype=half, **ones),
        **{name: mesa(net) for name, net in MESA_NETS.items()},
    }
