"""The scenario's ``payload`` section: encoding of payloads, under any method and schedule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, field_validator

from edgefl.errors import MethodError
from edgefl.methods import Method
from edgefl.registry.part_fields import Fields, parse_options
from edgefl.work import Address, Codec, Description, Payload

Described = TypeVar("Described", bound=Description)


def parse_codec(value: Any) -> Any:
    """The name of a registered codec as it is; its options from a mapping whose ``dtype`` is the name.

    Raises UnknownName, and pydantic's ValidationError for wrong fields.
    """
    options = _parse_options(value)
    return value if isinstance(value, str) else options


def _parse_options(value: Any) -> BaseModel:
    shape = "a codec is a name, or a mapping such as {dtype: int8, top_k: 10%}"
    return parse_options("codec", "float32", value, shape, key="dtype")


Wire = Annotated[
    Any,
    BeforeValidator(parse_codec),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "properties": {"dtype": {"type": "string"}}}]}),
]


class PayloadOptions(Fields):
    """Encoding of payloads.  Training and aggregation use the decoded values."""

    down: Wire = Field("float32", description="dtype of downloads; float32: each tensor keeps the method's dtype")
    up: Wire = Field(
        "float32",
        description="dtype of uploads, or a mapping {dtype: int8, top_k: 10%}; in a narrower dtype "
        "the difference to the downloaded value is sent",
    )

    @field_validator("down")
    @classmethod
    def _values(cls, value: Any) -> Any:
        codec = _codec(value)
        if codec is not None and codec.part.needs_base:
            what = "top_k" if "top_k" in codec.args else f"codec {codec.name}"
            raise ValueError(f"{what} is only for up, because a download is not an update: give down a dtype")
        return value

    def codecs(self) -> tuple[Codec | None, Codec | None]:
        """Codecs of downloads and of uploads; None where payloads are sent unchanged."""
        return _codec(self.down), _codec(self.up)


def _codec(given: str | BaseModel) -> Codec | None:
    """The codec of a name or of options; None for float32 without more."""
    codec = Codec.from_options(_parse_options(given))
    return None if codec == Codec() else codec


def with_codecs(work: Described, options: PayloadOptions, buffers: Collection[Address], method: Method) -> Described:
    """The work or form with payloads encoded as ``options`` say; ``buffers`` (BatchNorm's) are sent unchanged.

    Raises MethodError for a codec of changes (``top_k``) if an uploaded item isn't one of a downloaded parameter.
    """
    down, up = options.codecs()
    if down is None and up is None:
        return work
    if up is not None and up.part.needs_base:
        what = "top_k" if "top_k" in up.args else f"codec {up.name}"
        known = {i.name for p in work.down for i in p.items if not i.is_beside_model} - set(work.keep)
        for payload in work.up:
            for item in payload.items:
                if item.name not in known:
                    name = getattr(method.options, "name", "") or type(method).__name__
                    raise MethodError(
                        f"payload.up: {what} doesn't fit method {name!r}: its payload {payload.name!r} sends "
                        f"{item.name!r}, which is not an update of a downloaded parameter; give only a dtype"
                    )
    exact = tuple(sorted({i.name for p in (*work.down, *work.up) for i in p.items if i.source in buffers}))
    return replace(
        work,
        down=_encode_sent(work.down, down and replace(down, exact=exact)),
        up=_encode_sent(work.up, up and replace(up, exact=exact)),
    )


def _encode_sent(payloads: tuple[Payload, ...], codec: Codec | None) -> tuple[Payload, ...]:
    """The payloads with this codec, if there is one and they are sent."""
    return payloads if codec is None else tuple(replace(p, codec=codec) if p.travels else p for p in payloads)
