"""Readers of published text files: tables with commas, bars or tabs, and JSON."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from edgefl.arrays import Integers
from edgefl.errors import DataError, suggestion
from edgefl.files import open_regular

Row = tuple[int, list[str]]
"""Number of the line on which a row ends, and its fields."""


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file.  Raises DataError with the number of the first line that isn't UTF-8."""
    with _open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise DataError(
                    f"{path}:{number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8 (iconv -t UTF-8)"
                ) from None


def _open_file(path: Path) -> BinaryIO:
    """The file, open for reading.  Raises DataError if it can't be read or isn't a regular file."""
    try:
        return open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


def rows(path: Path, delimiter: str = ",", *, strict: bool = False) -> Iterator[Row]:
    """The non-empty rows of a table.  Raises DataError with the number of a line that can't be read.

    With ``strict`` a quote that is never closed is an error, which would else swallow the rest of the file.
    """
    reader = csv.reader(lines(path), delimiter=delimiter, strict=strict)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        reason = "a double quote is never closed" if "end of data" in str(error) else error
        raise DataError(f"{path}:{reader.line_num}: {reason}") from error


def named_rows(
    path: Path, wanted: Sequence[str], delimiter: str = ",", *, strict: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table by column name, from its first row; the columns ``wanted`` must exist.

    A field that is missing at the end of a row is empty.  Raises DataError for two columns of one name, and for a row
    with more fields than columns.
    """
    table = rows(path, delimiter, strict=strict)
    first, header = next(table, (1, []))
    header = [name.strip() for name in header]
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise DataError(f"{path}:{first}: {header.count(twice)} columns are named {twice!r}: rename all but one")
    for name in wanted:
        if name not in header:
            raise DataError(f"{path}: there is no column {name!r}{suggestion(name, filter(None, header))}")
    for line, row in table:
        if any(field.strip() for field in row[len(header) :]):
            raise DataError(
                f"{path}:{line}: {len(row)} fields under {len(header)} columns; a field with {delimiter!r} in it "
                "stands in double quotes"
            )
        yield line, dict(zip(header, [*row, *[""] * (len(header) - len(row))], strict=False))


def read_json(path: Path) -> Any:
    """Parse a JSON file.  Raises DataError with the number of the invalid line."""
    try:
        with _open_file(path) as file:
            return orjson.loads(file.read().removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: invalid JSON: {error.msg}") from error


def number_by_appearance(keys: Sequence[Any]) -> Integers:
    """Number the distinct keys in order of appearance."""
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(keys))


def class_number(text: str, classes: int, where: str, first: int = 0) -> int:
    """Parse a class number that counts from ``first`` in a file.  Raises DataError if it is out of range."""
    try:
        number = int(text) - first
    except ValueError:
        number = -1
    if not 0 <= number < classes:
        raise DataError(f"{where}: {text!r} is not a class; classes are {first}..{first + classes - 1}")
    return number
