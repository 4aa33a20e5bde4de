"""The model named ``exits``: a client's towers read at several depths, each with a classifier of its own (DepthFL).

An exit is of the block that it reads: ``<tower>.blocks.<i>.exit.<norm|rep|head>``, so that it is there, trains and
travels where its block does.  The towers have no other norm, projection or head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.client import ClientModel, add_read_out, mlp
from edgefl.models.tower import Tower, stand_in, through


class Exit(nn.Module):
    """What turns the tokens behind a block into a feature, and a feature into class scores where it has a head."""

    def feature(self, tower: Tower, tokens: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, dim]``, or a ResNet's maps ``[batch, channels, height, width]``."""
        if tokens.dim() == 4:
            tokens = tokens.flatten(2).transpose(1, 2)
        if hasattr(self, "norm"):
            tokens = cast(nn.Module, self.norm)(tokens)
        feature = tower.read(tokens)
        return cast(nn.Module, self.rep)(feature) if hasattr(self, "rep") else feature


class Hosting(nn.Sequential):
    """A block that is a sequence of layers, with an exit beside them."""

    def forward(self, x: Tensor) -> Tensor:
        """Through the layers alone."""
        for name, layer in self.named_children():
            if name != "exit":
                x = layer(x)
        return x


def depths(towers: Mapping[str, Mapping[str, Any]], exits: int) -> list[dict[str, int]]:
    """Blocks of each tower below each exit, at full depth: as even as a schedule's stages."""
    return [{m: t["blocks"] * (i + 1) // exits for m, t in towers.items()} for i in range(exits)]


def places_of(description: Mapping[str, Any]) -> list[dict[str, int]]:
    """Blocks of each tower below each exit that is within the depth at hand.  Raises MethodError if none is."""
    towers = description["towers"]
    planned = depths(towers, description["exits"])
    within = [place for place in planned if all(place[m] <= towers[m]["depth"] for m in towers)]
    if not within:
        have, first = (
            " and ".join(f"{count} of {modality}" for modality, count in counts.items())
            for counts in ({modality: tower["depth"] for modality, tower in towers.items()}, planned[0])
        )
        raise MethodError(
            f"no exit is within the first blocks ({have}), the first is behind {first}: set method.exits to all, or to "
            "the number of the schedule's stages"
        )
    return within


class ExitModel(ClientModel):
    """Towers under exits.  ``classify`` and ``embed`` read the deepest, or the mean of all (``ensemble``).

    Raises MethodError where no exit is within the depth at hand, or a tower isn't made of blocks.
    """

    def __init__(self, description: Mapping[str, Any]):
        towers, joint = description["towers"], description.get("joint") or {}
        bare = {m: {k: v for k, v in t.items() if k not in ("rep", "classes")} for m, t in towers.items()}
        super().__init__({**description, "towers": bare, "joint": {}})
        self.ensemble = bool(description.get("ensemble"))
        self.places = places_of(description)
        for place in self.places:
            for modality, depth in place.items():
                self._add(modality, depth, towers[modality])
            if "classes" in joint:
                width = sum(self.widths.values())
                self.exit(self.modalities[0], place).head = mlp(
                    width, joint["hidden"], joint["classes"], joint["dropout"]
                )
        for modality in towers:
            tower = self.tower(modality)
            if hasattr(tower, "norm"):
                del tower.norm

    def _add(self, modality: str, depth: int, described: Mapping[str, Any]) -> None:
        tower = self.tower(modality)
        if not isinstance(tower, Tower):
            raise MethodError(f"tower {described['tower']!r} can't have exits: it isn't an edgefl.models.tower.Tower")
        block, exit_ = tower.blocks[depth - 1], Exit()
        if isinstance(block, nn.Sequential):
            block.__class__ = Hosting
        if hasattr(tower, "norm"):
            exit_.norm = deepcopy(tower.norm)
        self.widths[modality] = add_read_out(exit_, tower.width, described)
        block.exit = exit_

    def exit(self, modality: str, place: Mapping[str, int]) -> Exit:
        """The exit of a tower at one of ``places``."""
        return cast(Exit, self.tower(modality).blocks[place[modality] - 1].exit)

    def head(self, place: Mapping[str, int]) -> nn.Module:
        """The classifier at one of ``places``: of a tower, or of two, where it stands with the first."""
        return cast(nn.Module, self.exit(self.modalities[0], place).head)

    def training_places(self) -> list[dict[str, int]]:
        """The places whose exits train; the deepest where none does."""
        found = [p for p in self.places if any(w.requires_grad for m in p for w in self.exit(m, p).parameters())]
        return found or self.places[-1:]

    def exit_features(self, modality: str, x: Tensor, places: Sequence[Mapping[str, int]]) -> list[Tensor]:
        """The feature ``[batch, dim]`` of a modality at each of ``places``; no block above them runs."""
        tower = self.tower(modality)
        wanted = [place[modality] for place in places]
        found: dict[int, Tensor] = {}
        x = tower.embed(x)
        for depth, block in enumerate(tower.blocks[: max(wanted)], 1):
            x = through(block, x, tower.checkpointing)
            if depth in wanted:
                found[depth] = block.exit.feature(tower, x)
        return [found[depth] for depth in wanted]

    def exit_scores(
        self, pattern: str, batch: Mapping[str, Tensor], places: Sequence[Mapping[str, int]], mask: str = "zero"
    ) -> list[Tensor]:
        """Class scores ``[batch, classes]`` at each of ``places``; ``mask`` as in ``classify``."""
        found = {m: self.exit_features(m, batch[m], places) for m in pattern.split("-")}
        scores = []
        for i, place in enumerate(places):
            mine = {m: features[i] for m, features in found.items()}
            like = next(iter(mine.values()))
            parts = [mine[m] if m in mine else stand_in(mask, like, self.widths[m]) for m in self.modalities]
            scores.append(self.head(place)(parts[0] if len(parts) == 1 else self.fuse(*parts)))
        return scores

    @property
    def read(self) -> list[dict[str, int]]:
        """The places that an evaluation reads."""
        return self.places if self.ensemble else self.places[-1:]

    def classes(self, pattern: str) -> int:
        """How many classes samples of this pattern are told apart into."""
        linear = [part for part in self.head(self.places[-1]).modules() if isinstance(part, nn.Linear)]
        return linear[-1].out_features

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """The feature at the deepest exit, ``[batch, dim]``."""
        return self.exit_features(modality, x, self.places[-1:])[0]

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores ``[batch, classes]``: the deepest exit's, or the mean of all."""
        scores = self.exit_scores(pattern, batch, self.read, mask)
        return torch.stack(scores).mean(0) if len(scores) > 1 else scores[0]

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores of one modality: ``[batch, classes]``."""
        return self.classify(modality, {modality: x})

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """On the unit sphere, ``[batch, dim]``: the deepest exit's feature, or the mean of all exits' directions."""
        found = [F.normalize(feature, dim=-1) for feature in self.exit_features(modality, x, self.read)]
        return F.normalize(torch.stack(found).mean(0), dim=-1) if len(found) > 1 else found[0]


def build_exits(description: Mapping[str, Any]) -> ExitModel:
    """The model named ``exits``."""
    return ExitModel(description)
