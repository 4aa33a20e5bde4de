"""A user's own table: .csv or .jsonl with a row for each sample (``table``)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.arrays import Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import SPLITS, PublishedDataset, report_left_out
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
ROLES = ("image", "text", "label", "split", "client", "group")


def table(wanted: FolderRequest) -> Collection:
    """A sample for each row with all of the table's modalities; picture paths are relative to the table's folder.

    Without a column ``group``, rows with the same picture (else the same text) are held out together.
    """
    samples = [
        (line, values, split)
        for path, file_split in _tables(wanted.folder)
        for line, values, split in _values(path, wanted.columns, file_split)
    ]
    if not samples:
        raise DataError(f"table: {wanted.folder} has no rows")
    roles = set.intersection(*(set(values) for _, values, _ in samples))
    if not roles & {"image", "text"}:
        raise DataError("table: there is no column image or text; name yours with data.columns: {text: NAME}")
    is_empty_at = [not all(values[role] for role in ("image", "text") if role in roles) for _, values, _ in samples]
    counts = {"with an empty image or text": sum(is_empty_at)}
    complete = [sample for sample, is_empty in zip(samples, is_empty_at, strict=True) if not is_empty]
    pictures, image = None, None
    if "image" in roles and complete:
        picture_of = number_by_appearance([values["image"] for _, values, _ in complete])
        pictures, position = read_pictures(
            [Path(path) for path in dict.fromkeys(values["image"] for _, values, _ in complete)], wanted, TABLE.name
        )
        image = position[picture_of]
        counts["without their picture"] = int((image < 0).sum())
        complete = [sample for sample, index in zip(complete, image.tolist(), strict=True) if index >= 0]
        image = image[image >= 0]
    report_left_out(wanted.on_message, TABLE.name, counts, len(samples))
    if not complete:
        raise DataError(f"table: no row of {wanted.folder} has all of {', '.join(sorted(roles & {'image', 'text'}))}")
    by_role = {role: [values[role] for _, values, _ in complete] for role in roles}
    texts = tuple(by_role.get("text", ()))
    classes, label = _classes(by_role.get("label", [""] * len(complete)))
    group_keys = by_role.get("group") or by_role.get("image") or by_role["text"]
    split_of = [split for *_, split in complete]
    return Collection(
        classes=classes,
        label=label,
        group=number_by_appearance(group_keys),
        images=pictures,
        image=image,
        text=np.arange(len(texts)) if texts else None,
        texts=texts,
        masked=texts,
        owner=number_by_appearance(by_role["client"]) if "client" in roles else None,
        official=np.array(split_of) if min(split_of) >= 0 else None,
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


def _values(path: Path, columns: Mapping[str, str], split: int) -> Iterator[tuple[int, dict[str, str], int]]:
    """Line number, values by role, and split of every row."""
    for role in columns:
        if role not in ROLES:
            raise DataError(f"data.columns: unknown column {role!r}{suggestion(role, ROLES)}")
    for line, row in _rows(path):
        for role, name in columns.items():
            if name not in row:
                named = line if path.suffix.lower() == ".jsonl" else 1  # a table's first line names its columns
                raise DataError(f"{path}:{named}: there is no column {name!r} for {role}{suggestion(name, row)}")
        values = {role: row[columns.get(role, role)].strip() for role in ROLES if columns.get(role, role) in row}
        if values.get("image"):
            values["image"] = str(path.parent / values["image"])
        if "client" in values and not values["client"]:
            raise DataError(f"{path}:{line}: the client is empty; every row must name one, or none have the column")
        split_name = values.get("split", "")
        if split < 0 and "split" in values and split_name.lower() not in SPLITS:
            raise DataError(
                f"{path}:{line}: unknown split {split_name!r}{suggestion(split_name, ('train', 'validation', 'test'))}"
            )
        yield line, values, SPLITS[split_name.lower()] if split < 0 and split_name else split


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    if path.suffix.lower() != ".jsonl":
        yield from named_rows(path, ())
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
            yield line, {str(key): "" if value is None else str(value) for key, value in row.items()}


TABLE_SET = FolderSet(table, TABLE.find, summary="your pictures, texts and labels, listed in a CSV or JSON Lines file")
