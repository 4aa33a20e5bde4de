"""Towers from ordinary modules: ``@edgefl.register("tower", "mynet")`` on a subclass of ``torch.nn.Module``.

Its constructor's annotated arguments become the fields of its section; some are given by the data.  With ``blocks``,
the name of its sequence of blocks, schedules can cut it: parts that it makes before the sequence are its embedding,
those after it its norm.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import torch
from pydantic import Field, PositiveInt, computed_field, create_model
from torch import Tensor, nn

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.modalities import MODALITIES
from edgefl.models.layers import PRE_NORM_BLOCK, BlockLayers
from edgefl.models.model import TowerDescription
from edgefl.models.tower import TowerFields, Weights, options_from
from edgefl.models.tried import check_tensors, one_line
from edgefl.models.weights import is_published

TRIED = (
    {"channels": 3, "size": 32, "vocabulary": 100, "bins": 128, "frames": 128, "readings": 128, "classes": 2},
    {"channels": 3, "size": 224, "vocabulary": 100, "bins": 128, "frames": 1024, "readings": 1024, "classes": 2},
)
"""Data of which a module is built to count its blocks, until one fits."""


class PlainOptions(TowerFields):
    """What all towers from ordinary modules have."""

    @computed_field(description="blocks at full depth; 1 where the class doesn't name them")  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> int:
        """Length of the module's sequence of blocks."""
        return _probe_sizes(type(self), self.model_dump_json(exclude={"blocks", "width"}))[0]

    @computed_field(description="width of what forward gives")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """The module's ``width``."""
        return _probe_sizes(type(self), self.model_dump_json(exclude={"blocks", "width"}))[1]


