"""Adapters, such as LoRA with its casts: a few parameters that train in place of a model's own, which stay as they are.

LoRA (Hu et al. 2022, arXiv 2106.09685): ``W x + alpha / rank B A x``, with A [rank, in] random and B [out, rank] zero
at the start, so that the adapted model begins as the model itself.  DoRA (Liu et al. 2024, arXiv 2402.09353): a trained
length for each row of ``W + alpha / rank B A``, the row's own at the start.  BitFit (Ben Zaken et al. 2022): biases
alone train.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from edgefl import registry
from edgefl.errors import MethodError, suggestion
from edgefl.models.model import AdapterDescription, Dtype, ModelDescription
from edgefl.registry.part_fields import Fields, FileName

READ_OUT = ("head", "rep")
"""Parts that a task adds to a tower."""
FACTORS = ("lora_a", "lora_b")
"""Names of a layer's factors A and B beside its weight."""
MAGNITUDE = "lora_m"
"""The name of DoRA's lengths of a layer's rows beside them: [out]."""


class _Named(Fields):
    name: str = Field("none", description="what trains: the name of an adapter")


class AdapterOptions(_Named):
    """Fields of every adapter in a scenario's ``adapter`` section."""

    also: tuple[str, ...] | None = Field(
        None,
        description="parts that train beside the adapter: embedding, norm, rep or head of every tower, or the "
        "beginning of a parameter's name (image.blocks.3); null: head and rep, which pre-trained weights don't have",
    )
    dtype: Dtype = Field(
        "float32",
        description="dtype of what trains over a tower of another dtype: the adapter's own parameters, and the layers "
        "that train beside it; single parameters that train in a frozen layer, as biases, are in the tower's",
    )
    deliver_base: Literal["preinstalled", "first"] = Field(
        "preinstalled",
        description="whether clients have the parameters that don't train (preinstalled), or receive them when they "
        "first take part (first); they aren't sent again",
    )


class Adapter:
    """What trains of a model, ``adapter: {name: NAME, ...}``.  Subclass, give ``Options``, and override what differs.

    ``adapter`` is what a model's description says of it: ``name``, ``also``, and what
    ``description_fields`` adds.  Plain data.
    """

    Options: ClassVar[type[AdapterOptions]] = AdapterOptions
    """Fields of the scenario; a subclass of ``Adapter.Options``, which has ``name``, ``also`` and ``deliver_base``."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    summary: ClassVar[str] = ""
    """One line for the reference."""

    @classmethod
    def description_fields(cls, options: Any) -> Mapping[str, object]:
        """What the model's description says of it, as plain data: by default its own fields."""
        fields: Mapping[str, object] = options.model_dump(mode="json", exclude=set(AdapterOptions.model_fields))
        return fields

    @classmethod
    def attach(cls, module: nn.Module, adapter: AdapterDescription) -> None:
        """Add the adapter's own parameters to a model that was just built; by default none.

        A parameter in a block is named as the block's others, ``TOWER.blocks.3.REST``, so that schedules cut it with
        its block.  The module may be on the meta device.
        """

    @classmethod
    def trains(cls, adapter: AdapterDescription, name: str) -> bool:
        """Whether a parameter trains that isn't one of ``also``."""
        return False

    @classmethod
    def check(cls, modules: Mapping[str, nn.Module], adapter: AdapterDescription) -> None:
        """Raise MethodError where it doesn't fit these models without an adapter, by kind."""

    @classmethod
    def first_values(
        cls, module: nn.Module, tensors: Mapping[str, Tensor], adapter: AdapterDescription
    ) -> dict[str, Tensor]:
        """First values of its own parameters that follow from the model's first ``tensors``, by name; by default none.

        They are asked for after pre-trained weights are read.
        """
        return {}

    @classmethod
    def merge(cls, module: nn.Module, adapter: AdapterDescription) -> dict[str, Tensor] | None:
        """Parameters and buffers of the model without the adapter that computes the same; None if there is none."""
        return None


