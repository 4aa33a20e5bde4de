"""AdamP (Heo et al. 2021): Adam whose step is projected where a weight is invariant to its scale.

timm's ``AdamP`` asks each tensor's values which projection it takes.  Here values decide in place, so that a step has
the same operators and memory whatever they are, a prediction needs none, and a GPU isn't waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

DECAYED = 0.1
"""Factor on the weight decay of weights that are invariant to their scale: the paper's and timm's."""


class ProjectedAdam(torch.optim.Optimizer):
    """The steps of ``timm.optim.AdamP``, but for rounding."""

    def __init__(
        self, params: Any, lr: float, betas: Sequence[float], weight_decay: float, delta: float, eps: float = 1e-8
    ):
        given = {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "delta": delta, "eps": eps}
        super().__init__(params, given)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad)

    def _update(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, (first, second), eps = self.state[parameter], group["betas"], group["eps"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        state["exp_avg"].mul_(first).add_(gradient, alpha=1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        step = state["exp_avg_sq"].sqrt().div_(sqrt(1 - second ** state["step"])).add_(eps)
        torch.div(state["exp_avg"], step, out=step)
        decay: float | Tensor = group["weight_decay"]
        if parameter.dim() > 1:
            projected = _project(parameter, gradient, step, group["delta"], eps)
            decay = torch.where(projected, parameter.new_full((), group["weight_decay"] * DECAYED), decay)
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * decay)
        parameter.add_(step, alpha=-group["lr"] / (1 - first ** state["step"]))


def _project(weight: Tensor, gradient: Tensor, step: Tensor, delta: float, eps: float) -> Tensor:
    """Take from ``step`` its part along the weight, in place, if the gradient is orthogonal to it.

    Asked first of every row (``weight[i]``), then of the tensor as a whole.  Returns whether one of them is, `[]`.
    """
    w, g, s = (tensor.flatten(1) for tensor in (weight, gradient, step))
    rows = [(a * b).sum(1) for a, b in ((w, w), (g, g), (w, g), (w, s))]
    whole = [row.sum() for row in rows]
    by_row, at_all = (
        ((wg.abs() / (ww.sqrt().clamp_min(eps) * gg.sqrt().clamp_min(eps))).max() < delta / sqrt(size))
        for (ww, gg, wg, _), size in ((rows, w.shape[1]), (whole, w.numel()))
    )
    along_row, along_all = (ws / (ww.sqrt() + eps).square() for ww, _, _, ws in (rows, whole))
    share = torch.where(by_row, along_row, torch.where(at_all, along_all, 0.0))
    step.addcmul_(weight, share.view(-1, *[1] * (weight.dim() - 1)), value=-1)
    return by_row | at_all
