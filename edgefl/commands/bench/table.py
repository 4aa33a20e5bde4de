"""The answer of ``edgefl bench`` as tables, on the console and in its page, and each score as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgefl import units
from edgefl.commands.bench.answer import BenchAnswer, BenchCost, BenchFleet, BenchReference, BenchRow, BenchVariant
from edgefl.devices.budgets import budget_named
from edgefl.drawing.text_tables import (
    DIVERGED,
    NOTHING,
    csv_text,
    field_formatter,
    new_table,
    or_dash,
    percent,
    print_section,
    screen,
    title_of,
)
from edgefl.records.record import UNSET
from edgefl.results.equal_costs import AXES
from edgefl.yaml_lines import flow

NOBODY = "nobody can train"
COSTS = tuple(noun.partition(" of ")[0] for noun in AXES.values())
MOST_COSTS = 30
"""Rows of costs that fit a screen; of more, only the lowest of each fleet are shown."""
AT_CHANCE = "none is better than chance"
HOW_BEST = (
    "Best: the paired differences to all others over the seeds exclude 0 (95 %, Holm).  tie: those not shown to be "
    "behind, the best mean first.  could show: the gap that these seeds would show with a power of 80 %.  A variant at "
    "chance level is never best."
)


class BenchSection(NamedTuple):
    """A titled table of the answer, and what is to be said below it."""

    title: str
    table: Table
    note: str = ""


def print_bench(result: BenchAnswer, console: Console | None = None) -> None:
    """Print the answer of ``edgefl.bench``: who is best on which fleet, then what that rests on."""
    console = console or screen()
    console.print(Text(f"=== {heading(result)} ===", style="bold"))
    console.print()
    console.print(Text(answer(result)[0]))
    console.print()
    for section in sections(result):
        print_section(console, *section)
    console.print(Text(told_runs(result)))


def sections(result: BenchAnswer) -> Iterator[BenchSection]:
    """The tables of the answer, the most important first."""
    yield from _winners(result)
    if len(result.variants) > 1:
        yield _matrix(result, f"{metric_words(result)}: mean{_reach(result)}", score_text)
    if result.references:
        yield _references(result)
    if result.budget is UNSET and any(row.eligible_share < 1 for fleet in result.fleets for row in fleet.rows):
        yield _matrix(result, "Clients that can train", lambda row: percent(row.eligible_share))
    if any(row.worst_decile is not UNSET for fleet in result.fleets for row in fleet.rows):
        yield _matrix(
            result, "On the clients' own samples: mean of the worst tenth of the clients",
            lambda row: NOTHING if row.worst_decile is UNSET else or_dash("{:.3f}".format, row.worst_decile),
        )  # fmt: skip
    if any(row.kept_share is not UNSET for fleet in result.fleets for row in fleet.rows):
        yield _matrix(
            result, f"What is kept of the score under {result.fleets[0].fleet}",
            lambda row: NOTHING if row.kept_share is UNSET else or_dash(percent, row.kept_share),
            but=result.fleets[0],
        )  # fmt: skip
    yield from _ranks(result)
    yield from _costs(result)
    yield from _spend_sections(result)
    yield _variants(result)
    if result.failed:
        table = new_table("run", "why it failed", left=(0, 1))
        for run, reason in result.failed.items():
            table.add_row(run, reason)
        yield BenchSection(f"Runs that failed: {len(result.failed)}", table)


# --- words -----------------------------------------------------------------------------------------------------------


def metric_words(result: BenchAnswer, split: str = "") -> str:
    """The metric and its split, by default that of the last evaluations: ``image-text R@10 on test``."""
    kind, _, name = result.metric.partition(".")
    return f"{kind} {title_of(name)} on {split or result.split}"


def heading(result: BenchAnswer) -> str:
    """The suite and what is compared: ``memory: image-text R@10 on test, 10 seeds``."""
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else f"seed {result.seeds[0]}"
    lower = "" if result.better == "higher" else ", lower is better"
    chance = "" if result.chance is None else f", chance {result.chance:.3f}"
    return f"{result.suite}: {metric_words(result)}{lower}{chance}, {seeds}"


def shows(result: BenchAnswer) -> Callable[[float], str]:
    """How amounts of the suite's budget are shown: those that the suite names as it does."""
    if result.budget is UNSET:
        return "{:g}".format
    part, has_named = budget_named(result.budget), any(fleet.low == fleet.high for fleet in result.fleets)
    return part.quantity.write if has_named else part.quantity.show


