"""The optimizers that a scenario's ``training.optimizer`` can name, edgefl's own and others, by torch's classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, cast

import torch
from pydantic import Field, create_model

from edgefl.errors import MethodError
from edgefl.models import quantised
from edgefl.registry.part_fields import NamedFields, parse_options
from edgefl.work.description import OptimizerSettings


class Optimizer:
    """How a torch optimizer is made from a work's settings.  Subclass, give ``Options``, and override ``build``."""

    class Options(NamedFields):
        """Fields beside its ``name`` in ``training.optimizer``."""

    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    summary: ClassVar[str] = ""
    """One line for ``edgefl parts``."""
    reads: ClassVar[tuple[str, ...]] = ("weight_decay",)
    """Fields of ``training`` that it reads beside the rate: numbers that may change with the round."""
    parameterwise: ClassVar[bool] = False
    """Whether each parameter's update depends on its own gradients alone, so that it may be taken in the backward
    pass."""
    precisions: ClassVar[tuple[str, ...]] = ("float64", "float32", "bfloat16", "float16")
    """Values of ``training.precision`` that it goes with."""

    def __init__(self, options: Any):
        self.options = options

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """The optimizer of parameters, or of groups of them with rates of their own.

        ``settings`` has ``lr`` and the fields that it ``reads``.
        """
        raise NotImplementedError


GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of ``Optimizer`` that torch wraps; nothing here is compiled, so the functions inside do the same."""


@cache
def light(part: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """torch's optimizer without the guards for torch.compile, which import ``torch._dynamo`` (1.3 s in every process).

    Its steps have no hooks and don't stand in the records of torch's profiler.
    It is the optimizer itself where torch wraps its functions otherwise.
    """
    inner = {name: getattr(getattr(part, name), "__wrapped__", None) for name in (*GUARDED, "step")}
    if (step := inner["step"]) is None or None in inner.values():
        return part
    bare = torch.no_grad()(step)
    bare.hooked = True  # else torch wraps each step in a record for its profiler, which took a quarter of its time
    return type(part.__name__, (part,), {**inner, "step": bare})


def _flags(implementation: str) -> dict[str, bool]:
    return {"foreach": implementation == "foreach", "fused": implementation == "fused"}


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if ``training.momentum`` gives it some."""

    reads = ("weight_decay", "momentum")
    parameterwise = True

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """torch's."""
        momentum, decay = settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)
        made, flags = light(torch.optim.SGD), _flags(implementation)
        return made(parameters, settings["lr"], momentum, weight_decay=decay, **flags)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); its weight decay is added to the gradients."""

    paper = "Kingma and Ba 2015"

    reads = ("weight_decay", "betas")
    parameterwise = True
    torch_class: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """torch's."""
        (first, second), decay = settings.get("betas", (0.9, 0.999)), settings.get("weight_decay", 0.0)
        made, flags = light(self.torch_class), _flags(implementation)  # type: ignore[arg-type]  # a class can be hashed
        return made(parameters, settings["lr"], (first, second), weight_decay=decay, **flags)


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradients (Loshchilov and Hutter 2019)."""

    paper = "Loshchilov and Hutter 2019"

    torch_class = torch.optim.AdamW


class AdamW8bit(AdamW):
    """AdamW with states in 8 bits, a quarter of their memory, by bitsandbytes (the extra ``quant``)."""

    paper = "Dettmers et al. 2022"

    precisions = ("float32", "bfloat16")

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """With the operators of bitsandbytes, whatever the ``implementation``.

        Raises MethodError if it isn't installed.
        """
        quantised.check_installed("training.optimizer: adamw-8bit")
        from edgefl.work.optimizer import eight_bit

        betas, decay = settings.get("betas", (0.9, 0.999)), settings.get("weight_decay", 0.0)
        return eight_bit.ReferenceAdamW8bit(parameters, settings["lr"], betas, decay)


class AdamP(Adam):
    """Adam without the part of a step along weights that gradients are orthogonal to (Heo et al. 2021), as in timm."""

    paper = "Heo et al. 2021"

    class Options(Adam.Options):
        """``optimizer: {name: adamp, delta: 0.1}``."""

        delta: float = Field(
            0.1,
            gt=0,
            description="weights of n numbers count as orthogonal to their gradients if the cosine is below delta / "
            "sqrt(n)",
        )

    precisions = ("float64", "float32", "bfloat16")

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """One parameter after the other, whatever the ``implementation``."""
        from edgefl.work.optimizer.projected_adam import ProjectedAdam

        betas, decay = settings.get("betas", (0.9, 0.999)), settings.get("weight_decay", 0.0)
        return light(ProjectedAdam)(parameters, settings["lr"], betas, decay, self.options.delta)


class MeZO(Optimizer):
    """Training without gradients, by the losses of two forward passes (Malladi et al. 2023)."""

    paper = "Malladi et al. 2023"

    reads = ()

    def build(self, parameters: list[Any], settings: OptimizerSettings, implementation: str) -> torch.optim.Optimizer:
        """Raises MethodError: it has no gradients for an optimizer of torch."""
        raise MethodError("mezo trains without gradients, so a work that needs them can't have it")


LEFT_OUT = ("params", "lr", "weight_decay", "foreach", "fused", "maximize", "capturable", "differentiable")
"""Arguments of torch's optimizers that are no options here."""


