"""PCME's loss between the two modalities of a pair (Chun et al., CVPR 2021), for the model ``probabilistic``."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.methods.representations.steps import PublicArgs
from edgefl.work.description import Pass
from edgefl.work.steps import Context, Step

if TYPE_CHECKING:
    from edgefl.models.probabilistic import ProbabilisticModel


def sample_gaussian(mean: Tensor, log_deviation: Tensor, samples: int) -> Tensor:
    """``[batch, samples, dim]``: mean plus deviation times standard normal noise."""
    noise = torch.randn((mean.shape[0], samples, mean.shape[1]), device=mean.device)
    return mean[:, None] + log_deviation.exp()[:, None] * noise


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """``[n, m]`` of rows ``[n, dim]`` and ``[m, dim]``; at least 1e-6, as the gradient of a root is infinite at 0."""
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(1e-6)


def soft_contrast(a: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Soft contrastive loss of samples ``[batch, samples, dim]`` of two modalities, row k of a with row k of b.

    The chance of a match is the mean over all pairs of samples of sigmoid(-scale distance + shift); the loss is minus
    its logarithm for true pairs, minus that of the converse for all others, summed and divided by the batch.
    """
    batch, samples, dim = a.shape
    distance = squared_distances(a.reshape(-1, dim), b.reshape(-1, dim)).sqrt()
    logits = (shift - scale * distance).view(batch, samples, batch, samples).transpose(1, 2).reshape(batch, batch, -1)
    sign = 2 * torch.eye(batch, device=a.device) - 1
    chance = F.logsigmoid(sign[:, :, None] * logits).logsumexp(2) - 2 * log(samples)
    return -chance.sum() / batch


def divergence(mean: Tensor, log_deviation: Tensor) -> Tensor:
    """KL divergence of the Gaussians from the standard normal, summed over dimensions, mean over the batch."""
    elements = (mean.square() + (2 * log_deviation).exp() - 1) / 2 - log_deviation
    return elements.sum(1).mean()


class ContrastProbabilistic(Step):
    """PCME's loss; args: ``samples`` per Gaussian, and the weight ``kl`` of the divergence."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum of soft contrast and divergence; in float32 whatever the precision of the towers."""
        model, args = cast("ProbabilisticModel", ctx.model), cast(PublicArgs, pass_.args)
        gaussians = [model.gaussian(m, batch[m]) for m in pattern.split("-")]
        with torch.autocast(ctx.device.type, enabled=False):
            a, b = (sample_gaussian(mean, spread, args["samples"]) for mean, spread in gaussians)
            loss = soft_contrast(a, b, model.deviations.scale, model.deviations.shift)
            if args["kl"]:
                loss = loss + args["kl"] * torch.stack([divergence(*gaussian) for gaussian in gaussians]).sum()
        return loss
