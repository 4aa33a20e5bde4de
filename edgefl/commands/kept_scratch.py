"""A resumed run predicts with the kernels' scratch that its first rounds were predicted with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgefl.cost import Predictor
from edgefl.errors import RunError
from edgefl.runs import RunDirectory, tables


def keep_scratch(predictor: Predictor, directory: RunDirectory, round: int, on_message: Callable[[str], None]) -> None:
    """Predict with the kernels' scratch that the run's rounds up to ``round`` were predicted with.

    So eligibility is a function of what is recorded, on whatever machine the run goes on.
    """
    if predictor.scratch is None:
        return
    path = directory.table("scratch")
    rows = []
    for number, row in enumerate(tables.each(path), 1):
        if not _is_scratch(row):
            raise RunError(f"{path}:{number}: this isn't a record of a kernel's scratch; restore the file from a copy")
        if row["round"] <= round:
            rows.append(row)
    predictor.scratch.restore({name: value for name, value in row.items() if name != "round"} for row in rows)
    others = {row["kernels"] for row in rows} - {predictor.scratch.kernels}
    if others:
        on_message(
            f"kernels' scratch was measured with {sorted(others)[0]}; what the run lacks is measured with "
            f"{predictor.scratch.kernels}"
        )


def _is_scratch(row: Mapping[str, Any]) -> bool:
    texts = all(isinstance(row.get(name), str) for name in ("call", "operator", "kernels"))
    numbers = all(type(row.get(name)) is int and row[name] >= 0 for name in ("round", "bytes"))
    return texts and numbers and isinstance(row.get("assumed"), bool)
