"""The scenario's ``payload`` section: in what form payloads travel, whatever the method and the schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from edgefl.errors import MethodError
from edgefl.methods import Method
from edgefl.units import Share
from edgefl.work import Address, Codec, Work

Wire = Literal["float32", "float16", "bfloat16", "int8"]


class SparseOptions(BaseModel):
    """An upload of which only the largest changes travel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Wire = Field("float32", description="dtype of the values that travel; float32: each as it is")
    top_k: Share | None = Field(
        None, description="share of each tensor's elements that travel, those with the largest changes; null: all"
    )

    @field_validator("top_k")
    @classmethod
    def _some(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("must be more than 0%: with nothing sent up nothing is learnt")
        return value


class PayloadOptions(BaseModel):
    """In what form payloads travel.  What arrives is what it decodes to, so that training follows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    down: Wire = Field(
        "float32", description="dtype in which downloads travel; float32: each tensor as the method has it"
    )
    up: Wire | SparseOptions = Field(
        "float32",
        description="dtype in which uploads travel, or a mapping {dtype: int8, top_k: 10%}; in a narrower dtype "
        "the difference to the downloaded value travels",
    )

    @field_validator("down", mode="before")
    @classmethod
    def _no_update(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "top_k" in value:
            raise ValueError("top_k is for up alone, as a download is no update: give down a dtype")
        return value

    @property
    def top_k(self) -> float | None:
        """The share of an update that travels, None for all."""
        return None if isinstance(self.up, str) else self.up.top_k

    def codecs(self) -> tuple[Codec | None, Codec | None]:
        """Of downloads and of uploads; None where all travels as it is."""
        up = self.up if isinstance(self.up, str) else self.up.dtype
        down = Codec(self.down) if self.down != "float32" else None
        return down, Codec(up, self.top_k) if up != "float32" or self.top_k is not None else None


def encoded(work: Work, options: PayloadOptions, buffers: Collection[Address], method: Method) -> Work:
    """The work with payloads that travel as ``options`` say; ``buffers`` (BatchNorm's) travel as they are.

    Raises MethodError where ``top_k`` is asked of what isn't an update of the model that was sent down.
    """
    down, up = options.codecs()
    if down is None and up is None:
        return work
    if options.top_k is not None:
        known = {i.name for p in work.down for i in p.items if not i.source.startswith("table/")} - set(work.keep)
        for payload in work.up:
            for item in payload.items:
                if item.name not in known:
                    name = getattr(method.options, "name", "") or type(method).__name__
                    raise MethodError(
                        f"payload.up: top_k doesn't fit method {name!r}: its payload {payload.name!r} sends "
                        f"{item.name!r}, which is no update of a parameter that was sent down; give a dtype alone"
                    )
    exact = tuple(sorted({i.name for p in (*work.down, *work.up) for i in p.items if i.source in buffers}))
    return replace(
        work,
        down=tuple(replace(p, codec=replace(down, exact=exact)) for p in work.down) if down else work.down,
        up=tuple(replace(p, codec=replace(up, exact=exact)) for p in work.up) if up else work.up,
    )
