"""An emulation held against the simulation of the same scenario: seconds of each phase, and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

PHASES = ("download", "compute", "upload")


def rows_of(
    simulated: Iterable[Mapping[str, Any]],
    emulated: Iterable[Mapping[str, Any]],
    replayed: Iterable[Mapping[str, Any]],
    facts: Mapping[int, Mapping[str, Any]],
    processor_seconds: Mapping[tuple[int, int], float],
) -> list[dict[str, Any]]:
    """A row for each client-round that both finished, from their records; ``facts`` of each client are added.

    ``processor_seconds`` are those of each round's and client's work.

    ``with_measured_compute_seconds`` is the round in the records ``replayed``, simulated with the emulation's seconds
    of computing; ``processor_seconds_over_quota`` is what computing takes if the quota is exact.
    """
    known, again = (
        {(each["round"], each["client"]): each for each in records if each["outcome"] == "finished"}
        for records in (simulated, replayed)
    )
    rows = []
    for each in emulated:
        other = known.get((each["round"], each["client"]))
        measured = again.get((each["round"], each["client"]))
        if other is None or measured is None or each["outcome"] != "finished":
            continue
        row: dict[str, Any] = {"round": each["round"], "client": each["client"], "stage": each["stage"]}
        row |= {"kind": each["kind"], **facts[each["client"]]}
        for phase in PHASES:
            row[f"simulated_{phase}_seconds"] = other[f"{phase}_seconds"]
            row[f"emulated_{phase}_seconds"] = each[f"{phase}_seconds"]
        for name, record in (("simulated_round", other), ("emulated_round", each), ("with_measured_compute", measured)):
            row[f"{name}_seconds"] = sum(record[f"{phase}_seconds"] for phase in PHASES)
        row["processor_seconds_over_quota"] = processor_seconds[each["round"], each["client"]] / row["share"]
        rows.append(row)
    return rows


def errors_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Median and worst of |simulated / emulated - 1|, by phase, of the round, and with measured computing.

    A phase that takes no time in an emulation has no error.
    """
    pairs = {phase: (f"simulated_{phase}_seconds", f"emulated_{phase}_seconds") for phase in (*PHASES, "round")}
    pairs["compute as processor time over quota"] = ("processor_seconds_over_quota", "emulated_compute_seconds")
    pairs["round with measured compute"] = ("with_measured_compute_seconds", "emulated_round_seconds")
    errors = {}
    for name, (ours, theirs) in pairs.items():
        off = np.array([abs(row[ours] / row[theirs] - 1) for row in rows if row[theirs] > 0])
        if len(off):
            errors[name] = {"median": float(np.median(off)), "worst": float(off.max()), "client_rounds": len(off)}
    return errors
