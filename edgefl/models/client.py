"""A client's model: one tower per modality, with a classifier or a shared embedding space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.modalities import MODALITIES
from edgefl.models.model import JointDescription, Model, ModelDescription, ProjectionDescription, TowerDescription
from edgefl.models.multiway import describe_multiway
from edgefl.models.options import ModelOptions
from edgefl.models.tower import initialise, stand_in, without_compiler, without_float32
from edgefl.models.towers.gru import GruOptions
from edgefl.models.tried import check_tower

FACTS = tuple(dict.fromkeys(name for modality in MODALITIES.values() for name in modality.of_data))
"""Fields of a tower's description that the data set determines."""


class ClientModel(Model):
    """One tower per modality, and what they share under ``joint``.

    Parameter names are ``<tower>.<part>[.i].<rest>`` with part one of embedding, blocks, pooler, norm, rep, head.
    """

    modalities: tuple[str, ...]
    """Its modalities."""
    widths: dict[str, int]
    """Width of each modality's feature."""

    def __init__(self, description: ModelDescription):
        super().__init__(description)
        towers, joint = description["towers"], description.get("joint") or {}
        self.modalities = tuple(towers)
        self.widths = {}
        for name, tower in towers.items():
            own_norm = "norm" not in joint
            try:
                built = registry.get("tower", tower["tower"]).build(tower, own_norm)
            except MethodError as error:  # whoever asks for the model's tensors first would be blamed
                raise MethodError(f"model.{name}: {error}") from error
            module = without_compiler(tower["tower"], built)
            self.widths[name] = add_read_out(module, built.width, tower)
            self.add_module(name, module)
        if joint:
            self.joint = nn.Module()
        if "norm" in joint:
            self.joint.norm = nn.LayerNorm(joint["norm"], eps=1e-6)
        if "classes" in joint:
            self.joint.head = mlp(sum(self.widths.values()), joint["hidden"], joint["classes"], joint["dropout"])

    def tower(self, modality: str) -> Any:
        """The tower of a modality: ``embedding``, ``blocks``, and ``norm``, ``rep``, ``head`` where it has them."""
        return self.get_submodule(modality)

    def next_tokens(self, modality: str, x: Tensor) -> Tensor:
        """Scores of the token after each one: ``[batch, tokens, vocabulary]``."""
        scores: Tensor = self.tower(modality).vocabulary_scores(self.tokens(modality, x))
        return scores

    def tokens(self, modality: str, x: Tensor) -> Tensor:
        """A tower's tokens, which a causal one's ``vocabulary_scores`` reads: ``[batch, tokens, width]``."""
        tokens: Tensor = self.tower(modality)(x)
        return tokens

    @property
    def dimension(self) -> int:
        """Width of the features that ``feature`` and ``embed`` return."""
        return self.widths[self.modalities[0]]

    def classes(self, pattern: str) -> int:
        """Number of output classes of the classifier for a pattern (``image``, ``text``, ``image-text``, ...)."""
        own_head = self._has_own_head(pattern)
        head = self.tower(pattern).head if own_head else self.get_submodule("joint.head")[-1]  # type: ignore[index]
        return int(cast(nn.Linear, head).out_features)

    def _has_own_head(self, pattern: str) -> bool:
        """Whether the pattern is one modality whose tower has a classifier, so that the joint one isn't used."""
        return pattern in self.widths and hasattr(self.tower(pattern), "head")

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """A tower's pooled tokens, normalised, and projected if the tower has a projection: ``[batch, dim]``."""
        tower = self.tower(modality)
        tokens: Any = tower(x)  # a plain tower's may have scores of auxiliary classifiers beside it
        feature: Tensor = tower.pool_tokens(tokens) if hasattr(tower, "pool_tokens") else tokens[:, 0]
        if hasattr(self, "joint") and hasattr(self.joint, "norm"):
            feature = cast(nn.Module, self.joint.norm)(feature)
        return tower.rep(feature) if hasattr(tower, "rep") else feature

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores from the classifier of one modality's tower: ``[batch, classes]``."""
        scores: Tensor = self.tower(modality).head(self.feature(modality, x))
        return scores

    def features(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The ``feature`` of each modality of the model that ``batch`` has: ``[batch, dim]`` each."""
        return {m: self.feature(m, batch[m]) for m in self.modalities if m in batch}

    def fuse(self, first: Tensor, second: Tensor) -> Tensor:
        """Concatenate two features in the order of ``modalities``: ``[batch, sum of dims]``."""
        return torch.cat([first, second], -1)

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores of fused features from the joint classifier: ``[batch, classes]``."""
        scores: Tensor = self.get_submodule("joint.head")(fused)
        return scores

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores of samples of a pattern, which has one modality or two: ``[batch, classes]``.

        If the model classifies pairs and the pattern lacks a modality, ``mask`` selects the substitute for its
        feature: ``zero``, or ``random`` for standard normal noise, drawn for every sample.
        """
        if self._has_own_head(pattern):
            return self.logits(pattern, batch[pattern])
        features = self.features({m: batch[m] for m in pattern.split("-")})
        like = next(iter(features.values()))
        parts = [features[m] if m in features else stand_in(mask, like, self.widths[m]) for m in self.modalities]
        return self.scores(self.fuse(*parts))

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """The L2-normalised feature, FedCola's retrieval head without parameters: ``[batch, dim]``."""
        return F.normalize(self.feature(modality, x), dim=-1)


def add_read_out(module: nn.Module, width: int, tower: TowerDescription) -> int:
    """Add to ``module`` the projection and the classifier of a tower's description, each if it has one.

    ``width`` is the width of the tower's pooled tokens.  Returns the width of its feature.
    """
    if rep := tower.get("rep"):
        module.rep = projection(width, rep)
        width = rep if isinstance(rep, int) else rep["dimension"]
    if tower.get("classes"):
        module.head = nn.Linear(width, tower["classes"])
        initialise(module.head)
    return width


def projection(width: int, rep: int | ProjectionDescription) -> nn.Module:
    """A projection of features ``[batch, width]``: linear if ``rep`` is a width, else an MLP as in LW-FedMML."""
    if isinstance(rep, int):
        layer = nn.Linear(width, rep, bias=False)
        initialise(layer)
        return layer
    return mlp(width, rep["hidden"], rep["dimension"], rep["dropout"], bias=False, batch_norm=rep["batch_norm"])


def mlp(
    width: int, hidden: Sequence[int], out: int, dropout: float, *, bias: bool = True, batch_norm: bool = False
) -> nn.Sequential:
    """An MLP ``[batch, width] -> [batch, out]``.

    Each hidden layer is linear, dropout, batch norm, ReLU.  A last linear layer follows, whose batch norm has no scale.
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(nn.Linear(width, size, bias=bias))
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.BatchNorm1d(size)] if batch_norm else []
        layers.append(nn.ReLU())
        width = size
    layers.append(nn.Linear(width, out, bias=bias))
    layers += [nn.BatchNorm1d(out, affine=False)] if batch_norm else []
    mlp = nn.Sequential(*layers)
    initialise(mlp)
    return mlp


def describe(
    options: ModelOptions,
    modalities: Sequence[str],
    task: str,
    facts: Mapping[str, Mapping[str, int]],
    *,
    checkpointing: int = False,
) -> ModelDescription:
    """The description of the model, at full depth, of clients that have these modalities.

    ``facts[modality]`` has what the data set determines: channels and size of images, vocabulary of texts, bins and
    frames of spectrograms, number of classes.

    - A classifier of one modality is a tower with a head.
    - A model that predicts the next token is a causal tower with scores of the vocabulary.
    - A classifier of two modalities concatenates their features and has one joint head.
    - A retrieval model has one final norm for all its towers (as FedCola).  If ``dimension`` is set, each tower has
      a norm and a projection instead.

    The description doesn't contain the source of pre-trained weights, because no cost depends on it.
    Raises MethodError for a modality without a tower, or if towers under one norm have different widths.
    """
    described = _describe_by_task(options, modalities, task, facts, checkpointing)
    if (dtype := options.shared_dtype) != "float32":
        described["dtype"] = dtype
    return described


def _describe_by_task(
    options: ModelOptions,
    modalities: Sequence[str],
    task: str,
    facts: Mapping[str, Mapping[str, int]],
    checkpointing: int,
) -> ModelDescription:
    if options.multiway is not None and task != "next-token":
        return describe_multiway(options.multiway, modalities, task, facts, checkpointing=checkpointing)
    towers = options.towers
    for modality in modalities:
        if modality not in towers:
            raise MethodError(f"clients with {modality} need a model.{modality} tower; the model has {list(towers)}")
    single = len(modalities) == 1
    if task == "next-token":
        return _causal(options, modalities[0], facts, checkpointing=checkpointing)
    rep: int | ProjectionDescription | None = options.dimension
    if rep and options.projection is not None:
        fields = {**options.projection.model_dump(mode="json"), "dimension": options.dimension}
        rep = cast(ProjectionDescription, fields)
    described: dict[str, TowerDescription] = {}
    for modality in modalities:
        described[modality] = _tower(towers[modality], facts[modality], checkpointing)
        if task == "classify" and single:
            described[modality]["classes"] = facts[modality]["classes"]
        if rep and (not single or options.dimension_for == "all"):
            described[modality]["rep"] = rep
        if registry.origin("tower", name := towers[modality].tower).package != "edgefl":
            check_tower(name, modality, registry.get("tower", name).build, described[modality])
    joint: JointDescription = {}
    if task == "classify" and not single:
        fusion = options.fusion.model_dump(mode="json")
        joint = cast(JointDescription, {**fusion, "classes": facts[modalities[0]]["classes"]})
    elif task != "classify" and not rep:
        widths = {towers[m].width for m in modalities}
        if len(widths) > 1:
            raise MethodError(
                f"a retrieval model whose towers have widths {sorted(widths)} needs model.dimension, "
                "the common width that they are projected to"
            )
        joint["norm"] = widths.pop()
    return {"name": "towers", "towers": described, "joint": joint}


def _causal(
    options: ModelOptions, modality: str, facts: Mapping[str, Mapping[str, int]], *, checkpointing: int
) -> ModelDescription:
    """The description of a model that predicts the next token of a text."""
    tower = options.towers[modality]
    if not getattr(registry.get("tower", tower.tower), "causal", False):
        causal = [name for name in registry.names("tower") if getattr(registry.get("tower", name), "causal", False)]
        raise MethodError(
            f"the task next-token needs a tower whose tokens see only those before them, and {tower.tower} isn't one: "
            f"set model.{modality}.tower to {' or '.join(causal)}"
        )
    described = _tower(tower, facts[modality], checkpointing)
    return {"name": "towers", "towers": {modality: {**described, "predicts": True}}, "joint": {}}


def _tower(options: Any, facts: Mapping[str, int], checkpointing: int) -> TowerDescription:
    """The description of a tower at full depth: its options, and what the data determine."""
    unpriced = {"weights", "vectors"} if isinstance(options, GruOptions) else {"weights"}
    fields = without_float32(options.model_dump(exclude=unpriced))
    described = {**fields, **{k: v for k, v in facts.items() if k in FACTS}, "depth": options.blocks}
    return cast(TowerDescription, {**described, "checkpointing": checkpointing} if checkpointing else described)