def interval(result: BenchAnswer, fleet: BenchFleet) -> str:
    """What small devices of a fleet have: ``below 6.1 MiB``, ``6.1 to 9.8 MiB``, ``17.2 MiB and more``."""
    if fleet.low is UNSET or fleet.high is UNSET:
        return fleet.fleet
    return _between(fleet.low, fleet.high, shows(result))


def _between(low: float, high: float | None, show: Callable[[float], str]) -> str:
    if high is None:
        return f"{show(low)} and more" if low else "any"
    if low == high:
        return show(low)
    if not low:
        return f"below {show(high)}"
    (first, unit), (last, same) = show(low).rsplit(" ", 1), show(high).rsplit(" ", 1)
    return f"{first} to {last} {unit}" if unit == same else f"{first} {unit} to {last} {same}"


def by_share(result: BenchAnswer) -> Iterator[tuple[str, list[BenchFleet]]]:
    """The fleets of each share of small devices, with the share in words; none for fleets without a budget."""
    for share, fleets in groupby(result.fleets, key=lambda fleet: fleet.small_share):
        if share is UNSET:
            yield "", list(fleets)
        else:
            yield ("all devices are small" if share == 1 else f"{units.show_share(share)} of the devices are small",
                   list(fleets))  # fmt: skip


def best_of(fleet: BenchFleet) -> str:
    """Who is best on a fleet: a variant, ``tie: ...``, or in words that none is, and why."""
    return _best(fleet.winner, fleet.tied, [row.mean for row in fleet.rows])


def _best(winner: str | None, tied: Sequence[str], means: Iterable[float | None]) -> str:
    if winner is not None:
        return winner
    if tied:
        return f"tie: {', '.join(tied)}" if len(tied) > 1 else f"{tied[0]}, not shown to be best"
    return NOBODY if all(mean is None for mean in means) else AT_CHANCE


def answer(result: BenchAnswer) -> list[str]:
    """The answer in sentences: how often each variant is best, and where, for each share of small devices."""
    wins = Counter(fleet.winner for fleet in result.fleets if fleet.winner is not None)
    ties = sum(bool(fleet.tied) for fleet in result.fleets if fleet.winner is None)
    others = Counter(best_of(fleet) for fleet in result.fleets if fleet.winner is None and not fleet.tied)
    parts = [f"best is {', '.join(f'{name} on {count}' for name, count in wins.most_common())}"] if wins else []
    parts += [f"these seeds show no best on {ties}"] if ties else []
    parts += [f"{words} on {others[words]}" for words in (AT_CHANCE, NOBODY) if others[words]]
    of = f"{len(result.fleets)} fleets" if len(result.fleets) > 1 else "1 fleet"
    sentences = [f"{of}: {'; '.join(parts)}."]
    if result.budget is UNSET:
        return sentences
    noun, show = budget_named(result.budget).noun, shows(result)
    for words, fleets in by_share(result):
        places = [
            f"{winner} ({_between(first.low, last.high, show)})"
            for winner, first, last in best_stretches(fleets)
            if first.low is not UNSET and last.high is not UNSET
        ]
        sentences.append(f"Where {words}, the best by their {noun} is {', '.join(places)}." if places else
                         f"Where {words}, no variant is shown to be best.")  # fmt: skip
    return sentences


def best_stretches(fleets: Sequence[BenchFleet]) -> list[tuple[str, BenchFleet, BenchFleet]]:
    """Variants that are shown to be best, each with the first and the last of neighbouring fleets."""
    found = []
    for winner, group in groupby(fleets, key=lambda fleet: fleet.winner):
        first, *rest = group
        if winner is not None:
            found.append((winner, first, rest[-1] if rest else first))
    return found


def runnable(result: BenchAnswer) -> list[str]:
    """The variants that can be run."""
    return [variant.variant for variant in result.variants if variant.refused is UNSET]


def told_variants(result: BenchAnswer, fleets: Sequence[BenchFleet]) -> list[str]:
    """Variants that a figure of few lines shows, in the suite's order.

    They are those that are shown to be best somewhere, or else those that lead a tie, and the first of the suite.
    """
    best = {fleet.winner for fleet in fleets} - {None} or {next(iter(fleet.tied), None) for fleet in fleets}
    names = runnable(result)
    return [name for name in names if name in best or name == names[0]]


