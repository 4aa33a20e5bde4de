"""Suites: variants of a scenario, the fleets on which ``edgefl bench`` holds them against each other, and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from edgefl import SCENARIO_FORMAT, units
from edgefl.devices.budgets import budget_named, field_of
from edgefl.devices.options import UNLIMITED
from edgefl.errors import ScenarioError, UnitError, suggestion
from edgefl.scenario.axes import ScenarioAxis, field_errors, without_compare
from edgefl.scenario.document import Document, KeyPath, KeyPosition, Override, read_file, set_value, spell
from edgefl.scenario.fields import LARGEST_SEED
from edgefl.scenario.keys import VERSION
from edgefl.scenario.labels import labels_of
from edgefl.scenario.library import SUITES, find_document, library_folder, scenario_names, suite_names
from edgefl.scenario.overrides import Fields
from edgefl.scenario.problems import collecting, raise_all, reason, show, validate
from edgefl.scenario.scenario import Scenario, cells_of, read_document, scenario_in, with_fields
from edgefl.scenario.search_space import parse_search_space
from edgefl.scenario.sections import SECTIONS


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


def _amount(budget: str, value: object) -> float | str:
    """An amount of a budget, or ``unlimited``.  Raises UnitError."""
    return UNLIMITED if value in (UNLIMITED, None) else float(budget_named(budget).quantity.parse(value))


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
        default=None, description="What is compared, KIND.NAME or mean.NAME; by default as for `edgefl tune`."
    )
    variants: dict[str, Fields] = Field(
        min_length=1,
        description="The fields in which each variant differs, by dotted path as for --set; by default the scenario's "
        "compare.",
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
    references: list[Literal["central", "local"]] = Field(
        default=[],
        description="Methods without a federation, whose scores are shown beside the variants' but not ranked: all "
        "data at the server (central), or each client by itself (local). They are trained without small devices or "
        "conditions, under the scenario's schedule.",
    )
    tune: TuneOptions | None = Field(
        default=None, description="A search for each variant's settings before its runs; none if left out."
    )

    @field_validator("at", mode="after")
    @classmethod
    def _amounts(cls, value: list[Any], info: ValidationInfo) -> list[Any]:
        budget = info.data.get("budget")
        if not value:
            return value
        if budget is None:
            raise ValueError("needs a budget: write budget: memory")
        try:
            found = [_amount(budget, each) for each in value]
        except UnitError as error:
            raise ValueError(str(error)) from None
        if twice := [each for each in found if found.count(each) > 1]:
            shown = twice[0] if isinstance(twice[0], str) else budget_named(budget).quantity.show(twice[0])
            raise ValueError(f"{shown} is listed twice")
        return sorted(found, key=lambda amount: inf if amount == UNLIMITED else amount)

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
        return with_fields(scenario, fields, self.document, (group,)) if fields else scenario

    def to_data(self) -> dict[str, Any]:
        """The suite as plain data, the scenario with every default; ``read_suite`` reads it as an equal suite."""
        fields = self.options.model_dump(mode="json", exclude_defaults=True, exclude={"suite"})
        if self.options.budget is not None:
            show = budget_named(self.options.budget).quantity.to_data
            fields["at"] = [each if each == UNLIMITED else show(each) for each in self.options.at]
        return {**fields, "name": self.name, "scenario": self.base.to_data(), "seeds": list(self.seeds)}

    def budget_fields(self, share: float, amount: float) -> dict[str, Any]:
        """The fields of a fleet in which this share of the clients has the amount of the suite's budget."""
        assert self.options.budget is not None
        path = f"fleet.budgets.{field_of(self.options.budget)}"
        if amount == inf:
            return {path: UNLIMITED}
        data = budget_named(self.options.budget).quantity.to_data(amount)
        return {path: data if share == 1 else {str(data): share, UNLIMITED: 1 - share}}


