"""Suites: variants of a scenario, the fleets on which ``edgefl bench`` holds them against each other, and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from edgefl import SCENARIO_FORMAT, units
from edgefl.devices.budgets import FIELDS, budget_named
from edgefl.errors import ScenarioError, UnitError, suggestion
from edgefl.scenario.axes import ScenarioAxis
from edgefl.scenario.document import Document, KeyPath, KeyPosition, read_file
from edgefl.scenario.fields import LARGEST_SEED
from edgefl.scenario.keys import VERSION, key_path
from edgefl.scenario.library import SUITES, find_document, library_folder, suite_names
from edgefl.scenario.problems import raise_all, reason, show, validate
from edgefl.scenario.scenario import Scenario, cells_of, combinations_of, scenario_in
from edgefl.scenario.search_space import parse_search_space
from edgefl.scenario.sections import SECTIONS

Fields = dict[str, Any]
"""Fields of a scenario by dotted path, with their values."""
FIXED = {
    **dict.fromkeys(("name", "compare", VERSION), "it is the suite's own"),
    **dict.fromkeys(("executor", "tracker"), "results don't depend on it"),
    "seed": "all variants run over the suite's seeds",
}
"""Sections that no variant or condition sets, with the reason."""


class TuneOptions(BaseModel):
    """The `tune:` of a suite: how the settings of each variant are searched, on the validation split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    search: list[str] = Field(
        min_length=1, description="Fields with a range or values, as `edgefl tune --search` takes them."
    )
    trials: int = Field(default=30, ge=1, description="Settings that are tried for each variant.")
    seeds: int = Field(default=1, ge=1, description="Seeds over which a trial's score is the mean.")


def _seeds(value: object) -> object:
    """Read the seeds: a number of them, from the scenario's seed on, or a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= 1000:
            raise ValueError(f"must be from 1 to 1000 seeds, or a list of them, not {value}")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a number of seeds, or a list of them, not {show(value)}")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= LARGEST_SEED:
            raise ValueError(f"a seed is a whole number from 0 to 2^63 - 1, not {show(each)}")
        if value.count(each) > 1:
            raise ValueError(f"seed {each} is listed twice")
    return tuple(value)


def _shares(value: object) -> object:
    """Read the shares of small devices."""
    found: list[float] = []
    for each in value if isinstance(value, list) else [value]:
        try:
            share = units.SHARE.parse(each)
        except UnitError as error:
            raise ValueError(str(error)) from None
        if not 0 < share <= 1:
            raise ValueError(f"a share of small devices is more than 0 % and at most 100 %, not {show(each)}")
        if share in found:
            raise ValueError(f"{units.show_share(share)} is listed twice")
        found.append(share)
    if not found:
        raise ValueError("is empty; give at least one share, such as 100%")
    return tuple(found)


class SuiteOptions(BaseModel):
    """A suite's own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    edgefl: int = Field(description=f"Version of the format: {SCENARIO_FORMAT}.")
    name: str = Field(default="", max_length=100, description="Name of the suite; by default that of its file.")
    suite: str | None = Field(
        default=None, description="Another suite, which has all fields that this one leaves out: its file, or its name."
    )
    scenario: str | dict[str, Any] = Field(
        description="What all variants share: a scenario, its file (beside the suite), or the name of a shipped one."
    )
    seeds: Annotated[int | tuple[int, ...], BeforeValidator(_seeds)] = Field(
        default=5, description="How many seeds, from the scenario's on, or a list of them."
    )
    metric: str | None = Field(
        default=None, description="What is compared, KIND.NAME; by default as for `edgefl tune`."
    )
    variants: dict[str, Fields] = Field(
        min_length=1, description="The fields in which each variant differs, by dotted path as for --set."
    )
    budget: Literal["memory", "flops"] | None = Field(
        default=None, description="The budget of a round of which small devices have little: memory or flops."
    )
    small: Annotated[tuple[float, ...], BeforeValidator(_shares)] = Field(
        default=(1.0,), description="Shares of the clients that are small; the others have no such limit."
    )
    at: list[Any] = Field(
        default=[], description="What small devices have; by default every amount from which a variant does more."
    )
    conditions: dict[str, Fields] = Field(
        default={}, description="Fields by name of a condition; what is kept is counted against the first."
    )
    target: float | None = Field(
        default=None, allow_inf_nan=False, description="A value of the metric: costs are counted until it is reached."
    )
    tune: TuneOptions | None = Field(
        default=None, description="A search for each variant's settings before its runs; none if left out."
    )

    @field_validator("at", mode="after")
    @classmethod
    def _amounts(cls, value: list[Any], info: ValidationInfo) -> list[float]:
        budget = info.data.get("budget")
        if not value:
            return value
        if budget is None:
            raise ValueError("needs a budget: write budget: memory")
        try:
            found = [float(budget_named(budget).quantity.parse(each)) for each in value]
        except UnitError as error:
            raise ValueError(str(error)) from None
        if twice := [each for each in found if found.count(each) > 1]:
            raise ValueError(f"{budget_named(budget).show(twice[0])} is listed twice")
        return sorted(found)

    @model_validator(mode="after")
    def _one_kind_of_fleets(self) -> SuiteOptions:
        if self.budget is not None and self.conditions:
            raise ValueError("has a budget and conditions; write two suites")
        if self.budget is None and self.small != (1.0,):
            raise ValueError("small: needs a budget: write budget: memory")
        return self


