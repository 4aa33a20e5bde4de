"""DP-SGD at the client (Abadi et al. 2016, algorithm 1): gradients of single samples are clipped, summed and noised.

    g = (sum_i g_i min(1, C / ||g_i||) + N(0, (z C)^2)) / B

C is the clip, z the noise, and B the samples that a batch has, or has on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.work.description import Pass, StepArgs, Work
from edgefl.work.step_faults import describe_step
from edgefl.work.steps import Context, Wrapper, says
from edgefl.work.training_options import PrivateOptions

PRIVATE = "private"
"""The registered name of the wrapper."""
CLIP, NOISE = "private_clip", "private_noise"
"""Scalars of a private work: the largest norm of a sample's gradient, and the noise's deviation over it."""
SMALL = 1e-6
"""Added to the norm of a sample's gradient, which may be 0, as opacus does."""


class PrivateArgs(StepArgs, total=False):
    """Arguments of ``PrivateGradients``."""

    micro_batch: int


def with_private_gradients(work: Work, options: PrivateOptions) -> Work:
    """The work with private gradients in its passes that train on the client's own samples."""
    args = {name: value for name in ("micro_batch", "poisson") if (value := getattr(options, name)) is not None}
    clip = cast(float, options.clip)  # which its own check asks for
    private = work.change_passes(lambda p: p.inside(PRIVATE, **args) if p.train and p.data == "private" else p)
    return replace(private, scalars={**work.scalars, CLIP: clip, NOISE: options.noise})


def private_fault(work: Work) -> str:
    """Why a private work can't be trained, or would tell more than its gradients, with a remedy; "" if there is none.

    Raises what the model's code raises.
    """
    own, module = [p for p in work.passes if p.data == "private"], models.blueprint(work.model)
    for p in own:
        if not p.train:
            return f"{describe_step(p)} tells about samples without noise: take another method, such as fedavg"
        for name in (name for name in p.steps if not says(registry.get("step", name), "averages_samples")):
            return (
                f"{registry.describe_part('step', name)}, by which {work.kind} clients train, has no loss that is a "
                "mean over samples, each seen alone (averages_samples): take the task classify or next-token, and a "
                "method that trains by these alone, such as fedavg"
            )
    for name, part in module.named_modules():
        called = f"{name}, a {type(part).__name__},"
        if isinstance(part, _NormBase) and (isinstance(part, _BatchNorm) or part.track_running_stats):
            return f"{called} mixes the samples of a batch: take a model with LayerNorm or GroupNorm"
        if isinstance(part, nn.GRU | nn.RNN) and any(cast(PrivateArgs, p.args).get("micro_batch") != 1 for p in own):
            return f"torch.func can't compute {called} for several samples at once: set training.private.micro_batch: 1"
    half = {name for name, p in module.named_parameters() if p.dtype in (torch.bfloat16, torch.float16)}
    for name in (name for name in work.trainable if name in half):
        return f"{name} trains in half precision, which rounds noise away: write float32 for its dtype"
    return "" if own else f"{work.kind} clients train on no samples of their own: take another method, such as fedavg"


