"""A user's own table: .csv or .jsonl with a row for each sample (``table``)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.arrays import Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet, OnMessage
from edgefl.data.folders.pictures import Pixels, groups_of_copies, read_pictures
from edgefl.data.folders.places import SHOWN, SPLITS, PublishedDataset, check_names, report_copies, report_left_out
from edgefl.data.folders.rows import lines, named_rows, number_by_appearance
from edgefl.errors import DataError, suggestion

TABLE = PublishedDataset(
    "table",
    "one table, .csv or .jsonl, or train, validation and test tables",
    "your own: columns image (a path), text, label, split, client, group, or as data.columns calls them",
    file=True,
    test="column split or the files, else held out",
    licence="your own",
)
_WHOLE = re.compile(r"-?\d{1,1000}")
DELIMITERS = (",", ";", "\t", "|")
"""Between the fields of a table: the first of these that its first line has."""
ROLES = ("image", "text", "label", "split", "client", "group")


def table(wanted: FolderRequest, read: Callable[..., tuple[Pixels, Integers]] = read_pictures) -> Collection:
    """A sample for each row that has an image or a text; picture paths are relative to the table's folder.

    Without a column ``group``, rows with the same picture (else the same text) are held out together.  ``read`` reads
    the pictures.
    """
    for role in wanted.columns:
        if role not in ROLES:
            raise DataError(f"data.columns: unknown column {role!r}{suggestion(role, ROLES)}")
    found: dict[str, None] = {}
    tables = _tables(wanted.folder)
    where = tables[0][0]
    samples = [sample for path, split in tables for sample in _values(path, wanted, split, found)]
    for role, name in wanted.columns.items():
        if found and name not in found:
            raise DataError(f"{where}: there is no column {name!r} for {role}{suggestion(name, found)}")
    if found and not found.keys() & {wanted.columns.get(role, role) for role in ("image", "text")}:
        columns = ", ".join(f"{name!r:.40}" for name in [*found][:SHOWN])
        raise DataError(
            f"{where}: there is no column image or text, only {columns}; name yours with data.columns: {{text: NAME}}"
        )
    total = len(samples)
    samples = [sample for sample in samples if sample[0]["image"] or sample[0]["text"]]
    counts = {"with an empty image or text": total - len(samples)}
    position, pictures = {"": -1}, None
    if paths := [path for path in dict.fromkeys(values["image"] for values, _ in samples) if path]:
        pictures, positions = read([Path(path) for path in paths], wanted, TABLE.name)
        position |= dict(zip(paths, positions.tolist(), strict=True))
        complete = [sample for sample in samples if not sample[0]["image"] or position[sample[0]["image"]] >= 0]
        counts["without their picture"] = len(samples) - len(complete)
        samples = complete
    report_left_out(wanted.on_message, TABLE.name, counts, total)
    if not samples:
        raise DataError(f"table: {where} has no rows with an image or a text")
    by_role = {role: [values[role] for values, _ in samples] for role in ROLES}
    filled = Counter("-".join(m for m in ("image", "text") if values[m]) for values, _ in samples)
    if len(filled) > 1:
        told = ", ".join(f"{filled[kind]:,} {kind}" for kind in ("image", "text", "image-text") if filled[kind])
        wanted.on_message(f"{TABLE.name}: a row is of the kind whose columns it fills: {told}")
    classes, label = _classes(by_role["label"])
    if classes and (lacking := by_role["label"].count("")):
        wanted.on_message(f"{TABLE.name}: {lacking:,} of {len(label):,} rows have no label, so that they have no class")
    for role, names in (("label", classes), ("client", by_role["client"])):
        check_names(names, role, where, wanted.on_message)
    copies = groups_of_copies(pictures) if pictures is not None else ()
    group = number_by_appearance(
        [v["group"] or (copies[position[v["image"]]] if v["image"] else v["text"]) for v, _ in samples]
    )
    official = np.array([split for _, split in samples])
    if is_split := bool(official.min() >= 0):
        report_copies(wanted.on_message, TABLE.name, group, official)
    texts = tuple(filter(None, by_role["text"]))
    has_text = np.array([bool(text) for text in by_role["text"]])
    return Collection(
        classes=classes,
        label=label,
        group=group,
        images=pictures,
        image=None if pictures is None else np.array([position[path] for path in by_role["image"]]),
        text=np.where(has_text, np.cumsum(has_text) - 1, -1) if texts else None,
        texts=texts,
        masked=texts,
        owner=number_by_appearance(by_role["client"]) if any(by_role["client"]) else None,
        official=official if is_split else None,
    )


def _classes(labels: Sequence[str]) -> tuple[tuple[str, ...], Integers]:
    """Distinct labels, sorted as numbers or as text, and the class of each row; an empty label has no class."""
    distinct = {label for label in labels if label}
    numbers = all(_WHOLE.fullmatch(label) for label in distinct)
    classes = tuple(sorted(distinct, key=lambda label: (int(label) if numbers else 0, label)))
    index_of = {label: index for index, label in enumerate(classes)} | {"": len(classes)}
    return classes, np.array([index_of[label] for label in labels], np.int64)


def _tables(folder: Path) -> list[tuple[Path, int]]:
    """The tables of a folder, each with its split (-1: its column ``split`` has it, if there is one)."""
    if folder.is_file():
        return [(folder, -1)]
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".jsonl"))
    named = [(path, SPLITS[path.stem.lower()]) for path in paths if path.stem.lower() in SPLITS]
    if named and len(named) == len(paths) and any(split == 0 for _, split in named):
        return sorted(named, key=lambda item: item[1])
    if len(paths) != 1:
        several = f"{len(paths)} tables: name one of them with data.folders" if paths else ""
        raise TABLE.content_error(folder, several)
    return [(paths[0], -1)]


def _values(
    path: Path, wanted: FolderRequest, split: int, found: dict[str, None]
) -> Iterator[tuple[dict[str, str], int]]:
    """Values by role, "" for none, and split of every row that isn't empty; names of columns go to ``found``."""
    columns = {role: wanted.columns.get(role, role) for role in ROLES}
    rows = list(_rows(path, wanted.on_message))
    found |= dict.fromkeys(name for _, row in rows for name in row)
    for line, row in rows:
        values = {role: _text(row.get(name), f"{path}:{line}: {name}") for role, name in columns.items()}
        if not any(values.values()):
            continue
        if values["image"]:
            values["image"] = str(path.parent / values["image"])
        split_name = values["split"].lower()
        if split < 0 and columns["split"] in found and split_name not in SPLITS:
            raise DataError(
                f"{path}:{line}: unknown split {values['split']!r}"
                f"{suggestion(values['split'], ('train', 'validation', 'test'))}"
            )
        of_row = SPLITS[split_name] if split < 0 and split_name else split
        if columns["client"] in found and not values["client"] and of_row <= 0:
            raise DataError(f"{path}:{line}: the client is empty; every row must name one, or none have the column")
        yield values, of_row


