"""A scenario: a file's sections as the rooms' own objects, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgefl.data import DataOptions
from edgefl.devices import FleetOptions
from edgefl.errors import EdgeflError, ScenarioError, suggestion
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.models import ModelOptions
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.scenario.disagreements import disagreements
from edgefl.scenario.document import Document, KeyPath, Place, placed, read_file, read_value, spell, write
from edgefl.scenario.problems import ScenarioErrors, raise_all, show, validate
from edgefl.scenario.sections import FORMAT, SECTIONS, TOP, VERSION, Section
from edgefl.training.options import ExecutorOptions
from edgefl.training.pretraining import PretrainOptions
from edgefl.work.training_options import TrainingOptions

MOST_COMBINATIONS = 10_000
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Scenario:
    """Everything that a run is a function of.  ``load`` makes one; two with equal fields give equal results.

    ``compare`` maps a path ("schedule", "fleet.budgets.memory") to the values that it takes in turn; a section's
    values are complete sections there.
    """

    name: str
    seed: int
    data: DataOptions
    model: ModelOptions
    pretrain: PretrainOptions
    method_name: str
    method_options: Any
    schedule_name: str
    schedule_options: Any
    training: TrainingOptions
    payload: PayloadOptions
    aggregation: AggregationOptions
    fleet: FleetOptions
    round: RoundOptions
    executor: ExecutorOptions
    evaluation: EvaluationOptions
    compare: dict[str, list[Any]]
    _document: Document = field(repr=False, compare=False)

    def combinations(self) -> list[tuple[str, Scenario]]:
        """``(label, scenario)`` for every combination of ``compare``; the scenario itself if it compares nothing.

        Labels are unique, short and fit for a folder's name: ``layerwise``, ``fedcola,memory=16MiB``.
        Raises ScenarioError if a combination isn't a valid scenario.
        """
        axes = [_Axis.of_compare(self._document, path) for path in self.compare]
        return _combinations(self, axes)

    def error(self, path: KeyPath, message: str) -> ScenarioError:
        """What is wrong with the value at ``path``, with the file and line that it was written in."""
        return self._document.error(path, message)

    def resolved(self) -> dict[str, Any]:
        """The scenario as plain data with every default written out; ``load`` makes an equal scenario of it."""
        sections: dict[str, Any] = {}
        # a round trip leaves out what is computed from other fields (the width of a ResNet), which nobody may write
        for key, section in SECTIONS.items():
            if section.noun:
                options = getattr(self, f"{key}_options").model_dump(mode="json", by_alias=True, round_trip=True)
                name = getattr(self, f"{key}_name")
                sections[key] = {"name": name, **{k: v for k, v in options.items() if k != "name"}}
            else:
                sections[key] = getattr(self, key).model_dump(mode="json", by_alias=True, round_trip=True)
        compare = {"compare": self.compare} if self.compare else {}
        return {VERSION: FORMAT, "name": self.name, "seed": self.seed, **sections, **compare}

    def to_yaml(self) -> str:
        """``resolved()`` as a scenario file."""
        return write(self.resolved())


def load(path: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in this file, of this shipped name (``quickstart``) or of these plain data.

    ``overrides`` are ``path=value`` with the value in YAML, applied in order.  Raises ScenarioError, which lists
    everything that is wrong with file, line and key.
    """
    if isinstance(path, dict):
        document = Document(_plain(path))
        document = replace(document, data={VERSION: FORMAT, **document.data})
    else:
        document = _find(path)
    document = _long_forms(document)
    errors: list[ScenarioError] = []
    for override in overrides:
        try:
            document = _overridden(document, override)
        except ScenarioError as error:
            errors.append(error)
    raise_all(errors)
    return _compose(document)


def vary(scenario: Scenario, axes: Sequence[str]) -> list[tuple[str, Scenario]]:
    """``(label, scenario)`` for every combination of axes such as ``fleet.budgets.memory=16MiB,32MiB``.

    What the scenario compares is varied too.  Commas inside brackets and quotes don't separate values.
    """
    own = [_Axis.of_compare(scenario._document, path) for path in scenario.compare]
    return _combinations(scenario, own + [_Axis.of_text(text) for text in axes])


# --- finding ---------------------------------------------------------------------------------------------------------