def optimizer_of(name: str, part: Any) -> Any:
    """A registered part as an optimizer: a class of torch's becomes one, with its arguments as options.

    Raises TypeError for another part.
    """
    if not (isinstance(part, type) and issubclass(part, torch.optim.Optimizer)):
        raise TypeError(
            "is neither a subclass of edgefl.work.optimizer.optimizers.Optimizer nor of torch.optim.Optimizer"
        )
    arguments = inspect.signature(part.__init__).parameters
    if "lr" not in arguments and not any(each.kind is each.VAR_KEYWORD for each in arguments.values()):
        raise TypeError("takes no lr, the rate that training.lr gives it")
    fields: dict[str, tuple[Any, object]] = {}
    for argument, parameter in list(arguments.items())[1:]:
        default = parameter.default
        if argument in LEFT_OUT or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if isinstance(default, bool):
            fields[argument] = (bool, default)
        elif isinstance(default, int | float):
            fields[argument] = (float, default)
        elif isinstance(default, tuple) and all(isinstance(value, int | float) for value in default):
            fields[argument] = (tuple[float, ...], default)
        elif default is parameter.empty:
            raise TypeError(f"needs {argument!r} without a default: write a subclass of Optimizer that gives it")

    def build(
        self: Optimizer, parameters: list[Any], settings: OptimizerSettings, implementation: str
    ) -> torch.optim.Optimizer:
        given: dict[str, object] = {"lr": settings["lr"], **self.options.model_dump(exclude={"name"})}
        if "weight_decay" in arguments:
            given["weight_decay"] = settings.get("weight_decay", 0.0)
        elif settings.get("weight_decay"):
            raise MethodError(f"training.optimizer: {name} has no weight decay: leave out training.weight_decay")
        flags = _flags(implementation).items()
        given |= {flag: on for flag, on in flags if flag in arguments and (on or flag != "fused")}
        return light(part)(parameters, **given)  # type: ignore[arg-type]  # a class can be hashed

    written = {
        "Options": create_model("Options", __base__=Optimizer.Options, **cast(Any, fields)),
        "build": build,
        "__doc__": part.__doc__ if part.__module__.partition(".")[0] != "torch" else f"torch.optim.{part.__name__}.",
    }
    return type(name, (Optimizer,), written)


def parse_optimizer(value: Any) -> Any:
    """A registered name, or the options of a mapping with a name.  Raises ValueError, UnknownName, ValidationError."""
    options: Any = parse_options(
        "optimizer", "", value, "an optimizer is a name, or a mapping with a name and its fields"
    )
    return options if options.model_fields_set - {"name"} else options.name