def read_suite(path: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite: a file, that of a comparing scenario, or the name of a shipped one.

    ``overrides`` are of its scenario.

    Raises ScenarioError with all errors of its own fields, of the scenario, and of variants and conditions.
    """
    document = _whole(_read_suite_file(str(path)))
    if not {"scenario", "variants"} & {*document.data} and {*SECTIONS, "compare"} & {*document.data}:
        document = _wrap_scenario(document)
    errors = [
        document.error((key,), f"unknown key {key!r}{suggestion(key, SuiteOptions.model_fields)}", at_key=True)
        for key in document.data.keys() - SuiteOptions.model_fields.keys()
    ]
    base = options = None
    name = str(document.data.get("name") or Path(str(path)).stem)
    with collecting(errors):
        base = _scenario(document, document.data.get("scenario"), name, overrides)
        if base is not None and base.compare:
            if "variants" in document.data:
                message = f"compares {', '.join(base.compare)}: list the combinations as variants, or none"
                raise document.error(("scenario",), message)
            document, base = _with_comparison(document, base)
    with collecting(errors):
        known = {key: value for key, value in document.data.items() if key in SuiteOptions.model_fields}
        if base is None:  # it may compare something
            known.setdefault("variants", {name: {}})
        options = cast(SuiteOptions, validate(SuiteOptions, known, document, ()))
        field = field_of(options.budget) if options.budget else None
        if options.edgefl != SCENARIO_FORMAT:
            message = f"this edgefl reads version {SCENARIO_FORMAT} of the format, not {options.edgefl}"
            errors.append(document.error((VERSION,), message))
        if base is not None and field is not None and getattr(base.fleet.budgets, field) is not None:
            message = f"the scenario has fleet.budgets.{field} already, which the suite varies"
            errors.append(document.error(("budget",), message))
        if base is not None and options.tune is not None:
            try:
                parse_search_space(base, options.tune.search)
            except ScenarioError as error:
                errors.append(document.error(("tune", "search"), reason(error)))
    variants: list[Variant] = []
    for group, key, fields in _members(document):
        wrong = [*field_errors(document, (group, key), fields)]
        errors += wrong
        runnable = [variant for variant in variants if variant.refused is None]
        with collecting(errors):
            if wrong or base is None:
                continue
            if group == "variants":
                row = ScenarioAxis.from_rows(document, (group,), {key: fields})
                [(_, scenario)], refused = cells_of(base, [row], some=False)
                why = next(iter(refused.values()), None)
                variants.append(Variant(key, fields, replace(scenario, name=base.name), why))
            else:  # a wrong field is wrong in all
                with_fields(runnable[0].scenario if runnable else base, fields, document, (group, key))
    raise_all(errors)
    assert base is not None and options is not None
    seeds = options.seeds if isinstance(options.seeds, tuple) else tuple(range(base.seed, base.seed + options.seeds))
    return Suite(name, options, base, seeds, tuple(variants), document)


def _members(document: Document) -> Iterator[tuple[str, str, Fields]]:
    """The variants and the conditions of a suite, as far as they are mappings: group, name and fields."""
    for group in ("variants", "conditions"):
        given = document.data.get(group)
        for key, fields in given.items() if isinstance(given, dict) else ():
            if isinstance(fields, dict):
                yield group, key, fields


def _wrap_scenario(document: Document) -> Document:
    """The suite of a scenario's own file."""
    named = {"name": document.data["name"]} if "name" in document.data else {}
    places = {("scenario", *path): place for path, place in document.places.items()}
    data = {VERSION: SCENARIO_FORMAT, **named, "scenario": document.data}
    return Document(data, {**document.places, **places}, document.file)


def _with_comparison(document: Document, base: Scenario) -> tuple[Document, Scenario]:
    """The suite whose seeds, budget, conditions and variants are what its scenario compares, and the scenario alone.

    A budget of memory or of FLOPs is the suite's, unless it is compared with amounts that clients draw, or beside other
    things of the fleet or the data: all these are conditions.  Fields that the suite has itself come first.
    """
    axes = base.axes()
    budgets: dict[KeyPath, str] = {("fleet", "budgets", field_of(name)): name for name in ("memory", "flops")}
    around = [axis for axis in axes if axis.path[0] in ("fleet", "data")]
    written, data, places = without_compare(base._document), dict[str, Any](), dict[KeyPath, KeyPosition]()
    if len(around) == 1 and (budget := budgets.get(around[0].path)) and _are_amounts(budget, around[0].values):
        data |= {"budget": budget, "at": list(around[0].values)}
        written = set_value(written, Override(around[0].path, None, {}))
        around = []
    for seeds in (axis.values for axis in axes if axis.path == ("seed",)):
        data["seeds"] = list(seeds)
    choices = [axis for axis in axes if axis.path[0] not in ("fleet", "data", "seed")]
    for group, varied in (("conditions", around), ("variants", choices)):
        labels = labels_of(varied)
        for indices in product(*(range(len(axis.values)) for axis in varied)) if varied else ():
            label = ",".join(labels[i][index] for i, index in enumerate(indices))
            fields = data.setdefault(group, {}).setdefault(label, {})
            for override in (o for axis, index in zip(varied, indices, strict=True) for o in axis.sets[index]):
                fields[spell(override.path)] = override.value
                at = (group, label, spell(override.path))
                places |= {(*at, *path[len(override.path) :]): place for path, place in override.places.items()}
    suite = Document({**data, **document.data}, {**places, **document.places}, document.file)
    return suite, read_document(written)


def _are_amounts(budget: str, values: Iterable[object]) -> bool:
    try:
        return all(_amount(budget, value) for value in values)
    except UnitError:
        return False


def _read_suite_file(path: str) -> Document:
    """The document of a suite's file, or of a shipped suite."""
    shipped = library_folder() / SUITES / f"{path.removesuffix('.yaml')}.yaml"
    if not Path(path).exists() and "\0" not in path and shipped.is_file():
        return read_file(shipped, path)
    if not Path(path).exists() and path.removesuffix(".yaml") in scenario_names():
        return find_document(path)
    try:
        return read_file(Path(path), path)
    except (ScenarioError, OSError, ValueError) as error:
        message = error.message if isinstance(error, ScenarioError) else "this can't be the name of a file"
        if message == "there is no such file":
            names = [*suite_names(), *(name for name in scenario_names() if "/" not in name)]
            message = f"there is no such file, shipped scenario or suite{suggestion(path, names)}"
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


def _scenario(document: Document, given: object, name: str, overrides: Sequence[str]) -> Scenario | None:
    """The scenario of a suite: written in it, a file beside it, or a shipped one; None if it isn't named so."""
    if not isinstance(given, str | dict):
        return None
    if isinstance(given, dict):
        places = document.move_places(("scenario",), ())
        return scenario_in(
            Document({VERSION: SCENARIO_FORMAT, "name": name, **given}, places, document.file), overrides
        )
    place = document.places.get(("scenario",))
    beside = Path((place and place.file) or "").parent / given
    return scenario_in(find_document(beside if beside.is_file() else given), overrides)
