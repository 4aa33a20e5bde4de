"""The scenario's ``payload`` section: encoding of payloads, under any method and schedule."""

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
    """A sparse upload, which has only the largest changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Wire = Field("float32", description="dtype of the values that are sent; float32: unchanged")
    top_k: Share | None = Field(
        None, description="share of each tensor's elements that is sent, those with the largest changes; null: all"
    )

    @field_validator("top_k")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("must be more than 0%: an empty upload can't change the model")
        return value


class PayloadOptions(BaseModel):
    """Encoding of payloads.  Training and aggregation use the decoded values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    down: Wire = Field("float32", description="dtype of downloads; float32: each tensor keeps the method's dtype")
    up: Wire | SparseOptions = Field(
        "float32",
        description="dtype of uploads, or a mapping {dtype: int8, top_k: 10%}; in a narrower dtype "
        "the difference to the downloaded value is sent",
    )

    @field_validator("down", mode="before")
    @classmethod
    def _no_top_k(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "top_k" in value:
            raise ValueError("top_k is only for up, because a download is not an update: give down a dtype")
        return value

    @property
    def top_k(self) -> float | None:
        """The share of an update that is sent; None: all of it."""
        return None if isinstance(self.up, str) else self.up.top_k

    def codecs(self) -> tuple[Codec | None, Codec | None]:
        """Codecs of downloads and of uploads; None where payloads are sent unchanged."""
        up = self.up if isinstance(self.up, str) else self.up.dtype
        down = Codec(self.down) if self.down != "float32" else None
        return down, Codec(up, self.top_k) if up != "float32" or self.top_k is not None else None


def encoded(work: Work, options: PayloadOptions, buffers: Collection[Address], method: Method) -> Work:
    """The work with payloads encoded as ``options`` say; ``buffers`` (BatchNorm's) are sent unchanged.

    Raises MethodError if ``top_k`` is set and an uploaded item isn't an update of a downloaded parameter.
    """
    down, up = options.codecs()
    if down is None and up is None:
        return work
    if options.top_k is not None:
        known = {i.name for p in work.down for i in p.items if not i.beside} - set(work.keep)
        for payload in work.up:
            for item in payload.items:
                if item.name not in known:
                    name = getattr(method.options, "name", "") or type(method).__name__
                    raise MethodError(
                        f"payload.up: top_k doesn't fit method {name!r}: its payload {payload.name!r} sends "
                        f"{item.name!r}, which is not an update of a downloaded parameter; give only a dtype"
                    )
    exact = tuple(sorted({i.name for p in (*work.down, *work.up) for i in p.items if i.source in buffers}))
    return replace(
        work,
        down=tuple(replace(p, codec=replace(down, exact=exact)) for p in work.down) if down else work.down,
        up=tuple(replace(p, codec=replace(up, exact=exact)) for p in work.up) if up else work.up,
    )
