"""``edgefl profile --compare``: several scenarios side by side, as in the papers' tables."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from edgefl.commands.profile.answer import (
    ComparedProfiles,
    ProfileComparison,
    ProfileComparisonRow,
    ProfileRow,
    Tables,
    TotalsRow,
)
from edgefl.commands.profile.chart import stages_chart
from edgefl.commands.profile.command import profile
from edgefl.drawing.figures import FIGURE_FORMS, check_figure, draw_figure
from edgefl.errors import ScenarioError
from edgefl.records.record import UNSET, Maybe, copy_fields
from edgefl.runs.progress import OnProgress, silent
from edgefl.setup.compose import Given, labels_of, scenario_of

COMPARED = ("peak_memory_bytes", "fvcore_macs_per_sample", "flops", "traffic_bytes", "virtual_seconds", "energy_joules")


def compare_profiles(
    scenarios: Sequence[Given],
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = silent,
) -> ComparedProfiles:
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
    profiles: dict[str, Tables] = {}
    refused: dict[str, str] = {}
    for label, scenario in zip(labels_of(scenarios, loaded), loaded, strict=True):
        result = profile(scenario, device=device, link=link, stage=stage, kind=kind, on_progress=on_progress)

        def full_label(combination: str, label: str = label) -> str:
            return combination if len(loaded) == 1 else ": ".join(filter(None, (label, combination)))

        for combination, part in (result.combinations or {"": result}).items():
            profiles[_free_label(full_label(combination), profiles)] = Tables(**copy_fields(Tables, part))
        refused |= {full_label(combination): why for combination, why in (result.refused or {}).items()}
    reference = next(iter(profiles))
    figures = {
        (label, whose): compared for label, part in profiles.items() for whose, compared in _figures(part, stage)
    }
    rows = []
    for (label, whose), compared in figures.items():
        other = figures.get((reference, whose))
        rows.append(
            ProfileComparisonRow(
                label=label,
                kind=whose[0],
                variant=whose[1],
                **vars(compared),
                ratios={name: _ratio(getattr(compared, name), getattr(other, name, None)) for name in COMPARED},
            )
        )
    if figure is not None:
        draw_figure(stages_chart(profiles), Path(figure))
    return ComparedProfiles(reference=reference, stage=stage, rows=rows, profiles=profiles, refused=refused or UNSET)


def _ratio(value: float, other: float | None) -> float | None:
    return value / other if other else None


def _free_label(label: str, taken: Container[str]) -> str:
    """The label, with the first free number from 2 if it is taken."""
    if label not in taken:
        return label
    return next(f"{label} ({n})" for n in count(2) if f"{label} ({n})" not in taken)


def _figures(part: Tables, stage: int | None) -> Iterator[tuple[tuple[str, str | Maybe], ProfileComparison]]:
    """The figures of one round of the stage, or of the whole schedule, with the kind and variant."""
    rows: Iterable[tuple[ProfileRow | TotalsRow, float]] = (
        ((row, row.fvcore_macs_per_sample) for row in part.rows)
        if stage
        else ((total, total.fvcore_macs_per_sample_all_rounds) for total in part.totals)
    )
    for row, macs in rows:
        yield (
            (row.kind, row.variant),
            ProfileComparison(
                peak_memory_bytes=row.peak_memory_bytes,
                fvcore_macs_per_sample=macs,
                flops=row.flops,
                traffic_bytes=row.download_bytes + row.upload_bytes,
                virtual_seconds=row.virtual_seconds,
                energy_joules=row.energy_joules,
            ),
        )