class PlainTower:
    """A class of modules as a tower.  Raises TypeError, with what to add, for a class that can't be one."""

    def __init__(self, name: str, made: type[nn.Module]):
        self.name, self.made = name, made
        self.modality = _modality(made)
        self.sequence: str | None = getattr(made, "blocks", None)
        self.block_layers: BlockLayers = getattr(made, "block_layers", PRE_NORM_BLOCK)
        if self.sequence is not None and not isinstance(self.sequence, str):
            raise TypeError('has blocks that are no name: write blocks = "layers", the attribute that holds them')
        self.arguments = _arguments(made)
        data = (*MODALITIES[self.modality].of_data, "classes")
        fields: dict[str, tuple[Any, Any]] = {"tower": (Literal[name], name)}
        fields |= {argument: given for argument, given in self.arguments.items() if argument not in data}
        if self.modality == "text" and "tokens" not in fields:
            fields["tokens"] = (PositiveInt, Field(24, description="tokens of a text: padded or cut"))
        fields["weights"] = (Weights, Field(None, description="a .safetensors file with the module's own names"))
        self.Options = create_model("Options", __base__=PlainOptions, **cast(Any, fields))
        self.Options.plain = self  # type: ignore[attr-defined]

    def module(self, given: Mapping[str, object]) -> nn.Module:
        """The module of these options and data.  Raises MethodError if its constructor fails or lacks something."""
        arguments = {}
        for argument in self.arguments:
            if argument not in given:
                raise MethodError(f"tower {self.name}: the data give no {argument!r}, which its constructor asks for")
            arguments[argument] = given[argument]
        module = self.made(**arguments)
        if not isinstance(getattr(module, "width", None), int):
            raise MethodError(f"tower {self.name}: set self.width in its constructor, the width of what forward gives")
        if taken := [part for part in ("head", "rep") if part in module._modules]:
            raise MethodError(
                f"tower {self.name}: its part {taken[0]!r} has the name of what a task adds to a tower: rename it"
            )
        check_tensors(f"tower {self.name}", module)
        return module

    def build(self, description: TowerDescription, norm: bool) -> nn.Module:
        """Build the tower at a depth from ``{depth, ...options, ...data}``; it has its own norm, if any."""
        if description.get("checkpointing"):
            raise MethodError(f"tower {self.name} can't recompute its activations: set training.checkpointing: false")
        options = options_from(self.Options, description)
        module = self.module({**{n: getattr(options, n) for n in type(options).model_fields}, **description})
        return arrange_parts(module, self.sequence, description["depth"])

    def load(self, module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Copy the tensors of a .safetensors file, by the module's own names.  Raises MethodError."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            stored = load_file(Path(weights).expanduser())
        except (OSError, SafetensorError) as error:
            raise MethodError(f"weights {weights!r}: not a .safetensors file ({error})") from error
        own: Any = getattr(module, "own_name", str)
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name.partition(".")[0] in ("head", "rep") or not is_published(name):
                    continue
                found = stored.get(own(name))
                if found is None or found.shape != value.shape:
                    said = "isn't there" if found is None else f"is {list(found.shape)}, not {list(value.shape)}"
                    raise MethodError(f"weights {weights!r}: {own(name)} {said}")
                value.copy_(found)


def tower_of(name: str, part: Any) -> Any:
    """A registered part as a tower: a class of modules without ``Options`` becomes a PlainTower.  Raises TypeError."""
    if isinstance(part, type) and issubclass(part, nn.Module) and not hasattr(part, "Options"):
        return PlainTower(name, part)
    return part


def arrange_parts(module: nn.Module, sequence: str | None, depth: int) -> nn.Module:
    """The module with the parts ``embedding``, ``blocks`` (the first ``depth``) and ``norm``, and a ``read``.

    Its own attributes still find what they found.  Without a sequence its parts keep their names.
    """
    cls: Any = type(module)
    more: dict[str, object] = {} if hasattr(cls, "pool_tokens") else {"pool_tokens": _pool_tokens}
    if sequence is not None:
        blocks = module._modules.get(sequence)
        if not isinstance(blocks, nn.Sequential | nn.ModuleList):
            raise MethodError(
                f"{cls.__name__}.blocks names {sequence!r}, which is no nn.Sequential or nn.ModuleList of the module"
            )
        before, after = nn.Module(), nn.Module()
        where = before
        moved: dict[str, str] = {}
        for name, child in list(module._modules.items()):
            if name == sequence:
                where = after
                continue
            where.add_module(name, child)
            moved[name] = "embedding" if where is before else "norm"
        for name, value in list(module._parameters.items()):
            before.register_parameter(name, value)
            moved[name] = "embedding"
        module._modules.clear()
        module._parameters.clear()
        for part, holder in (("embedding", before), ("blocks", blocks[:depth]), ("norm", after)):
            if part == "blocks" or next(holder.parameters(), None) is not None or next(holder.children(), None):
                module._modules[part] = holder
        more |= {name: property(_attribute_getter(part, name)) for name, part in moved.items()}
        more |= dict.fromkeys((sequence, "blocks"), property(lambda self: self._modules["blocks"]))
        if not hasattr(cls, "own_name"):
            more["own_name"] = _own_name(sequence, moved)
    # Properties need a class of this module's own.  Modules of torch look into ``_modules`` only for what their class
    # lacks (tried with 2.13); ``test_a_module_with_blocks_is_cut_and_computes_as_before`` sees a change of that.
    module.__class__ = type(cls.__name__, (cls,), more)
    return module


def _attribute_getter(part: str, name: str) -> Callable[[nn.Module], Any]:
    def get_attribute(self: nn.Module) -> Any:
        return getattr(self._modules[part], name)

    return get_attribute


def _own_name(sequence: str, moved: Mapping[str, str]) -> Callable[[nn.Module, str], str]:
    def own_name(self: nn.Module, name: str) -> str:
        """The module's own name of a tensor that the tower calls ``name``."""
        part, _, rest = name.partition(".")
        return f"{sequence}.{rest}" if part == "blocks" else rest if rest.partition(".")[0] in moved else name

    return own_name


def _pool_tokens(self: nn.Module, tokens: Any) -> Tensor:
    """The feature ``[batch, width]``: what forward gives, or its first token.

    Of a tuple it is the first; the others are scores of auxiliary classifiers, which wait for the step.
    """
    if isinstance(tokens, tuple):
        tokens, *scores = tokens
        vars(self)["auxiliary_scores"] = scores
    return tokens if not isinstance(tokens, Tensor) or tokens.dim() == 2 else tokens[:, 0]


@cache
def _probe_sizes(options: type[PlainOptions], given: str) -> tuple[int, int]:
    """Number of blocks, and width, of the module with these options."""
    plain: PlainTower = options.plain  # type: ignore[attr-defined]
    failure: Exception | None = None
    for data in TRIED:
        try:
            with torch.device("meta"), seeds.seeding_globals(0):
                module = plain.module({**data, **json.loads(given)})
            blocks = module._modules.get(plain.sequence) if plain.sequence else None
            return len(cast(nn.ModuleList, blocks)) if blocks is not None else 1, int(cast(int, module.width))
        except MethodError:
            raise
        except Exception as error:  # whatever its constructor does
            failure = error
    assert failure is not None
    raise MethodError(f"tower {plain.name}: its constructor fails: {one_line(failure)}") from failure


def _modality(made: type[nn.Module]) -> str:
    given = getattr(made, "modality", None)
    if given is None:
        names = [n for n in inspect.signature(made.forward).parameters if n != "self"]
        given = names[0] if names else None
    if given not in MODALITIES:
        raise TypeError(
            f"doesn't say what it reads: name the argument of forward {', '.join(MODALITIES)}, or set modality; found "
            f"{given!r}"
        )
    return str(given)


def _arguments(made: type[nn.Module]) -> dict[str, tuple[Any, Any]]:
    """Annotation and default (``...`` if there is none) of the constructor's arguments."""
    hints = get_type_hints(made.__init__, include_extras=True)
    found = {}
    for name, parameter in list(inspect.signature(made.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name not in hints:
            raise TypeError(f"has an argument without annotation: write {name}: int, or whatever it takes")
        found[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    return found
