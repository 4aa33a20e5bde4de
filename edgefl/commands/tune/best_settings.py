"""The answer of ``edgefl tune``: the record of a search whose trials have ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

from edgefl.commands.tune.answer import AtEdge, BestSettings, RefusedTrial, SearchedField, TunedTrial, Tuning
from edgefl.commands.tune.batches import TuneSearch
from edgefl.commands.tune.trial_store import StoredTrial
from edgefl.devices.browsing import seconds_within
from edgefl.errors import DivergedError
from edgefl.records.metrics import metric_value
from edgefl.records.record import UNSET
from edgefl.runs import read_run
from edgefl.scenario.search_space import NumberRange, Searched, Side, settings_sets, settings_yaml, with_settings
from edgefl.setup.compose import at_most

SPLIT = "validation"
"""The split on which trials are scored."""


def answer_of(search: TuneSearch) -> Tuning:
    """The record of the search.  Raises DivergedError if the models of all trials diverged."""
    task, tried = search.task, [trial for trial in search.store.trials if trial.refused is None]
    best = search.best(tried)
    if best is None:
        raise DivergedError(
            f"the models of all {len(tried)} trials diverged: search lower learning rates, or clip gradients; the "
            f"trials are in {search.store.folder}"
        )
    as_given = search.best([
        trial for trial in tried if all(each.holds(trial.drawn[each.name]) for each in search.given)
    ])  # fmt: skip
    rows = [_row(search, trial) for trial in tried]
    chance = read_run(search.folder(best.number, task.seeds[0])).evaluation.chance
    full_runs = sum(row.full_runs for row in rows)
    return Tuning(
        scenario=task.base.name,
        at_most=at_most([task.base]) or UNSET,
        seconds_within=seconds_within(task.base.fleet.devices) or UNSET,
        folder=str(search.store.folder),
        metric=task.metric,
        split=SPLIT,
        better="lower" if task.lower else "higher",
        chance=metric_value(chance.get(SPLIT, {}), task.metric),
        seeds=list(task.seeds),
        asked_for=search.trials,
        exhausted=search.exhausted,
        search=[_field(each) for each in search.given],
        best=_best(search, best),
        best_as_given=None if as_given is None else _best(search, as_given),
        widened=search.widened,
        at_edge=_at_edge(search, best),
        trials=rows,
        refused=[
            RefusedTrial(number=trial.number, settings=search.settings(trial.drawn), refused=trial.refused)
            for trial in search.store.trials
            if trial.refused is not None
        ],
        full_runs=full_runs,
        full_runs_share=full_runs / (len(rows) * len(task.seeds)),
        seconds=sum(row.seconds for row in rows),
    )


def _row(search: TuneSearch, trial: StoredTrial) -> TunedTrial:
    ended = trial.ended
    assert ended is not None
    last = ended.scores[-1]
    return TunedTrial(
        number=trial.number,
        settings=search.settings(trial.drawn),
        batch=trial.batch,
        rungs=list(trial.rungs),
        reached=len(ended.scores),
        scores=ended.means,
        score=trial.score,
        seed_scores=list(last),
        deviation=_deviation(last),
        complete=trial.complete,
        diverged=ended.diverged or UNSET,
        rounds=sum(ended.rounds),
        full_runs=sum(ended.rounds) / trial.rungs[-1],
        seconds=ended.seconds,
    )


def _best(search: TuneSearch, trial: StoredTrial) -> BestSettings:
    settings, score = search.settings(trial.drawn), trial.score
    assert trial.ended is not None and score is not None
    return BestSettings(
        number=trial.number,
        settings=settings,
        score=score,
        deviation=_deviation(trial.ended.scores[-1]),
        sets=settings_sets(search.space, settings),
        yaml=settings_yaml(with_settings(search.task.base, search.space, settings), search.space),
    )


def _at_edge(search: TuneSearch, best: StoredTrial) -> list[AtEdge]:
    """The fields whose best value is at the end of what was searched."""
    found = []
    for each in search.space:
        value = search.settings(best.drawn)[each.name]
        side: Side | None = each.edge(value)
        if side is None:
            continue
        where = f"the {side} edge of {each.canonical_text}" if isinstance(each, NumberRange) else "an end of its list"
        text = f"{each.name} = {value:g} is at {where}: what lies beyond wasn't tried"
        found.append(AtEdge(path=each.name, side=side, value=value, text=text))
    return found


def _deviation(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return stdev(known) if len(known) == len(scores) > 1 else None


def _field(each: Searched) -> SearchedField:
    if isinstance(each, NumberRange):
        scale = "log" if each.by_log else "linear"
        return SearchedField(
            path=each.name, scale=scale, whole=each.whole, low=each.low, high=each.high, choices=[]
        )  # fmt: skip
    return SearchedField(path=each.name, scale="choices", whole=False, low=None, high=None, choices=each.values.values)
