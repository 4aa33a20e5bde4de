"""A tower, one modality's encoder (``embedding -> blocks[0..depth) -> norm -> rep``): its blocks, recomputed or not."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from edgefl.errors import MethodError
from edgefl.models.model import Dtype, Quantiser, TowerDescription
from edgefl.registry.part_fields import Fields, FileName


class TowerFields(Fields):
    """What every tower's options have."""

    dtype: Dtype = Field(
        "float32",
        description="dtype in which the tower's parameters and statistics lie, train and travel; training.precision "
        "says in which a product is computed",
    )
    quantize: Quantiser | None = Field(
        None,
        description="how frozen linear layers of the blocks are held, under an adapter or in a frozen prefix: nf4 (4 "
        "bits, in blocks of 64), nf4-double (whose constants are quantised too) or int8; null: in dtype",
    )


Weights = FileName | None
"""Weights to start from, of a tower's options: a file or folder, or a name; random if absent."""


class EncoderOptions(TowerFields):
    """Options of every transformer tower, edgefl's own or a library's."""

    blocks: PositiveInt = Field(4, description="transformer blocks at full depth")
    width: PositiveInt = Field(64, description="dimension of a token")
    heads: PositiveInt = Field(4, description="attention heads; must divide the width")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden width of the MLP, as a multiple of the width")
    weights: Weights = Field(
        None,
        description="weights to start from: a folder with model.safetensors, a .safetensors file, or pretrained "
        "(the published ones, downloaded); random if absent",
    )

    @model_validator(mode="after")
    def _divisible(self) -> EncoderOptions:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} can't be split over {self.heads} heads")
        return self


class TransformerOptions(EncoderOptions):
    """Options of the towers that use edgefl's own transformer block."""

    drop_path: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="stochastic depth: the probability that the last block is skipped; it rises linearly up to there",
    )


def without_float32(fields: dict[str, Any]) -> dict[str, Any]:
    """A tower's fields without the dtype that all have that name none, and without ``quantize``: the model has it."""
    named = {name: value for name, value in fields.items() if name != "quantize"}
    return {name: value for name, value in named.items() if (name, value) != ("dtype", "float32")}


Chosen = TypeVar("Chosen", bound=BaseModel)


def options_from(options: type[Chosen], description: Mapping[str, object]) -> Chosen:
    """The tower's options from its description, without computed fields and the fields that the data determine.

    Without its dtype too: a tower is built in float32.
    """
    names = options.model_fields.keys() - {"dtype"}
    return options(**{name: value for name, value in description.items() if name in names})


def drop_path_rates(last: float, blocks: int, depth: int) -> list[float]:
    """Stochastic depth rates of the first ``depth`` of ``blocks`` blocks, rising linearly to ``last`` over all blocks.

    A block's rate depends on its position in the full model, so it is the same at every stage of a schedule.
    """
    return [last * i / max(blocks - 1, 1) for i in range(depth)]


class Attention(nn.Module):
    """Multi-head self-attention, ``[batch, tokens, dim] -> [batch, tokens, dim]``."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all tokens ``[batch, tokens, dim]``.

        There is no mask, because FedCola's public code attends to padding too.
        """
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """A transformer block's MLP: ``fc2(gelu(fc1(x)))``."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, tokens, dim]``."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Pre-LN transformer block with the parameter names of timm's ViT: 12 D^2 + 13 D parameters at ratio 4."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, int(width * mlp_ratio))
        self.drop_path = drop_path

    def _drop_branch(self, x: Tensor) -> Tensor:
        if not self.drop_path or not self.training:
            return x
        keep = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.drop_path)
        return x * keep / (1 - self.drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, tokens, dim]``."""
        x = x + self._drop_branch(self.attn(self.norm1(x)))
        return x + self._drop_branch(self.mlp(self.norm2(x)))