def finding(result: BenchAnswer, fleets: Sequence[BenchFleet]) -> str:
    """What fleets of one share show, as a title."""
    of = {variant.variant: variant for variant in result.variants}
    winners = [name for name, *_ in best_stretches(fleets) if name in of]
    if not winners:
        return "No variant is shown to be best"
    if len(winners) > 1:
        different = len({of[name].schedule for name in winners}) == len({*winners})
        if _just_fits(of, fleets):
            return f"The best {'schedule' if different else 'variant'} is the one that just fits"
    return f"Best: {', then '.join(dict.fromkeys(winners))}"


def _just_fits(variants: Mapping[str, BenchVariant], fleets: Sequence[BenchFleet]) -> bool:
    """Whether each winner takes over at an amount from which it can do more: at one of its own needs."""
    places = [(variants[name], first.low) for name, first, _ in best_stretches(fleets) if name in variants]
    return all(low in (variant.needs or ()) for variant, low in places)


def best_places(result: BenchAnswer, fleets: Sequence[BenchFleet]) -> str:
    """From which amount on each variant is shown to be best: ``layer-wise is best from 6.99 MiB, ...``."""
    show = shows(result)
    places = [
        f"{name} is best {f'from {show(first.low)}' if first.low else 'with any amount'}"
        for name, first, _ in best_stretches(fleets)
        if first.low is not UNSET
    ]
    return ", ".join(places) or "none is shown to be best"


def told_runs(result: BenchAnswer) -> str:
    """From how many runs the answer is, where they are, and how long the call took."""
    shared = f" of {result.cells:,} combinations of variant, fleet and seed" if result.cells != result.trained else ""
    return f"{result.trained:,} runs{shared}: {result.folder} ({units.show_seconds(result.seconds)})"


def free_fleet(result: BenchAnswer) -> str:
    """The fleet on which scores within totals are, in words."""
    return "no device is small" if result.budget is not UNSET else f"under {result.fleets[0].fleet}"


# --- tables ----------------------------------------------------------------------------------------------------------


def score_text(row: BenchRow | BenchReference) -> str:
    """A variant's score on a fleet: ``0.312 ± 0.010``, that it diverged, or a dash."""
    if row.mean is None:
        return DIVERGED if isinstance(row, BenchReference) or row.diverged else NOTHING
    return f"{row.mean:.3f}" + ("" if row.half_width is None else f" ± {row.half_width:.3f}")


def _reach(result: BenchAnswer) -> str:
    return " ± half of the 95 % interval (Student's t)" if len(result.seeds) > 1 else ""


def _winners(result: BenchAnswer) -> Iterator[BenchSection]:
    several = len(result.seeds) > 1
    groups = list(by_share(result))
    for words, fleets in groups:
        place = f"{budget_named(result.budget).noun} of these" if result.budget is not UNSET else "fleet"
        table = new_table(place, "best", metric_words(result), "ahead by", *(["could show"] if several else []),
                          left=(0, 1))  # fmt: skip
        for stretch, cells in _stretches(result, fleets, lambda fleet: _winner(result, fleet)):
            table.add_row(stretch, *cells)
        last = fleets is groups[-1][1]
        yield BenchSection(f"Best where {words}" if words else "Best", table, HOW_BEST if several and last else "")


def _winner(result: BenchAnswer, fleet: BenchFleet) -> list[str]:
    """Who is best, the score, the gap, and with several seeds the one that could be shown."""
    best = fleet.winner if fleet.winner is not None else next(iter(fleet.tied), None)
    rows = [row for row in fleet.rows if row.variant == best]
    gaps = (fleet.gap, fleet.detectable)[: 1 if len(result.seeds) == 1 else 2]
    scores = [score_text(row) for row in rows] or [NOTHING]
    return [best_of(fleet), *scores, *(or_dash("{:.3f}".format, gap) for gap in gaps)]


def _stretches(
    result: BenchAnswer, fleets: Sequence[BenchFleet], cells: Callable[[BenchFleet], list[str]]
) -> Iterator[tuple[str, list[str]]]:
    """The cells of fleets with one share of small devices, neighbours with the same cells as one row, and its name."""
    for found, group in groupby(((fleet, cells(fleet)) for fleet in fleets), key=lambda each: each[1]):
        first, *rest = [fleet for fleet, _ in group]
        last = rest[-1] if rest else first
        if first.low is UNSET or last.high is UNSET:
            yield from ((fleet.fleet, found) for fleet in (first, *rest))
        elif first.low == first.high:  # amounts that the suite names
            yield from ((interval(result, fleet), found) for fleet in (first, *rest))
        else:
            yield _between(first.low, last.high, shows(result)), found


