"""Results of ``edgefl tune`` as tables."""

from __future__ import annotations

import shlex
from collections import Counter

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.tune.answer import BestSettings, TunedTrial, Tuning, Widening
from edgefl.drawing.text_tables import (
    DIVERGED,
    NOTHING,
    new_table,
    percent,
    print_bounds,
    print_section,
    screen,
    title_of,
)
from edgefl.yaml_lines import flow

MOST_REASONS = 3
"""Reasons of refused settings that are printed; further ones are counted."""


def print_tuning(result: Tuning, console: Console | None = None) -> None:
    """Print the result of ``edgefl.tune``: the best settings, how the ranges held, the trials and what they took."""
    console = console or screen()
    kind, _, name = result.metric.partition(".")
    metric = f"{kind} {title_of(name)}"
    console.print(Text(f"=== {result.scenario}: {metric} on {result.split} ===", style="bold"))
    console.print()
    _print_best(console, result, metric)
    _print_ranges(console, result)
    _print_trials(console, result, metric)
    _print_refused(console, result)
    _print_spent(console, result)
    print_bounds(console, result.at_most, result.seconds_within)


def _print_best(console: Console, result: Tuning, metric: str) -> None:
    best = result.best
    chance = "" if result.chance is None else f", chance {result.chance:.3f}"
    number = f"trial {best.number} of {len(result.trials) + len(result.refused)}"
    console.print(Text(f"Best: {number}, {metric} {_score(best)}{chance}", style="bold"))
    console.print()
    console.print(Text(best.yaml.rstrip()), soft_wrap=True)
    console.print()
    console.print(Text(" ".join(f"--set {shlex.quote(text)}" for text in best.sets)), soft_wrap=True)
    console.print()


def _score(best: BestSettings) -> str:
    return f"{best.score:.3f}" + ("" if best.deviation is None else f" ± {best.deviation:.3f}")


def _print_ranges(console: Console, result: Tuning) -> None:
    """Say which ranges were widened, what that gave, and at which ends the best settings still are."""
    lines = [_widening(each) for each in result.widened]
    if any(each.new is not None for each in result.widened):
        given, best = result.best_as_given, result.best
        if given is None:
            lines.append("in the ranges as given every model diverged")
        elif given.number == best.number:
            lines.append(f"the best trial is still one of the ranges as given ({best.score:.3f})")
        else:
            lines.append(
                f"best in the ranges as given: {given.score:.3f} (trial {given.number}: {', '.join(given.sets)}); "
                f"in the widened ones: {best.score:.3f} (trial {best.number})"
            )
    lines += [each.text for each in result.at_edge]
    if result.exhausted:
        lines.append(
            f"there are no other settings: the search ended after {len(result.trials)} of {result.asked_for} trials"
        )
    for line in lines:
        # the names of fields keep their small letters
        text = line if line.startswith(tuple(each.path for each in result.search)) else line[0].upper() + line[1:]
        console.print(Text(text), soft_wrap=True)
    if lines:
        console.print()


def _widening(each: Widening) -> str:
    what = f"{each.path}: after {each.after} trials the best, {each.value:g}, was at the {each.side} edge"
    if each.new is None:
        return f"{what}, and the range can't be widened: {each.why_not}"
    return f"{what}: the range goes to {each.new:g} instead of {each.old:g}"


def _print_trials(console: Console, result: Tuning, metric: str) -> None:
    paths = [each.path for each in result.search]
    several = len(result.seeds) > 1
    table = new_table("trial", *paths, "rounds", metric, *(["±"] if several else []), left=range(1, 1 + len(paths)))
    sign = 1 if result.better == "lower" else -1

    def order(trial: TunedTrial) -> tuple[float, ...]:
        diverged = trial.score is None
        return (diverged, -trial.reached, sign * (trial.score or 0.0), trial.number)

    for trial in sorted(result.trials, key=order):
        score = DIVERGED if trial.score is None else f"{trial.score:.3f}"
        spread = [] if not several else [NOTHING if trial.deviation is None else f"{trial.deviation:.3f}"]
        values = [flow(trial.settings[path]) for path in paths]
        rounds = f"{trial.rungs[trial.reached - 1]}/{trial.rungs[-1]}"
        table.add_row(str(trial.number), *values, rounds, score, *spread)
    over = f"  Mean and standard deviation over seeds {result.seeds[0]} to {result.seeds[-1]}." if several else ""
    note = f"Rounds at which a trial was scored last, of all.{over}"
    print_section(console, f"Trials, best first ({result.better} is better)", table, note)


def _print_refused(console: Console, result: Tuning) -> None:
    if not result.refused:
        return
    reasons = Counter(each.refused for each in result.refused).most_common()
    console.print(Text(f"Refused settings, which count as no trial: {len(result.refused)}"))
    for text, count in reasons[:MOST_REASONS]:
        console.print(Text(f"- {count}: {text}"), soft_wrap=True)
    if len(reasons) > MOST_REASONS:
        console.print(Text(f"- {sum(count for _, count in reasons[MOST_REASONS:])}: for other reasons"))
    console.print()


def _print_spent(console: Console, result: Tuning) -> None:
    runs = len(result.trials) * len(result.seeds)
    took = f"{result.full_runs:.1f} full runs ({percent(result.full_runs_share)} of {runs})"
    console.print(Text(f"{len(result.trials)} trials took {took} and {units.show_seconds(result.seconds)}"))
    console.print(Text(f"trials: {result.folder}"))