@dataclass(frozen=True)
class Variant:
    """A variant: its name, its fields, and its scenario, in which all clients are free; or why it is ``refused``."""

    name: str
    fields: Mapping[str, Any]
    scenario: Scenario
    refused: str | None = None


@dataclass(frozen=True)
class Suite:
    """A suite as it is run."""

    name: str
    options: SuiteOptions
    base: Scenario
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    document: Document

    def with_fields(self, scenario: Scenario, group: str, fields: Mapping[str, Any]) -> Scenario:
        """The scenario of a variant with fields of a condition or a budget.  Raises ScenarioError."""
        return with_places(scenario, self.document, fields, (group,)) if fields else scenario

    def to_data(self) -> dict[str, Any]:
        """The suite as plain data, the scenario with every default; ``read_suite`` reads it as an equal suite."""
        fields = self.options.model_dump(mode="json", exclude_defaults=True, exclude={"suite"})
        return {**fields, "name": self.name, "scenario": self.base.to_data(), "seeds": list(self.seeds)}

    def budget_fields(self, share: float, amount: float) -> dict[str, Any]:
        """The fields of a fleet in which this share of the clients has the amount of the suite's budget."""
        assert self.options.budget is not None
        path = f"fleet.budgets.{FIELDS[self.options.budget]}"
        if amount == inf:
            return {path: "unlimited"}
        return {path: amount if share == 1 else {repr(amount): share, "unlimited": 1 - share}}