class PrivateGradients(Wrapper):
    """A wrapper: the loss of the step inside, whose gradients are DP-SGD's.

    ``args.micro_batch`` samples are differentiated at a time, all of a batch without it; a single one without vmap, by
    the usual backward pass.  Every parameter that trains gets noise, also one that no sample of the batch reads.  With
    ``args.poisson`` samples with label -1 don't count, and B is that share of the batch.
    """

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch's samples."""
        args, device = cast(PrivateArgs, pass_.args), ctx.device.type
        clip, noise = (float(ctx.work.number(name)) for name in (CLIP, NOISE))
        size, halved = args.get("micro_batch") or pass_.batch, torch.is_autocast_enabled(device)
        dtype, counts = torch.get_autocast_dtype(device), batch["label"] >= 0

        def loss_of(trained: Mapping[str, Tensor], sample: Mapping[str, Tensor]) -> Tensor:
            # a cache would hold tensors of vmap beyond it
            with torch.autocast(device, dtype, enabled=halved, cache_enabled=False):
                return cast(Tensor, self.step.loss(replace(ctx, trained=trained), sample, pattern, pass_))

        stepped, losses, sums = _Stepped(ctx.model, loss_of), list[Tensor](), dict[str, Tensor]()
        real = {**batch, "label": batch["label"].clamp_min(0)}
        with torch.autocast(device, enabled=False):  # clipping, noise and the backward pass aren't in half
            for at in range(0, pass_.batch, size):
                samples = {name: field[at : at + size] for name, field in real.items()}
                gradients, of_each = (_by_backward if size == 1 else _by_vmap)(stepped, ctx.trained, samples)
                losses.append(of_each)
                _add_clipped(sums, gradients, clip, counts[at : at + size])
            for total in sums.values():
                if noise:
                    total.add_(torch.randn_like(total), alpha=noise * clip)
                total.div_(pass_.batch * args.get("poisson", 1.0))
            loss = (torch.cat(losses) * counts).sum() / counts.sum().clamp_min(1)
            return _GivenGradients.apply(loss, list(sums.values()), *ctx.trained.values())  # type: ignore[no-any-return, no-untyped-call]


class _Stepped(nn.Module):
    """A step's loss as a module, which torch can call with other tensors in place of the model's parameters."""

    def __init__(self, model: nn.Module, forward: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]):
        super().__init__()
        self.model, self.forward = model, forward


# Both give gradients of samples ``[samples, ...]`` by parameter, and losses ``[samples]``.


def _by_backward(
    stepped: _Stepped, trained: Mapping[str, Tensor], sample: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    loss = stepped(trained, sample)
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
    return {name: each[None] for name, each in zip(trained, found, strict=True)}, loss.detach()[None]


def _by_vmap(
    stepped: _Stepped, trained: Mapping[str, Tensor], samples: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    def of_sample(parameters: Mapping[str, Tensor], sample: Mapping[str, Tensor]) -> Tensor:
        placed = {f"model.{name}": value for name, value in parameters.items()}
        given = parameters, {name: field[None] for name, field in sample.items()}
        return cast(Tensor, functional_call(stepped, placed, given))

    values = {name: parameter.detach() for name, parameter in trained.items()}
    # torch warns of operators that it computes sample after sample, such as a CPU's attention; a private name, of 2.13
    warn: Callable[[bool], None] = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled")  # noqa: B009
    warn(False)
    try:
        return vmap(grad_and_value(of_sample), (None, 0), randomness="different")(values, samples)
    except RuntimeError as error:
        said = " ".join(str(error).split())
        if not any(word in said for word in ("vmap", "functorch", "torch.func", "transform")):
            raise
        raise MethodError(
            f"torch can't differentiate several samples at once ({said:.120}): set training.private.micro_batch: 1"
        ) from error
    finally:
        warn(True)


def _add_clipped(sums: dict[str, Tensor], gradients: dict[str, Tensor], clip: float, counts: Tensor) -> None:
    """Add the gradients of samples that count, each clipped to the norm ``clip`` over all parameters; empties them."""
    norms = [torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients.values()]
    factor = (clip / (torch.linalg.vector_norm(torch.stack(norms), dim=0) + SMALL)).clamp(max=1.0) * counts
    for name in list(gradients):
        of_samples = gradients.pop(name)  # freed when it is added
        added = (factor @ of_samples.reshape(len(factor), -1)).view(of_samples.shape[1:])
        sums[name] = sums[name].add_(added) if name in sums else added


class _GivenGradients(torch.autograd.Function):
    """A loss with gradients of parameters, one for each, which the backward pass scales by what came in."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # the graph may outlive the update
        return None, None, *(each.mul_(factors[0]) for each in gradients)
