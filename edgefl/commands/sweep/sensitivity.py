"""Whether the order of a sweep's cells survives errors in the numbers of its devices and links.

Peak memory, FLOPs and bytes don't depend on a device: the predicted works of the cells are judged again on fleets with
other numbers.  Nothing is predicted or trained again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgefl import seeds
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.commands.sweep.answer import Change, FigureOrder, Flip, Merits, Sensitivity
from edgefl.commands.sweep.cell_row import merits
from edgefl.commands.sweep.perturbed_fleets import LARGER_IS_BETTER, numbers_of, profiles_of, scale_fleet
from edgefl.devices import Device, FleetOptions, Link
from edgefl.errors import UnitError
from edgefl.planning.workload import Workload, stage_eligibility
from edgefl.records.record import UNSET
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario

if TYPE_CHECKING:
    from edgefl.commands.sweep.cell_answers import Workloads
    from edgefl.commands.sweep.stored_rows import SweepRows

FIGURES = ("eligible_share", "round_seconds", "schedule_seconds", "schedule_energy_joules")
"""What cells are ordered by; the first is better where it is larger, the others where they are smaller."""
EVERYWHERE = "everywhere"
ALL_BETTER, ALL_WORSE = "all better", "all worse"
DRAWS = 50
"""Number of draws, each of new factors for all numbers of all profiles.

A choice, not measured: a share that holds in half of the draws has a standard error of 7 %; four times the draws, and
the time, would halve it.
"""
RESIDUALS = "residuals"
UNKNOWN = 2.0
"""The factor of numbers that no published measurement judges.

A choice, not measured: measurements give 1.26 for a Raspberry Pi 4 and 1.41 for a MacBook Air (docs/guides/sweep.md).
"""
OF_SECONDS = (
    "flops_per_second", "float16_flops_per_second", "bfloat16_flops_per_second", "memory_bytes_per_second",
    "seconds_per_operator",
)  # fmt: skip
"""The numbers of which the seconds of a step are made."""
SHOWN_PAIRS = 100
"""Pairs of a figure whose order turns that the answer names: all of 2,000 cells would be two million rows."""
ALIKE = 1e-9
"""Relative difference below which values count as equal: sums depend on the order of their terms.

As for a run's records (``results.conservation.CLOSE``), so that no order turns by rounding.
"""


@dataclass(frozen=True)
class SensitivityCell:
    """A cell of the sweep with the works of its clients."""

    label: str
    fleet: FleetOptions
    workload: Workload


class Wrong(NamedTuple):
    """An error in the numbers, with its ``factors`` by (profile, number)."""

    change: Change
    factors: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Errors:
    """By what numbers are wrong: ``factor``, but the seconds of these devices by a factor of their own."""

    factor: float
    of_device: Mapping[str, float] = field(default_factory=dict)

    def factor_for(self, profile: str, number: str) -> float:
        """The factor of a number of a profile."""
        return self.of_device.get(profile, self.factor) if number in OF_SECONDS else self.factor

    def largest(self, keys: Iterable[tuple[str, str]]) -> float:
        """The largest factor of these numbers of profiles."""
        return max((self.factor_for(*key) for key in keys), default=self.factor)


def errors_of(text: str, profiles: Mapping[str, Device | Link]) -> Errors:
    """The errors of ``2x``, or of ``residuals``: what published measurements say of the devices, 2 elsewhere.

    Raises UnitError for text in another form, and for a factor of 1 or less.
    """
    if text.strip() != RESIDUALS:
        return Errors(factor_of(text))
    known = {name: each.processor.within for name, each in profiles.items() if isinstance(each, Device)}
    return Errors(UNKNOWN, {name: factor for name, factor in known.items() if factor is not None})


def factor_of(text: str) -> float:
    """The factor of ``2x``.  Raises UnitError for text in another form, and for a factor of 1 or less."""
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s*[xX]\s*", text)
    if match is None:
        meant = text.strip() if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else "2"
        raise UnitError(f"--sensitivity {text!r}: write the factor as {meant}x, or {RESIDUALS}")
    if not float(match[1]) > 1:
        raise UnitError(f"--sensitivity {text!r}: a factor must be more than 1x; 2x multiplies and divides by two")
    return float(match[1])


def order_of(
    cells: Iterable[tuple[str, Scenario]],
    workloads: Workloads,
    factor: str,
    store: SweepRows | None,
    on_progress: OnProgress,
) -> Sensitivity:
    """The ``sensitivity`` of a sweep's cells, which ``store`` gets as a file."""
    priced = [SensitivityCell(label, variant.fleet, workloads.workload_for(variant)) for label, variant in cells]
    order = sensitivity(priced, factor, on_progress)
    if store:
        text = json.dumps(order.to_data(), indent=1, allow_nan=False)
        replace_file(store.folder / "sensitivity.json", text.encode())
    return order