def description(options: AdapterOptions) -> AdapterDescription:
    """What a model's description says of its adapter; empty without one."""
    if options.name == "none":
        return {}
    also = list(READ_OUT if options.also is None else options.also)
    fields = _kind(options.name).description_fields(options)
    return cast(AdapterDescription, {"name": options.name, **fields, "also": also})


def _kind(name: str) -> type[Adapter]:
    part: type[Adapter] = registry.get("adapter", name)
    return part


def trains(adapter: AdapterDescription, name: str) -> bool:
    """Whether a parameter trains, with a description's ``adapter``."""
    return any(belongs(name, part) for part in adapter["also"]) or _kind(adapter["name"]).trains(adapter, name)


def belongs(name: str, part: str) -> bool:
    """Whether a parameter belongs to a part: that of any tower (``head``), or the beginning of its name."""
    return f"{name}.".startswith(f"{part}.") or name.split(".")[1:2] == [part]


def attach(module: nn.Module, adapter: AdapterDescription) -> None:
    """Give a model its adapter's parameters.  Raises MethodError for an adapter that doesn't fit."""
    _kind(adapter["name"]).attach(module, adapter)


def check(modules: Mapping[str, nn.Module], adapter: AdapterDescription, given: bool = True) -> None:
    """Raise MethodError for an adapter that doesn't fit these models without one, by kind.

    ``given`` says whether the scenario names the parts in ``also`` itself.
    """
    _kind(adapter["name"]).check(modules, adapter)
    parameters = {name for module in modules.values() for name, _ in module.named_parameters()}
    check_parts("also", adapter["also"] if given else (), parameters)


def check_parts(field: str, parts: Sequence[str], parameters: Collection[str]) -> None:
    """Raise MethodError, which begins with the ``field``, if none of these parameters belongs to a part."""
    for part in parts:
        if not any(belongs(name, part) for name in parameters):
            own = sorted({".".join(name.split(".")[:2]) for name in parameters})
            raise MethodError(f"{field}: no model has a part {part!r}; the parts are {', '.join(own)}")


def check_trains(kind: str, module: nn.Module, adapter: AdapterDescription) -> None:
    """Raise MethodError if nothing trains in the adapted model of a kind of client."""
    if not any(trains(adapter, name) for name, _ in module.named_parameters()):
        raise MethodError(f"{adapter['name']} finds nothing to train in the model of {kind} clients")


def first_values(module: nn.Module, tensors: Mapping[str, Tensor], adapter: AdapterDescription) -> dict[str, Tensor]:
    """First values of an adapter's own parameters that follow from the model's first ``tensors``, by name."""
    return _kind(adapter["name"]).first_values(module, tensors, adapter)


def without(description: ModelDescription) -> ModelDescription:
    """The description of the same model without its adapter, and so with no layer quantised."""
    left_out = ("adapter", "quantize")
    return cast(ModelDescription, {name: value for name, value in description.items() if name not in left_out})


def merge(module: nn.Module, adapter: AdapterDescription) -> dict[str, Tensor] | None:
    """Parameters and buffers of the model without its adapter that computes the same; None if there is none."""
    return _kind(adapter["name"]).merge(module, adapter)


# --- edgefl's own ----------------------------------------------------------------------------------------------------


class _Layers(_Named):
    rank: PositiveInt = Field(8, description="rank of LoRA's factors")
    alpha: PositiveFloat = Field(16.0, description="LoRA's scale: what the factors give is multiplied by alpha / rank")
    parts: tuple[str, ...] = Field(
        (),
        description="ends of the names of the linear layers that get factors: [attn.qkv, attn.proj]; empty: all linear "
        "layers of the blocks",
    )
    weights: FileName | dict[str, FileName] | None = Field(
        None,
        description="where LoRA's factors start from: a folder of PEFT with adapter_config.json and "
        "adapter_model.safetensors, or one by modality, {text: DIR}; random if absent",
    )

    @model_validator(mode="after")
    def _lora_alone(self) -> Self:
        if self.weights is not None and self.name not in ("lora", "dora"):
            raise ValueError(f"weights are factors of LoRA or DoRA, not of {self.name}: set name: lora or dora")
        return self


