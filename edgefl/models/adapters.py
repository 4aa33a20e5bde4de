"""Adapters: a few parameters that train in place of a model's own, which stay as they are.

LoRA (Hu et al. 2022, arXiv 2106.09685): ``W x + alpha / rank B A x``, with A [rank, in] random and B [out, rank] zero
at the start, so that the adapted model begins as the model itself.  BitFit (Ben Zaken et al. 2022): biases alone train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from edgefl.errors import MethodError, suggestion

READ_OUT = ("head", "rep")
"""Parts that a task adds to a tower."""
FACTORS = ("lora_a", "lora_b")
"""Names of a layer's factors A and B beside its weight."""


class AdapterOptions(BaseModel):
    """The scenario's ``adapter`` section."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["none", "lora", "bitfit"] = Field(
        "none",
        description="what trains: the whole model (none), low-rank factors beside linear layers (lora), or biases "
        "(bitfit)",
    )
    rank: PositiveInt = Field(8, description="rank of LoRA's factors")
    alpha: PositiveFloat = Field(16.0, description="LoRA's scale: what the factors give is multiplied by alpha / rank")
    parts: tuple[str, ...] = Field(
        (),
        description="ends of the names of the linear layers that get factors: [attn.qkv, attn.proj]; empty: all linear "
        "layers of the blocks",
    )
    also: tuple[str, ...] | None = Field(
        None,
        description="parts that train beside the adapter: embedding, norm, rep or head of every tower, or the "
        "beginning of a parameter's name (image.blocks.3); null: head and rep, which pre-trained weights don't have",
    )
    deliver_base: Literal["preinstalled", "first"] = Field(
        "preinstalled",
        description="whether clients have the parameters that don't train (preinstalled), or receive them when they "
        "first take part (first); they aren't sent again",
    )

    @property
    def description(self) -> dict[str, Any]:
        """What a model's description says of its adapter; empty without one.

        Of LoRA it says the ``scale`` in place of alpha: a schedule that changes the rank leaves the scale as it is.
        """
        if self.name == "none":
            return {}
        also = list(READ_OUT if self.also is None else self.also)
        if self.name != "lora":
            return {"name": self.name, "also": also}
        return {
            "name": self.name,
            "rank": self.rank,
            "scale": self.alpha / self.rank,
            "parts": list(self.parts),
            "also": also,
        }


def trains(adapter: Mapping[str, Any], name: str) -> bool:
    """Whether a parameter trains, with a description's ``adapter``."""
    if any(belongs(name, part) for part in adapter["also"]):
        return True
    last = name.rpartition(".")[2]
    return last in FACTORS if adapter["name"] == "lora" else last == "bias"


def belongs(name: str, part: str) -> bool:
    """Whether a parameter belongs to a part: that of any tower (``head``), or the beginning of its name."""
    return f"{name}.".startswith(f"{part}.") or name.split(".")[1:2] == [part]


def attach(module: nn.Module, adapter: Mapping[str, Any]) -> None:
    """Give the layers of a model LoRA's factors; nothing for other adapters.

    Factors are drawn from torch's global generator, A as torch initialises a linear layer.  Raises MethodError for a
    rank above a layer's smaller side.
    """
    if adapter["name"] != "lora":
        return
    for name, layer in chosen_layers(module, adapter["parts"]):
        inputs, outputs = sides(layer)
        if adapter["rank"] > min(inputs, outputs):
            raise MethodError(
                f"rank {adapter['rank']} is above the smaller side of {name}, which is {inputs} x {outputs}: "
                f"at most {min(inputs, outputs)}"
            )
        like = cast(Tensor, layer.weight)
        first = nn.Parameter(torch.empty(adapter["rank"], inputs, dtype=like.dtype, device=like.device))
        nn.init.kaiming_uniform_(first, a=math.sqrt(5))
        layer.register_parameter("lora_a", first)
        zeros = torch.zeros(outputs, adapter["rank"], dtype=like.dtype, device=like.device)
        layer.register_parameter("lora_b", nn.Parameter(zeros))
        layer.register_forward_hook(partial(_add, scale(adapter)))


def scale(adapter: Mapping[str, Any]) -> float:
    """What LoRA's product is multiplied by, at every client and every rank: alpha / the server's rank."""
    if "scale" not in adapter:  # models.json of earlier versions
        return float(adapter["alpha"] / adapter.get("of", adapter["rank"]))
    return float(adapter["scale"])


def _add(scale: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    first, second = (cast(Tensor, getattr(layer, factor)) for factor in FACTORS)
    return output + F.linear(F.linear(inputs[0], first), second) * scale


def chosen_layers(module: nn.Module, parts: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """The linear layers whose names end with one of ``parts``; all those of the blocks if there are none."""
    if not parts:
        return [(name, layer) for name, layer in linear_layers(module) if ".blocks." in f".{name}."]
    return [(n, layer) for n, layer in linear_layers(module) if any(f".{n}".endswith(f".{part}") for part in parts)]


def linear_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers by name, GPT-2's included; not those whose weights other modules read."""
    for name, layer in module.named_modules():
        if isinstance(layer, NonDynamicallyQuantizableLinear):
            continue
        if isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D":
            yield name, layer


def sides(layer: nn.Module) -> tuple[int, int]:
    """A linear layer's inputs and outputs."""
    shape = cast(Tensor, layer.weight).shape
    return (int(shape[1]), int(shape[0])) if isinstance(layer, nn.Linear) else (int(shape[0]), int(shape[1]))


def check(modules: Mapping[str, nn.Module], adapter: Mapping[str, Any], given: bool = True) -> None:
    """Raise MethodError for a part that no layer of these models has, by kind, or if nothing gets an adapter.

    ``given`` says whether the scenario names the parts in ``also`` itself.
    """
    names = {name for module in modules.values() for name, _ in linear_layers(module)}
    for part in adapter.get("parts", ()):
        if not any(f".{name}".endswith(f".{part}") for name in names):
            ends = sorted({".".join(words[-k:]) for words in (n.split(".") for n in names) for k in (1, 2)})
            raise MethodError(f"parts: no linear layer's name ends with {part!r}{suggestion(part, ends)}")
    parameters = {name for module in modules.values() for name, _ in module.named_parameters()}
    for part in adapter["also"] if given else ():
        if not any(belongs(name, part) for name in parameters):
            own = sorted({".".join(name.split(".")[:2]) for name in parameters})
            raise MethodError(f"also: no model has a part {part!r}; the parts are {', '.join(own)}")
    for kind, module in modules.items():
        lora = adapter["name"] == "lora" and chosen_layers(module, adapter["parts"])
        if not lora and not any(trains(adapter, name) for name, _ in module.named_parameters()):
            raise MethodError(f"{adapter['name']} finds nothing to train in the model of {kind} clients")


def without(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description of the same model without its adapter."""
    return {name: value for name, value in description.items() if name != "adapter"}


def merge(module: nn.Module, adapter: Mapping[str, Any]) -> dict[str, Tensor]:
    """Parameters and buffers of a model by name, with its factors added to its weights."""
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    if adapter["name"] == "lora":
        factor = scale(adapter)
        for name, layer in chosen_layers(module, adapter["parts"]):
            first, second = (state.pop(f"{name}.{factor}") for factor in FACTORS)
            change = factor * second @ first
            state[f"{name}.weight"] = state[f"{name}.weight"] + (change if isinstance(layer, nn.Linear) else change.T)
    return state
