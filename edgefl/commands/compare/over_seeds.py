"""Metrics and costs of runs, mean and spread over seeds, also at equal time, bytes and joules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from edgefl.commands.compare.answer import ComparedRuns, EqualCosts, EqualRow, Ordering, SeedGroupRow
from edgefl.commands.compare.members import FinishedRun, Members, SeedGroup
from edgefl.commands.compare.orderings import ordering_of_rows
from edgefl.commands.compare.real_devices import real_devices
from edgefl.records.epsilon import privacy_words
from edgefl.records.metrics import MEAN, lower_is_better, metric_value, metric_values, shown_metrics
from edgefl.records.summary import RunSummary, SeedFigure
from edgefl.results.equal_costs import Metrics, at_equal, curve_of
from edgefl.results.facts import compared_scores, compared_split, fitting, hardest, peak_of, rivals_of, share
from edgefl.results.paired import figures_of, rival_scores, standing_of
from edgefl.results.spread import SeedSpread, with_confidence

COSTS: dict[str, Callable[[RunSummary], float | None]] = {
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


def compared_runs(members: Members, facts_by_folder: Mapping[str, RunSummary]) -> ComparedRuns:
    """The answer of ``compare`` from the facts of each member's run, by its folder."""

    def facts(member: FinishedRun) -> RunSummary:
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
        reported=compared_scores(map(facts, everyone), split),
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
        privacy=[
            f"{group.label}: {words}"
            for group in groups
            if (words := privacy_words(facts(group.members[0]).privacy))
        ],
        equal=_equal(groups, rivals, metrics, higher),
        orderings=_orderings(groups, columns, metrics),
        real_devices=list(real_devices(member.run for member in everyone)),
        left_out=members.left_out + [
            f"the metrics of {m.run.path} are on another split than {split}"
            for m in everyone if facts(m).metrics_split != split
        ],
    )  # fmt: skip


def _metrics(all_facts: Sequence[RunSummary]) -> list[str]:
    """Metrics that any of these runs has, ``KIND.NAME``, by kind and in the order of tables; then means over kinds."""
    kinds = dict.fromkeys(kind for facts in all_facts for kind in facts.metrics)
    names = {kind: dict.fromkeys(name for facts in all_facts for name in facts.metrics.get(kind, {})) for kind in kinds}
    # metrics of samples that lack a modality have the pattern in brackets
    found = []
    for kind in kinds:
        order = {name: index for index, name in enumerate(shown_metrics(n.partition("[")[0] for n in names[kind]))}
        shown = [name for name in names[kind] if name.partition("[")[0] in order]
        shown.sort(key=lambda name: (name.partition("[")[2], order[name.partition("[")[0]]))
        found += [f"{kind}.{name}" for name in shown]
    shared = Counter(metric.partition(".")[2] for metric in found)
    return [*found, *(f"{MEAN}.{name}" for name, having in shared.items() if having > 1)]


def _scores(metrics: Sequence[Metrics | None], metric: str) -> SeedSpread:
    """A metric over the seeds; None stands for a run that wasn't evaluated."""
    values = tuple(None if each is None else metric_value(each, metric) for each in metrics)
    lacking = sum(each is None or not metric_values(each, metric) for each in metrics)
    return SeedSpread(values, values.count(None) - lacking)


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
    levels = {metric: {metric_value(chance, metric) for chance in first} for metric in metrics}
    return {metric: value for metric, found in levels.items() if len(found) == 1 and (value := found.pop()) is not None}


def _equal(
    groups: Sequence[SeedGroup], rivals: Sequence[str | None], metrics: Sequence[str], higher: Mapping[str, bool]
) -> list[EqualCosts]:
    """Each group's metrics at the largest budget that all runs reached, for each of ``AXES``."""
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
    """The verdicts on every pair of rows, for each metric that all groups have."""
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
    names = dict.fromkeys(member.run.name for group in groups for member in group.members)
    return [ordering_of_rows(", ".join(names), values, metrics)]
