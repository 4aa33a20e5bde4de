"""A user's own table: .csv or .jsonl with a row for each sample (``table``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.collection import Collection, FolderSet, IntArray, Wanted
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import SPLITS, Published, left_out
from edgefl.data.folders.rows import lines, named_rows, numbered_in_order
from edgefl.errors import DataError, suggestion

TABLE = Published(
    "table",
    "one table, .csv or .jsonl, or train, validation and test tables",
    "your own: columns image (a path), text, label, split, client, group, or as data.columns calls them",
    file=True,
)
ROLES = ("image", "text", "label", "split", "client", "group")


def table(wanted: Wanted) -> Collection:
    """A sample for each row that has all of the table's modalities; paths of pictures start at the table's folder.

    Without a column ``group``, rows with the same picture (else the same text) are held out together.
    """
    read = [
        (line, values, split)
        for path, which in _tables(wanted.folder)
        for line, values, split in _values(path, wanted.columns, which)
    ]
    if not read:
        raise DataError(f"table: {wanted.folder} has no rows")
    there = set.intersection(*(set(values) for _, values, _ in read))
    if not there & {"image", "text"}:
        raise DataError(
            "table: there is no column image or text; say with data.columns: {text: NAME} what yours is called"
        )
    empty = [not all(values[role] for role in ("image", "text") if role in there) for _, values, _ in read]
    counts = {"with an empty image or text": sum(empty)}
    kept = [each for each, lacks in zip(read, empty, strict=True) if not lacks]
    pictures, image = None, None
    if "image" in there and kept:
        at = numbered_in_order([values["image"] for _, values, _ in kept])
        pictures, place = read_pictures(
            [Path(p) for p in dict.fromkeys(v["image"] for _, v, _ in kept)], wanted, TABLE.name
        )
        image = place[at]
        counts["without their picture"] = int((image < 0).sum())
        kept = [each for each, number in zip(kept, image.tolist(), strict=True) if number >= 0]
        image = image[image >= 0]
    left_out(wanted.on_message, TABLE.name, counts, len(read))
    if not kept:
        raise DataError(f"table: no row of {wanted.folder} has all of {', '.join(sorted(there & {'image', 'text'}))}")
    by_role = {role: [values[role] for _, values, _ in kept] for role in there}
    texts = tuple(by_role.get("text", ()))
    classes, label = _classes(by_role.get("label", [""] * len(kept)))
    same = by_role.get("group") or by_role.get("image") or by_role["text"]
    split_of = [split for *_, split in kept]
    return Collection(
        classes=classes,
        label=label,
        group=numbered_in_order(same),
        images=pictures,
        image=image,
        text=np.arange(len(texts)) if texts else None,
        texts=texts,
        masked=texts,
        owner=numbered_in_order(by_role["client"]) if "client" in there else None,
        official=np.array(split_of) if min(split_of) >= 0 else None,
    )


def _classes(labels: Sequence[str]) -> tuple[tuple[str, ...], IntArray]:
    """The different labels, numbers in their order, words in the alphabet's; an empty one is no class."""
    found = {label for label in labels if label}
    numbers = all(label.lstrip("-").isdecimal() for label in found)
    classes = tuple(sorted(found, key=lambda label: (int(label) if numbers else 0, label)))
    place = {label: index for index, label in enumerate(classes)} | {"": len(classes)}
    return classes, np.array([place[label] for label in labels], np.int64)


def _tables(folder: Path) -> list[tuple[Path, int]]:
    """The tables of a folder, each with its split (-1: its rows say it, if anything does)."""
    if folder.is_file():
        return [(folder, -1)]
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".jsonl"))
    named = [(path, SPLITS[path.stem.lower()]) for path in found if path.stem.lower() in SPLITS]
    if named and len(named) == len(found) and any(split == 0 for _, split in named):
        return sorted(named, key=lambda each: each[1])
    if len(found) != 1:
        several = f"{len(found)} tables: name one of them with data.folders" if found else ""
        raise TABLE.wrong(folder, several)
    return [(found[0], -1)]


def _values(path: Path, columns: Mapping[str, str], split: int) -> Iterator[tuple[int, dict[str, str], int]]:
    """Line, what each role's column says, and split, of every row."""
    for role in columns:
        if role not in ROLES:
            raise DataError(f"data.columns: unknown column {role!r}{suggestion(role, ROLES)}")
    for line, row in _rows(path):
        for role, name in columns.items():
            if name not in row:
                raise DataError(f"{path}:{line}: there is no column {name!r} for {role}{suggestion(name, row)}")
        values = {role: row[columns.get(role, role)].strip() for role in ROLES if columns.get(role, role) in row}
        if values.get("image"):
            values["image"] = str(path.parent / values["image"])
        if "client" in values and not values["client"]:
            raise DataError(f"{path}:{line}: the client is empty; every row must name one, or none have the column")
        said = values.get("split", "")
        if split < 0 and "split" in values and said.lower() not in SPLITS:
            raise DataError(f"{path}:{line}: unknown split {said!r}{suggestion(said, ('train', 'validation', 'test'))}")
        yield line, values, SPLITS[said.lower()] if split < 0 and said else split


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    if path.suffix.lower() != ".jsonl":
        yield from named_rows(path, ())
        return
    for line, text in enumerate(lines(path), 1):
        if text.strip():
            try:
                row: Any = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{line}: no JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}:{line}: expected is an object {{...}} on each line")
            yield line, {str(key): "" if value is None else str(value) for key, value in row.items()}


TABLE_SET = FolderSet(table, TABLE.find)