def _text(value: Any, where: str) -> str:
    """A field as text, "" for none; NaN is none, as in pandas.  Raises DataError for a list or a mapping."""
    if isinstance(value, list | dict):
        raise DataError(f"{where}: expected text or a number, not {value!r:.60}")
    text = "" if value is None else str(value).strip()
    return "" if text.lower() == "nan" else text


def _rows(path: Path, on_message: OnMessage) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if path.suffix.lower() != ".jsonl":
        first = next(lines(path), "")
        delimiter = next((mark for mark in DELIMITERS if mark in first), ",")
        if delimiter != ",":
            on_message(f"{TABLE.name}: the fields of {path.name} are read as separated by {delimiter!r}")
        yield from named_rows(path, (), delimiter, strict=True)
        return
    for line, text in enumerate(lines(path), 1):
        if text.strip():
            try:
                row: Any = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{line}: invalid JSON: {error.msg}") from error
            except (RecursionError, ValueError) as error:  # ValueError: a number of more than 4,300 digits
                reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
                raise DataError(f"{path}:{line}: invalid JSON: {reason}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}:{line}: expected an object {{...}} on each line")
            yield line, row


def _without_pixels(paths: Sequence[Path], *_: object) -> tuple[Pixels, Integers]:
    """Pictures of eight bytes, each another one, in place of those that stand at these paths."""
    return np.arange(len(paths)).view(np.uint8).reshape(-1, 1, 8, 1), np.arange(len(paths))


TABLE_SET = FolderSet(
    table,
    TABLE.find,
    revision=2,
    summary="your pictures, texts and labels, listed in a CSV or JSON Lines file",
    natural=partial(table, read=_without_pixels),
)
