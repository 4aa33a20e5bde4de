"""In which dtype each tensor of a model lies and travels: by tower, of what a task adds to towers, and of adapters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from edgefl.models import adapters
from edgefl.models.model import ModelDescription, dtype_of


def widest(names: Iterable[str]) -> str:
    """The dtype that holds the values of all of these; of float16 and bfloat16 it is float32."""
    return str(reduce(torch.promote_types, (getattr(torch, name) for name in names))).removeprefix("torch.")


def in_float64(description: ModelDescription) -> None:
    """Put all of a description's model into float64."""
    description["dtype"] = "float64"
    for tower in description["towers"].values():
        tower["dtype"] = "float64"
    if "adapter" in description:
        description["adapter"] = {**description["adapter"], "dtype": "float64"}


def under_adapter(description: ModelDescription, options: adapters.AdapterOptions, given: bool) -> None:
    """Give a model's adapter its dtype where not all is in float32, and what a task adds too if the adapter trains it.

    ``given`` says that the dtype of what a task adds is the scenario's own choice.
    """
    adapter = description["adapter"]
    towers = (tower.get("dtype", "float32") for tower in description["towers"].values())
    if {options.dtype, *towers} == {"float32"}:
        return
    description["adapter"] = {**adapter, "dtype": options.dtype}
    if not given and set(adapter["also"]) & set(adapters.READ_OUT):
        description["dtype"] = options.dtype


def cast(module: nn.Module, description: ModelDescription, added: Collection[str]) -> None:
    """Put a model that was just built in float32 into its dtypes.

    A tower's parts are in the tower's dtype; what a task adds (projections, classifiers, what towers share) in the
    description's.  Parameters that an adapter ``added``, and layers of a tower that train as a whole beside it, are in
    the adapter's: their inputs are cast, and a layer's output is cast back.
    """
    towers, adapter = description.get("towers", {}), description.get("adapter")
    if not any("dtype" in part for part in (description, adapter or {}, *towers.values())):
        return
    whole, own = dtype_of(description), dtype_of(adapter or {})
    for path, part in module.named_modules():
        names = path.split(".")
        shared = names[0] not in towers
        base = whole if shared else dtype_of(towers[names[0]])
        taken = base
        if at := 2 if shared else _read_out(names):
            taken = whole
            if at == len(names):
                part.register_forward_pre_hook(partial(_cast_inputs, whole))
        elif adapter and own is not base and _trains_whole(part, path, adapter, added):
            taken = own
            part.adapter_dtype = own
            part.register_forward_pre_hook(partial(_cast_inputs, own))
            part.register_forward_hook(partial(_cast_output, base))
        for name, value in (*part._parameters.items(), *part._buffers.items()):
            if value is not None and value.is_floating_point():
                value.data = value.data.to(own if f"{path}.{name}" in added else taken)


def _read_out(names: list[str]) -> int:
    """How many of a module's names lead to the projection or classifier that it is or belongs to; 0: to none."""
    places = [2, *(at + 2 for at, name in enumerate(names) if name == "exit")]
    return next((at for at in places if names[at - 1 : at] and names[at - 1] in adapters.READ_OUT), 0)


def _trains_whole(part: nn.Module, path: str, adapter: Any, added: Collection[str]) -> bool:
    """Whether a layer without layers of its own trains whole; not one whose weight another module reads."""
    names = [f"{path}.{name}" for name in part._parameters if part._parameters[name] is not None]
    leaf = not part._modules and not isinstance(part, NonDynamicallyQuantizableLinear)
    return bool(leaf and names) and all(adapters.trains(adapter, n) and n not in added for n in names)


def _cast_inputs(dtype: torch.dtype, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


def _cast_output(dtype: torch.dtype, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.to(dtype)
