"""``edgefl compare``: metrics and costs of runs, mean and spread over seeds, also at equal time, bytes and joules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgefl.commands.compare.answer import ComparedRuns, EqualCosts, EqualRow, Ordering, SeedGroupRow
from edgefl.commands.compare.members import FinishedRun, Members, SeedGroup, members_of
from edgefl.commands.compare.orderings import ordering_of_rows, ordering_of_study, tables_of
from edgefl.records.rounds import lower_is_better
from edgefl.records.summary import RunSummary, SeedFigure
from edgefl.results.facts import (
    RoundFacts,
    compared_split,
    facts_of,
    fitting,
    hardest,
    peak_of,
    rivals_of,
    share,
    shown_metrics,
)
from edgefl.results.paired import figures_of, rival_scores, standing_of
from edgefl.results.spread import SeedSpread, with_confidence
from edgefl.runs import Run
from edgefl.runs.progress import OnProgress, silent

Facts = RunSummary

COSTS: dict[str, Callable[[Facts], float]] = {
    "eligible_share": lambda facts: share(*fitting(stage)) if (stage := hardest(facts)) else 0.0,
    "eligible_share_ever": lambda facts: share(facts.everyone.eligible_ever, facts.everyone.clients),
    "took_part_share": lambda facts: share(facts.everyone.took_part, facts.everyone.clients),
    "updates": lambda facts: facts.totals.finished,
    "peak_memory_bytes": lambda facts: max((peak_of(facts, kind) for kind in facts.kinds), default=0),
    "bytes": lambda facts: facts.totals.carried_bytes,
    "flops": lambda facts: facts.totals.executed_flops,
    "virtual_seconds": lambda facts: facts.virtual_seconds,
    "energy_joules": lambda facts: facts.totals.energy_joules,
}
"""Figures of a whole run beside its metrics: bytes, FLOPs and joules are those of all clients together."""
MORE_IS_BETTER = ("eligible_share", "eligible_share_ever", "took_part_share", "updates")
"""Those of COSTS of which more is better."""


def compare(runs: Sequence[str | os.PathLike[str]], *, on_progress: OnProgress = silent) -> ComparedRuns:
    """Compare finished runs: mean and spread over seeds of every group of runs that differ in their seeds only.

    Args:
        runs: Folders of runs and of comparisons.  Runs that aren't finished are left out.
        on_progress: Called with the name of an event and its facts.

    Returns:
        A record: ``rows`` (a group each, with ``figures`` over its seeds), ``equal`` (metrics at equal virtual time,
        bytes and joules), ``orderings`` (which row is ahead of which beyond the spread) and ``left_out``.

    Raises:
        RunError: A folder is no run's, its files can't be read, or no run is finished.
    """
    members = members_of(runs)
    all_members = [member for group in members.groups for member in group.members]
    on_progress("prepare", {"what": f"reading {len(all_members)} run{'s' if len(all_members) > 1 else ''}"})
    facts = {str(member.run.path): facts_of(member.run) for member in all_members}
    return compared_runs(members, facts)


def compared_runs(members: Members, facts_by_folder: Mapping[str, Facts]) -> ComparedRuns:
    """The result of ``compare`` from the facts of each member's run, by its folder."""

    def facts(member: FinishedRun) -> Facts:
        return facts_by_folder[str(member.run.path)]

    groups = members.groups
    everyone = [member for group in groups for member in group.members]
    metrics, split = _metrics([*map(facts, everyone)]), compared_split([*map(facts, everyone)])
    columns = {
        metric: [_scores([facts(m).metrics_on(split) for m in g.members], metric) for g in groups] for metric in metrics
    }
    columns |= {
        name: [SeedSpread(tuple(of(facts(m)) for m in g.members)) for g in groups] for name, of in COSTS.items()
    }
    confidence = with_confidence(columns["virtual_seconds"])
    seeds = [group.seeds for group in groups]
    rivals = [rivals_of((member.run.settings, facts(member)) for member in group.members) for group in groups]
    higher = {name: name in MORE_IS_BETTER if name in COSTS else not lower_is_better(name) for name in columns}
    table = {name: figures_of(seeds, spreads, rivals, higher=higher[name]) for name, spreads in columns.items()}
    return ComparedRuns(
        spread="95 % interval" if confidence else "standard deviation",
        metrics=metrics,
        split=split,
        chance=_chances(split, groups, metrics),
        rows=[
            SeedGroupRow(
                label=group.label,
                sets=group.sets,
                seeds=group.seeds,
                runs=[str(member.run.path) for member in group.members],
                figures={name: cells[index] for name, cells in table.items()},
            )
            for index, group in enumerate(groups)
        ],
        standings=_standings(groups, rivals, table, metrics, higher),
        also_differ=[
            path
            for path in members.also
            # schedules that say their rounds in other words may play as many
            if path != "schedule.rounds" or len({facts(m).rounds for group in groups for m in group.members}) > 1
        ],
        stopped=[
            f"{group.label}{f', seed {member.seed}' if len(group.members) > 1 else ''}: {text}"
            for group in groups
            for member in group.members
            if (text := facts(member).stopped)
        ],
        equal=_equal(groups, rivals, metrics, higher),
        orderings=_orderings(groups, columns, metrics),
        left_out=members.left_out + [
            f"the metrics of {m.run.path} are on another split than {split}"
            for m in everyone if facts(m).metrics_split != split
        ],
    )  # fmt: skip


