"""The model named ``exits``: towers with a classifier or embedding (an exit) at several depths (DepthFL).

An exit is a submodule of the block that it reads: ``<tower>.blocks.<i>.exit.<norm|rep|head>``.  So it is trained and
transferred together with its block.  The towers have no other norm, projection or head.
In this module, a place is the position of an exit: the number of blocks below it, by tower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.client import ClientModel, add_read_out, mlp
from edgefl.models.model import ModelDescription, TowerDescription, gives
from edgefl.models.tower import Tower, stand_in, through


class Exit(nn.Module):
    """Turns the tokens after a block into a feature (``norm``, ``rep``), and a feature into class scores (``head``)."""

    def feature(self, tower: Tower, tokens: Tensor) -> Tensor:
        """The feature ``[batch, dim]`` of tokens ``[batch, tokens, dim]`` or maps ``[batch, dim, height, width]``."""
        if tokens.dim() == 4:
            tokens = tokens.flatten(2).transpose(1, 2)
        if hasattr(self, "norm"):
            tokens = cast(nn.Module, self.norm)(tokens)
        feature = tower.pool_tokens(tokens)
        return cast(nn.Module, self.rep)(feature) if hasattr(self, "rep") else feature


class Hosting(nn.Sequential):
    """A block that is a sequence of layers and also holds an exit, which isn't one of them."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order, without the exit."""
        for name, layer in self.named_children():
            if name != "exit":
                x = layer(x)
        return x