def library_folder() -> Path:
    """The folder of the shipped scenarios: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "shipped" / "scenarios"
    return shipped if shipped.is_dir() else package.parent / "scenarios"


def scenario_names() -> list[str]:
    """The names of the shipped scenarios: ``quickstart``, ``papers/fedcola-colayer-none``, ..."""
    folder = library_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def _find(path: str | Path) -> Document:
    given = str(path)
    if "\0" in given or not given.strip():
        raise ScenarioError(f"{given!r} can't be the name of a file")
    direct = Path(path)
    try:
        if direct.is_file():
            return read_file(direct, given)
        names = scenario_names()
        name = given.removesuffix(".yaml")
        if name in names:
            return read_file(library_folder() / f"{name}.yaml", given)
        if direct.exists():
            return read_file(direct, given)
    except OSError as error:  # a name longer than the file system takes, a folder that may not be entered
        raise ScenarioError(f"this file can't be read: {error.strerror}", file=given) from error
    beside = [p.name for p in direct.parent.glob("*.y*ml")] if direct.parent.is_dir() else []
    near = get_close_matches(direct.name, beside, 1) or get_close_matches(name, names, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; shipped scenarios: {', '.join(names)}" if names else ""
    raise ScenarioError(f"there is no such file or shipped scenario{hint}", file=given)


# --- composing -------------------------------------------------------------------------------------------------------


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


def _long_forms(document: Document) -> Document:
    """The document with every bare word of a section replaced by the mapping that it stands for."""
    for key, section in SECTIONS.items():
        value = document.data.get(key)
        if isinstance(value, str) and section.short:
            place = document.places.get((key,), Place(document.file))
            places: dict[KeyPath, Place] = {(key,): place, (key, section.short): place}
            document = placed(document, (key,), {section.short: value}, places)
    return document


def _compose(document: Document, *, comparing: bool = True) -> Scenario:
    """The scenario of this document.  Raises ScenarioError for everything that is wrong with it."""
    data = document.data
    errors = _check_keys(document)
    parts: dict[str, BaseModel] = {}
    names: dict[str, str] = {}
    for key, section in SECTIONS.items():
        try:
            names[key], parts[key] = _section(document, key, section)
        except ScenarioError as error:
            errors.append(error)
    fields: dict[str, Any] = {}
    for key, read in (("name", _name), ("seed", _seed)):
        try:
            fields[key] = read(document)
        except ScenarioError as error:
            errors.append(error)
    if not errors:
        errors += disagreements(document, parts, names)
    compare = data.get("compare")
    if compare is not None and comparing:
        errors += _check_compare(document, compare)
    raise_all(errors)
    for key, section in SECTIONS.items():
        if section.noun:
            fields[f"{key}_name"], fields[f"{key}_options"] = names[key], parts[key]
        else:
            fields[key] = parts[key]
    scenario = Scenario(**fields, compare={}, _document=document)
    if not compare or not comparing:
        return scenario
    normal, document = _complete_compare(document, compare)
    scenario = replace(scenario, compare=normal, _document=document)
    scenario.combinations()  # a combination that isn't valid is the file's error, not a surprise half-way through
    return scenario


def _check_keys(document: Document) -> list[ScenarioError]:
    data = document.data
    errors = []
    allowed = [VERSION, *TOP[:2], *SECTIONS, TOP[2]]
    for key in data:
        if key not in allowed:
            errors.append(document.error((key,), f"unknown key {key!r}{suggestion(key, allowed)}", at_key=True))
    version = data.get(VERSION)
    if version is None:
        errors.append(document.error((VERSION,), f"is missing: a scenario says `edgefl: {FORMAT}`", at_key=True))
    elif version != FORMAT or isinstance(version, bool):
        what = f"this edgefl reads version {FORMAT} of the format, not {show(version)}"
        newer = isinstance(version, int) and not isinstance(version, bool) and version > FORMAT
        errors.append(document.error((VERSION,), what + ("; update edgefl" if newer else "")))
    return errors


def _name(document: Document) -> str:
    name = document.data.get("name")
    if name is None:
        return Path(document.file).stem if document.file else "scenario"
    if not isinstance(name, str):
        raise document.error(("name",), f"must be text, not {show(name)}; put it in quotes")
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise document.error(("name",), f"must be 1 to 100 printable characters, not {show(name)}")
    return name


def _seed(document: Document) -> int:
    seed = document.data.get("seed")
    if seed is None:
        return 1
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise document.error(("seed",), f"must be a whole number from 0 to 2^63 - 1, not {show(seed)}")
    return seed


def _section(document: Document, key: str, section: Section) -> tuple[str, BaseModel]:
    given = document.data.get(key)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        word = f", or one word for its {section.short!r}" if section.short else ""
        raise document.error((key,), f"must be a mapping of fields{word}, not {show(given)}")
    if section.noun is None:
        model = section.model(given)
        return "", validate(model, given, document, (key,), section.nested)
    name = given.get("name", section.default)
    if not isinstance(name, str):
        raise document.error((key, "name"), f"must be the name of a {section.noun}, not {show(name)}")
    try:
        model = section.model(given)
    except EdgeflError as error:
        raise document.error((key, "name"), str(error)) from error
    fields = given if "name" in model.model_fields else {k: v for k, v in given.items() if k != "name"}
    return name, validate(model, fields, document, (key,))


# --- overrides -------------------------------------------------------------------------------------------------------


def _key_path(text: str) -> KeyPath:
    """``fleet.links.0`` or ``fleet.links[0]`` -> ("fleet", "links", 0)."""
    parts = [part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", text.strip()).split(".")]
    if not all(parts):
        raise ScenarioError(f"{text!r} isn't a path; write for example fleet.budgets.memory")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _overridden(document: Document, override: str) -> Document:
    place = f"--set {override}"
    path_text, equals, value_text = override.partition("=")
    if not equals:
        raise ScenarioError("an override is path=value, for example training.lr=1e-3", file=place)
    try:
        path = _key_path(path_text)
        value, places = read_value(value_text, place)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=place) from None
    moved = {path + inner: where for inner, where in places.items()}
    return _set(document, path, value, {path: Place(place), **moved})


def _holds(data: Any, path: KeyPath) -> bool:
    for part in path:
        if isinstance(data, list):
            if not isinstance(part, int) or part >= len(data):
                return False
            data = data[part]
        elif isinstance(data, dict) and part in data:
            data = data[part]
        else:
            return False
    return True


def _set(document: Document, path: KeyPath, value: Any, places: dict[KeyPath, Place]) -> Document:
    """The document with ``value`` at ``path``; a word for a section keeps the fields that apply to what it names."""
    section = SECTIONS.get(str(path[0]))
    if len(path) == 1 and section and section.short and isinstance(value, str):
        key = str(path[0])
        held = document.data.get(key)
        held = held if isinstance(held, dict) and not section.whole else {}
        fields = {k: v for k, v in held.items() if k != section.short}
        if section.noun:
            try:
                known = section.model({"name": value}).model_fields
            except EdgeflError:
                known = {}  # the unknown name is reported when the section is read
            fields = {k: v for k, v in fields.items() if k in known}
        kept = {p: w for p, w in document.places.items() if len(p) > 1 and p[0] == key and p[1] in fields}
        places = {**kept, **places, (key, section.short): places[path]}
        return placed(document, path, {section.short: value, **fields}, places)
    made = {path[:i]: places[path] for i in range(1, len(path)) if not _holds(document.data, path[:i])}
    return placed(document, path, value, {**made, **places})


# --- compare and vary ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """One path, the values that it takes in turn, and where each was written."""

    path: KeyPath
    values: tuple[Any, ...]
    places: tuple[dict[KeyPath, Place], ...]

    @classmethod
    def of_compare(cls, document: Document, key: str) -> _Axis:
        path, values = _key_path(key), document.data["compare"][key]
        places = tuple(document.moved(("compare", key, i), path) or {path: Place(document.file)}
                       for i in range(len(values)))  # fmt: skip
        return cls(path, tuple(values), places)

    @classmethod
    def of_text(cls, text: str) -> _Axis:
        place = f"--vary {text}"
        path_text, equals, values_text = text.partition("=")
        if not equals or not values_text.strip():
            raise ScenarioError("an axis is path=value,value, for example training.lr=1e-3,1e-2", file=place)
        try:
            path = _key_path(path_text)
            read = [read_value(part, place) for part in _split(values_text)]
        except ScenarioError as error:
            raise ScenarioError(error.message, file=place) from None
        for i, (value, _) in enumerate(read):
            if value in [other for other, _ in read[:i]]:
                raise ScenarioError(f"{show(value)} stands here twice", file=place, key=spell(path))
        places = tuple({path: Place(place), **{path + p: w for p, w in inner.items()}} for _, inner in read)
        return cls(path, tuple(value for value, _ in read), places)


def _split(text: str) -> list[str]:
    """The values between the commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and not parts[-1].strip():
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += character
    if not all(part.strip() for part in parts):
        raise ScenarioError("a value is missing beside a comma")
    return [part.strip() for part in parts]