def _places(result: BenchAnswer) -> list[str]:
    """Titles of the columns that name a fleet."""
    return ["small\ndevices", budget_named(result.budget).noun] if result.budget is not UNSET else ["fleet"]


def _rows(
    result: BenchAnswer, cells: Callable[[BenchFleet], list[str]], but: BenchFleet | None = None
) -> Iterator[list[str]]:
    """Rows of the fleets ``but`` one: the cells that name each, a share of small devices only where it begins, and its
    own."""
    for _, fleets in by_share(result):
        share = [] if fleets[0].small_share is UNSET else [units.show_share(fleets[0].small_share)]
        for stretch, found in _stretches(result, [fleet for fleet in fleets if fleet is not but], cells):
            yield [*share, stretch, *found]
            share = ["" for _ in share]


def _matrix(
    result: BenchAnswer, title: str, cell: Callable[[BenchRow], str], *, but: BenchFleet | None = None
) -> BenchSection:
    """A row for each fleet ``but`` one, and a column for each variant that can be run."""
    places, names = _places(result), runnable(result)
    table = new_table(*places, *names, left=range(len(places)))

    def cells(fleet: BenchFleet) -> list[str]:
        found = {row.variant: cell(row) for row in fleet.rows}
        return [found.get(name, NOTHING) for name in names]

    for row in _rows(result, cells, but):
        table.add_row(*row)
    return BenchSection(title, table)


def _references(result: BenchAnswer) -> BenchSection:
    """A row for each method without a federation."""
    table = new_table("reference", "score", "between clients")
    for row in result.references:
        spread = NOTHING if row.deviation is UNSET else or_dash("{:.3f}".format, row.deviation)
        table.add_row(row.reference, score_text(row), spread)
    return BenchSection(
        f"References that aren't ranked: mean{_reach(result)}", table,
        "Without small devices or conditions.  Between clients: the standard deviation of single clients' models.",
    )  # fmt: skip


def _ranks(result: BenchAnswer) -> Iterator[BenchSection]:
    ranks = result.ranks
    if ranks is None:
        return
    table = new_table("variant", "mean rank")
    for name, rank in ranks.ranks.items():
        width = ranks.half_widths[name]
        table.add_row(name, f"{rank:.2f}" + ("" if width is None else f" ± {width:.2f}"))
    best = (
        f"  Best by the ranks of each seed: {_best(ranks.winner, ranks.tied, ranks.ranks.values())}."
        if len(result.seeds) > 1
        else ""
    )
    yield BenchSection(
        f"Ranks over {ranks.fleets} fleets (1 is best): mean{_reach(result)}", table,
        f"The fleets share their runs, so each seed counts once, with its mean rank.{best}",
    )  # fmt: skip


def _costs(result: BenchAnswer) -> Iterator[BenchSection]:
    if result.costs is UNSET or result.target is UNSET:
        return
    title = f"Costs until {metric_words(result, result.target_split)} is {result.target:g}: median over the seeds"
    note = "A seed that doesn't reach it counts as more than all others; a dash where that is the median."
    places = _places(result)
    of_fleet = {fleet: list(costs) for fleet, costs in groupby(result.costs, key=lambda cost: cost.fleet)}
    if len(result.costs) > MOST_COSTS:
        table = new_table(*places, *COSTS, left=range(len(places) + len(COSTS)))
        for row in _rows(result, lambda fleet: [_lowest(of_fleet.get(fleet.fleet, ()), axis) for axis in AXES]):
            table.add_row(*row)
        in_brackets = "  In brackets: the seeds that reach it, if not all do."
        yield BenchSection(f"{title}, the lowest of each fleet", table, note + in_brackets)
        return
    table = new_table(*places, "variant", *COSTS, "", left=(*range(len(places) + 1), len(places) + 1 + len(COSTS)))
    for *named, name in _rows(result, lambda fleet: [fleet.fleet]):
        for cost in (costs := of_fleet.get(name, [])):
            cells = (or_dash(field_formatter(axis), median_cost(getattr(cost, axis))) for axis in AXES)
            missed = f"not reached in {cost.seeds - cost.reached} of {cost.seeds}" if cost.reached < cost.seeds else ""
            table.add_row(*(named if cost is costs[0] else ["" for _ in places]), cost.variant, *cells, missed)
    yield BenchSection(title, table, note)