def _metrics(all_facts: Sequence[Facts]) -> list[str]:
    """Metrics that any of these runs has, ``KIND.NAME``, by kind and in the order of tables."""
    kinds = dict.fromkeys(kind for facts in all_facts for kind in facts.metrics)
    names = {kind: dict.fromkeys(name for facts in all_facts for name in facts.metrics.get(kind, {})) for kind in kinds}
    # metrics of samples that lack a modality have the pattern in brackets
    found = []
    for kind in kinds:
        order = {name: index for index, name in enumerate(shown_metrics(n.partition("[")[0] for n in names[kind]))}
        shown = [name for name in names[kind] if name.partition("[")[0] in order]
        shown.sort(key=lambda name: (name.partition("[")[2], order[name.partition("[")[0]]))
        found += [f"{kind}.{name}" for name in shown]
    return found


def _scores(metrics: Sequence[Metrics | None], metric: str) -> SeedSpread:
    """A metric over the seeds; None stands for a run that wasn't evaluated."""
    values = tuple(None if each is None else _metric_value(each, metric) for each in metrics)
    kind, name = metric.split(".", 1)
    lacking = sum(each is None or name not in each.get(kind, {}) for each in metrics)
    return SeedSpread(values, values.count(None) - lacking)


def _metric_value(metrics: Metrics, metric: str) -> float | None:
    kind, name = metric.split(".", 1)
    return metrics.get(kind, {}).get(name)


def _standings(
    groups: Sequence[SeedGroup], rivals: Sequence[str | None], table: Mapping[str, Sequence[SeedFigure]],
    metrics: Sequence[str], higher: Mapping[str, bool],
) -> dict[str, str]:  # fmt: skip
    """Who of its rivals is behind whom in each metric, in words."""
    labels, seeds, told = [group.label for group in groups], [group.seeds for group in groups], {}
    for metric in metrics:
        found = rival_scores(labels, seeds, [cell.values for cell in table[metric]], rivals)
        told[metric] = "; ".join(filter(None, (standing_of(scores, higher=higher[metric]) for scores in found)))
    return told


def _chances(split: str, groups: Sequence[SeedGroup], metrics: Sequence[str]) -> dict[str, float]:
    """The chance level of each metric for which the first runs of all groups have the same one."""
    first = [group.members[0].run.evaluation.chance.get(split, {}) for group in groups]
    levels = {metric: {_metric_value(chance, metric) for chance in first} for metric in metrics}
    return {metric: value for metric, found in levels.items() if len(found) == 1 and (value := found.pop()) is not None}


def _equal(
    groups: Sequence[SeedGroup], rivals: Sequence[str | None], metrics: Sequence[str], higher: Mapping[str, bool]
) -> list[EqualCosts]:
    """Each group's metrics at the largest budget that all runs reached, for each of ``budgets.AXES``."""
    runs, seeds = [member.run for group in groups for member in group.members], [group.seeds for group in groups]
    splits = list(dict.fromkeys(s for r in runs for s in (r.settings.evaluation.final, r.settings.evaluation.split)))
    found = []
    for equal in at_equal([curve_of(run) for run in runs], splits):
        pick = dict(zip((run.path for run in runs), equal.evaluations, strict=True))
        picks = [[pick[member.run.path] for member in group.members] for group in groups]
        scores = [[None if e is None else e.metrics for e in row] for row in picks]
        spreads = {metric: [_scores(row, metric) for row in scores] for metric in metrics}
        columns = {metric: figures_of(seeds, of, rivals, higher=higher[metric]) for metric, of in spreads.items()}
        found.append(
            EqualCosts(
                axis=equal.axis,
                budget=equal.budget,
                split=equal.split,
                chance=_chances(equal.split, groups, metrics),
                rows=[
                    EqualRow(
                        label=group.label,
                        rounds=[None if e is None else e.round for e in picks[index]],
                        figures={metric: cells[index] for metric, cells in columns.items()},
                    )
                    for index, group in enumerate(groups)
                ],
                standings=_standings(groups, rivals, columns, metrics, higher),
            )
        )
    return found


