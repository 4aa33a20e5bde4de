"""The rows of a sweep on disk, by label, and the fields that rows have."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from edgefl import RUN_FORMAT, registry
from edgefl.commands.sweep.answer import CellCosts, CellRow, read_cell
from edgefl.devices import load_device, load_link, with_runtime
from edgefl.drawing.text_tables import csv_text
from edgefl.errors import RunError, UnknownName
from edgefl.files import read_regular, replacing
from edgefl.records.metrics import MEAN, metric_value
from edgefl.records.record import fields_of
from edgefl.runs.durable import append_file, lock_folder, writing
from edgefl.runs.tables import mend
from edgefl.scenario import Scenario
from edgefl.work import digest

RUNS = "runs"
"""The subfolder of a sweep's folder for the runs of ``--train``."""
SHARDS = "shards"
"""The subfolder for the rows of shards, until all rows are there."""
_OURS = ("sweep.jsonl", "sweep.csv", "sensitivity.json", "writer.lock", RUNS, SHARDS)


class SweepRows:
    """``sweep.jsonl`` in a folder: rows by label, each with the digest of its scenario and of the profiles it names.

    Of several lines for one label the last counts.
    """

    def __init__(self, folder: Path, combinations: Mapping[str, Scenario], shard: tuple[int, int] | None = None):
        self.folder, self.path = folder, folder / "sweep.jsonl"
        if shard is not None:
            self.path = folder / SHARDS / f"{shard[0]}-of-{shard[1]}" / "sweep.jsonl"
        files = registry.plug_in_files()
        known_device, known_link = cache(load_device), cache(load_link)  # a file is read once for all combinations
        self._keys = {
            # rows depend on the executor's device and on the contents of profiles, not on the executor's other
            # options, and those that were trained on the format of their runs
            label: digest(
                {
                    **s.to_data(),
                    **({"plug_ins": files} if files else {}),
                    "executor": s.executor.device_type,
                    "run_format": RUN_FORMAT,
                    "profiles": [
                        *(repr(known_device(name)) for name in s.fleet.devices),
                        *(repr(known_link(name)) for name in s.fleet.links),
                        repr(with_runtime(known_device(next(iter(s.fleet.devices))), s.fleet.runtime)),
                    ],
                }
            )
            for label, s in combinations.items()
        }
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            others = [p.name for p in folder.iterdir() if p.name not in _OURS]
        if others and not any(path.exists() for path in self._paths()):
            raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(self.path.parent)
        if lock is not None:
            weakref.finalize(self, lock.close)
        with writing(self.path):
            self.path.touch()
            read_regular(self.path)  # a pipe or a device might never end
            for left in folder.glob(".partial-*-sweep.*") if shard is None else ():  # of a killed sweep
                left.unlink(missing_ok=True)
        mend(self.path)
        self.known: dict[str, CellRow] = {}
        self._refused: dict[str, CellRow] = {}
        self._read()

    def _paths(self) -> list[Path]:
        """Files with rows: those of shards come first, since they are removed once ``sweep.jsonl`` has their rows."""
        shards = sorted(self.folder.glob(f"{SHARDS}/*-of-*/sweep.jsonl"))
        return [*(path for path in shards if path != self.path), self.folder / "sweep.jsonl", self.path]

    def _read(self) -> dict[str, list[str]]:
        """Take the rows of all files; returns the lines by label."""
        lines: dict[str, list[str]] = {}
        for path in dict.fromkeys(self._paths()):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            if path != self.path and not text.endswith("\n"):
                text = text[: text.rfind("\n") + 1]  # another process is writing there
            for number, line in enumerate(text.splitlines(), start=1):
                label = self._take(path, number, line)
                if line not in lines.setdefault(label, []):
                    lines[label].append(line)
        return lines

    def _take(self, path: Path, number: int, line: str) -> str:
        """Take a row from its line, and return its label."""
        try:
            row = json.loads(line)
            label, key = row["label"], row.pop("scenario_digest")
            if not isinstance(label, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RunError(f"{path}:{number}: this line is damaged: {line[:60]!r}") from None
        if self._keys.get(label, key) != key:
            raise RunError(
                f"{path}:{number}: {label!r} is the row of another scenario or run format, or a profile or a plug-in "
                "file has changed since; choose another folder"
            )
        found = read_cell(row, f"{path}:{number}")
        self._keep(found)  # a refused one is tried again: what was missing may be there now
        return found.label

    def _keep(self, row: CellRow) -> None:
        """Take this row as the one of its label."""
        mine, others = (self._refused, self.known) if row.refused else (self.known, self._refused)
        others.pop(row.label, None)
        mine[row.label] = row

    def merge_shards(self, labels: Sequence[str], *, trained: bool) -> list[CellRow] | None:
        """The rows of all ``labels`` if all shards have them, else None; they are then in ``sweep.jsonl``."""
        lines = self._read()
        rows = [self.known.get(label) or self._refused.get(label) for label in labels]
        found = [row for row in rows if row and (row.refused or row.trained or not trained)]
        if len(found) < len(labels):
            return None
        order = [*labels, *(label for label in lines if label not in set(labels))]
        text = "".join(f"{line}\n" for label in order for line in lines[label])
        target = self.folder / "sweep.jsonl"
        with writing(target), replacing(target) as draft:
            draft.write_text(text, encoding="utf-8")
        self.path = target
        shutil.rmtree(self.folder / SHARDS, ignore_errors=True)
        return found

    def add(self, row: CellRow) -> None:
        """Append a row to ``sweep.jsonl``, unless it is the same refusal again."""
        if self._refused.get(row.label) == row:
            return
        line = json.dumps({**row.to_data(), "scenario_digest": self._keys[row.label]}, allow_nan=False)
        append_file(self.path, (line + "\n").encode())
        self._keep(row)

    def write_csv(self, rows: Iterable[CellRow]) -> None:
        """Write all rows of the folder to ``sweep.csv``, those of this sweep first."""
        rows = list(rows)
        labels = {row.label for row in rows}
        stored: dict[str, CellRow] = {**self.known, **self._refused}
        text = cells_csv([*rows, *(row for label, row in stored.items() if label not in labels)])
        with writing(path := self.folder / "sweep.csv"), replacing(path) as draft:  # two shards may end together
            draft.write_bytes(text.encode())


def cells_csv(rows: Iterable[CellRow]) -> str:
    """Rows as CSV; the names of nested fields are joined by dots."""
    return csv_text([flatten_row(row.to_data()) for row in rows])


def flatten_row(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """A row without nesting: ``stage2.kinds.image.eligible_share``; lists are JSON."""
    flat: dict[str, object] = {}
    for name, item in value.items():
        if name == "stages" and not prefix and isinstance(item, list):
            for stage in item:
                flat |= flatten_row(stage, f"stage{stage['stage']}.")
        elif isinstance(item, Mapping):
            flat |= flatten_row(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(item) if isinstance(item, list) else item
    return flat


@cache
def numbers() -> tuple[str, ...]:
    """The names of the numbers of every row."""
    return tuple(
        row.name for row in fields_of(CellCosts) if row.type in ("integer", "number") and not set(row.name) & set(".[")
    )


METRICS = "metrics."
TRAINED = (METRICS, "trained.")
_INNER = (
    *("eligible_share_ever_by_kind.", "modality_samples_share_ever.", "refused_by.", "refused_memory_by.", "stage"),
    *TRAINED,
)
"""Prefixes of the names of nested fields, which differ between cells."""


def check_value(name: str, *, train: bool) -> None:
    """Raise UnknownName for a value that no row can have, RunError for one that only a trained cell has."""
    if name.startswith(TRAINED) and not train:
        raise RunError(f"{name} is known for trained cells only: add --train")
    if name not in numbers() and not name.startswith(_INNER):
        raise UnknownName("value", name, (*numbers(), "metrics.image.accuracy", "stage1.kinds.image.eligible_share"))


def values_of(rows: Sequence[CellRow], name: str) -> list[float | None]:
    """The field of each row, None if a row lacks it.  Raises UnknownName if no row has it as a number."""
    flat = [flatten_row(row.to_data()) for row in rows]
    if name.startswith(f"{METRICS}{MEAN}."):
        for cells, row in zip(flat, rows, strict=True):
            cells[name] = metric_value(row.metrics or {}, name.removeprefix(METRICS))
    if not any(_number(row.get(name)) is not None for row in flat):
        known = dict.fromkeys(key for row in flat for key, value in row.items() if _number(value) is not None)
        if name in numbers():
            return [None] * len(flat)
        raise UnknownName("value", name, known)
    return [_number(row.get(name)) for row in flat]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