def _lowest(costs: Sequence[BenchCost], axis: str) -> str:
    found = [(value, cost) for cost in costs if (value := median_cost(getattr(cost, axis))) is not None]
    if not found:
        return NOTHING
    value, cost = min(found, key=lambda each: each[0])
    reached = f" ({cost.reached} of {cost.seeds})" if cost.reached < cost.seeds else ""
    return f"{cost.variant}: {field_formatter(axis)(value)}{reached}"


def median_cost(values: Sequence[float | None]) -> float | None:
    """The median over seeds, those without a value (None) above all others; None if it is above all values."""
    centre = median([inf if value is None else value for value in values]) if values else inf
    return None if centre == inf else centre


def _spend_sections(result: BenchAnswer) -> Iterator[BenchSection]:
    names = runnable(result)
    for axis, each in groupby(result.spent, key=lambda spent: spent.axis):
        rows = list(each)
        noun, show = AXES[axis], field_formatter(axis)
        table = new_table("total", *names, "best", left=(0, len(names) + 1))
        for row in rows:
            means = (or_dash("{:.3f}".format, row.means.get(name)) for name in names)
            table.add_row(show(row.total), *means, _best(row.winner, row.tied, row.means.values()))
        yield BenchSection(
            f"{metric_words(result, rows[0].split)} within a total of {noun}, {free_fleet(result)}", table
        )


def _variants(result: BenchAnswer) -> BenchSection:
    tuned = any(variant.tuned is not UNSET for variant in result.variants)
    needs = [] if result.budget is UNSET else ["needs"]
    columns = ["variant", "fields", *needs, *(["tuned", "validation", "trials"] if tuned else [])]
    table = new_table(*columns, left=(0, 1, columns.index("tuned") if tuned else 0))
    notes = []
    for variant in result.variants:
        cells = [
            variant.variant,
            "\n".join(f"{path}={flow(value)}" for path, value in variant.sets.items()) or NOTHING,
        ]
        if result.budget is not UNSET:
            cells.append(_needs(variant, budget_named(result.budget).quantity.show))
        if tuned:
            score, trials = variant.tuned_score, variant.trials
            cells += ["\n".join(variant.tuned or ()) or NOTHING, NOTHING if score is UNSET else f"{score:.3f}",
                      NOTHING if trials is UNSET else str(trials)]  # fmt: skip
        table.add_row(*cells)
        notes += [f"{variant.variant} can't be run: {variant.refused}"] if variant.refused is not UNSET else []
        notes += [f"{variant.variant}: {text}" for text in variant.at_edge or ()]
    return BenchSection("Variants", table, "\n".join(notes))


def _needs(variant: BenchVariant, show: Callable[[float], str]) -> str:
    """What the variant's works take of the budget, from the least to the most."""
    if not variant.needs:
        return NOTHING
    low, high = min(variant.needs), max(variant.needs)
    return _between(low, high, show)


# --- CSV -------------------------------------------------------------------------------------------------------------


def bench_csv(result: BenchAnswer) -> str:
    """A line for each fleet, variant and seed: the score, the costs until the target is reached, and the run's folder.

    Fields are empty where there is no score, or the target isn't reached.
    """
    budget = {} if result.budget is UNSET else {"small_share": None, "low": None, "high": None}
    costs: Mapping[tuple[str, str], BenchCost] = (
        {} if result.costs is UNSET else {(cost.fleet, cost.variant): cost for cost in result.costs}
    )
    lines = []
    for fleet in result.fleets:
        place = {"fleet": fleet.fleet} | {name: getattr(fleet, name) for name in budget}
        for row in fleet.rows:
            cost = costs.get((fleet.fleet, row.variant))
            for index, seed in enumerate(result.seeds):
                line: dict[str, object] = {**place, "variant": row.variant, "seed": seed, "score": row.scores[index]}
                if result.costs is not UNSET:
                    line |= {f"{axis}_to_target": cost and getattr(cost, axis)[index] for axis in AXES}
                lines.append(line | {"run": row.runs[index]})
    return csv_text(lines)
