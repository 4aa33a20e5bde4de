"""Data sets in the formats of the Hugging Face hub: parquet files, or a folder of ``datasets``' ``save_to_disk``.

pyarrow reads both; it is required only where such files exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgefl.data.folders.places import folders
from edgefl.errors import DataError, suggestion

SPLIT = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])")
OFFICIAL = {"train": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}


@dataclass(frozen=True)
class HubTable:
    """One split: its columns, and the class names of its label columns."""

    files: Sequence[Path]
    table: Any

    def column(self, name: str) -> list[Any]:
        """The values of a column.  Raises DataError if there is none of this name."""
        if name not in self.table.column_names:
            raise DataError(f"{self.files[0]}: there is no column {name!r}{suggestion(name, self.table.column_names)}")
        return list(self.table.column(name).to_pylist())

    def classes(self, name: str) -> tuple[str, ...]:
        """The class names of a column, which the hub writes into the schema; () if there are none."""
        try:
            metadata = json.loads((self.table.schema.metadata or {})[b"huggingface"])
            return tuple(map(str, metadata["info"]["features"][name]["names"]))
        except (KeyError, ValueError, TypeError):
            return ()


def hub_tables(folder: Path, name: str) -> Mapping[int, HubTable]:
    """Tables by official split (0 train, 1 validation, 2 test) in a folder and its subfolders; {} if there are none.

    Raises DataError if pyarrow is needed but missing, or can't read a file.
    """
    by_split: dict[int, list[Path]] = {}
    suffix = ""
    for subfolder in folders(folder, 3):
        for extension in (".parquet", ".arrow"):
            if suffix in ("", extension):
                for path in filter(Path.is_file, sorted(subfolder.glob(f"*{extension}"))):
                    # save_to_disk writes a folder for each split; parquet files have the split in their names
                    match = SPLIT.match(path.name) or SPLIT.fullmatch(path.parent.name)
                    if match:
                        suffix = extension
                        by_split.setdefault(OFFICIAL[match[1]], []).append(path)
    if not by_split:
        return {}
    if find_spec("pyarrow") is None:
        files = f"{suffix} files such as {by_split[min(by_split)][0]}"
        raise DataError(f"{name}: {files} are read by pyarrow, which is not installed: pip install pyarrow")
    return {split: HubTable(paths, _read(paths)) for split, paths in sorted(by_split.items())}


def _read(paths: Sequence[Path]) -> Any:
    pyarrow, tables = import_module("pyarrow"), []
    for path in paths:
        try:
            if path.suffix == ".parquet":
                tables.append(import_module("pyarrow.parquet").ParquetFile(path).read())
            else:
                with pyarrow.memory_map(str(path)) as source:
                    tables.append(import_module("pyarrow.ipc").open_stream(source).read_all())
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path}: pyarrow can't read it: {str(error).splitlines()[0]}") from error
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as error:
        raise DataError(f"{paths[0]} and the files beside it have different columns") from error
