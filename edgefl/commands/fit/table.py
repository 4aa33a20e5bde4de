"""Results of ``edgefl fit`` as tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.fit.answer import Fit, FitCandidate, KindFit, ScenarioChange, StageFit, Tightest
from edgefl.devices import show_overhead
from edgefl.devices.budgets import budget_named
from edgefl.drawing.text_tables import NOTHING, new_table, or_dash, print_bounds, print_section, screen
from edgefl.records.record import UNSET


def print_fit(result: Fit, console: Console | None = None) -> None:
    """Print the result of ``edgefl.fit``: the budgets, then for each client kind its stages and the changes found."""
    console = console or screen()
    head = f"{result.scenario} on {result.device} over {result.link}"
    console.print(Text(f"=== {head} ===", style="bold"))
    console.print()
    table = new_table("budget", "allowed", "", left=(0, 2))
    for name, limit in result.budgets.items():
        part = budget_named(name)
        table.add_row(part.noun, "unlimited" if limit.allowed is None else part.quantity.show(limit.allowed),
                      "" if limit.allowed is None else limit.source)  # fmt: skip
    print_section(console, "Budgets of a round", table, _free_memory(result))
    for kind in result.kinds.values():
        _print_kind(console, result, kind)
    print_bounds(console, result.at_most, result.seconds_within)


def _free_memory(result: Fit) -> str:
    """What the device's own memory for tensors rests on, where that is the limit."""
    overhead, ends = result.runtime_overhead_bytes, (result.least_available_bytes, result.most_available_bytes)
    if result.budgets["memory"].limit != "device":
        return ""
    least, most = (units.show_bytes(end or 0) for end in ends)
    taken = show_overhead(overhead, result.runtime)
    if least == most:
        return taken
    return (
        f"{taken}; by the ranges of that and of its usable memory {result.device} has {least} to {most} for "
        f"tensors: a peak above {least} depends on free memory"
    )


def _print_kind(console: Console, result: Fit, kind: KindFit) -> None:
    head = f"{kind.kind} clients, of which the largest has {kind.samples:,} samples: "
    if kind.complete is False and kind.as_it_stands is None:
        console.print(Text(f"{head}{result.ending} before anything was known\n", style="bold"))
        return
    if not kind.rounds:
        console.print(Text(f"{head}the method never selects them\n", style="bold"))
        return
    unchanged = kind.as_it_stands
    assert unchanged is not None
    if kind.fits:
        _print_stages(console, head + "fit without changes", unchanged.stages)
        return
    _print_stages(console, head + "don't fit without changes", unchanged.stages)
    if kind.solutions:
        stopped = "" if kind.complete else " (search incomplete)"
        _print_solutions(
            console, f"Changes that let them take part, smallest first{stopped}", kind.solutions, result.sets
        )
    else:
        _print_no_solution(console, result, kind)
    _print_search(console, kind, result.ending)


def _print_stages(console: Console, title: str, stages: Sequence[StageFit]) -> None:
    parts = {name: budget_named(name) for name in stages[0].costs}
    nouns = [part.noun for part in parts.values()]
    table = new_table("stage", "rounds", "fits", *nouns, "tightest", left=(2, 3 + len(nouns)))
    for row in stages:
        table.add_row(
            row.stage_and_part, str(row.rounds), "yes" if row.eligible else "no",
            *(part.quantity.show(row.costs[name]) for name, part in parts.items()), _tightest(row),
        )  # fmt: skip
    print_section(console, title, table)


def _tightest(row: Tightest) -> str:
    """The binding budget and the margin to it, as text."""
    if row.binding is None:
        return NOTHING
    title, show = budget_named(row.binding).noun, budget_named(row.binding).quantity.show
    if row.binding == "memory" and row.memory_limit == "device":
        title = f"device {title}"
    margin = row.margins[row.binding] or 0.0
    return f"{title}, {show(abs(margin))} {'over' if margin < 0 else 'left'}"


def _print_solutions(console: Console, title: str, solutions: Sequence[FitCandidate], always: Sequence[str]) -> None:
    """Print solutions as a table, and their ``--set`` options below; every solution begins with those of ``always``."""
    table = new_table("", "change", "of", "memory", "traffic", "time", "energy", "tightest", left=(1, 2, 7))
    for column in (1, 2):
        table.columns[column].no_wrap = True  # so that the lines of both columns correspond
    for number, answer in enumerate(solutions, start=1):
        changes = answer.changes or [ScenarioChange(what="nothing", changes="")]
        table.add_row(
            str(number), "\n".join(c.what for c in changes), "\n".join(c.changes for c in changes),
            units.show_bytes(answer.peak_memory_bytes), units.show_bytes(answer.costs["bytes"]),
            *(or_dash("x {:.2f}".format, ratio) for ratio in (answer.seconds_ratio, answer.joules_ratio)),
            _tightest(answer),
        )  # fmt: skip
    print_section(
        console, title, table,
        "Memory and traffic: largest of any round.  Time and energy: mean round, relative to no changes.",
    )  # fmt: skip
    for number, answer in enumerate(solutions, start=1):
        sets = " ".join(f"--set {shlex.quote(text)}" for text in (*always, *answer.sets))
        console.print(Text(f"{number}: {sets}"), soft_wrap=True)
    console.print()


def _print_no_solution(console: Console, result: Fit, kind: KindFit) -> None:
    unmet = [_limit(result, name) for name in kind.unmet or ()]
    if unmet:
        console.print(Text(f"No solution: no change meets {', nor '.join(unmet)}.\n"))
    elif kind.complete:
        console.print(Text("No solution: no combination of changes meets all budgets at once.\n"))
    else:
        console.print(Text("No solution was found; the search is incomplete.\n"))
    if near := kind.nearest:
        _print_solutions(console, f"Nearest combination, at {near.excess:.3g} times its budget", [near], result.sets)
        _print_stages(console, "Stages with this combination", near.stages)


def _limit(result: Fit, name: str) -> str:
    """A budget that nothing meets, in words."""
    limit, part = result.budgets[name], budget_named(name)
    if limit.limit != "device":
        return f"the {part.noun} budget of {part.quantity.show(limit.allowed or 0.0)}"
    return f"the {part.quantity.show(limit.allowed or 0.0)} of memory that {result.device} has left"


def _print_search(console: Console, kind: KindFit, stopped_by: str) -> None:
    if kind.candidates is UNSET or kind.looked_at is UNSET:
        return
    notes = [f"{kind.predictions} works predicted", f"{kind.looked_at} of {kind.candidates} combinations checked"]
    if not kind.complete:
        notes.append(stopped_by)
    elif kind.candidates > kind.looked_at:
        notes.append("--answers 0 checks all")
    if kind.failed:
        first = kind.failed[0]
        notes.append(f"{len(kind.failed)} can't be predicted, the first {' '.join(first.sets)}: {first.error}")
    console.print(Text("; ".join(notes) + "\n"))
