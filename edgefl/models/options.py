"""The scenario's ``model`` section: one tower per modality, each with its own tower's options."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from edgefl import registry


class ModelOptions(BaseModel):
    """The towers.  A tower's fields are those of the tower it names (``tower: vit``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: Any = Field(None, description="the image tower: {tower: vit, blocks, width, heads, patch, ...}")
    text: Any = Field(None, description="the text tower: {tower: transformer, blocks, width, heads, tokens, ...}")
    dimension: int | None = Field(
        None,
        gt=0,
        description="width of a projection on every tower of a retrieval model; needed where tower widths differ",
    )

    @field_validator("image", "text", mode="before")
    @classmethod
    def _tower(cls, value: Any, info: Any) -> Any:
        if value is None or isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"a tower is a mapping such as {{tower: vit, blocks: 4, width: 64}}, not {value!r}")
        default = {"image": "vit", "text": "transformer"}[info.field_name]
        return registry.get("tower", value.get("tower", default)).Options.model_validate({"tower": default, **value})

    @model_validator(mode="after")
    def _some(self) -> ModelOptions:
        if self.image is None and self.text is None:
            raise ValueError("a model needs at least one tower: image or text")
        return self

    @property
    def towers(self) -> dict[str, Any]:
        """Tower options by modality, for the modalities that have one."""
        return {m: t for m in ("image", "text") if (t := getattr(self, m)) is not None}

    @property
    def tokens(self) -> int:
        """Length of a text, in tokens (a text tower's setting that the tokenizer follows)."""
        return int(self.text.tokens) if self.text is not None else 16
