"""The rule of evaluations on clients: a round's groups sum up the records of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, sqrt
from typing import Any

from edgefl.commands.verify.rules import Check, Record, close

SUMMED = ("samples", "download_bytes", "serialised_download_bytes", "forward_flops", "energy_joules")


def check_scored(check: Check, record: Record, where: str, clients: Sequence[Record]) -> None:
    """Check every group of a round's ``client_metrics`` against the records of the clients that were scored."""
    for row in record["client_metrics"]:
        own = [client for client in clients if _belongs(client, row["by"], row["group"])]
        counted = row["scored"] + row["too_small"] + row["without"] == row["clients"]
        found: dict[str, Any] = {"scored": len(own)}
        found |= {name: fsum(client[name] for client in own) for name in SUMMED}
        wrong = {name: row[name] for name, value in found.items() if not close(row[name], value)}
        for name, given in row["metrics"].items():
            expected = _distribution([(c["metrics"].get(name), c["samples"]) for c in own])
            wrong |= {f"{name} {part}": given[part] for part, v in expected.items() if not _same(given[part], v)}
        offence = {"round": record["round"], "by": row["by"], "group": row["group"], **wrong}
        check.count(offence if wrong or not counted else None, where)


def _belongs(client: Record, by: str, group: str) -> bool:
    if by == "modality":
        return group in client["kind"].split("-")
    if by == "eligibility":
        return bool(client["eligible"]) == (group == "eligible")
    return by == "all" or bool(client[by] == group)


def _distribution(scores: Sequence[tuple[float | None, int]]) -> dict[str, float | None]:
    found = [(value, samples) for value, samples in scores if value is not None]
    if not found:
        return {"clients": 0, "mean": None, "weighted_mean": None, "deviation": None, "worst_decile": None}
    values = [value for value, _ in found]
    mean, worst = fsum(values) / len(values), sorted(values)[: ceil(len(values) / 10)]
    return {
        "clients": len(values),
        "mean": mean,
        "weighted_mean": fsum(v * n for v, n in found) / sum(n for _, n in found),
        "deviation": sqrt(fsum((v - mean) ** 2 for v in values) / len(values)),
        "worst_decile": fsum(worst) / len(worst),
    }


def _same(given: float | None, expected: float | None) -> bool:
    if given is None or expected is None:
        return given is expected
    return close(given, expected, 1.0)  # scores are shares
