"""The pages of ``reference/scenario``: every section and field of a scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from edgefl import SCENARIO_FORMAT
from edgefl.scenario import json_schema
from edgefl.scenario.sections import SECTIONS, Section
from tools.pages.fields import HEAD, QUANTITIES, fields_table, shared_rows
from tools.pages.folder import with_links
from tools.pages.markdown import anchor, capital, first_paragraph, listed, page, registered, sentence, table


def scenario_schema() -> str:
    """The JSON Schema of scenarios, from which ``edgefl parts`` and ``validate --schema`` answer without torch."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


@cache
def scenario_pages() -> Mapping[str, str]:
    """Every page of ``reference/scenario``: its index, and one for each section, by name."""
    index = page(
        "Scenario file",
        [
            "A scenario is a YAML file. Each key at its top is a section with a page here. Every section and every "
            "field can be left out, and then its default holds. An unknown key is an error that names the file, the "
            "line and the nearest key.",
            "`edgefl validate FILE --as yaml` prints a scenario with every default written out. "
            "`--set PATH=VALUE` changes a field, for example `--set training.lr=1e-3`. "
            "[The tour](scenarios.md#the-tour) is an annotated example.",
            *_top(),
            *_quantities(),
        ],
    )
    pages = {key: page(f"Scenario: {key}", _section(key, section)) for key, section in SECTIONS.items()}
    return with_links({"index": index, **pages})


SCENARIO_PAGES = ("index", *SECTIONS)
"""The names of these pages."""


