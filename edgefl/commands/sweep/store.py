"""The rows of a sweep on disk, by label."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.devices import load_device, load_link, with_runtime
from edgefl.errors import RunError
from edgefl.files import read_regular
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.tables import mend
from edgefl.scenario import Scenario
from edgefl.work import digest

RUNS = "runs"
"""The subfolder of a sweep's folder for the runs of ``--train``."""
_OURS = ("sweep.jsonl", "sweep.csv", "sensitivity.json", RUNS)


class Rows:
    """``sweep.jsonl`` in a folder: rows by label, each with the digest of its scenario and of the profiles it names.

    Of several lines for one label the last counts.
    """

    def __init__(self, folder: Path, combinations: Mapping[str, Scenario], fields: Iterable[str]):
        self.folder, self.path = folder, folder / "sweep.jsonl"
        files = registry.plug_in_files()
        known_device, known_link = cache(load_device), cache(load_link)  # a file is read once for all combinations
        self._keys = {
            # rows depend on the executor's device and on the contents of profiles, not on the executor's other options
            label: digest(
                {
                    **s.resolved(),
                    **({"plug_ins": files} if files else {}),
                    "executor": s.executor.device_type,
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
        if others and not self.path.exists():
            raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
        with writing(self.path):
            self.path.touch()
            read_regular(self.path)  # a pipe or a device might never end
        mend(self.path)
        self.known: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, dict[str, Any]] = {}
        wanted = set(fields)
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                label, key = row["label"], row.pop("scenario_digest")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise RunError(f"{self.path}:{number}: this line is damaged: {line[:60]!r}") from None
            if self._keys.get(label, key) != key:
                raise RunError(
                    f"{self.path}:{number}: {label!r} is the row of another scenario, or a profile or a plug-in file "
                    "has changed since; choose another folder"
                )
            if "refused" in row:  # tried again: what was missing may be there now
                self.known.pop(label, None)
                self._refused[label] = row
            elif wanted <= row.keys():  # an older version's row lacks fields: it is computed again
                self._refused.pop(label, None)
                self.known[label] = row

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row to ``sweep.jsonl``, unless it is the same refusal again."""
        if self._refused.get(row["label"]) == row:
            return
        line = json.dumps({**row, "scenario_digest": self._keys[row["label"]]}, allow_nan=False)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        rows, others = (self._refused, self.known) if "refused" in row else (self.known, self._refused)
        rows[row["label"]] = dict(row)
        others.pop(row["label"], None)

    def write_csv(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write all rows of the folder to ``sweep.csv``, those of this sweep first."""
        rows = list(rows)
        labels = {row["label"] for row in rows}
        stored = {**self.known, **self._refused}
        text = sweep_csv([*rows, *(row for label, row in stored.items() if label not in labels)])
        replace_file(self.folder / "sweep.csv", text.encode())


def sweep_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV; the names of nested fields are joined by dots."""
    flat = [flattened(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row without nesting: ``stage2.kinds.image.eligible_share``; lists are JSON."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if name == "stages" and not prefix:
            for stage in item:
                flat |= flattened(stage, f"stage{stage['stage']}.")
        elif isinstance(item, Mapping):
            flat |= flattened(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(item) if isinstance(item, list) else item
    return flat
