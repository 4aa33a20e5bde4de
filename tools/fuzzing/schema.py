"""Strategies that follow a JSON Schema: values that mostly fit it, at the edges of what it allows."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from hypothesis import strategies as st

from fuzzing.values import QUANTITIES, hostile, keys


class FromSchema:
    """Strategies for the parts of one schema."""

    def __init__(self, schema: Mapping[str, Any]):
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._known: dict[str, st.SearchStrategy[Any]] = {}

    def of(self, schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
        """A strategy for values of this part of the schema."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            if name not in self._known:
                self._known[name] = st.deferred(lambda: self.of(self._definitions[name], depth + 1))
            return self._known[name]
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return st.one_of([self.of(each, depth + 1) for each in schema[several]])
        return self._of_type(schema, depth)

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
        kind = schema.get("type")
        if isinstance(kind, list):
            return st.one_of([self._of_type({**schema, "type": each}, depth) for each in kind])
        examples = [*schema.get("examples", ()), *([schema["default"]] if schema.get("default") is not None else [])]
        if kind == "null":
            return st.none()
        if kind == "boolean":
            return st.booleans()
        if kind == "integer":
            low, high = _bounds(schema, 1)
            return st.one_of(st.integers(int(low), int(min(high, low + 12))), st.just(int(low)))
        if kind == "number":
            low, high = _bounds(schema, 0)
            return st.floats(low, min(high, max(low, 10.0)), allow_nan=False)
        if kind == "array":
            least = schema.get("minItems", 0)
            inner = self.of(schema.get("items", {}), depth + 1)
            return st.lists(inner, min_size=least, max_size=max(least, min(schema.get("maxItems", 3), least + 2)))
        if kind == "object" or "properties" in schema:
            return self._objects(schema, depth)
        if kind == "string":
            return st.sampled_from([*examples, *QUANTITIES])
        return st.one_of(*([st.sampled_from(examples)] if examples else []), hostile)

    def _objects(self, schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if not properties:
            more = schema.get("additionalProperties", True)
            inner = self.of(more, depth + 1) if isinstance(more, dict) else hostile
            names = st.one_of(st.sampled_from(("image", "text", "image-text", "raspberry-pi-4-4gb", "wifi-5")), keys)
            return st.dictionaries(names, inner, max_size=3)
        return _some(self, properties, required, depth)


@st.composite
def _some(
    draw: st.DrawFn, maker: FromSchema, properties: Mapping[str, Any], required: set[str], depth: int
) -> dict[str, Any]:
    """An object with all required properties and a few others."""
    optional = sorted(set(properties) - required)
    chosen = draw(st.lists(st.sampled_from(optional), max_size=3, unique=True)) if optional and depth < 6 else []
    return {name: draw(maker.of(properties[name], depth + 1)) for name in (*sorted(required), *chosen)}


def _bounds(schema: Mapping[str, Any], step: int) -> tuple[float, float]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + (step if "exclusiveMinimum" in schema else 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", inf))
    return float(low), float(max(low, high - (step if "exclusiveMaximum" in schema else 0)))