def sensitivity(cells: Sequence[SensitivityCell], given: str, on_progress: OnProgress = silent) -> Sensitivity:
    """How the cells' order by each of FIGURES changes if device and link numbers are wrong: ``2x`` or ``residuals``.

    ``factor`` is that of numbers without one of their own; with residuals, ``residuals`` has the factor of each device
    whose seconds were held against published ones.
    Each number is multiplied and divided, in all profiles at once and in each alone; all numbers change at once, each
    for the better or each for the worse.  ``draws`` multiplies every number of every profile by its own factor,
    log-uniform in [1/factor, factor].  ``flips`` names pairs of cells with the changes that flip their order, which a
    draw isn't.
    """
    labels = [cell.label for cell in cells]
    profiles = {name: profile for cell in cells for name, profile in profiles_of(cell.workload.setup.fleet).items()}
    errors = errors_of(given, profiles)
    named = [*_singles(profiles, errors), *(_together(profiles, errors, better) for better in (True, False))]
    draws = _draws(profiles, errors)
    changes = [*named, *draws]
    values = np.full((len(changes) + 1, len(cells), len(FIGURES)), np.nan)
    for index, cell in enumerate(cells):
        on_progress("combination", {"label": f"sensitivity, {cell.label}", "index": index, "of": len(cells)})
        values[:, index] = _figures(cell, changes)
    figures, flips = dict[str, FigureOrder](), list[Flip]()
    for column, name in enumerate(FIGURES):
        base = values[0, :, column]
        signs = _signs(base, name)
        pairs: dict[tuple[int, int], list[Change]] = {}
        taus = np.empty(len(changes))
        same_order, same_best = np.empty((2, len(changes)), dtype=bool)
        for number, wrong in enumerate(changes):
            new = values[number + 1, :, column]
            new_signs = _signs(new, name)
            taus[number] = tau_of_signs(signs, new_signs)
            flipped = np.argwhere(np.triu(signs * new_signs < 0))
            same_order[number] = not len(flipped)
            same_best[number] = (_best(base, name) & _best(new, name)).any()
            if number < len(named):
                for first, second in flipped.tolist():
                    pairs.setdefault((first, second), []).append(wrong.change)
        worst = int(np.argmin(np.nan_to_num(taus[: len(named)], nan=1.0)))
        figures[name] = FigureOrder(
            survives=bool(same_order.all()),
            pairs=len(cells) * (len(cells) - 1) // 2,
            pairs_that_flip=len(pairs),
            lowest_tau=_number(taus[worst]),
            lowest_tau_by=changes[worst].change if taus[worst] < 1 else None,
            drawn_lowest_tau=_number(np.nanmin(taus[len(named) :], initial=np.inf)),
            drawn_unchanged_share=float(same_order[len(named) :].mean()),
            drawn_same_best_share=float(same_best[len(named) :].mean()),
        )
        for (first, second), by in list(pairs.items())[:SHOWN_PAIRS]:
            better, worse = (first, second) if signs[first, second] < 0 else (second, first)
            flips.append(Flip(figure=name, better=labels[better], worse=labels[worse], by=by))
    return Sensitivity(
        factor=errors.factor,
        residuals=dict(sorted(errors.of_device.items())) if given.strip() == RESIDUALS else UNSET,
        cells=labels,
        figures=figures,
        draws=len(draws),
        flips=flips,
    )


# --- changes ---------------------------------------------------------------------------------------------------------


def _singles(profiles: Mapping[str, Device | Link], errors: Errors) -> list[Wrong]:
    """Each number multiplied and divided by its factor: in all profiles at once, and in each of several alone."""
    having: dict[str, list[str]] = {}
    for name, profile in profiles.items():
        for number in numbers_of(profile):
            having.setdefault(number, []).append(name)
    changes = []
    for number, names in having.items():
        for power in (1, -1):
            changes.append(_change(number, EVERYWHERE, [(name, number) for name in names], power, errors))
            if len(names) > 1:
                changes += [_change(number, name, [(name, number)], power, errors) for name in names]
    return changes


