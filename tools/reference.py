"""Write the pages of docs/reference that follow from the code.

    python tools/reference.py

writes ``scenario.md``, ``command-line.md``, ``errors.md`` and ``python.md``.  The pages are committed, so that they can
be read without building the site; a test says when they are out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import edgefl
from edgefl import errors, units
from edgefl.cli import app
from edgefl.cli.app import INTERRUPTED
from edgefl.commands.profile import cost_diff
from edgefl.data.collection import DataSet, FolderSet
from edgefl.runs import Run
from edgefl.scenario import problems
from edgefl.scenario.sections import FORMAT, SECTIONS, Section

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
COMMAND = "python tools/reference.py"
NOTE = f"<!-- Written by `{COMMAND}` from the code: change the code, then run it again. -->"

QUANTITIES: dict[str, tuple[units.Quantity, str]] = {
    "bytes": (units.BYTES, "show_bytes"),
    "FLOPs": (units.FLOPS, "show_flops"),
    "FLOP/s": (units.RATE, "show_rate"),
    "bit/s": (units.BITS_PER_SECOND, "show_bits_per_second"),
    "bytes/s": (units.BYTES_PER_SECOND, "show_bytes_per_second"),
    "seconds": (units.SECONDS, "show_seconds"),
    "joules": (units.JOULES, "show_joules"),
    "watts": (units.WATTS, "show_watts"),
    "share": (units.SHARE, "show_share"),
}
"""Base units, each with the quantity that reads it and the function that shows it."""

OTHER_VALUES = {
    **dict.fromkeys(("model.image", "model.text", "model.audio"), "mapping: fields of a [tower](#towers)"),
    "data.missing": "share, or mapping (see the description)",
    "evaluation.missing": "as `data.missing`",
    "round.selection": "name, or mapping: [selections](#selections)",
    "round.staleness": "name, or mapping: [fields](#roundstaleness)",
    "round.policy": "name: [policies](#round-policies)",
    "round.over_selection": "share, also above 1, such as `30%` or `150%`",
    "fleet.devices": "name, or mapping from name to share or count",
    "fleet.links": "name, or mapping from name to share or count",
    "fleet.budgets.memory": "bytes or share of the device, such as `48 MiB` or `40% of device`; or a range",
    "fleet.availability.diurnal.hours": "hours, such as `8 h`; or a range, `8..10 h`",
    "fleet.availability.diurnal.start": "`spread`, or a time of day such as `18:00`; or a range, `18:00..23:00`",
    "fleet.availability.diurnal.begins": "time of day, such as `9:00`",
    "fleet.failures.slow_down.factor": "number, 1 or more; or a range, `2..5`",
    "training.rates": "mapping from tower or part to a rate, a list of rates, or [fields](#trainingrateskey)",
    "data.samples": "whole number, range such as `50..200`, or mapping from kind to one of these",
    "data.partition": "name, or mapping: [partitions](#partitions)",
    "data.source": "name, or mapping from kind (or `public`) to name: [data sets](#data-sets)",
}
"""What a field takes, where a validator reads more than its JSON Schema says."""


def pages() -> dict[str, str]:
    """Text of each page by its file name."""
    return {
        "scenario.md": scenario_page(),
        "command-line.md": command_line_page(),
        "errors.md": errors_page(),
        "python.md": python_page(),
    }


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")


# --- Markdown --------------------------------------------------------------------------------------------------------


def page(title: str, parts: Iterable[str]) -> str:
    """A page with its title and the note that it is generated."""
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def code(value: Any) -> str:
    """A value as YAML on one line, in a code span."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return f"`{text.strip().removesuffix('...').strip()}`"