def _orderings(
    groups: Sequence[SeedGroup], columns: Mapping[str, Sequence[SeedSpread]], metrics: Sequence[str]
) -> list[Ordering]:
    """The studies that the runs belong to; of other runs every pair of rows."""
    runs = [member.run for group in groups for member in group.members]
    if tables := [table for table in tables_of(runs) if table.variants]:
        return [ordering_of_study(table) for table in tables]
    if len(groups) < 2:
        return []
    values = {
        group.label: {
            metric: {
                member.seed: value
                for member, value in zip(group.members, columns[metric][index].values, strict=True)
                if value is not None
            }
            for metric in metrics
        }
        for index, group in enumerate(groups)
    }
    names = dict.fromkeys(run.name for run in runs)
    return [ordering_of_rows(", ".join(names), values, metrics)]


AXES = ("virtual_seconds", "bytes", "energy_joules")
"""What runs are held equal in: the virtual clock, bytes that all clients' links carried, and energy of all clients."""
ROUNDING = 1e-9
"""Sums of equal costs in another order differ by this share at most (see ``verify.conservation.CLOSE``)."""

Metrics = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class KindEvaluation:
    """The metrics of an evaluation by kind, its round and split, and what the run had spent by then, by AXES."""

    round: int
    split: str
    metrics: Metrics
    spent: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, in order, what the whole run spent, by AXES, and whether anybody trained in it."""

    evaluations: tuple[KindEvaluation, ...]
    spent: Mapping[str, float]
    has_update: bool = True

    def last(self, axis: str, budget: float, split: str | None = None) -> KindEvaluation | None:
        """The last evaluation, on this split if one is given, that the budget allows; None if there is none."""
        allowed = [e for e in self.evaluations if e.spent[axis] <= budget * (1 + ROUNDING) and split in (None, e.split)]
        return allowed[-1] if allowed else None


def curve_of(run: Run) -> Curve:
    """The curve of a finished run.  Raises RunError for records that lack a field."""
    rounds = list(run.read(RoundFacts))
    spent_by_round = [
        dict(zip(AXES, amounts, strict=True))
        for amounts in zip(
            (r.finished_virtual_seconds for r in rounds),
            accumulate(float(r.carried_bytes) for r in rounds),
            accumulate(r.energy_joules for r in rounds),
            strict=True,
        )
    ]
    evaluations = tuple(
        KindEvaluation(r.round, r.split, r.metrics, spent)
        for r, spent in zip(rounds, spent_by_round, strict=True)
        if r.metrics
    )
    spent = spent_by_round[-1] if spent_by_round else dict.fromkeys(AXES, 0.0)
    return Curve(evaluations, spent, any(r.finished for r in rounds))


@dataclass(frozen=True)
class Equal:
    """Runs at one ``budget``: the ``split`` of the evaluations, and each run's last evaluation within the budget."""

    axis: str
    budget: float
    split: str
    evaluations: tuple[KindEvaluation | None, ...]


def at_equal(curves: Sequence[Curve], splits: Sequence[str]) -> list[Equal]:
    """For each of AXES the runs' last evaluations within the largest budget that all runs with an update reached.

    The metric is a step function of what was spent: it keeps the value of the last evaluation until the next one.  If
    these evaluations are on several splits (a run's last one is on ``evaluation.final``), those on the first of
    ``splits`` that gives every run an evaluation are taken instead, else those on the first.
    """
    found = []
    for axis in AXES:
        budget = min((c.spent[axis] for c in curves if c.has_update), default=max(c.spent[axis] for c in curves))
        picks = [curve.last(axis, budget) for curve in curves]
        on = {pick.split for pick in picks if pick is not None}
        if len(on) <= 1:
            found.append(Equal(axis, budget, next(iter(on), splits[0]), tuple(picks)))
            continue
        by_split = {split: [curve.last(axis, budget, split) for curve in curves] for split in splits}
        split = next((split for split, picks in by_split.items() if None not in picks), splits[0])
        found.append(Equal(axis, budget, split, tuple(by_split[split])))
    return found