def _change(number: str, where: str, keys: Sequence[tuple[str, str]], power: int, errors: Errors) -> Wrong:
    change = Change(number=number, where=where, factor=errors.largest(keys) ** power)
    return Wrong(change, {key: errors.factor_for(*key) ** power for key in keys})


def _together(profiles: Mapping[str, Device | Link], errors: Errors, better: bool) -> Wrong:
    keys = _keys(profiles)
    factors = {
        (name, number): errors.factor_for(name, number) ** (1 if LARGER_IS_BETTER[number] == better else -1)
        for name, number in keys
    }
    change = Change(number=ALL_BETTER if better else ALL_WORSE, where=EVERYWHERE, factor=errors.largest(keys))
    return Wrong(change, factors)


def _draws(profiles: Mapping[str, Device | Link], errors: Errors) -> list[Wrong]:
    keys = [(name, number) for name in sorted(profiles) for number in numbers_of(profiles[name])]
    drawn = Change(number="drawn", where=EVERYWHERE, factor=errors.largest(keys))
    changes = []
    for index in range(DRAWS):
        powers = seeds.generator(0, "sensitivity", index).uniform(-1, 1, len(keys))
        factors = {key: float(errors.factor_for(*key) ** power) for key, power in zip(keys, powers, strict=True)}
        changes.append(Wrong(drawn, factors))
    return changes


def _keys(profiles: Mapping[str, Device | Link]) -> list[tuple[str, str]]:
    return [(name, number) for name, profile in profiles.items() for number in numbers_of(profile)]


def _figures(cell: SensitivityCell, changes: Sequence[Wrong]) -> Floats:
    """FIGURES without and with each change: `[1 + changes, figures]`, NaN where no client takes part."""
    workload, fleet = cell.workload, cell.workload.setup.fleet
    profiles = profiles_of(fleet)
    base = _row(merits(workload, stage_eligibility(workload, fleet, why=False)))
    figures = np.tile(base, (len(changes) + 1, 1))
    for number, change in enumerate(changes, start=1):
        factors = {key: factor for key, factor in change.factors.items() if key[0] in profiles}
        if factors and (changed := scale_fleet(fleet, factors, cell.fleet, workload.setup.seed)) is not fleet:
            figures[number] = _row(merits(workload, stage_eligibility(workload, changed, why=False)))
    return figures


def _row(row: Merits) -> Floats:
    if row.round_seconds is None:  # no client takes part: time and energy are undefined
        return np.array([row.eligible_share, *[np.nan] * (len(FIGURES) - 1)])
    return np.array([getattr(row, name) for name in FIGURES], dtype=float)


# --- orders ----------------------------------------------------------------------------------------------------------


def _badness(values: Floats, figure: str) -> Floats:
    """Values of which the smallest is the best; NaN (no eligible client) becomes inf, the worst."""
    return np.where(np.isnan(values), np.inf, -values if figure == FIGURES[0] else values)


def _signs(values: Floats, figure: str) -> Integers:
    """Signs of pairs `[cells, cells]`: -1 if the first cell is better, 1 if the second is, 0 if they are level."""
    badness = _badness(values, figure)
    with np.errstate(invalid="ignore"):  # inf - inf: no client takes part in either
        difference = np.nan_to_num(badness[:, None] - badness[None, :], nan=0.0, posinf=np.inf, neginf=-np.inf)
        scale = np.maximum(np.abs(badness)[:, None], np.abs(badness)[None, :])
    level = np.abs(difference) <= ALIKE * np.where(np.isfinite(scale), scale, 0.0)
    return np.where(level, 0, np.sign(difference)).astype(np.int8)


def _best(values: Floats, figure: str) -> Booleans:
    """Mask of the cells that no other cell is better than: `[cells]`."""
    return np.asarray(~(_signs(values, figure) > 0).any(axis=1))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def tau_of_signs(before: Integers, after: Integers) -> float:
    """Kendall's tau-b of two orders, from the signs of their pairs; NaN if all pairs are level in only one of them.

    M. G. Kendall, The treatment of ties in ranking problems (Biometrika 33, 1945).
    """
    untied_before, untied_after = np.abs(before).sum(dtype=np.int64), np.abs(after).sum(dtype=np.int64)
    if not untied_before or not untied_after:
        return 1.0 if untied_before == untied_after else float("nan")
    return float((before.astype(np.int64) * after).sum() / np.sqrt(float(untied_before) * float(untied_after)))