def listed(words: Sequence[str], last: str = "or") -> str:
    """``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def sentence(text: str, names: Container[str] = ()) -> str:
    """A description as it stands in a table: mappings and paths in code spans, a capital in front, no full stop.

    A first word that is one of ``names`` keeps its small letter.
    """
    spans = re.split(r"(`[^`]*`)", text)
    whole = "".join(span if span.startswith("`") else _marked(span) for span in spans).removesuffix(".")
    first = re.match(r"[a-z]+(?=[ ,';:-])", whole)
    return whole[:1].upper() + whole[1:] if first and first[0] not in names else whole


def _marked(text: str) -> str:
    """Mappings in braces, and dotted or underscored names, in code spans."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        if letter == "{":
            if not depth:
                found.append(paths(text[start:place]))
                start = place
            depth += 1
        elif letter == "}":
            depth -= 1
            if not depth:
                found.append(f"`{text[start : place + 1]}`")
                start = place + 1
    return "".join([*found, paths(text[start:])])


def paths(text: str) -> str:
    """Dotted and underscored names, and environment variables, in code spans."""
    name = r"[a-z]{2,}(?:[._][a-z_]{2,}|_[a-z]\b)+(?:=[\w.-]+)?|\$[A-Z_]+(?:/[A-Z]+)?|--[a-z][a-z-]+(?: [A-Z]+\b)?"
    return re.sub(rf"(?<![\w`/<])(?:{name})(?![\w`/>])", lambda match: f"`{match[0]}`", text)


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring on one line, as Markdown."""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())


# --- the parts that edgefl registers ---------------------------------------------------------------------------------


def registered(group: str) -> dict[str, Any]:
    """What edgefl itself registers in a group of entry points, by name, in the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    for name, target in project["entry-points"][f"edgefl.{group}"].items():
        module, attribute = target.split(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found


# --- scenario.md -----------------------------------------------------------------------------------------------------


def scenario_page() -> str:
    """Every section and field of a scenario."""
    return page(
        "Scenario",
        [
            "A scenario is a YAML file. Each top-level key is a section; each section can be left out. A field that is "
            "left out has its default. An unknown key is an error that names the file, the line and the nearest key.",
            "`edgefl validate FILE --resolved` prints a scenario with every default written out. "
            "`--set PATH=VALUE` changes a field, for example `--set training.lr=1e-3`. "
            "`scenarios/tour.yaml` is an annotated example, and [methods](../explanation/methods.md) explains what the "
            "methods do.",
            *_top(),
            *(part for key, section in SECTIONS.items() for part in _section(key, section)),
            *_towers(),
            *_named("selections", "Selections", "round.selection", 3),
            *_policies(),
            *_partitions(),
            *_data_sets(),
            *_quantities(),
        ],
    )


def _top() -> list[str]:
    rows = [
        ("`edgefl`", f"`{FORMAT}`", "required in a file", "Version of the format"),
        (
            "`name`",
            "text, 1 to 100 characters",
            "name of the file",
            "Name of the scenario, and of its folder in `runs/`",
        ),
        ("`seed`", "whole number, 0 or more", "`1`", "The only seed: every random draw follows from it"),
        *(
            (f"[`{key}`](#{key})", "section", "its defaults", _capital(section.title))
            for key, section in SECTIONS.items()
        ),
        (
            "`compare`",
            "mapping from path to a list of values",
            "`null`",
            "One run for each combination of the values: `compare: {schedule: [end-to-end, layerwise]}`",
        ),
    ]
    return ["## Top level", table(("Key", "Values", "Default", "Meaning"), rows)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _section(key: str, section: Section) -> Iterator[str]:
    yield f"## {key}"
    text = _capital(section.title) + "."
    if section.short:
        text += f" A bare word stands for `{section.short}`: `{key}: WORD` is `{key}: {{{section.short}: WORD}}`."
    if section.noun is None:
        assert section.owner is not None
        yield text
        yield from _model(section.owner, key)
        return
    group = f"{section.noun}s"
    names = list(registered(group))
    links = listed([f"[`{name}`](#{name})" for name in names])
    yield f"{text} The fields depend on `name` (default `{section.default}`): {links}."
    yield from _named(group, "", key, 3)


def _named(group: str, title: str, key: str, level: int) -> Iterator[str]:
    """A heading with the fields for each registered name."""
    if title:
        yield f"## {title}"
        yield f"`{key}` is a name, or a mapping with `name` and the fields of that name."
    for name, owner in registered(group).items():
        yield f"{'#' * level} {name}"
        yield sentence(getattr(owner, "summary", "") or first_paragraph(owner.__doc__)) + "."
        yield from _model(owner.Options, key, of=name)


def _towers() -> Iterator[str]:
    yield "## Towers"
    yield (
        "The fields of `model.image`, `model.text` and `model.audio` depend on `tower`. "
        "[Models](towers.md) describes the towers."
    )
    for name, owner in registered("towers").items():
        yield f"### {name}"
        yield from _model(owner.Options, "model.MODALITY", of=name)


def _policies() -> Iterator[str]:
    yield "## Round policies"
    yield "`round.policy` is one of these names. Their fields stand in [`round`](#round)."
    yield table(
        ("Name", "Meaning"),
        [(f"`{name}`", sentence(first_paragraph(owner.__doc__))) for name, owner in registered("policies").items()],
    )


def _partitions() -> Iterator[str]:
    yield "## Partitions"
    yield (
        "`data.partition` is a name, or a mapping from a name to its argument: `{dirichlet: 0.5}`. "
        "[Data sets](data-sets.md#partitions) has more about them."
    )
    rows = [(f"`{name}`", *PARTITIONS[name]) for name in registered("partitions")]
    yield table(("Name", "Argument", "Meaning"), rows)


PARTITIONS = {
    "iid": ("none", "Equal parts at random; sizes differ by one at most"),
    "dirichlet": ("concentration, above 0", "The shares of each class are drawn from a Dirichlet distribution"),
    "quantity": ("concentration, above 0", "Every client has the same mix of classes; sizes are drawn from a Dirichlet "
                 "distribution"),
    "groups": ("none, or `[LOW, HIGH]`", "Equal parts of the pictures, each with all its captions; with an argument a "
               "client keeps a share from LOW to HIGH of its own samples"),
    "natural": ("none", "The clients that the data name, such as the writer of a text"),
}  # fmt: skip


def _data_sets() -> Iterator[str]:
    yield "## Data sets"
    yield (
        "`data.source` is one of these names. [Data sets](data-sets.md) says what each one holds, which files it is "
        "read from, and where to get them. A set that is read from a folder is looked for in `data.folders`, in "
        "`$EDGEFL_DATA/NAME` and in `data/NAME`."
    )
    rows = []
    for name, found in registered("datasets").items():
        if isinstance(found, DataSet):
            packages = [f"`{package}`" for package in found.packages]
            rows.append((f"`{name}`", listed(packages, "and") if packages else "Python itself"))
        elif isinstance(found, FolderSet):
            rows.append((f"`{name}`", "a folder"))
        else:
            rows.append((f"`{name}`", "`data.shapes`: shapes without samples"))
    yield table(("Name", "Made from (package or folder)"), rows)


def _quantities() -> Iterator[str]:
    yield "## Quantities"
    yield (
        "A quantity is a number in its base unit, or text with a unit: `48 MiB`. Prefixes are `k`, `M`, `G`, `T`, `P` "
        "and `E`; bytes and rates of bits or bytes also take `Ki`, `Mi`, `Gi`, `Ti` and `Pi` (powers of 1024), joules "
        "and watts `m`, `u` and `n`. A quantity is never negative. A range is written `12..48 MiB` or "
        "`[12 MiB, 48 MiB]`; each client draws its own value from it, evenly."
    )
    rows = []
    for base, (quantity, _) in QUANTITIES.items():
        plain = [
            unit for unit, factor in quantity.factors.items() if unit and not _prefixed(unit, factor, quantity.factors)
        ]
        rows.append((base, ", ".join(f"`{unit}`" for unit in plain), f"`{quantity.example}`"))
    yield table(("Base unit", "Units", "Example"), rows)


def _prefixed(unit: str, factor: Any, factors: Mapping[str, Any]) -> bool:
    """Whether a unit is another one with a prefix."""
    prefix = r"([kKMGTPE]i?|[numµ])"
    return bool(
        (match := re.fullmatch(prefix + r"(\D+)", unit)) and match[2] in factors and factor != factors[match[2]]
    )


# --- fields ----------------------------------------------------------------------------------------------------------


def _model(model: type[BaseModel], path: str, of: str = "") -> Iterator[str]:
    """The table of a model's fields, and of the models that stand in them."""
    schema = model.model_json_schema()
    rows: list[tuple[str, str, str, str]] = []
    inner: dict[type[BaseModel], list[str]] = {}
    fields = list(zip(model.model_fields.values(), schema.get("properties", {}).items(), strict=True))
    for field, (name, _) in fields:
        place = f"{path}.{name}.KEY" if "dict" in str(field.annotation).split("[")[0] else f"{path}.{name}"
        for each in _models(field.annotation):
            if each not in _OWNERS:
                inner.setdefault(each, []).append(place)
    for field, (name, about) in fields:
        if name in ("name", "tower") and of:
            continue
        place = f"{path}.{name}"
        if field.description is None:
            raise ValueError(f"{model.__module__}.{model.__qualname__}.{name} has no description")
        titles = {each.__name__: _titled(places, of) for each, places in inner.items()}
        values = OTHER_VALUES.get(place) or _values(about, place, titles)
        default = "required" if field.is_required() else _default(about, field)
        rows.append((f"`{name}`", values, default, sentence(field.description, _allowed(about))))
    yield table(("Field", "Values", "Default", "Meaning"), rows) if rows else "No fields."
    for each, places in inner.items():
        yield f"#### {_titled(places, of)}"
        yield sentence(first_paragraph(each.__doc__)) + "."
        yield from _model(each, places[0])


def _titled(places: Sequence[str], of: str) -> str:
    return f"{', '.join(places)} ({of})" if of else ", ".join(places)


def _allowed(about: Mapping[str, Any]) -> set[str]:
    """The words that a field takes."""
    return {str(word) for one in (about, *about.get("anyOf", ())) for word in one.get("enum", ())}


_OWNERS = {section.owner: key for key, section in SECTIONS.items() if section.owner is not None}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not BaseModel:
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _values(about: Mapping[str, Any], place: str, titles: Mapping[str, str]) -> str:
    """What a field takes, in words, from its JSON Schema."""
    if quantity := _quantity(about):
        base, example, ranged = quantity
        return f"{base}, such as `{example}`" + ("; or a range" if ranged else "")
    if "enum" in about:
        return listed([code(value) for value in about["enum"]])
    if "const" in about:
        return code(about["const"])
    if "anyOf" in about:
        each = [_values(one, place, titles) for one in about["anyOf"] if one.get("type") != "null"]
        return "; or ".join(dict.fromkeys(each))
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        if owner := next((key for model, key in _OWNERS.items() if model.__name__ == name), ""):
            return f"as the section [`{owner}`](#{owner})"
        return f"mapping: [fields](#{_anchor(titles[name])})"
    match about.get("type"):
        case "boolean":
            return "`true` or `false`"
        case "integer" | "number" as kind:
            return _number(about, whole=kind == "integer")
        case "array":
            return _array(about, place, titles)
        case "object":
            keys = about.get("propertyNames", {}).get("enum")
            inner = _values(about.get("additionalProperties", {}), place, titles)
            return f"mapping from {listed([f'`{key}`' for key in keys]) if keys else 'name'} to {inner}"
        case "string":
            return "path" if about.get("format") == "path" else "text"
    raise ValueError(f"{place}: no words for {dict(about)}; add it to OTHER_VALUES")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _quantity(about: Mapping[str, Any]) -> tuple[str, str, bool] | None:
    """Base unit, example and whether a range is taken, of a field that is a quantity."""
    for base, (quantity, _) in QUANTITIES.items():
        if about.get("examples") == [quantity.example]:
            return base, quantity.example, any(one.get("type") == "array" for one in about.get("anyOf", ()))
    return None


def _number(about: Mapping[str, Any], *, whole: bool) -> str:
    low, above = about.get("minimum"), about.get("exclusiveMinimum")
    high, below = about.get("maximum"), about.get("exclusiveMaximum")
    if whole and above is not None:
        low, above = above + 1, None
    bounds = []
    if low is not None and high is not None:
        bounds.append(f"{low:g} to {high:g}")
    else:
        bounds += [f"{low:g} or more"] if low is not None else []
        bounds += [f"at most {high:g}"] if high is not None else []
    bounds += [f"above {above:g}"] if above is not None else []
    bounds += [f"below {below:g}"] if below is not None else []
    # "above 0, at most 1"
    bounds.sort(key=lambda words: words.startswith(("at most", "below")))
    return ", ".join([("whole number" if whole else "number"), *bounds])


def _array(about: Mapping[str, Any], place: str, titles: Mapping[str, str]) -> str:
    if "prefixItems" in about:
        each = [_values(one, place, titles) for one in about["prefixItems"]]
        return f"list of {len(each)}: {', '.join(each)}"
    items = about.get("items", {})
    plural = re.sub(r"^(whole )?number\b", r"\1numbers", _values(items, place, titles))
    return f"list of {plural}"


def _default(about: Mapping[str, Any], field: FieldInfo) -> str:
    """A default as it would be written in a scenario; of a section within a section: its own defaults."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        named = about.get("default", {}).get("name")
        return code({"name": named}) if named else "its defaults"
    found = next((q for one in (about, *about.get("anyOf", ())) if (q := _quantity(one))), None)
    if found and isinstance(value, int | float):
        return f"`{getattr(units, QUANTITIES[found[0]][1])(value)}`"
    return code(list(value) if isinstance(value, tuple) else value)


# --- command-line.md -------------------------------------------------------------------------------------------------


def command_line_page() -> str:
    """Every command with its arguments and options."""
    root: Any = typer.main.get_command(app)
    parts = [
        "Results go to stdout, progress and messages to stderr. `--json` prints plain data instead of tables "
        "([JSON output](json.md)). The exit codes stand with the [errors](errors.md#exit-codes). "
        "`python -m edgefl.cli` is the same program.",
        table(
            ("Command", "What it does"),
            [(f"[`edgefl {name}`](#edgefl-{name})", sentence(each.help)) for name, each in root.commands.items()],
        ),
        "`edgefl --version` prints the version. `edgefl --help` and `edgefl COMMAND --help` (`-h`) print these texts.",
    ]
    for name, each in root.commands.items():
        parts += _command(f"edgefl {name}", each)
    parts += ["## Environment variables", table(("Variable", "Meaning"), ENVIRONMENT)]
    return page("Command line", parts)


ENVIRONMENT = [
    ("`EDGEFL_CACHE`", "Folder for data sets as read, predicted costs and pre-trained towers; by default `edgefl` in "
     "`$XDG_CACHE_HOME` or `~/.cache`"),
    ("`EDGEFL_DATA`", "Folder in which data sets are looked for by name, before `data/` in the working directory"),
]  # fmt: skip


def _command(words: str, command: Any) -> Iterator[str]:
    yield f"## {words}" if words.count(" ") == 1 else f"### {words}"
    yield sentence(command.help) + "."
    if subcommands := getattr(command, "commands", None):
        yield (
            f"`{words}` without a word is `{words} list`, and `{words} NAME` is `{words} show NAME`."
            if set(subcommands) == {"list", "show"}
            else f"Subcommands: {listed(list(subcommands))}."
        )
        for name, each in subcommands.items():
            yield from _command(f"{words} {name}", each)
        return
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    usage = [words, *(one.metavar if one.required else f"[{one.metavar}]" for one in arguments)]
    usage += [f"{one.opts[0]} {one.metavar}" for one in command.params if one.required and one not in arguments]
    yield f"```text\n{' '.join([*usage, '[OPTIONS]'])}\n```"
    yield table(("Argument or option", "Default", "Meaning"), map(_parameter, command.params))


def _parameter(one: Any) -> tuple[str, str, str]:
    if one.opts[0].startswith("-"):
        value = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
        words = ", ".join(f"`{name}{value}`" for name in one.opts)
    else:
        words = f"`{one.metavar}`"
    if one.required:
        default = "required"
    elif one.default is None or one.default is False:
        default = "off" if one.default is False else "–"
    else:
        default = code(one.default)
    bounds = [f"at least {one.min}"] if one.min is not None else []
    return words, default, "; ".join([sentence(one.help), *bounds])


# --- errors.md -------------------------------------------------------------------------------------------------------

EXIT_CODES = {
    "run": (
        "every run is finished; with `--verify`, every rule holds",
        "a client's or the server's work failed while it ran; with `--verify`, a rule is broken",
        "finished rounds are kept: `edgefl run --resume DIR` goes on",
    ),
    "validate": ("the scenario can be run", "", ""),
    "profile": ("the profile was made", "", ""),
    "cost-diff": ("no cost grew by more than `--fail-above`", "a cost grew by more than `--fail-above`", ""),
    "sweep": (
        "every cell has its row",
        "with `--train`, a work failed while it ran",
        "with `--output`, the same command goes on",
    ),
    "fit": (
        "every kind fits as it is, or after one of the changes shown",
        "some kind fits neither as it is nor after any change that was tried "
        "([what that means](../how-to/fit.md#exit-codes))",
        "",
    ),
    "analyse": ("the analysis is printed and written", "a work failed while it ran", "the same command goes on"),
    "calibrate": ("the machine was measured; with `--output`, the profile is written", "", "`--serve` always ends so"),
    "methods": ("the list is printed", "", ""),
    "devices": ("the list or the profile is printed", "", ""),
}
"""What each command's exit codes 0 and 1 mean, and what is to be known after an interruption."""

CODES = {
    0: "The command did what was asked",
    1: "Something failed, or the answer is no: the next table says what, for each command. Also where the reader of "
    "stdout closed it, and after an unexpected exception (with a traceback)",
    2: "The user can mend it: an `EdgeflError` with this code, an unknown command or option, or two profiles that "
    "`cost-diff` can't compare",
    INTERRUPTED: "Stopped by Ctrl-C (SIGINT)",
}

ATTRIBUTES = [
    ("`EdgeflError`", "`exit_code`", "What the command line ends with: 2, or 1 for `TrainingError` (2 where a CUDA "
     "device is asked for and there is none)"),
    ("`ScenarioError`", "`file`, `line`, `key`, `message`", "Where and what; `None` for a part that isn't known. "
     "`str()` is `file:line: key: message`"),
    ("`ScenarioErrors`", "`errors`", "All errors of the scenario by line; `file`, `line`, `key` and "
     "`message` are the first one's"),
    ("`UnknownName`", "`noun`, `name`, `allowed`", "What was looked up, the unknown name, and the known names, sorted"),
    ("`RowsDiffer`", "`found`", "The comparison of the rows that both profiles have, as `cost-diff --json` prints"),
]  # fmt: skip
"""What errors carry besides their message."""


def errors_page() -> str:
    """The errors and the exit codes."""
    rows = [
        (
            f"`{each.__module__}.{each.__name__}`",
            f"`{each.__bases__[0].__name__}`",
            str(each.exit_code),
            first_paragraph(each.__doc__),
        )
        for each in error_classes()
    ]
    codes = [
        (f"[`{name}`](command-line.md#edgefl-{name})", *(_capital(text) or "–" for text in meanings))
        for name, meanings in EXIT_CODES.items()
    ]
    return page(
        "Errors and exit codes",
        [
            "Every error that edgefl raises on purpose derives from `edgefl.errors.EdgeflError`. The message says what "
            "is wrong, where, and what is allowed. On the command line it is one line on stderr, without a traceback. "
            "Any other exception is a fault of edgefl or of a plug-in.",
            "## Errors",
            f"```text\n{_tree(errors.EdgeflError)}\n```",
            table(("Error", "Base", "Exit code", "Meaning"), rows),
            "## Attributes",
            table(("Error", "Attribute", "Meaning"), ATTRIBUTES),
            "## Exit codes",
            table(("Code", "Meaning"), [(str(code), meaning) for code, meaning in CODES.items()]),
            table(("Command", "0", "1", f"After {INTERRUPTED}"), codes),
        ],
    )


ERROR_MODULES = (errors, cost_diff, problems)
"""Where errors are defined."""


def error_classes() -> list[type[errors.EdgeflError]]:
    """Every error that edgefl defines, the base first."""
    return [
        each
        for module in ERROR_MODULES
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, errors.EdgeflError) and each.__module__ == module.__name__
    ]


def _tree(error: type[errors.EdgeflError], indent: str = "") -> str:
    lines = [error.__name__]
    children = [each for each in error_classes() if each.__bases__[0] is error]
    for each in children:
        inner = _tree(each, indent + ("    " if each is children[-1] else "|   "))
        lines.append(f"{indent}+-- {inner}")
    return "\n".join(lines)


# --- python.md -------------------------------------------------------------------------------------------------------


PROGRESS = [
    ("`prepare`", "`what`", "Something that takes a while is being prepared; `what` says it for people"),
    (
        "`combination`",
        "`label`, `index`, `of`, `folder`",
        "The next combination begins, from 0; `folder` for a run only",
    ),
    ("`start`", "`rounds`, `round`, `clients`", "The rounds begin: how many, how many are done, clients by kind"),
    ("`round`", "`round`, `stage`, `selected`, `now`", "A cohort is sent off; `now` is the virtual time in seconds"),
    ("`client`", "`round`, `client`, `loss`", "A client's training has ended; `loss` is its mean"),
    ("`record`", "the round's record", "A round has ended: its line of [`rounds.jsonl`](records.md#roundsjsonl)"),
    ("`done`", "`folder`", "The command has ended; `folder` is where it wrote, or `None`"),
]
"""What ``on_progress`` hears."""


def python_page() -> str:
    """The public functions: a table for readers of the file, and directives for the site."""
    names = ["run", "profile", "sweep", "fit", "analyse", "calibrate", "validate", "check_method", "read_run"]
    if set(names) != set(edgefl.__all__):
        raise ValueError(f"edgefl exports {sorted(edgefl.__all__)}, the page has {sorted(names)}")
    rows = [(f"`edgefl.{name}`", first_paragraph(getattr(edgefl, name).__doc__)) for name in names]
    rows.append(("`edgefl.runs.Run`", first_paragraph(Run.__doc__)))
    return page(
        "Python",
        [
            "The functions behind the commands. They print nothing and return plain data or a `Run`. Their errors are "
            "[edgefl's own](errors.md). The dictionaries that they return are described under [JSON output](json.md), "
            "the folder behind a `Run` under [records](records.md).",
            table(("Name", "What it does"), rows),
            "## Progress",
            "`on_progress(event, facts)` is called while a command runs; `facts` is a dictionary.",
            table(("Event", "Facts", "When"), PROGRESS),
            "## Functions",
            "The site shows signatures and full descriptions here; in Python, `help(edgefl.run)` does.",
            *(f"::: edgefl.{name}" for name in names),
            "::: edgefl.runs.Run",
        ],
    )


if __name__ == "__main__":
    main()