class Tower(nn.Module):
    """An embedding, blocks and an optional final norm; models add a projection (``rep``) or a ``head`` to it.

    ``width`` is the width of the features that ``pool_tokens`` returns.  A library's block may return a tuple that
    begins with its tokens.  ``divisible`` says that it can begin with the tokens of any block (``begin``).
    """

    divisible = True
    begin = 0

    def __init__(
        self,
        embedding: nn.Module,
        blocks: Iterable[nn.Module],
        norm: nn.Module | None,
        width: int,
        checkpointing: int = False,
    ):
        super().__init__()
        self.width = width
        self.embedding = embedding
        self.blocks = recompute(nn.ModuleList(blocks), checkpointing)
        if norm is not None:
            self.norm = norm

    def embed(self, x: Tensor) -> Tensor:
        """Embed an input batch into the tokens that the first block receives: ``[batch, tokens, dim]``."""
        tokens: Tensor = self.embedding(x)
        return tokens

    def run(self, x: Tensor, begin: int = 0, until: int | None = None) -> Tensor:
        """Tokens ``[batch, tokens, dim]`` after block ``until - 1``, or after the last.

        ``x`` is an input batch, or with ``begin`` the tokens that block ``begin`` receives.
        """
        x = x if begin else self.embed(x)
        for block in self.blocks[begin:until]:
            x = through(block, x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Encode an input batch into tokens ``[batch, tokens, dim]``, normalised if the tower has its own norm.

        While ``begin`` is set, ``x`` are the tokens that this block receives.
        """
        x = self.run(x, self.begin)
        return self.norm(x) if hasattr(self, "norm") else x

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """Pool tokens into one feature per sample: the first token, ``[batch, width]``."""
        return tokens[:, 0]


def recompute(blocks: nn.ModuleList, checkpointing: int) -> nn.ModuleList:
    """Mark the blocks whose activations the backward pass recomputes: the first ``checkpointing``, or all if True.

    The backward pass reaches the first blocks last, when the kept activations of the others are freed already.  So
    these recomputed activations don't add to the peak, as the last blocks' would (Megatron-LM's method ``block``).
    """
    for block in blocks if checkpointing is True else blocks[:checkpointing]:
        vars(block)["recomputed"] = True
    return blocks


def through(block: nn.Module, x: Any, *given: Any, **more: Any) -> Any:
    """Apply a block to tokens; the backward pass recomputes its activations if it is marked (``recompute``).

    ``given`` and ``more`` are further arguments of the block.
    """
    if getattr(block, "recomputed", False) and torch.is_grad_enabled():
        contexts = partial(_checkpoint_contexts, block)
        return checkpoint(_first_of, block, x, *given, use_reentrant=False, context_fn=contexts, **more)
    return _first_of(block, x, *given, **more)


def _first_of(block: nn.Module, x: Any, *given: Any, **more: Any) -> Any:
    out = block(x, *given, **more)
    return out[0] if isinstance(out, tuple) else out


RECOMPUTING: ContextVar[AbstractContextManager[object] | None] = ContextVar("recomputing", default=None)
"""The torch mode that a checkpointed block must be recomputed in.

The backward pass runs outside the mode of the forward pass, so recomputation enters it again.
"""


def _checkpoint_contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _recomputation(block, RECOMPUTING.get() or nullcontext())


@contextmanager
def _recomputation(block: nn.Module, mode: AbstractContextManager[object]) -> Iterator[None]:
    """Freeze the running statistics of a block's batch norms: the forward pass has already counted this batch."""
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm)]
    saved = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with mode:
            yield
    finally:
        for norm, (momentum, batches_tracked) in zip(norms, saved, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches_tracked


def without_compiler(name: str, module: nn.Module) -> nn.Module:
    """The tower of this name without what hides its operators: oneDNN's LSTM, and ``torch.compile``, which also puts
    ``_orig_mod`` into the names by which stages cut.

    Raises MethodError for a part that ``torch.jit`` compiled: it takes no hooks, which tell the parts of a cost.
    """
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            what = f"its part {path.replace('_orig_mod.', '')!r}" if path else "it"
            raise MethodError(f"tower {name}: {what} is compiled by torch.jit, which takes no hooks: leave that out")
        if part._compiled_call_impl is not None:  # by ``module.compile()``
            part._compiled_call_impl = None
        if isinstance(part, nn.LSTM):  # oneDNN's has a workspace, whose size torch's fake kernels don't tell
            part.register_forward_pre_hook(partial(_use_onednn, False))
            part.register_forward_hook(partial(_use_onednn, True), always_call=True)
        for child, inside in part._modules.items():
            if inside is not None and "_orig_mod" in inside._modules:
                part._modules[child] = inside._modules["_orig_mod"]
    return module._modules.get("_orig_mod") or module


def _use_onednn(used: bool, *_: object) -> None:
    torch._C._set_mkldnn_enabled(used)


@contextmanager
def running_as_written() -> Iterator[None]:
    """Within it modules run as they are written, without functions that ``torch.compile`` made of them, since no
    compiler takes fake tensors, and without torch's own way around its attention, whose products have no formula."""
    loaded = "torch._dynamo" in sys.modules  # whatever is compiled has imported it, which takes 1.3 s
    short_cut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager") if loaded else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short_cut)


class SkipInitialisation(TorchFunctionMode):
    """Turns the in-place initialisation of a meta tensor into a no-op."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _FILLS:
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                return tensor
        return func(*args, **kwargs)


_FILLS = frozenset({"normal_", "uniform_", "bernoulli_", "erfinv_", "clamp_", "fill_", "zero_"})


def stand_in(mask: str, like: Tensor, width: int) -> Tensor:
    """A substitute for a missing feature, with the batch size, dtype and device of ``like``: ``[batch, width]``.

    It is zero, or standard normal noise if ``mask`` is ``random``.
    """
    create = torch.randn if mask == "random" else torch.zeros
    return create(like.shape[0], width, dtype=like.dtype, device=like.device)


def initialise(module: nn.Module) -> None:
    """Initialise in place: Xavier for linear weights (as the original ViT), normal 0.02 for embeddings, zero biases.

    Xavier's scale depends on the width.  A fixed 0.02 suits widths of 384 and more; in a narrow tower the blocks
    would then contribute almost nothing for many rounds.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=0.02)


def assemble(embedding: nn.Module, options: TransformerOptions, description: TowerDescription, norm: bool) -> Tower:
    """An initialised tower with the first ``description["depth"]`` of the ``options.blocks`` blocks.

    ``norm`` says whether it has a final norm.
    """
    rates = drop_path_rates(options.drop_path, options.blocks, description["depth"])
    blocks = [TransformerBlock(options.width, options.heads, options.mlp_ratio, rate) for rate in rates]
    final = nn.LayerNorm(options.width, eps=1e-6) if norm else None
    tower = Tower(embedding, blocks, final, options.width, description.get("checkpointing", False))
    initialise(tower)
    return tower