def depths(towers: Mapping[str, TowerDescription], exits: int) -> list[dict[str, int]]:
    """Number of blocks of each tower below each exit, at full depth; spaced as evenly as a schedule's stages."""
    return [{m: t["blocks"] * (i + 1) // exits for m, t in towers.items()} for i in range(exits)]


def places_of(description: ModelDescription) -> list[dict[str, int]]:
    """Number of blocks of each tower below each exit, for the exits within the description's depth.

    Raises MethodError if no exit is within it.
    """
    towers = description["towers"]
    planned = depths(towers, description["exits"])
    places = [place for place in planned if all(place[m] <= towers[m]["depth"] for m in towers)]
    if not places:
        depth, first = (
            " and ".join(f"{count} of {modality}" for modality, count in counts.items())
            for counts in ({modality: tower["depth"] for modality, tower in towers.items()}, planned[0])
        )
        raise MethodError(
            f"no exit is within the first blocks ({depth}); the first exit is after {first}: set method.exits to all, "
            "or to the number of the schedule's stages"
        )
    return places


class ExitModel(ClientModel):
    """Towers with a classifier at several depths (DepthFL).

    ``classify`` and ``embed`` use the deepest exit, or the mean of all (``ensemble``).  ``places`` are the positions of
    the exits (``places_of``).  Raises MethodError if no exit is within the description's depth, or if a tower isn't a
    ``Tower``.
    """

    def __init__(self, description: ModelDescription):
        towers, joint = description["towers"], description.get("joint") or {}
        bare = {m: {k: v for k, v in t.items() if k not in ("rep", "classes")} for m, t in towers.items()}
        super().__init__({**description, "towers": cast(Mapping[str, TowerDescription], bare), "joint": {}})
        self.description, self.gives = description, gives(description)
        self.ensemble = bool(description.get("ensemble"))
        self.places = places_of(description)
        for place in self.places:
            for modality, depth in place.items():
                self._add_exit(modality, depth, towers[modality])
            if "classes" in joint:
                width = sum(self.widths.values())
                self.exit(self.modalities[0], place).head = mlp(
                    width, joint["hidden"], joint["classes"], joint["dropout"]
                )
        for modality in towers:
            tower = self.tower(modality)
            if hasattr(tower, "norm"):
                del tower.norm

    def _add_exit(self, modality: str, depth: int, described: TowerDescription) -> None:
        tower = self.tower(modality)
        if not isinstance(tower, Tower):
            raise MethodError(f"tower {described['tower']!r} can't have exits: it isn't an edgefl.models.tower.Tower")
        block, exit_ = tower.blocks[depth - 1], Exit()
        if isinstance(block, nn.Sequential):
            block.__class__ = Hosting  # in place: the block keeps its layers' names, by which they travel
        if hasattr(tower, "norm"):
            exit_.norm = deepcopy(tower.norm)
        self.widths[modality] = add_read_out(exit_, tower.width, described)
        block.exit = exit_

    def exit(self, modality: str, place: Mapping[str, int]) -> Exit:
        """The exit of a modality's tower at one of ``places``."""
        return cast(Exit, self.tower(modality).blocks[place[modality] - 1].exit)

    def head(self, place: Mapping[str, int]) -> nn.Module:
        """The classifier at one of ``places``; a classifier of two towers is stored with the first tower's exit."""
        return cast(nn.Module, self.exit(self.modalities[0], place).head)

    def training_places(self) -> list[dict[str, int]]:
        """The places whose exits have trainable parameters; the deepest place if there are none."""
        places = [p for p in self.places if any(w.requires_grad for m in p for w in self.exit(m, p).parameters())]
        return places or self.places[-1:]

    def exit_features(self, modality: str, x: Tensor, places: Sequence[Mapping[str, int]]) -> list[Tensor]:
        """The feature ``[batch, dim]`` of a modality at each of ``places``; blocks above the last one don't run."""
        tower = self.tower(modality)
        exit_depths = [place[modality] for place in places]
        features: dict[int, Tensor] = {}
        x = tower.embed(x)
        for depth, block in enumerate(tower.blocks[: max(exit_depths)], 1):
            x = through(block, x)
            if depth in exit_depths:
                features[depth] = block.exit.feature(tower, x)
        return [features[depth] for depth in exit_depths]

    def exit_scores(
        self, pattern: str, batch: Mapping[str, Tensor], places: Sequence[Mapping[str, int]], mask: str = "zero"
    ) -> list[Tensor]:
        """Class scores ``[batch, classes]`` at each of ``places``; ``mask`` as in ``classify``."""
        by_modality = {m: self.exit_features(m, batch[m], places) for m in pattern.split("-")}
        scores = []
        for i, place in enumerate(places):
            features = {m: at_exits[i] for m, at_exits in by_modality.items()}
            like = next(iter(features.values()))
            parts = [features[m] if m in features else stand_in(mask, like, self.widths[m]) for m in self.modalities]
            scores.append(self.head(place)(parts[0] if len(parts) == 1 else self.fuse(*parts)))
        return scores

    @property
    def evaluated_exits(self) -> list[dict[str, int]]:
        """The places of the exits that ``classify`` and ``embed`` use."""
        return self.places if self.ensemble else self.places[-1:]

    def classes(self, pattern: str) -> int:
        """Number of output classes, the same for every pattern."""
        linear = [part for part in self.head(self.places[-1]).modules() if isinstance(part, nn.Linear)]
        return linear[-1].out_features

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """The feature at the deepest exit, ``[batch, dim]``."""
        return self.exit_features(modality, x, self.places[-1:])[0]

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores ``[batch, classes]`` of the deepest exit, or with ``ensemble`` their mean over all exits."""
        scores = self.exit_scores(pattern, batch, self.evaluated_exits, mask)
        return torch.stack(scores).mean(0) if len(scores) > 1 else scores[0]

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores of one modality: ``[batch, classes]``."""
        return self.classify(modality, {modality: x})

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """The L2-normalised feature of the deepest exit: ``[batch, dim]``.

        With ``ensemble``, the normalised mean of all exits' normalised features.
        """
        features = [F.normalize(feature, dim=-1) for feature in self.exit_features(modality, x, self.evaluated_exits)]
        return F.normalize(torch.stack(features).mean(0), dim=-1) if len(features) > 1 else features[0]