def read_suite(path: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite: a file, or the name of a shipped one.  ``overrides`` are of its scenario.

    Raises ScenarioError with all errors of its own fields, of the scenario, and of variants and conditions.
    """
    document = _whole(_read_suite_file(str(path)))
    misplaced = next((key for key in document.data if key in SECTIONS), None)
    if misplaced and not {"scenario", "variants"} & {*document.data}:
        raise document.error(
            (misplaced,), "belongs to a scenario; a suite names one under `scenario`, and has `variants`", at_key=True
        )
    for key in document.data:
        if key not in SuiteOptions.model_fields:
            raise document.error(
                (key,), f"unknown key {key!r}{suggestion(key, SuiteOptions.model_fields)}", at_key=True
            )
    options = cast(SuiteOptions, validate(SuiteOptions, document.data, document, ()))
    if options.edgefl != SCENARIO_FORMAT:
        raise document.error(
            (VERSION,), f"this edgefl reads version {SCENARIO_FORMAT} of the format, not {options.edgefl}"
        )
    name = options.name or Path(str(path)).stem
    base = _scenario(document, options, name, overrides)
    if base.compare:
        raise document.error(("scenario",), f"compares {', '.join(base.compare)}: list the combinations as variants")
    field = FIELDS.get(options.budget or "")
    if field is not None and getattr(base.fleet.budgets, field) is not None:
        raise document.error(("budget",), f"the scenario has fleet.budgets.{field} already, which the suite varies")
    seeds = options.seeds if isinstance(options.seeds, tuple) else tuple(range(base.seed, base.seed + options.seeds))
    errors: list[ScenarioError] = []
    for group, members in (("variants", options.variants), ("conditions", options.conditions)):
        for key, fields in members.items():
            errors += _path_errors(document, (group, key), fields)
    raise_all(errors)
    variants = []
    for key, fields in options.variants.items():
        try:
            [(_, scenario)], refused = cells_of(base, _axes(document, fields, ("variants", key)), some=False)
            why = next(iter(refused.values()), None)
            variants.append(Variant(key, fields, replace(scenario, name=base.name), why))
        except ScenarioError as error:
            errors.append(error)
    for key, fields in options.conditions.items():
        for variant in [each for each in variants if each.refused is None][:1]:  # a wrong field is wrong in all
            try:
                with_places(variant.scenario, document, fields, ("conditions", key))
            except ScenarioError as error:
                errors.append(error)
    raise_all(errors)
    if options.tune is not None:
        try:
            parse_search_space(base, options.tune.search)
        except ScenarioError as error:
            raise document.error(("tune", "search"), reason(error)) from error
    return Suite(name, options, base, seeds, tuple(variants), document)


def _read_suite_file(path: str) -> Document:
    """The document of a suite's file, or of a shipped suite."""
    shipped = library_folder() / SUITES / f"{path.removesuffix('.yaml')}.yaml"
    if not Path(path).exists() and "\0" not in path and shipped.is_file():
        return read_file(shipped, path)
    try:
        return read_file(Path(path), path)
    except (ScenarioError, OSError, ValueError) as error:
        message = error.message if isinstance(error, ScenarioError) else "this can't be the name of a file"
        if message == "there is no such file":
            names = suite_names()
            message = f"there is no such file or shipped suite{suggestion(path, names)}"
        line = error.line if isinstance(error, ScenarioError) else None
        raise ScenarioError(message.replace("a scenario", "a suite"), file=path, line=line) from error


def _whole(document: Document) -> Document:
    """The document with the fields of the suite that it names, where it has none itself."""
    named = document.data.get("suite")
    if not isinstance(named, str):
        return document
    beside = Path(document.file or "").parent / named
    other = _read_suite_file(str(beside if beside.is_file() else named))
    if "suite" in other.data:
        raise document.error(("suite",), f"{named} takes its fields from another suite itself; name that one")
    taken = {key: value for key, value in other.data.items() if key not in document.data}
    if isinstance(scenario := taken.get("scenario"), dict):  # which has the name of its own suite, as its trials have
        taken["scenario"] = {"name": other.data.get("name", Path(named).stem), **scenario}
    places = {path: place for path, place in other.places.items() if path and path[0] in taken}
    return Document({**taken, **document.data}, {**places, **document.places}, document.file)


def _scenario(document: Document, options: SuiteOptions, name: str, overrides: Sequence[str]) -> Scenario:
    """The scenario of a suite: written in it, a file beside it, or a shipped one."""
    given = options.scenario
    if isinstance(given, dict):
        places = document.move_places(("scenario",), ())
        return scenario_in(
            Document({VERSION: SCENARIO_FORMAT, "name": name, **given}, places, document.file), overrides
        )
    place = document.places.get(("scenario",))
    beside = Path((place and place.file) or "").parent / given
    return scenario_in(find_document(beside if beside.is_file() else given), overrides)


def _path_errors(document: Document, path: KeyPath, fields: Mapping[str, Any]) -> Iterable[ScenarioError]:
    """Errors of the paths of a variant or a condition."""
    if not str(path[-1]).strip() or not str(path[-1]).isprintable() or len(str(path[-1])) > 60:
        yield document.error(path, "a name is 1 to 60 printable characters", at_key=True)
    for field in fields:
        try:
            section = key_path(field)[0]
        except ScenarioError as error:
            yield document.error((*path, field), error.message, at_key=True)
            continue
        if section in FIXED:
            yield document.error((*path, field), f"isn't set here: {FIXED[str(section)]}", at_key=True)
        elif section not in SECTIONS:
            hint = suggestion(str(section), SECTIONS)
            yield document.error((*path, field), f"unknown section {section!r}{hint}", at_key=True)


def with_places(scenario: Scenario, document: Document, fields: Mapping[str, Any], at: KeyPath) -> Scenario:
    """The scenario with fields of the suite, whose errors point to what stands under ``at``.  Raises ScenarioError."""
    return replace(combinations_of(scenario, _axes(document, fields, at))[0][1], name=scenario.name)


def _axes(document: Document, fields: Mapping[str, Any], at: KeyPath) -> list[ScenarioAxis]:
    """The fields that stand under ``at`` in a suite, as axes of one value."""
    axes = []
    for field, value in fields.items():
        path = key_path(field)
        places = document.move_places((*at, field), path) or {path: KeyPosition(document.file)}
        axes.append(ScenarioAxis(path, (value,), (places,)))
    return axes