def _check_compare(document: Document, compare: Any) -> list[ScenarioError]:
    if not isinstance(compare, dict):
        what = f"must map paths to lists, such as `schedule: [end-to-end, layerwise]`, not {show(compare)}"
        return [document.error(("compare",), what)]
    errors, count = [], 1
    for key, values in compare.items():
        path: KeyPath = ("compare", key)
        try:
            target = _key_path(key)
        except ScenarioError as error:
            errors.append(document.error(path, error.message, at_key=True))
            continue
        known = [*TOP[:2], *SECTIONS]
        if target[0] not in known or target[0] == "name":
            near = suggestion(str(target[0]), [k for k in known if k != "name"])
            errors.append(document.error(path, f"{target[0]!r} can't be compared{near}", at_key=True))
        elif not isinstance(values, list) or not values:
            errors.append(document.error(path, f"must be a list of the values to compare, not {show(values)}"))
        else:
            count *= len(values)
            for i, value in enumerate(values):
                if value in values[:i] and type(value) is type(values[values.index(value)]):
                    errors.append(document.error((*path, i), f"{show(value)} stands here twice"))
    if count > MOST_COMBINATIONS:
        errors.append(document.error(("compare",), f"{count} combinations are more than {MOST_COMBINATIONS}"))
    return errors


