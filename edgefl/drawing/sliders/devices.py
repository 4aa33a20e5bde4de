"""The table of devices by choices, as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgefl import units
from edgefl.drawing.sliders.page_data import CheckedCell, DeviceAnswer, DeviceChoices
from edgefl.drawing.sliders.words import title_axes

SIGNS = {"yes": "✓", "no": "✗", "depends on scratch": "?", "depends on free memory": "?"}
LEFT_OUT = "the method leaves this kind out"


@dataclass(frozen=True)
class VerdictCell:
    """A cell of the table."""

    answer: str
    sign: str
    words: str
    told: str
    """The verdict as sentences."""


@dataclass(frozen=True)
class DeviceKindRow:
    """A device and a kind of client, and its answers."""

    title: str
    name: str
    about: str
    cells: Sequence[VerdictCell]


@dataclass(frozen=True)
class Heads:
    """A row of headings, an axis each: ``(words, columns that they stand over)``."""

    title: str
    spans: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class KindCount:
    """A kind of client, and on how many devices it can train in each column; None for a column that can't run."""

    kind: str
    yes: Sequence[int | None]


@dataclass(frozen=True)
class DevicesShown:
    """The whole table."""

    sentence: str
    heads: Sequence[Heads]
    own: int | None
    """The column of the scenario itself."""
    counted: Sequence[KindCount]
    devices: int
    rows: Sequence[DeviceKindRow]
    refused: Sequence[tuple[str, str]]


def devices_shown(record: DeviceChoices) -> DevicesShown:
    """The table of a record."""
    own_at = [axis.own for axis in record.axes]
    own = next((i for i, cell in enumerate(record.cells) if list(cell.at) == own_at), None)
    kinds = list(dict.fromkeys(line.kind for line in record.lines))
    rows = [_row(record, i, several=len(kinds) > 1) for i in range(len(record.lines))]
    refused = [(cell.label, cell.refused) for cell in record.cells if cell.refused]
    return DevicesShown(
        _sentence(record, kinds, own), _heads(record), own, [_count_yes(record, kind) for kind in kinds],
        len(record.devices), rows, refused,
    )  # fmt: skip


def _answers(record: DeviceChoices, kind: str, cell: CheckedCell) -> list[DeviceAnswer]:
    pairs = zip(record.lines, cell.answers, strict=False)  # a cell that can't run has none
    return [answer for line, answer in pairs if line.kind == kind and answer is not None]


def _count_yes(record: DeviceChoices, kind: str) -> KindCount:
    found = [_answers(record, kind, cell) for cell in record.cells]
    return KindCount(kind, [sum(each.answer == "yes" for each in answers) if answers else None for answers in found])


def _sentence(record: DeviceChoices, kinds: Sequence[str], own: int | None) -> str:
    """How many devices can train as each kind: as the scenario is, and with the best of the choices."""
    told: list[str] = []
    for kind in kinds:
        yes = _count_yes(record, kind).yes
        best = max((n for n in yes if n is not None), default=0)
        now = best if own is None or yes[own] is None else yes[own]
        who = f"as {kind}" if len(kinds) > 1 else ""
        more = f"({best} with other choices)" if now != best else ""
        told.append(" ".join(filter(None, [str(now), "" if told else "can train this", who, more])))
    return f"Of {len(record.devices)} devices, {', '.join(told)}."


def _heads(record: DeviceChoices) -> list[Heads]:
    heads, below, above = [], len(record.cells), 1
    for axis in title_axes(record.axes):
        below //= len(axis.choices)
        heads.append(Heads(axis.title, [(words, below) for words in axis.choices] * above))
        above *= len(axis.choices)
    return heads


def _row(record: DeviceChoices, line: int, *, several: bool) -> DeviceKindRow:
    device = record.devices[record.lines[line].device]
    free = f"{units.show_bytes(device.available_memory_bytes)} for training"
    about = f"{record.lines[line].kind}, {free}" if several else free
    return DeviceKindRow(device.title, device.name, about, [_verdict_cell(cell, line) for cell in record.cells])


def _verdict_cell(cell: CheckedCell, line: int) -> VerdictCell:
    if cell.refused:
        return VerdictCell("refused", "–", "", f"can't run: {cell.refused}")
    answer = cell.answers[line]
    if answer is None:
        return VerdictCell("none", "–", "", LEFT_OUT)
    stages = f"; {answer.eligible_stages} of {answer.stages} stages fit" if answer.stages > 1 else ""
    depends = f"{answer.answer.capitalize()}: " if answer.answer.startswith("depends") else ""
    told = (
        f"{depends}{answer.reason}{stages}. A round takes {units.show_seconds(answer.virtual_seconds)} and "
        f"{units.show_joules(answer.energy_joules)}."
    )
    return VerdictCell(answer.answer.split()[0], SIGNS[answer.answer], units.show_bytes(answer.peak_memory_bytes), told)
