"""torch's optimizers without the guards for torch.compile, which import ``torch._dynamo`` (1.3 s in every process)."""

from __future__ import annotations

from functools import cache

import torch

GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of ``Optimizer`` that torch wraps; nothing here is compiled, so the functions inside do the same."""


@cache
def light(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimizer with the same functions, unwrapped; the optimizer itself where torch wraps them otherwise."""
    inner = {name: getattr(getattr(kind, name), "__wrapped__", None) for name in (*GUARDED, "step")}
    if None in inner.values():
        return kind
    inner["step"] = torch.no_grad()(inner["step"])
    return type(kind.__name__, (kind,), inner)