def _complete_compare(document: Document, compare: Mapping[str, list[Any]]) -> tuple[dict[str, list[Any]], Document]:
    """``compare`` with complete sections where it names them, so that it means the same in a resolved scenario."""
    normal: dict[str, list[Any]] = {}
    bare = replace(document, data={k: v for k, v in document.data.items() if k != "compare"})
    errors: list[ScenarioError] = []
    for key in compare:
        axis = _Axis.of_compare(document, key)
        normal[key] = list(axis.values)
        if len(axis.path) > 1 or axis.path[0] not in SECTIONS:
            continue
        section = str(axis.path[0])
        for i, (value, places) in enumerate(zip(axis.values, axis.places, strict=True)):
            try:
                changed = _long_forms(_set(bare, axis.path, value, places))
                name, options = _section(changed, section, SECTIONS[section])
            except ScenarioError as error:
                errors.append(error)
                continue
            dumped = options.model_dump(mode="json", by_alias=True, round_trip=True)
            named = {"name": name, **{k: v for k, v in dumped.items() if k != "name"}}
            normal[key][i] = named if SECTIONS[section].noun else dumped
    raise_all(errors)
    return normal, replace(document, data={**document.data, "compare": normal})


def _combinations(scenario: Scenario, axes: Sequence[_Axis]) -> list[tuple[str, Scenario]]:
    if not axes:
        return [(_folder(scenario.name), scenario)]
    document = scenario._document
    bare = replace(document, data={k: v for k, v in document.data.items() if k != "compare"})
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_COMBINATIONS:
        raise ScenarioError(f"{count} combinations are more than {MOST_COMBINATIONS}", file=document.file)
    words = _words(axes)
    # a whole section goes in before one of its fields, whatever the order in the file
    order = sorted(range(len(axes)), key=lambda i: len(axes[i].path))
    found: list[tuple[str, Scenario]] = []
    errors: list[ScenarioError] = []
    for choice in product(*(range(len(axis.values)) for axis in axes)):
        changed = bare
        try:
            for i in order:
                changed = _set(changed, axes[i].path, axes[i].values[choice[i]], axes[i].places[choice[i]])
            label = ",".join(words[i][c] for i, c in enumerate(choice))
            found.append((label, _compose(_long_forms(changed), comparing=False)))
        except ScenarioErrors as error:
            errors += error.errors
        except ScenarioError as error:
            errors.append(error)
    raise_all(errors)
    return found


def _words(axes: Sequence[_Axis]) -> list[list[str]]:
    """The word of each value of each axis in a label; the words of an axis differ."""
    lasts = [str(axis.path[-1]) for axis in axes]
    out = []
    for axis in axes:
        section = SECTIONS.get(str(axis.path[0])) if len(axis.path) == 1 else None
        short = section.short if section else None
        key = "" if short else (str(axis.path[-1]) if lasts.count(str(axis.path[-1])) == 1 else spell(axis.path)) + "="
        words = [_folder(key + _word(value, short)) for value in axis.values]
        if len({word.lower() for word in words}) < len(words):
            # several values of one name: what distinguishes them follows
            words = [_folder(word + _difference(value, axis.values, short))
                     for word, value in zip(words, axis.values, strict=True)]  # fmt: skip
        if len({word.lower() for word in words}) < len(words):
            words = [f"{word}#{i + 1}" for i, word in enumerate(words)]
        out.append(words)
    return out


def _word(value: Any, short: str | None) -> str:
    if isinstance(value, dict):
        named = value.get(short) if short else value.get("name")
        if isinstance(named, str):
            return named
    return value if isinstance(value, str) else show(value).replace('"', "")


def _difference(value: Any, values: Sequence[Any], short: str | None) -> str:
    if not isinstance(value, dict):
        return ""
    alike = [v for v in values if isinstance(v, dict) and _word(v, short) == _word(value, short)]
    differing = [k for k in value if any(v.get(k) != value[k] for v in alike)]
    return "".join(f"-{_word(value[k], None)}" for k in differing)


def _folder(word: str) -> str:
    """The word without spaces and what a file system doesn't take."""
    return re.sub(r"[^\w.,=%+#\[\]-]", "_", re.sub(r"\s+", "", word)).strip(".")[:80] or "_"
