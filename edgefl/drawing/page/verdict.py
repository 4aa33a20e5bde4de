"""What a report says in sentences: who can train, who is left out, what was learned, and what to know before that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from statistics import fmean
from typing import Any

from edgefl import units
from edgefl.drawing.charts import Records
from edgefl.drawing.charts.curves import main_metrics
from edgefl.drawing.page.matrix import ALL, Groups, Matrix, eligible, rivals_among
from edgefl.drawing.text_tables import title_of
from edgefl.records.carbon import carbon_words
from edgefl.records.epsilon import privacy_words
from edgefl.records.relays import relay_words
from edgefl.records.summary import RunSummary
from edgefl.results.facts import hardest, share
from edgefl.results.sentences import MOST_NAMED, join_names, some_names


def verdict_of(groups: Groups, matrix: Matrix) -> list[str]:
    """Sentences on one run or on several."""
    everyone = [run for runs in groups.values() for run in runs]
    if len(everyone) == 1:
        facts = everyone[0].facts
        return [_who_fits_one(facts), *_who_is_lost(facts), *_score_sentence(facts, main_metrics(everyone))]
    return [_who_fits(groups), *_who_learned(groups, matrix), *_who_is_cheap(groups, matrix)]


def _sentence(*clauses: str) -> list[str]:
    """The clauses as one sentence; none if there are none."""
    words = "; ".join(clauses)
    return [f"{words[0].upper()}{words[1:]}."] if words else []


# --- one run ---------------------------------------------------------------------------------------------------------


def _who_fits_one(facts: RunSummary) -> str:
    fits, clients, stage = eligible(facts, ALL), facts.everyone.clients, hardest(facts)
    if fits == clients:
        return f"All {clients:,} clients can train this."
    where = f" in the hardest stage, {stage.stage}" if stage is not None and len(facts.stages) > 1 else ""
    return f"{fits or 0:,.0f} of {clients:,} clients can train this{where}."


def _who_is_lost(facts: RunSummary) -> list[str]:
    refused: Counter[str] = Counter()
    for kind in stage.kinds.values() if (stage := hardest(facts)) else ():
        refused.update(kind.refused_by)
    if not refused:
        return []
    worst = max(facts.stages, key=lambda each: each.excluded.samples).excluded
    lost = f", and {units.show_share(share(worst.samples, worst.of_samples))} of the samples" if worst.samples else ""
    return _sentence(join_names([f"{budget} leaves {n:,} out" for budget, n in refused.most_common()]) + lost)


def _score_sentence(facts: RunSummary, metrics: dict[str, str]) -> list[str]:
    scores = [
        f"{kind} {title_of(name)} {value:.3f}"
        for kind, name in metrics.items()
        if (value := facts.metrics.get(kind, {}).get(name)) is not None
    ]
    after = f"after {facts.rounds:,} rounds and {facts.time_words} of virtual time"
    return _sentence(f"{join_names(scores)} {after} ({facts.score_words})") if scores else []


# --- several ---------------------------------------------------------------------------------------------------------


def _who_fits(groups: Groups) -> str:
    clients = fmean(run.facts.everyone.clients for runs in groups.values() for run in runs)
    fits = {label: fmean(eligible(run.facts, ALL) or 0.0 for run in runs) for label, runs in groups.items()}
    by_count: dict[str, list[str]] = {}
    for label, n in sorted(fits.items(), key=lambda item: -item[1]):
        by_count.setdefault(f"all {clients:,.0f}" if n == clients else f"{n:,.3g} of {clients:,.0f}", []).append(label)
    if len(by_count) == 1:
        return f"{'Under each run ' if len(groups) > 1 else ''}{next(iter(by_count))} clients can train."
    told = [f"{count} under {some_names(labels)}" for count, labels in by_count.items()]
    return f"How many clients can train: {', '.join(told if len(told) <= MOST_NAMED else [told[0], '...', told[-1]])}."


def _who_learned(groups: Groups, matrix: Matrix) -> list[str]:
    """Which runs are behind which in each kind's metric, beyond chance, and what could have been shown."""
    metrics = main_metrics([run for runs in groups.values() for run in runs])
    if len(groups) < 2 or not metrics:
        return []
    seeds = [[run.settings.seed for run in runs] for runs in groups.values()]
    if len(set.intersection(*map(set, seeds))) < 2:
        return ["With fewer than two shared seeds nothing shows which run learns best."]
    from edgefl.results.paired import rival_scores, standing_of  # as for the matrix

    told = []
    for kind, column, figures in ((part.kind, part.columns[1], part.figures[1]) for part in matrix.parts[1:]):
        for scores in rival_scores(matrix.labels, seeds, [each.values for each in figures], rivals_among(groups)):
            if kind in metrics and (words := standing_of(scores, higher=column.higher)):
                told += _sentence(f"{kind} {title_of(metrics[kind])}: {words}")
    return told


def _who_is_cheap(groups: Groups, matrix: Matrix) -> list[str]:
    """Which run takes least of each cost, if one does, of those in which somebody trained."""
    whole, trained = matrix.parts[0], [each is not None for each in rivals_among(groups)]
    labels = [*compress(matrix.labels, trained)]
    least: dict[str, list[str]] = {}
    for column, figures in zip(whole.columns, whole.figures, strict=True):
        means = [figure.mean for figure in compress(figures, trained) if figure.mean is not None]
        if column.unit in units.NAMED and len(means) == len(labels) > 1 and means.count(min(means)) == 1:
            label = labels[means.index(min(means))]
            least.setdefault(label, []).append(f"{column.title} ({units.NAMED[column.unit].show(min(means))})")
    return _sentence(*(f"{label} takes the least {join_names(words)}" for label, words in least.items()))


# --- beside the verdict ----------------------------------------------------------------------------------------------


def besides(records: Records) -> list[str]:
    """What is said of a run below its matrix: updates, relays, CO2, and how far off predicted peaks were."""
    facts, totals = records.facts, records.facts.totals
    if not facts.rounds:
        return []
    told = [f"{totals.finished:,} updates arrived; {totals.late:,} clients were late, {totals.failed:,} failed."]
    error = max((row.memory_error for row in facts.costs if row.memory_error is not None), key=abs, default=None)
    if error is not None:
        within = f"within {abs(error) * 100:.2g} %" if abs(error) >= 5e-4 else "as predicted"
        told.append(f"Peaks were measured {within}.")
    more = relay_words(totals), carbon_words(totals), privacy_words(facts.privacy)
    told += [words[:1].upper() + words[1:] + "." for words in more if words]
    return told


def notices(records: Records, path: Any) -> list[str]:
    """What a reader must know before the figures: an unfinished run, one without training, one that diverged."""
    facts, told = records.facts, []
    if not facts.finished:
        done = f"{facts.rounds} rounds are recorded" if facts.rounds else "no round is recorded yet"
        told.append(f"This run isn't finished: {done}. Continue it with: edgefl run --resume {path}")
    if not facts.trained:
        told.append("This run simulates costs without training: there are no metrics.")
    elif facts.rounds and not facts.metrics:
        told.append("Nothing has been evaluated yet (evaluation.every).")
    if facts.stopped:
        told.append(f"This run {facts.stopped}.")
    if facts.diverged_rounds:
        numbers: Sequence[int] = facts.diverged_rounds
        told.append(f"The model diverged: weights, scores or losses weren't finite after round {numbers[0]}.")
    return told
