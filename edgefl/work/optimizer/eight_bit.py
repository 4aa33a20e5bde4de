"""AdamW whose states lie in 8 bits, by bitsandbytes' operators.

A state is in blocks of 256 numbers, each an index into a map of 256 values between -1 and 1, times the largest
magnitude of its block (Dettmers et al. 2022).  A step dequantises them, which on a CPU takes 20 bytes a number beside
them; so that large parameters don't need that at once, it goes through them in pieces of whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from edgefl.models import quantised

BLOCK = 256
"""Numbers of a state that share a scale: that of bitsandbytes' kernels."""
PIECE = 2**18
"""Elements of a parameter that are updated at a time, a multiple of ``BLOCK``: it leaves the bits as they are.

A CPU's kernel holds 20 bytes for each.  4 million elements take 92 ms with 5 MiB; 104 ms with pieces of 2^16, and 85 ms
with 2^20 and four times the memory.
"""
SMALLEST = 4096
"""Parameters with fewer elements keep states in float32: bitsandbytes' ``min_8bit_size``."""


@cache
def maps() -> tuple[list[float], list[float]]:
    """The values that the 8 bits of the first moment stand for, and those of the second, which has no sign."""
    quantised.library()
    from bitsandbytes.functional import create_dynamic_map

    with unset_fake_temporarily():  # a prediction's tensors have no values
        return create_dynamic_map(signed=True).tolist(), create_dynamic_map(signed=False).tolist()


class ReferenceAdamW8bit(torch.optim.Optimizer):
    """AdamW as ``bitsandbytes.optim.AdamW8bit`` computes it, to the bit."""

    def __init__(self, params: Any, lr: float, betas: Sequence[float], weight_decay: float, eps: float = 1e-8):
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "eps": eps})
        first = self.param_groups[0]["params"][0]
        self._maps = [torch.tensor(values, device=first.device) for values in maps()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter)

    def _update(self, group: dict[str, Any], parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            self._begin(state, parameter)
        state["step"] += 1
        gradient, value = parameter.grad.contiguous(), parameter.contiguous()  # type: ignore[union-attr]
        flat = [tensor.view(-1) for tensor in (gradient, value, state["state1"], state["state2"])]
        (first, second), decay, library = group["betas"], group["weight_decay"], quantised.library()
        numbers = first, second, 0.0, 0.0, group["eps"]
        if state["state1"].dtype == torch.float32:
            library.optimizer_update_32bit(
                "adam", *flat, None, 0.0, 0.0, *numbers, decay, state["step"], group["lr"], 1.0
            )
        else:
            pieces = [tensor.split(PIECE) for tensor in flat]
            scales = [state[name].split(PIECE // BLOCK) for name in ("absmax1", "absmax2")]
            for *piece, scale1, scale2 in zip(*pieces, *scales, strict=True):
                library.optimizer_update_8bit_blockwise(
                    "adam", *piece, *numbers, state["step"], group["lr"],
                    state["map1"], state["map2"], scale1, scale2, decay, 1.0,
                )  # fmt: skip
        if not parameter.is_contiguous():
            parameter.copy_(value)

    def _begin(self, state: dict[str, Any], parameter: Tensor) -> None:
        state["step"], small = 0, parameter.numel() < SMALLEST
        for name in ("1", "2"):
            state[f"state{name}"] = torch.zeros(
                parameter.shape, dtype=torch.float32 if small else torch.uint8, device=parameter.device
            )
        if small:
            return
        state["map1"], state["map2"] = self._maps
        for name in ("1", "2"):
            state[f"absmax{name}"] = torch.zeros(-(-parameter.numel() // BLOCK), device=parameter.device)