class LoraOptions(AdapterOptions, _Layers):
    """Fields of edgefl's own adapters: all have LoRA's, as the scenarios of runs do."""


class Nothing(Adapter):
    """The whole model trains."""

    Options = LoraOptions


class BitFit(Adapter):
    """Biases alone train."""

    paper = "Ben Zaken et al. 2022"

    Options = LoraOptions

    @classmethod
    def description_fields(cls, options: Any) -> Mapping[str, object]:
        """Nothing but the name."""
        return {}

    @classmethod
    def trains(cls, adapter: AdapterDescription, name: str) -> bool:
        """Whether it is a bias."""
        return name.rpartition(".")[2] == "bias"

    @classmethod
    def merge(cls, module: nn.Module, adapter: AdapterDescription) -> dict[str, Tensor]:
        """The model's own tensors: there are no others."""
        return {name: tensor.detach() for name, tensor in module.state_dict().items()}


class Lora(Adapter):
    """Low-rank factors train next to linear layers."""

    paper = "Hu et al. 2022"

    Options = LoraOptions

    @classmethod
    def description_fields(cls, options: Any) -> Mapping[str, object]:
        """The ``scale`` in place of alpha: a schedule that changes the rank leaves the scale as it is."""
        return {"rank": options.rank, "scale": options.alpha / options.rank, "parts": list(options.parts)}

    @classmethod
    def trains(cls, adapter: AdapterDescription, name: str) -> bool:
        """Whether it is a factor."""
        return name.rpartition(".")[2] in FACTORS

    @classmethod
    def attach(cls, module: nn.Module, adapter: AdapterDescription) -> None:
        """Give the layers of a model factors.

        They are drawn from torch's global generator, A as torch initialises a linear layer.  Raises MethodError for a
        rank above a layer's smaller side.
        """
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
            layer.register_forward_hook(partial(cls.moved_output, scale(adapter)))

    @classmethod
    def moved_output(cls, scale: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A layer's output with what the factors give added to it."""
        first, second = (cast(Tensor, getattr(layer, factor)) for factor in FACTORS)
        # as PEFT: the input is cast to the factors' dtype, under autocast too, which casts it back while both are held
        given = inputs[0].to(first.dtype)
        change = F.linear(F.linear(given, first), second) * scale
        return (output + change).to(output.dtype)

    @classmethod
    def check(cls, modules: Mapping[str, nn.Module], adapter: AdapterDescription) -> None:
        """Raise MethodError for a part that no layer of these models has, and if no layer would get factors."""
        names = {name for module in modules.values() for name, _ in linear_layers(module)}
        if not adapter["parts"] and not any(chosen_layers(module, []) for module in modules.values()):
            others = sorted(name for name in names if not any(belongs(name, part) for part in READ_OUT))
            remedy = f"name others in parts: {', '.join(others)}" if others else "take another adapter, or none"
            raise MethodError(f"no linear layer lies in a block of these models, so none gets factors; {remedy}")
        for part in adapter["parts"]:
            if not any(f".{name}".endswith(f".{part}") for name in names):
                ends = sorted({".".join(words[-k:]) for words in (n.split(".") for n in names) for k in (1, 2)})
                raise MethodError(f"parts: no linear layer's name ends with {part!r}{suggestion(part, ends)}")

    @classmethod
    def merge(cls, module: nn.Module, adapter: AdapterDescription) -> dict[str, Tensor]:
        """The weights with the factors' product added to them."""
        state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        for name, layer in chosen_layers(module, adapter["parts"]):
            own = {part: state.pop(f"{name}.{part}") for part in (*FACTORS, MAGNITUDE) if f"{name}.{part}" in state}
            weight = state[f"{name}.weight"]
            rows = weight if isinstance(layer, nn.Linear) else weight.T
            moved = cls.moved_rows(rows, own, scale(adapter))
            state[f"{name}.weight"] = (moved if isinstance(layer, nn.Linear) else moved.T).to(weight.dtype)
        return state

    @classmethod
    def moved_rows(cls, rows: Tensor, own: Mapping[str, Tensor], scale: float) -> Tensor:
        """A layer's weight [out, in] with what its ``own`` parameters, by their last names, make of it."""
        moved: Tensor = rows + scale * own["lora_b"] @ own["lora_a"]
        return moved


class Dora(Lora):
    """Low-rank factors train next to linear layers, and the length of each row of their sum with the weight.

    As PEFT computes it: the rows' lengths before scaling are constants of the backward pass (section 4.3).
    """

    paper = "Liu et al. 2024"

    @classmethod
    def trains(cls, adapter: AdapterDescription, name: str) -> bool:
        """Whether it is a factor or a row's length."""
        return name.rpartition(".")[2] in (*FACTORS, MAGNITUDE)

    @classmethod
    def attach(cls, module: nn.Module, adapter: AdapterDescription) -> None:
        """Give the layers of a model factors, and the lengths of their rows."""
        super().attach(module, adapter)
        for _, layer in chosen_layers(module, adapter["parts"]):
            layer.register_parameter(MAGNITUDE, nn.Parameter(torch.linalg.norm(_rows(layer).detach(), dim=1)))

    @classmethod
    def first_values(
        cls, module: nn.Module, tensors: Mapping[str, Tensor], adapter: AdapterDescription
    ) -> dict[str, Tensor]:
        """The rows' own lengths, with the factors' product."""
        found = {}
        for name, layer in chosen_layers(module, adapter["parts"]):
            weight, *own = (tensors[f"{name}.{part}"] for part in ("weight", *FACTORS, MAGNITUDE))
            rows = (weight if isinstance(layer, nn.Linear) else weight.T).to(own[0].dtype)
            moved = super().moved_rows(rows, dict(zip(FACTORS, own, strict=False)), scale(adapter))
            found[f"{name}.{MAGNITUDE}"] = torch.linalg.norm(moved, dim=1).to(own[-1].dtype)
        return found

    @classmethod
    def moved_output(cls, scale: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Each of a layer's outputs in its row's trained length."""
        # step by step as PEFT, which has the product from the factors' own passes, so that peak and FLOPs are its
        first, second, magnitude = (cast(Tensor, getattr(layer, name)) for name in (*FACTORS, MAGNITUDE))
        given = inputs[0].to(first.dtype)
        # nothing holds the ones, of which autocast saves a copy
        product = F.linear(F.linear(torch.eye(first.shape[1], dtype=first.dtype, device=first.device), first), second).T
        length = torch.linalg.norm(_rows(layer).to(given.dtype) + scale * product.detach(), dim=1).detach()
        factor = (magnitude / length).view(1, -1)
        change = F.linear(F.linear(given, first), second)
        base = output if layer.bias is None else output - cast(Tensor, layer.bias)
        moved: Tensor = (output + ((factor - 1) * base + factor * change * scale)).to(output.dtype)
        return moved

    @classmethod
    def moved_rows(cls, rows: Tensor, own: Mapping[str, Tensor], scale: float) -> Tensor:
        """Each row of weight and product in its trained length."""
        moved = super().moved_rows(rows.to(own["lora_a"].dtype), own, scale)
        scaled: Tensor = (own[MAGNITUDE] / torch.linalg.norm(moved, dim=1))[:, None] * moved
        return scaled


def scale(adapter: AdapterDescription) -> float:
    """What LoRA's product is multiplied by, at every client and every rank: alpha / the server's rank."""
    return float(adapter["scale"])


def _rows(layer: nn.Module) -> Tensor:
    """A linear layer's weight [out, in]."""
    weight = cast(Tensor, layer.weight)
    return weight if isinstance(layer, nn.Linear) else weight.T


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
