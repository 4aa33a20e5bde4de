"""Options of a scenario's ``model`` section: a tower for each modality, or one encoder for all of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt, field_validator, model_validator

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.modalities import MODALITIES
from edgefl.models.dtypes import widest
from edgefl.models.model import Dtype
from edgefl.models.multiway import MODALITIES as MULTIWAY_MODALITIES
from edgefl.models.multiway import MultiwayOptions
from edgefl.models.towers.gru import GruOptions
from edgefl.registry.part_fields import Fields


class Projection(Fields):
    """An MLP that projects a tower's feature to ``dimension``, as in contrastive learning; its layers have no bias."""

    hidden: tuple[PositiveInt, ...] = Field((), description="widths of the hidden layers, each with a ReLU")
    batch_norm: bool = Field(
        True, description="batch-normalise every layer; the last one without a learnt scale and shift"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the hidden layers, a probability")


class FusionOptions(Fields):
    """The classifier of a model of two modalities: an MLP on their concatenated features."""

    hidden: tuple[PositiveInt, ...] = Field((), description="widths of the hidden layers, each with a ReLU")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the hidden layers, a probability")


class ModelOptions(Fields):
    """Towers by modality.  The fields of a tower depend on its name (``tower: vit``)."""

    image: Any = Field(None, description="the image tower: {tower: vit, blocks, width, heads, patch, ...}")
    text: Any = Field(None, description="the text tower: {tower: transformer, blocks, width, heads, tokens, ...}")
    audio: Any = Field(None, description="the audio tower: {tower: ast, blocks, width, heads, ...}")
    motion: Any = Field(None, description="the motion tower: {tower: conv1d, blocks, width, kernel, ...}")
    multiway: MultiwayOptions | None = Field(
        None, description="one encoder for image and text, instead of towers: {blocks, width, heads, patch, ...}"
    )
    dtype: Dtype | None = Field(
        None,
        description="dtype of what a task adds to towers: projections, classifiers and fusion; null: that of the "
        "widest tower, or under an adapter that trains them the adapter's",
    )
    dimension: int | None = Field(
        None,
        gt=0,
        description="width of a projection on every tower of a model with two modalities; needed where the "
        "towers of a retrieval model differ in width; null: no projection",
    )
    dimension_for: Literal["pairs", "all"] = Field(
        "pairs",
        description="which models have the projection: those with two modalities (pairs), or also those with "
        "one, below their classifier (all)",
    )
    projection: Projection | None = Field(None, description="layers of the projection; null: one linear layer")
    fusion: FusionOptions = Field(
        default_factory=lambda: FusionOptions.model_validate({}),
        description="layers of the classifier of a kind that classifies pairs",
    )

    @field_validator(*MODALITIES, mode="before")
    @classmethod
    def _tower(cls, value: Any, info: Any) -> Any:
        if value is None or isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"a tower is a mapping such as {{tower: vit, blocks: 4, width: 64}}, not {value!r}")
        default = MODALITIES[info.field_name].tower
        name = value.get("tower", default)
        tower = registry.get("tower", name)
        modality = getattr(tower, "modality", info.field_name)  # a plug-in's may not say which it takes
        if modality != info.field_name:
            raise ValueError(f"the tower {name} takes {modality}, not {info.field_name}")
        options = tower.Options.model_validate({"tower": default, **value})
        if getattr(options, "modality", modality) != modality:
            raise ValueError(f"the tower {name} with a {options.family} takes {options.modality}, not {modality}")
        try:
            options.blocks  # noqa: B018  # a module whose constructor fails is told here
        except MethodError as error:
            raise ValueError(str(error)) from error
        return options

    @model_validator(mode="after")
    def _check_fields(self) -> ModelOptions:
        if self.multiway is not None and self.towers:
            raise ValueError(f"multiway replaces the towers: remove {', '.join(self.towers)}")
        if self.multiway is not None and self.dimension is not None:
            raise ValueError("multiway has no projection: remove dimension")
        if not self.modalities:
            raise ValueError(f"a model needs at least one tower: {', '.join(MODALITIES)}, or multiway")
        if self.projection is not None and self.dimension is None:
            raise ValueError("a projection needs an output width: set dimension")
        return self

    @property
    def towers(self) -> dict[str, Any]:
        """Tower options by modality, for the modalities that have one."""
        return {m: t for m in MODALITIES if (t := getattr(self, m)) is not None}

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that clients may have."""
        return MULTIWAY_MODALITIES if self.multiway is not None else tuple(self.towers)

    @property
    def shared_dtype(self) -> str:
        """The dtype of what a task adds to towers, without an adapter."""
        return self.dtype or widest(getattr(tower, "dtype", "float32") for tower in self.encoders.values())

    @property
    def encoders(self) -> dict[str, Any]:
        """Options of the towers by modality, or of the one encoder that stands for them."""
        return {"multiway": self.multiway} if self.multiway is not None else self.towers

    @property
    def blocks(self) -> dict[str, int]:
        """Number of blocks of each tower at full depth, which a schedule divides into stages."""
        return {name: encoder.blocks for name, encoder in self.encoders.items()}

    @property
    def whole(self) -> dict[str, str]:
        """Why a tower's blocks can't be cut, for those of which that is known."""
        return {name: why for name, encoder in self.encoders.items() if (why := getattr(encoder, "whole", ""))}

    @property
    def weights(self) -> dict[str, str]:
        """Source of the pre-trained weights, by modality or ``multiway``, for the encoders that have any."""
        return {m: w for m, t in self.encoders.items() if (w := getattr(t, "weights", None)) is not None}

    @property
    def vectors(self) -> dict[str, str]:
        """Files of word vectors, by modality, for the towers that start from any."""
        return {m: t.vectors for m, t in self.towers.items() if isinstance(t, GruOptions) and t.vectors is not None}

    @property
    def tokens(self) -> int:
        """Length of a text in tokens, which the tokenizer pads or cuts to; 16 if the model reads no text."""
        text = self.text or self.multiway
        return int(getattr(text, "tokens", 16))  # a tower of a plug-in may have no such option
