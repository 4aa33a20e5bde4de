"""Hostile scenarios and suites: shipped ones with changed values, keys, types, structure or text, and drawn ones."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st

from edgefl import yaml_lines
from edgefl.scenario import json_schema, library_folder, scenario_names
from fuzzing.case import PIPE, Case, Odd
from fuzzing.schema import FromSchema
from fuzzing.texts import odd_files, rewritten
from fuzzing.values import hostile, mutated, put

LARGE = {"million", "spoken-digits", "papers/fedmml-advance", "papers/fedcola-creamfl"}
"""Shipped scenarios that take long to validate: their data or fleets are large."""

DECLARED: dict[str, Any] = {
    "source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40,
    "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}},
}  # fmt: skip
"""Data of which only the shapes are there, for scenarios whose fleet matters."""

TINY: dict[str, Any] = {
    "edgefl": 1, "name": "tiny", "seed": 3,
    "data": DECLARED,
    "model": {"image": {"tower": "vit", "blocks": 2, "width": 16, "heads": 2},
              "text": {"tower": "transformer", "blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
    "method": {"name": "fedavg"}, "schedule": {"name": "end-to-end", "rounds": 2},
    "training": {"mode": "none", "batch": 8}, "round": {"cohort": 1.0}, "executor": {"name": "inline", "device": "cpu"},
    "evaluation": {"every": 10},
}  # fmt: skip
"""A small scenario, of which nothing has to be built to check it."""


@cache
def shipped() -> list[tuple[bytes, Any]]:
    """Text and data of the shipped scenarios that take little time to validate."""
    folder = library_folder()
    texts = [
        (folder / f"{name}.yaml").read_bytes()
        for name in scenario_names()
        if name not in LARGE and "orderings" not in name
    ]
    tiny = yaml.safe_dump(TINY, sort_keys=False).encode()
    return [(text, yaml.safe_load(text)) for text in (tiny, *texts)]


@cache
def schema() -> tuple[dict[str, Any], FromSchema]:
    """The schema of a scenario, and strategies for its parts."""
    whole = json_schema()
    return whole, FromSchema(whole)


def dumped(data: Any) -> bytes:
    """A file with this data."""
    return yaml_lines.write(data).encode("utf-8", "surrogatepass")


@st.composite
def generated(draw: st.DrawFn) -> Any:
    """A scenario of which one section to all are made from the schema."""
    whole, maker = schema()
    sections = [name for name in whole["properties"] if name not in ("edgefl", "compare")]
    chosen = draw(st.lists(st.sampled_from(sections), min_size=1, max_size=4, unique=True))
    data = TINY
    for name in chosen:
        data = {**data, name: draw(maker.of(whole["properties"][name]))}
    if draw(st.integers(0, 4)) == 0:
        path = draw(
            st.sampled_from(("training.lr", "schedule", "fleet.budgets.memory", "seed", "x.y", "data.partition"))
        )
        data = {**data, "compare": {path: draw(st.lists(hostile, max_size=3))}}
    return data


@st.composite
def override(draw: st.DrawFn) -> str:
    """A change as ``--set`` takes it."""
    path = draw(
        st.sampled_from(
            ("seed", "training.lr", "training.batch", "data.partition", "data.clients.image", "fleet.devices",
             "fleet.²", "model.image.tower", "schedule", "method.name", "compare", "round.cohort", "a.b.c",
             "fleet[0]", "")
        )
    )  # fmt: skip
    value = draw(hostile)
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{path}={text}".replace("\n", " ").replace("\r", " ").replace("\x00", "")


def scenarios() -> st.SearchStrategy[Case]:
    """Hostile scenarios, as files or as plain data, now and then with overrides."""
    shipped(), schema()
    return _scenarios()


@st.composite
def _scenarios(draw: st.DrawFn) -> Case:
    how = draw(st.sampled_from(("mutated", "mutated", "text", "text", "generated", "both", "data", "sets", "odd")))
    text, data = draw(st.sampled_from(shipped()))
    files: dict[str, Any] = {"pipe": Odd(PIPE)}
    if how == "odd":
        files["scenario.yaml"] = draw(odd_files)
    elif how == "text":
        files["scenario.yaml"] = draw(rewritten(text))
    elif how == "sets":
        files["scenario.yaml"] = text
        files["overrides.txt"] = "\n".join(draw(st.lists(override(), min_size=1, max_size=3))).encode()
    else:
        if how in ("generated", "both"):
            data = draw(generated())
        if how != "generated":
            data = draw(mutated(data))
        if how == "data":
            data = data if isinstance(data, dict) else put(TINY, ("data",), data)
            files["scenario.json"] = json.dumps(data).encode()
        else:
            files["scenario.yaml"] = dumped(data)
    hostile_files = tuple(name for name in files if name != "pipe" and not (how == "sets" and name == "scenario.yaml"))
    return Case("scenarios", files, hostile_files)


SUITE: dict[str, Any] = {
    "edgefl": 1, "name": "toys", "scenario": TINY, "seeds": 2, "metric": "image.accuracy", "budget": "memory",
    "variants": {"end-to-end": {}, "layer-wise": {"schedule": {"name": "layerwise", "stages": 2, "rounds": 2}}},
    "small": ["100%", "50%"], "at": ["6 MiB"], "target": 0.1,
    "tune": {"search": ["training.lr=1e-3..1e-1"], "trials": 2},
}  # fmt: skip
"""A suite with all fields but conditions."""


def suites() -> st.SearchStrategy[Case]:
    """Hostile suites: values of one or of its scenario are changed, or its text."""
    return _suites()


@st.composite
def _suites(draw: st.DrawFn) -> Case:
    how, content = draw(st.sampled_from(("data", "data", "data", "text", "conditions", "odd"))), SUITE
    if how == "conditions":
        content = {name: value for name, value in SUITE.items() if name not in ("budget", "small", "at")}
        content |= {"conditions": {"none": {}, "crashes": {"fleet.failures.training": "20%"}}}
    files: dict[str, Any] = {"pipe": Odd(PIPE)}
    if how == "odd":
        files["suite.yaml"] = draw(odd_files)
    else:
        files["suite.yaml"] = draw(rewritten(dumped(content))) if how == "text" else dumped(draw(mutated(content)))
    return Case("suites", files, ("suite.yaml",))
