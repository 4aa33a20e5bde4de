"""The blocks of a tower by the parts of their layers, which towers with other names for their layers have in common.

A key names a part in one block: ``0.query.weight``.  A parameter whose layer isn't in the tower's ``block_layers`` is
its own key (``0.attn.q_norm.weight``), and so in common with towers that name it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.methods.aggregation.combine import RowMap, Source
from edgefl.methods.setting import Kind
from edgefl.models.layers import ATTENTION, MLP, NORMS, PRE_NORM_BLOCK, block_layers
from edgefl.work import Address

Key = str

WORKING = (
    "vit, timm-vit or hf-vit for images; transformer, bert or distilbert for texts; ast for audio; hf for each of them"
)
"""The shipped towers whose blocks have attention and an MLP, for messages."""


@dataclass(frozen=True)
class KeyRows:
    """Where a key is: rows of a parameter (None: all of it), and the shape of these rows."""

    name: str
    rows: tuple[int, int] | None
    shape: tuple[int, ...]


class Stack:
    """The blocks of one tower in the model of a client kind."""

    def __init__(self, kind: Kind, tower: str):
        self.kind, self.tower = kind.name, tower
        described = kind.model["towers"][tower]
        self.layers = block_layers(described["tower"]) if "tower" in described else PRE_NORM_BLOCK
        specs = {name: spec for name, spec in kind.parameters().items() if name.startswith(f"{tower}.blocks.")}
        self.shapes = {name: spec.shape for name, spec in specs.items()}
        self.dtypes = {name: spec.dtype for name, spec in specs.items()}
        self.keys: dict[str, tuple[Key, ...]] = {}
        self.places: dict[Key, KeyRows] = {}
        for name, shape in self.shapes.items():
            index, _, rest = name.removeprefix(f"{tower}.blocks.").partition(".")
            layer, _, leaf = rest.rpartition(".")
            parts = self.layers.get(layer, ()) if leaf in ("weight", "bias") else ()
            if not parts or shape[0] % len(parts):
                self.keys[name] = (f"{index}.{rest}",)
                self.places[f"{index}.{rest}"] = KeyRows(name, None, shape)
                continue
            self.keys[name] = tuple(f"{index}.{part}.{leaf}" for part in parts)
            size = shape[0] // len(parts)
            for number, key in enumerate(self.keys[name]):
                rows = (number * size, (number + 1) * size) if len(parts) > 1 else None
                self.places[key] = KeyRows(name, rows, (size, *shape[1:]))

    def scope(self, name: str) -> str:
        """What a parameter of a block belongs to: ``attention``, ``mlp``, ``norm``, or "" for anything else."""
        rest = name.removeprefix(f"{self.tower}.blocks.").partition(".")[2]
        for layer, (part, *_) in self.layers.items():
            if rest.startswith(f"{layer}."):
                return "norm" if part in NORMS else "mlp" if part in MLP else "attention"
        return {"attn": "attention", "attention": "attention", "mlp": "mlp", "ffn": "mlp"}.get(rest.split(".")[0], "")

    def linear(self, index: int, parts: Sequence[str]) -> list[str]:
        """Names of the layers of a block that have some of these parts of attention and MLP."""
        names = [f"{self.tower}.blocks.{index}.{layer}" for layer, held in self.layers.items() if held[0] in parts]
        return [name for name in names if f"{name}.weight" in self.shapes]

    def norms(self, index: int) -> list[str]:
        """Names of a block's norms."""
        return self.linear(index, NORMS)

    def pieces(self, keys: Iterable[Key]) -> list[tuple[KeyRows, list[Key]]]:
        """Where these keys are, neighbours in one parameter as one piece, with the keys of each.

        Raises KeyError for a key that isn't there.
        """
        found: list[tuple[KeyRows, list[Key]]] = []
        for key in keys:
            place = self.places[key]
            last, held = found[-1] if found else (None, [])
            if last and place.rows and last.rows and last.name == place.name and last.rows[1] == place.rows[0]:
                rows = last.rows[0], place.rows[1]
                shape = (rows[1] - rows[0], *place.shape[1:])
                whole = shape == self.shapes[place.name]
                found[-1] = KeyRows(place.name, None if whole else rows, shape), [*held, key]
            else:
                found.append((place, [key]))
        return found

    def value(self, keys: Sequence[Key], tensors: Mapping[Address, Tensor]) -> Tensor | None:
        """The values of these keys one below the other, of a server's tensors; None if the stack lacks one."""
        if not all(key in self.places for key in keys):
            return None
        pieces = self.pieces(keys)
        values = [tensors[f"{self.kind}/{place.name}"] for place, _ in pieces]
        if len(values) == 1 and pieces[0][0].rows is None:
            return values[0]
        return torch.cat([v if p.rows is None else v[slice(*p.rows)] for v, (p, _) in zip(values, pieces, strict=True)])


def sources(own: Stack, name: str, stacks: Iterable[Stack]) -> list[Source]:
    """What of these stacks changes a parameter of ``own`` that they share with it, in their order.

    They are addresses if every stack that has the parameter has it as one, else rows of each.
    """
    keys = own.keys[name]
    sharing = [stack for stack in stacks if any(key in stack.places for key in keys)]
    names = [stack.places[keys[0]].name if keys[0] in stack.places else "" for stack in sharing]
    if all(stack.keys.get(other) == keys for stack, other in zip(sharing, names, strict=True)):
        return [f"{stack.kind}/{other}" for stack, other in zip(sharing, names, strict=True)]
    found: list[Source] = []
    for stack in sharing:
        for key in keys:
            if key in stack.places:
                place, into = stack.places[key], own.places[key]
                found.append(RowMap(f"{stack.kind}/{place.name}", _rows(place), _rows(into)))
    return found


def shares(weights: Mapping[Source, float]) -> dict[Source, float]:
    """Each weight over the sum of those of the same rows, or of the whole address; without those that are 0."""
    totals = dict[object, float]()
    for source, weight in weights.items():
        totals[_into(source)] = totals.get(_into(source), 0) + weight
    return {source: weight / totals[_into(source)] for source, weight in weights.items() if weight}


def _into(source: Source) -> tuple[int, int] | None:
    return source.into if isinstance(source, RowMap) else None


def _rows(place: KeyRows) -> tuple[int, int]:
    return place.rows or (0, place.shape[0])


def shape_difference(first: Stack, second: Stack, names: Iterable[str]) -> str:
    """Where two stacks have parts of these parameters of ``first`` in other shapes, as a clause; "" if nowhere."""
    for key in (key for name in names for key in first.keys[name] if key in second.places):
        one, other = first.places[key], second.places[key]
        if one.shape != other.shape:
            part = f"{key.split('.')[1]} of " if one.rows or other.rows else ""
            return f"{part}{one.name} is {one.shape}, {part}{other.name} is {other.shape}"
    return ""


PARTS = {"none": (), "attention": ATTENTION, "mlp": MLP, "blocks": (*ATTENTION, *MLP)}
"""Parts of a block's linear layers in each scope of complementary training."""
