"""Drawing the settings of trials: Optuna's TPE, seeded for each trial by the scenario's seed and the trial's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import exp, log, prod
from typing import Any

from edgefl import seeds
from edgefl.commands.tune.trial_store import StoredTrial
from edgefl.errors import RunError, install_hint
from edgefl.scenario.search_space import NumberRange, Searched

TIMES = 10
"""How often settings that were tried before are drawn again.

A choice, not measured: each costs a study of all trials so far; after so many, the first that is left is taken.
"""


def optuna() -> Any:
    """The module ``optuna``.  Raises RunError, with the command that installs it, if it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise RunError(
            f"edgefl tune needs a package that isn't installed: pip install optuna (or, {install_hint('tune')})"
        ) from error
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna tells of warnings only; what the caller had set is set again."""
    logging = optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def distributions(space: Sequence[Searched]) -> dict[str, Any]:
    """Optuna's distributions by name."""
    kinds = optuna().distributions
    found: dict[str, Any] = {}
    for each in space:
        if not isinstance(each, NumberRange):
            found[each.name] = kinds.CategoricalDistribution(each.labels)
        elif each.whole:
            found[each.name] = kinds.IntDistribution(int(each.low), int(each.high), log=each.by_log)
        else:
            found[each.name] = kinds.FloatDistribution(each.low, each.high, log=each.by_log)
    return found


def draw_settings(
    space: Sequence[Searched],
    trials: Sequence[StoredTrial],
    seed: int,
    *,
    lower: bool,
    first: int,
    fixed: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """What the next trial gets, by name, none twice; None if there are no other settings.

    The ``first`` trials are spread evenly over every range, its ends included, and over every list.  Later ones come
    from the sampler; ``fixed`` are numbers that this one has to have.  All this is a function of the trials so far,
    whatever order they ended in: those under way count as bad ones (a constant liar), so that a batch spreads.
    """
    number, known = len(trials), [dict(each.drawn) for each in trials]
    if number < first:
        found = {each.name: _spread(each, seed, number, first) for each in space}
        if found not in known:
            return found
    for again in range(TIMES):
        key = seeds.key(seed, "tune", number, again)
        found = _settings_from(space, _ask_sampler(space, trials, key, lower, first, fixed if not again else None))
        if found not in known:
            return found
    sizes = [each.size for each in space if each.size is not None]
    if len(sizes) < len(space):
        return found
    if prod(sizes) <= len(known):
        return None
    names = [each.name for each in space]
    finite = (dict(zip(names, values)) for values in product(*(each.all_drawn() for each in space)))
    return next(found for found in finite if found not in known)


def _spread(each: Searched, seed: int, number: int, of: int) -> Any:
    """The value of trial ``number`` of a Latin hypercube of so many trials (McKay, Beckman and Conover 1979)."""
    place = int(seeds.generator(seed, f"tune {each.name}").permutation(of)[number])
    if not isinstance(each, NumberRange):
        return each.labels[place * each.size // of]
    share = place / (of - 1) if of > 1 else 0.5
    return number_at(each, each.low, each.high, share)


def number_at(span: NumberRange, low: float, high: float, share: float) -> int | float:
    """The number of a range at this share of the way from ``low`` to ``high``, in the range's scale."""
    number = exp(log(low) + share * (log(high) - log(low))) if span.by_log else low + share * (high - low)
    return span.setting(round(number) if span.whole else number)


def _settings_from(space: Sequence[Searched], params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        each.name: each.setting(params[each.name]) if isinstance(each, NumberRange) else params[each.name]
        for each in space
    }


def _ask_sampler(
    space: Sequence[Searched],
    trials: Sequence[StoredTrial],
    key: int,
    lower: bool,
    first: int,
    fixed: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a sampler with this seed gives, that knows these trials and nothing else."""
    library, given = optuna(), distributions(space)
    sampler = library.samplers.TPESampler(
        seed=key % 2**32, n_startup_trials=first, multivariate=True, constant_liar=True
    )
    with quiet():
        study = library.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
        study.add_trials([_optuna_trial(each, given) for each in trials])
        if fixed:
            study.enqueue_trial(dict(fixed))
        found: dict[str, Any] = study.ask(given).params
    return found


def _optuna_trial(trial: StoredTrial, given: Mapping[str, Any]) -> Any:
    """A trial as the sampler sees it: refused and diverged ones without a score are the worst."""
    library = optuna()
    state, states = {}, library.trial.TrialState
    if trial.ended is None and trial.refused is None:
        state = {"state": states.RUNNING}
    elif trial.ended is None or trial.ended.diverged is not None:
        state = {"state": states.PRUNED}
    else:
        means = {step: mean for step, mean in enumerate(trial.ended.means, start=1) if mean is not None}
        last = {"value": means[max(means)]} if trial.complete else {}
        state = {"state": states.COMPLETE if trial.complete else states.PRUNED, "intermediate_values": means, **last}
    return library.trial.create_trial(params=dict(trial.drawn), distributions=dict(given), **state)
