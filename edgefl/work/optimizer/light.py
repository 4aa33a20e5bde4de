"""torch's optimizers without the guards for torch.compile, which import ``torch._dynamo`` (1.3 s in every process)."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of ``Optimizer`` that torch wraps; nothing here is compiled, so the functions inside do the same."""


def light(kind: type[Kind]) -> type[Kind]:
    """The optimizer with the same functions, unwrapped; the optimizer itself where torch wraps them otherwise."""
    if kind not in _LIGHT:
        _LIGHT[kind] = _light(kind)
    return cast(type[Kind], _LIGHT[kind])


_LIGHT: dict[type, type] = {}


def _light(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    inner: dict[str, Any] = {name: getattr(getattr(kind, name), "__wrapped__", None) for name in (*GUARDED, "step")}
    if None in inner.values():
        return kind
    inner["step"] = torch.no_grad()(inner["step"])
    return type(kind.__name__, (kind,), inner)
