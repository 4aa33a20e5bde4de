"""pydantic's errors in words: short, without jargon, at the right key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator
from pydantic_core.core_schema import ErrorType

from edgefl import registry
from edgefl.data import DataOptions
from edgefl.errors import ScenarioError, UnitError
from edgefl.scenario import load
from edgefl.scenario.document import read_text
from edgefl.scenario.keys import NAMES, check_overrides, executor_of
from edgefl.scenario.problems import ScenarioErrors, sentence, show, validate
from edgefl.scenario.sections import SECTIONS, options_of
from edgefl.units import JoulesRange, Share


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(1, ge=1, le=9, multiple_of=2)
    flag: bool = False
    needed: str = Field(description="what it can't do without")


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner | None = None
    word: Literal["alpha", "beta"] = "alpha"
    batch: PositiveInt | dict[str, PositiveInt] = 1
    rate: float = Field(0.1, gt=0)
    whole: int = 1
    maybe: PositiveInt | Share = 1
    joules: JoulesRange = (1, 2)
    by_kind: dict[Literal["image", "text"], int] = {}
    words: Annotated[list[str], Field(min_length=1)] = ["a"]
    pair: tuple[float, float] = (0, 0)
    checked: int = 0
    raised: Any = None

    @field_validator("checked")
    @classmethod
    def _checked(cls, value: int) -> int:
        if value == 13:
            raise ValueError("13 is unlucky")
        return value

    @field_validator("raised")
    @classmethod
    def _raised(cls, value: Any) -> Any:
        if value is not None:
            raise UnitError(f"{value!r} was raised as it is")
        return value


def refused(text: str) -> str:
    document = read_text("part:\n" + text, "f")
    with pytest.raises(ScenarioError) as caught:
        validate(Outer, document.data["part"], document, ("part",))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  ward: beta", "f:2: part.ward: unknown key 'ward'; did you mean 'word'?"),
        ("  word: betta", "f:2: part.word: must be 'alpha' or 'beta', not 'betta'; did you mean 'beta'?"),
        ("  rate: 0", "f:2: part.rate: must be greater than 0, not 0"),
        ("  rate: quick", "f:2: part.rate: must be a number, not 'quick'"),
        ("  rate: true", "f:2: part.rate: must be a number, not true"),
        ("  rate:\n", "f:2: part.rate: must be a number, not empty"),
        ("  whole: 1.5", "f:2: part.whole: must be a whole number, not 1.5"),
        ("  whole: [1]", "f:2: part.whole: must be a whole number, not [1]"),
        ("  batch: -1", "f:2: part.batch: must be greater than 0 or a mapping (`key: value`), not -1"),
        ("  batch: {image: 0}", "f:2: part.batch.image: must be greater than 0, not 0"),
        ("  batch: false", "f:2: part.batch: must be a whole number or a mapping, not false"),
        ("  maybe: 120%", "f:2: part.maybe: '120%' is too large"),
        ("  joules: 3 parsecs", "f:2: part.joules: '3 parsecs': unknown unit 'parsecs' of a number of joules"),
        ("  by_kind: {imge: 2}", "f:2: part.by_kind.imge: unknown key 'imge'; did you mean 'image'?"),
        ("  by_kind: 3", "f:2: part.by_kind: must be a mapping (`key: value`), not 3"),
        ("  words: []", "f:2: part.words: must be a list of at least 1, not []"),
        ("  words: [a, 2]", "f:2: part.words[1]: must be text, not 2"),
        ("  words: word", "f:2: part.words: must be a list, not 'word'"),
        ("  words:\n    - a\n    - {b: 1}", "f:4: part.words[1]: must be text, not {\"b\": 1}"),
        ("  pair: [1]", "f:2: part.pair[1]: is missing"),
        ("  checked: 13", "f:2: part.checked: 13 is unlucky"),
        ("  checked: 1\n  raised: oops", "f:3: part.raised: 'oops' was raised as it is"),
        ("  inner:\n    size: 2", "f:2: part.inner.needed: is missing: what it can't do without"),
        ("  inner:\n    needed: x\n    sise: 2", "f:4: part.inner.sise: unknown key 'sise'; did you mean 'size'?"),
        ("  inner:\n    needed: x\n    size: 11", "f:4: part.inner.size: must be a multiple of 2, not 11"),
        ("  inner:\n    needed: x\n    flag: maybe", "f:4: part.inner.flag: must be true or false, not 'maybe'"),
        ("  inner: x", "f:2: part.inner: must be a mapping (`key: value`), not 'x'"),
    ],
)  # fmt: skip
def test_one_short_sentence(text: str, says: str) -> None:
    assert refused(text).startswith(says)
    assert "\n" not in refused(text)


def test_all_errors_are_listed_in_the_order_of_their_lines() -> None:
    document = read_text("rate: 0\nnew: 1\ninner:\n  size: x\nwhole: 1.5\n", "f")
    with pytest.raises(ScenarioErrors) as caught:
        validate(Outer, document.data, document, ())
    assert [(error.line, error.key) for error in caught.value.errors] == [
        (1, "rate"), (2, "new"), (3, "inner.needed"), (4, "inner.size"), (5, "whole"),
    ]  # fmt: skip
    assert str(caught.value).count("\n") == 4
    assert (caught.value.file, caught.value.line, caught.value.key) == ("f", 1, "rate")


def test_yaml_words_for_booleans_are_booleans_where_one_is_wanted() -> None:
    document = read_text("inner: {needed: x, flag: on}\n")
    assert validate(Outer, document.data, document, ()).inner.flag is True  # type: ignore[attr-defined]


# by the type of a part of pydantic's own description of a model: the errors that it can have; () for what has parts
ERRORS = {
    "any": (), "chain": (), "computed-field": (), "default": (), "definition-ref": (), "definitions": (),
    "function-after": (), "function-before": (), "function-wrap": (), "is-instance": (), "json-or-python": (),
    "lax-or-strict": (), "model-field": (), "model-fields": (), "no-info": (), "nullable": (), "union": (),
    "with-info": (),
    "bool": ("bool_type", "bool_parsing"),
    "dict": ("dict_type",),
    "float": ("float_type", "float_parsing", "finite_number"),
    "int": ("int_type", "int_parsing", "int_parsing_size", "int_from_float", "finite_number"),
    "list": ("list_type",),
    "literal": ("literal_error",),
    "model": ("model_type",),
    "str": ("string_type",),
    "tuple": ("tuple_type", "too_long"),
    "gt": ("greater_than",), "ge": ("greater_than_equal",), "lt": ("less_than",), "le": ("less_than_equal",),
}  # fmt: skip


def test_every_error_that_options_have_has_its_words() -> None:
    models = [section.owner for section in SECTIONS.values() if section.owner is not None]
    for noun in ("method", "schedule", "tower", "selection"):
        models += [options_of(noun, name) for name in registry.names(noun)]

    def types(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("type"), str):
                yield part["type"]
                yield from ({"gt", "ge", "lt", "le"} & part.keys()) if part["type"] in ("int", "float") else ()
            for key, inner in part.items():
                if key not in ("metadata", "serialization"):
                    yield from types(inner)
        elif isinstance(part, list | tuple):
            for inner in part:
                yield from types(inner)

    found = {kind for model in models for kind in types(model.__pydantic_core_schema__)}
    assert found >= {"int", "float", "bool", "str", "literal", "dict", "list", "tuple", "model", "gt", "ge", "lt", "le"}
    for error in {error for kind in found for error in ERRORS[kind]}:
        assert sentence(error, CONTEXT, "given").startswith("must be "), error


def test_a_path_is_text() -> None:
    document = read_text("source: coco\nfolders: {coco: 3}\n", "f")
    with pytest.raises(ScenarioError, match="f:2: folders.coco: must be text, not 3"):
        validate(DataOptions, document.data, document, ())


CONTEXT = {
    "gt": 1, "ge": 1, "lt": 1, "le": 1, "multiple_of": 2, "min_length": 3, "max_length": 3, "pattern": "a+",
    "expected": "'a' or 'b'", "expected_tags": "'a', 'b'", "max_digits": 3, "decimal_places": 3, "whole_digits": 3,
    "field_type": "List", "actual_length": 4, "error": "13 is unlucky",
}  # fmt: skip


@pytest.mark.parametrize(
    "context", [CONTEXT, {**CONTEXT, "field_type": "Dictionary"}, {}], ids=["list", "mapping", "none"]
)
@pytest.mark.parametrize("kind", [*get_args(ErrorType), "a_plugin's_own"])
def test_every_error_that_pydantic_has_becomes_a_sentence_without_jargon(kind: str, context: dict[str, Any]) -> None:
    said = sentence(kind, context, "given")
    assert 10 < len(said) < 120
    for jargon in ("input", "pydantic", "http", "instance", "keyword", "attribute", "dictionary", "{", "_"):
        assert jargon not in said.lower()


def test_bad_values_are_shown_short() -> None:
    assert len(show("x" * 1000)) < 70
    assert len(show(list(range(1000)))) < 70
    assert show(None) == "empty"
    assert show({"a": [True, None]}) == '{"a": [true, null]}'


# --- before torch is imported ----------------------------------------------------------------------------------------


def test_the_keys_that_are_checked_first_are_those_of_the_sections() -> None:
    assert tuple(SECTIONS) == NAMES


@pytest.mark.parametrize("override", ["foo=1", "foo.bar=1", "training", "training..lr=1", "training.lr=[1", "edgefl=2"])
def test_what_is_told_first_of_an_override_is_what_reading_the_scenario_tells(override: str) -> None:
    with pytest.raises(ScenarioError) as whole:
        load("quickstart", [override])
    if override == "edgefl=2":  # the version is the document's own
        check_overrides([override])
        return
    with pytest.raises(ScenarioError) as first:
        check_overrides([override])
    assert str(first.value) == str(whole.value)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "processes"),
        (["executor=processes"], "processes"),
        (["executor.name=ray", "executor.workers=3"], "ray"),
        (["executor.workers=3"], "processes"),
        (["executor=processes", "executor.name=inline"], "inline"),
        (["executor=null"], None),
        (["executor"], None),
    ],
)
def test_the_executor_is_found_in_the_text(overrides: list[str], name: str | None) -> None:
    assert executor_of("quickstart", overrides) == name
    assert executor_of("nofile.yaml", overrides) is None
