"""``edgefl profile --compare``: several scenarios side by side, as the papers' tables put them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.commands.compose import scenario_of
from edgefl.commands.profile.profile import profile
from edgefl.commands.progress import OnProgress, silent
from edgefl.errors import ScenarioError
from edgefl.report import FIGURE_FORMS, check_figure, draw_stages

COMPARED = ("peak_memory_bytes", "fvcore_macs_per_sample", "flops", "traffic_bytes", "virtual_seconds", "energy_joules")


def compare_profiles(
    scenarios: Sequence[Any],
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Profiles of several scenarios, and ``rows`` with what each costs a client of each kind, by ``COMPARED``.

    Over the whole schedule for a client in every round (``fvcore_macs_per_sample`` over all rounds too), or one round
    of ``stage``.  ``ratios`` are to the first scenario, None where that has no such kind or nothing of the sort.  A
    scenario that compares gives a column for each combination, so that one of them alone will do.

    Raises ScenarioError if there is one column only.
    """
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)
    loaded = [scenario_of(each, overrides) for each in scenarios]
    if sum(len(each.combinations()) for each in loaded) < 2:
        raise ScenarioError("--compare takes two scenarios or more, or one that compares")
    names = Counter(each.name for each in loaded)
    profiles: dict[str, dict[str, Any]] = {}
    for given, each in zip(scenarios, loaded, strict=True):
        label = each.name if names[each.name] == 1 else str(given) if isinstance(given, str) else each.name
        found = profile(each, device=device, link=link, stage=stage, kind=kind, on_progress=on_progress)
        parts = found.pop("combinations", None) or {"": found}
        for combination, part in parts.items():
            whole = combination if len(loaded) == 1 else ": ".join(filter(None, (label, combination)))
            profiles[_free(whole, profiles)] = part
    reference = next(iter(profiles))
    rows = [row for label, part in profiles.items() for row in _rows(label, part, stage)]
    first = {row["kind"]: row for row in rows if row["label"] == reference}
    for row in rows:
        other = first.get(row["kind"], {})
        row["ratios"] = {name: row[name] / other[name] if other.get(name) else None for name in COMPARED}
    if figure is not None:
        draw_stages(profiles, Path(figure))
    return {"reference": reference, "stage": stage, "rows": rows, "profiles": profiles}


def _free(label: str, taken: Mapping[str, Any]) -> str:
    """This label, or its next free number."""
    if label not in taken:
        return label
    return next(f"{label} ({n})" for n in range(2, len(taken) + 3) if f"{label} ({n})" not in taken)


def _rows(label: str, part: Mapping[str, Any], stage: int | None) -> list[dict[str, Any]]:
    macs = "fvcore_macs_per_sample" if stage else "fvcore_macs_per_sample_all_rounds"
    return [
        {
            "label": label,
            "kind": one["kind"],
            "peak_memory_bytes": one["peak_memory_bytes"],
            "fvcore_macs_per_sample": one[macs],
            "flops": one["forward_flops"] + one["backward_flops"],
            "traffic_bytes": one["download_bytes"] + one["upload_bytes"],
            "virtual_seconds": one["virtual_seconds"],
            "energy_joules": one["energy_joules"],
        }
        for one in part["rows" if stage else "totals"]
    ]
