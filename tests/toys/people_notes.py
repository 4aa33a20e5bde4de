"""Notes of three people as a table, each of two of three classes, with a validation and a test split."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, str]
WORDS = {"fruit": ("apple", "pear", "plum"), "tool": ("saw", "file", "drill"), "pet": ("dog", "cat", "fish")}


def notes() -> list[Row]:
    """Rows with a text, a label, a client and a split: 20, 25 and 30 notes to train on, 12 to validate, 12 to test."""
    draw, found = np.random.default_rng(0), list[Row]()
    for person, labels in enumerate((("fruit", "tool"), ("tool", "pet"), ("pet", "fruit"))):
        for number in range(20 + 5 * person):
            label = labels[number % 2]
            text = f"{' and '.join(draw.choice(WORDS[label], 2))} {number}"
            found.append({"text": text, "label": label, "client": f"person {person}", "split": "train"})
    for number in range(24):
        label, split = [*WORDS][number % 3], ("validation", "test")[number % 2]
        found.append({"text": f"{draw.choice(WORDS[label])} {number}", "label": label, "client": "", "split": split})
    return found


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as a table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["text", "label", "client", "split"])
        table.writeheader()
        table.writerows(rows)
    return path


def tables_of_people(folder: Path) -> dict[int, Path]:
    """A table for each person, with that person's rows alone."""
    rows = notes()
    of = {person: [row for row in rows if row["client"] == f"person {person}"] for person in range(3)}
    return {person: write_table(folder / f"person-{person}.csv", own) for person, own in of.items()}


def sections(folder: Path) -> dict[str, Any]:
    """Sections of a scenario whose set has all rows, in a table in this folder."""
    table = write_table(folder / "notes.csv", notes())
    text = {"blocks": 1, "width": 16, "heads": 2, "tokens": 8}
    data = {"source": "table", "folders": {"table": str(table)}, "clients": {"text": 3}}
    return {"data": data, "model": {"text": text}}
