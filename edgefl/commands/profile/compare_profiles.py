"""``edgefl profile --compare``: several scenarios side by side, as in the papers' tables."""

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
    """Profiles of several scenarios, and ``rows`` with the costs COMPARED by scenario and client kind.

    Costs are of the whole schedule for a client in every round (``fvcore_macs_per_sample`` over all rounds too), or of
    one round of ``stage``.  ``ratios`` are to the first scenario, None where it lacks the kind or the cost is zero.  A
    scenario with a ``compare`` section gives a column for each combination; ``refused`` says why some can't be run, if
    there are such.

    Raises ScenarioError if there is only one column.
    """
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)
    loaded = [scenario_of(scenario, overrides) for scenario in scenarios]
    if sum(len(scenario.combinations()) for scenario in loaded) < 2:
        raise ScenarioError("--compare takes two scenarios or more, or one with a compare section")
    names = Counter(scenario.name for scenario in loaded)
    profiles: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for given, scenario in zip(scenarios, loaded, strict=True):
        label = scenario.name if names[scenario.name] == 1 else str(given) if isinstance(given, str) else scenario.name
        result = profile(scenario, device=device, link=link, stage=stage, kind=kind, on_progress=on_progress)
        parts = result.pop("combinations", None) or {"": result}

        def named(combination: str, label: str = label) -> str:
            return combination if len(loaded) == 1 else ": ".join(filter(None, (label, combination)))

        for combination, part in parts.items():
            profiles[_free_label(named(combination), profiles)] = part
        refused |= {named(combination): why for combination, why in result.pop("refused", {}).items()}
    reference = next(iter(profiles))
    rows = [row for label, part in profiles.items() for row in _rows(label, part, stage)]
    first = {(row["kind"], row.get("variant")): row for row in rows if row["label"] == reference}
    for row in rows:
        other = first.get((row["kind"], row.get("variant")), {})
        row["ratios"] = {name: row[name] / other[name] if other.get(name) else None for name in COMPARED}
    if figure is not None:
        draw_stages(profiles, Path(figure))
    more = {"refused": refused} if refused else {}
    return {"reference": reference, "stage": stage, "rows": rows, "profiles": profiles, **more}


def _free_label(label: str, taken: Mapping[str, Any]) -> str:
    """The label, with the first free number from 2 if it is taken."""
    if label not in taken:
        return label
    return next(f"{label} ({n})" for n in range(2, len(taken) + 3) if f"{label} ({n})" not in taken)


def _rows(label: str, part: Mapping[str, Any], stage: int | None) -> list[dict[str, Any]]:
    macs = "fvcore_macs_per_sample" if stage else "fvcore_macs_per_sample_all_rounds"
    return [
        {
            "label": label,
            "kind": row["kind"],
            **({"variant": row["variant"]} if "variant" in row else {}),
            "peak_memory_bytes": row["peak_memory_bytes"],
            "fvcore_macs_per_sample": row[macs],
            "flops": row["forward_flops"] + row["backward_flops"],
            "traffic_bytes": row["download_bytes"] + row["upload_bytes"],
            "virtual_seconds": row["virtual_seconds"],
            "energy_joules": row["energy_joules"],
        }
        for row in part["rows" if stage else "totals"]
    ]
