"""Strategies of hostile values, and of mutations of plain data (mappings, lists and values)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 100, 2**31, 2**53 + 1, 2**63, 2**64, 10**12, 10**30, 0.0, -0.0, 0.5, -1.5, 1e-300, 5e-324, 1e15,
    1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip

TEXTS: tuple[str, ...] = (
    "", " ", "0", "-1", "1e3", "1e999", "inf", "nan", "0x10", "010", "null", "true", "~", ".", "..", "/", "../../x",
    "/dev/zero", "/dev/stdin", "/dev/null", "./pipe", "./nothing.yaml", "*", "&a", "!x", "{}", "[]", "%", "50%",
    "150 %",
    "-5%", "1..0 MiB", "4..24 MiB", "1 GiB", "1e400 B", "10 parsecs", "0 s", "1 h..2 min", "100%..1%", "²", "½",
    "\u0663", "\u200b", "é" * 3, "\U0001f600", "a\nb", "a\tb", "a\x00b", "\x1b[31m", "\x9b2J", "a\u202eb", "a\u2028b",
    "=1+1", "@x", "x" * 300, "x" * 100_000,
    "9" * 90, "9" * 5000, "glyphs", "table", "declared", "vit", "fedavg", "layerwise", "iid", "image", "text",
    "image-text", "audio", "cpu", "cuda", "cuda:99", "auto", "none", "always", "raspberry-pi-4-4gb", "wifi-5", "campus",
    "1e-3", "40% of device", "${HOME}", "__class__", "model_config", "self", "\ufeff", "name: x", "22:00..2:00",
)  # fmt: skip

SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [{}], {"": {}}, {"a": 1}, [None], [1, "a", None], {"name": None}, {"name": {}},
    {"image": 3}, {"image": None}, {"like": "./mine.yaml"}, {"image-text": {"patterns": {"image": 2.0}}},
    {"name": "random", "spare": -1}, [0] * 1000, {"x": {"x": {"x": {"x": {"x": 1}}}}},
)  # fmt: skip

QUANTITIES = (
    "1 MiB", "2..8 MiB", "50%", "10 s", "1 h", "20 MB", "1 GFLOP", "2 kJ", "1 Mbit/s", "40% of device", "0.3", "5 W",
    "iid", "1..2 GFLOP/s", "measured", "estimated", "end-to-end", "wifi-5", "phone-mid", "glyphs", "fedcola",
)  # fmt: skip
"""Texts that a file might well hold."""

hostile = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(SHAPES), st.integers(-100, 100),
    st.floats(allow_nan=True), st.text(max_size=8),
)  # fmt: skip
"""Any value that a file may hold where another one is expected."""

keys = st.one_of(st.sampled_from(TEXTS), st.text(max_size=6))
"""Keys of a mapping."""

Where = tuple[str | int, ...]


def places(data: Any, path: Where = ()) -> list[Where]:
    """The paths of all values in plain data, the whole first."""
    found = [path]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def at(data: Any, path: Where) -> Any:
    """The value at a path."""
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: Where, value: Any) -> Any:
    """A copy of the data with ``value`` at ``path``."""
    if not path:
        return value
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


def without(data: Any, path: Where) -> Any:
    """A copy of the data without the value at ``path``."""
    *above, last = path
    parent = at(data, tuple(above))
    if isinstance(parent, dict):
        rest: Any = {key: value for key, value in parent.items() if key != last}
    else:
        rest = [value for i, value in enumerate(parent) if i != last]
    return put(data, tuple(above), rest)


def renamed(data: Any, path: Where, key: str) -> Any:
    """A copy of the data in which the last key of ``path`` is another one, in its place."""
    *above, last = path
    parent = at(data, tuple(above))
    if not isinstance(parent, dict):
        return put(data, path, key)
    return put(data, tuple(above), {(key if each == last else each): value for each, value in parent.items()})


def _near(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type that might do as well."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from((value + 1, max(0, value - 1), 2 * value, value // 2, 1, float(value), str(value)))
    if isinstance(value, float):
        return st.sampled_from((value / 2, 2 * value, -value, 0.0, 1.0, 1, f"{100 * value:g} %"))
    if isinstance(value, str):
        return st.sampled_from((*QUANTITIES, value.upper(), value + " ", value[:1]))
    if isinstance(value, list):
        return st.sampled_from((value[::-1], value[:1], value * 2, [*value, *value[-1:]]))
    return st.just(dict(reversed(list(value.items()))) if isinstance(value, dict) else 1)


@st.composite
def mutated(draw: st.DrawFn, data: Any, most: int = 3) -> Any:
    """Plain data with one to ``most`` mutations: of values, keys, types and structure."""
    for _ in range(draw(st.sampled_from((1, 1, *range(1, most + 1))))):
        path = draw(st.sampled_from(places(data)))
        how = draw(
            st.sampled_from(("near", "near", "value", "value", "remove", "rename", "add", "wrap", "move", "typo"))
        )
        value = at(data, path)
        if how == "near":
            data = put(data, path, draw(_near(value)))
        elif how == "value" or not path:
            data = put(data, path, draw(hostile))
        elif how == "remove":
            data = without(data, path)
        elif how == "rename":
            data = renamed(data, path, draw(keys))
        elif how == "typo":
            word = str(path[-1])
            cut = draw(st.integers(0, max(0, len(word) - 1)))
            data = renamed(data, path, word[:cut] + word[cut + 1 :] or "x")
        elif how == "add":
            grown: Any = {**value, draw(keys): draw(hostile)} if isinstance(value, dict) else [value, draw(hostile)]
            data = put(data, path, grown)
        elif how == "wrap":
            data = put(data, path, draw(st.sampled_from(([value], {"name": value}, [value] * 50, {"a": [value]}))))
        else:
            other = at(data, draw(st.sampled_from(places(data))))
            data = put(data, path, other)
    return data