def _top() -> list[str]:
    rows = [
        ("`edgefl`", f"`{SCENARIO_FORMAT}`", "required in a file", "Version of the format"),
        (
            "`name`",
            "text, 1 to 100 characters",
            "name of the file",
            "Name of the scenario, and of its folder in `runs/`",
        ),
        (
            "`seed`",
            "whole number, 0 or more",
            "`1`",
            "Every random draw follows from it, but for those of a shared pre-training (`pretrain.seed`)",
        ),
        *(
            (f"[`{key}`](#{key})", "section", "its defaults", capital(section.title))
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


def _section(key: str, section: Section) -> Iterator[str]:
    yield from _fields_of(key, section)
    for more in FURTHER.get(key, ()):
        yield from more()


def _fields_of(key: str, section: Section) -> Iterator[str]:
    text = capital(section.title) + "."
    if section.short:
        text += f" A bare word stands for `{section.short}`: `{key}: WORD` is `{key}: {{{section.short}: WORD}}`."
    if section.noun is None:
        assert section.owner is not None
        yield text
        yield from fields_table(section.owner, key)
        return
    group = f"{section.noun}s"
    names = list(registered(group))
    links = listed([f"[`{name}`](#{name})" for name in names])
    yield f"{text} The fields depend on `name` (default `{section.default}`): {links}."
    yield from _named(group, "", key, 2)


def _named(group: str, title: str, key: str, level: int) -> Iterator[str]:
    """A heading and the fields of each registered name."""
    if title:
        parts = [part.Options.model_fields.items() for part in registered(group).values()]
        alone = any(not any(field.is_required() for name, field in part if name != "name") for part in parts)
        short = "a name, or " if alone else ""
        yield f"## {title}"
        yield f"`{key}` is {short}a mapping with `name` and the fields of that name."
    owners = {
        name: (owner, sentence(getattr(owner, "summary", "") or first_paragraph(owner.__doc__)) + ".")
        for name, owner in registered(group).items()
    }
    yield from _parts(group, key, level, owners)


def _parts(group: str, key: str, level: int, owners: Mapping[str, tuple[Any, str]]) -> Iterator[str]:
    """The fields that several parts of a kind have, once, then each part with its text and its own fields."""
    shared = shared_rows({name: owner.Options for name, (owner, _) in owners.items()}, key)
    title = f"Fields of several {group.replace('_', ' ')}"
    if shared:
        yield f"{'#' * level} {title}"
        every = [name for name, (owner, _) in owners.items() if len(owner.Options.model_fields) > 1]
        yield table((*HEAD, "Of"), [(*row, _of(names, every)) for row, names in shared.items()])
    for name, (owner, text) in owners.items():
        yield f"{'#' * level} {name}"
        also = [row[0] for row, names in shared.items() if name in names]
        link = f"[shared](#{anchor(title)})"
        yield text + (f" Further fields, {link}: {', '.join(also)}." if also else "")
        yield from fields_table(owner.Options, key, name, shared, level + 1)


def _of(names: Sequence[str], every: Sequence[str]) -> str:
    """Names of parts, or those that are missing where they are few."""
    rest = [name for name in every if name not in names]
    if not rest:
        return "all"
    few = len(rest) < len(every) / 4
    return ("all but " if few else "") + ", ".join(f"`{name}`" for name in (rest if few else names))


def _towers() -> Iterator[str]:
    yield "## Towers"
    yield (
        "The fields of `model.image`, `model.text`, `model.audio` and `model.motion` depend on `tower`. "
        "[Towers](towers.md) says what each one is."
    )
    owners = {name: (owner, f"Fields of the tower `{name}`.") for name, owner in registered("towers").items()}
    yield from _parts("towers", "model.MODALITY", 3, owners)


def _listed(group: str, title: str, text: str, place: str) -> Iterator[str]:
    """A heading and a line for each registered name; their fields stand in a section, at ``place``."""
    yield f"## {title}"
    yield f"{text}. Their fields stand in {place}."
    rows = [(f"`{name}`", sentence(first_paragraph(owner.__doc__))) for name, owner in registered(group).items()]
    yield table(("Name", "Meaning"), rows)


def _codecs() -> Iterator[str]:
    yield "## Codecs"
    yield (
        "`payload.down` and `payload.up` are one of these names, or a mapping with the name as `dtype` and its fields. "
        "[A codec of your own](../guides/own-aggregation.md#a-codec) is named in the same way."
    )
    codecs = registered("codecs")
    rows = [(f"`{name}`", sentence(first_paragraph(owner.__doc__))) for name, owner in codecs.items()]
    yield table(("Name", "Meaning"), rows)
    yield "Fields of all of them:"
    yield from fields_table(codecs["float32"].Options, "payload.up")


def _selections() -> Iterator[str]:
    return _named("selections", "Selections", "round.selection", 3)


def _policies() -> Iterator[str]:
    own = "a [policy of your own](../guides/own-schedule.md), which may be a mapping with `name` and its fields"
    text = f"`round.policy` is one of these names, or {own}"
    return _listed("policies", "Round policies", text, "the first table of this page")


OWN_RULE = "is one of these names, or [one of your own](../guides/own-aggregation.md) with its fields"


def _rules() -> Iterator[str]:
    text = f"`aggregation.rule` {OWN_RULE}"
    return _listed("aggregations", "Aggregation rules", text, "the first table of this page")


def _server_optimizers() -> Iterator[str]:
    text = f"`aggregation.optimizer` {OWN_RULE}"
    return _listed("server_optimizers", "Server optimizers", text, "the first table of this page")


def _optimizers() -> Iterator[str]:
    return _named("optimizers", "Optimizers", "training.optimizer", 3)


def _rate_schedules() -> Iterator[str]:
    return _named("rate_schedules", "Rate schedules", "training.lr_schedule", 3)


def _attacks() -> Iterator[str]:
    return _named("attacks", "Attacks", "fleet.failures.attack", 3)


def _partitions() -> Iterator[str]:
    yield "## Partitions"
    yield (
        "`data.partition` is a name, or a mapping from a name to its argument: `{dirichlet: 0.5}`. "
        "[Data sets](data-sets.md#partitions) has them all: "
        + listed([f"`{name}`" for name in registered("partitions")], "and")
        + "."
    )


def _data_sets() -> Iterator[str]:
    yield "## Data sets"
    yield (
        "`data.source` is one of these names. [Data sets](data-sets.md) says what each one holds, which files it is "
        "read from, and where to get them. A set that is read from a folder is looked for in `data.folders`, in "
        "`$EDGEFL_DATA/NAME` and in `data/NAME`."
    )
    yield listed([f"`{name}`" for name in registered("datasets")], "and") + "."


FURTHER: Mapping[str, Sequence[Callable[[], Iterator[str]]]] = {
    "data": (_partitions, _data_sets),
    "model": (_towers,),
    "training": (_optimizers, _rate_schedules),
    "payload": (_codecs,),
    "aggregation": (_rules, _server_optimizers),
    "fleet": (_attacks,),
    "round": (_selections, _policies),
}
"""What the page of a section says besides its fields."""


def _quantities() -> Iterator[str]:
    yield "## Quantities"
    yield (
        "A quantity is a number in its base unit, or text with a unit: `48 MiB`. Prefixes are `k`, `M`, `G`, `T`, `P` "
        "and `E`; bytes and rates of bits or bytes also take `Ki`, `Mi`, `Gi`, `Ti` and `Pi` (powers of 1024), joules "
        "and watts `m`, `u` and `n`. A quantity is never negative."
    )
    rows = []
    for base, (quantity, _) in QUANTITIES.items():
        plain = [
            unit for unit, factor in quantity.factors.items() if unit and not _prefixed(unit, factor, quantity.factors)
        ]
        rows.append((base, ", ".join(f"`{unit}`" for unit in plain), f"`{quantity.example}`"))
    yield table(("Base unit", "Units", "Example"), rows)
    yield "### Ranges"
    yield (
        "`12..48 MiB` is a range: each client draws a value of its own from it, evenly, by the seed and its number, "
        "once for the run (a slow-down in each round). Both ends belong to it. The unit of the upper end holds for a "
        "lower one that has none; `800 KiB..1 GiB` and `[12 MiB, 48 MiB]` are ranges too, and without any unit both "
        "ends are in the base unit. A range may stand where a field's values say *or a range*: budgets, batteries, "
        "hours of availability, slow-downs, the samples of a declared set. Elsewhere one value holds for all clients. "
        "[`edgefl fit`](../guides/fit.md#set-the-limits-of-a-round) takes the lower end, which all owners allow."
    )
    yield (
        "`A..B` means something else in `edgefl tune --search`, [values to try](../guides/tune.md), and in a profile, "
        "[how far a number may be off](devices.md#what-a-number-is)."
    )


def _prefixed(unit: str, factor: Any, factors: Mapping[str, Any]) -> bool:
    """Whether a unit is another unit with a prefix, such as ``kB`` of ``B``."""
    prefix = r"([kKMGTPE]i?|[numµ])"
    return bool(
        (match := re.fullmatch(prefix + r"(\D+)", unit)) and match[2] in factors and factor != factors[match[2]]
    )
