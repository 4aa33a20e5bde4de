"""The answer of ``edgefl tune``: the settings that scored best on validation, and the trials that were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import OfScenario
from edgefl.records.record import UNSET, Keys, Maybe, Record, Rounds, Share

Settings = Annotated[Mapping[str, object], Keys("PATH")]


class SearchedField(Record):
    """A field that is searched."""

    path: str
    """Its path: `training.lr`"""
    scale: str
    """`log` or `linear` for a range, `choices` for a list"""
    whole: bool
    """Whether only whole numbers are drawn"""
    low: float | None
    """Lower end of the range as given; `null` for a list"""
    high: float | None
    """Its upper end, likewise"""
    choices: Sequence[object]
    """The values of a list; empty for a range"""


class TunedTrial(Record):
    """A trial: settings, and what they scored."""

    number: int
    """Its number, from 0, as in Optuna's storage"""
    settings: Settings
    """Value of a searched field"""
    batch: int
    """The batch that it was drawn in, from 1"""
    rungs: Sequence[Rounds]
    """Rounds after which it was scored or would have been; the last is the schedule's last"""
    reached: int
    """How many of them it reached"""
    scores: Sequence[float | None]
    """The metric at each of these, mean over the seeds; `null` where the model had diverged"""
    score: float | None
    """The last of them; `null` if the model diverged"""
    seed_scores: Sequence[float | None]
    """The same by seed"""
    deviation: float | None
    """Its standard deviation over the seeds (n - 1); `null` for one seed"""
    complete: bool
    """Whether it played all rounds, or ended by itself (`stop`), without diverging"""
    diverged: str | Maybe = UNSET
    """Where the model diverged; only where it did"""
    rounds: Rounds
    """Rounds that were played, of all seeds together"""
    full_runs: float
    """The same in full runs: rounds played by rounds of the schedule"""
    seconds: float
    """Wall time of its rounds on this machine, without what an interruption lost"""


class RefusedTrial(Record):
    """Settings that weren't tried."""

    number: int
    """Its number"""
    settings: Settings
    """Value of a searched field"""
    refused: str
    """The reason: the budgets that no client meets, or why the scenario can't be run"""


class Widening(Record):
    """A range that was widened, or couldn't be, since the best trial so far was at its edge."""

    path: str
    """The field"""
    side: str
    """`lower` or `upper`"""
    after: int
    """Trials that were drawn before"""
    best: int
    """The best trial so far"""
    value: float
    """Its value of the field"""
    old: float
    """The end of the range until then"""
    new: float | None
    """The end from then on; `null` if the field takes none beyond"""
    why_not: str | Maybe = UNSET
    """Why it wasn't widened; only then"""


class AtEdge(Record):
    """A field whose best value is at the end of what was searched."""

    path: str
    """The field"""
    side: str
    """`lower` or `upper`"""
    value: float
    """The best trial's value"""
    text: str
    """The same in a sentence"""


class BestSettings(Record):
    """The trial that scored best of those that got furthest without diverging, to the last round as a rule."""

    number: int
    """Its number"""
    settings: Settings
    """Value of a searched field"""
    score: float
    """The metric on validation"""
    deviation: float | None
    """Its standard deviation over the seeds; `null` for one seed"""
    sets: Sequence[str]
    """The settings as `path=value`, for `--set`"""
    yaml: str
    """The settings as sections of a scenario"""


class Tuning(OfScenario):
    """The settings of a scenario that scored best on validation, of those that were tried."""

    folder: str
    """The folder of the trials"""
    metric: str
    """What is optimised, `KIND.NAME`"""
    split: str
    """The split that it is computed on: `validation`"""
    better: str
    """`higher` or `lower`"""
    chance: float | None
    """Chance level of the metric; `null` if it has none"""
    seeds: Sequence[int]
    """Seeds over which a trial's score is the mean"""
    asked_for: int
    """Trials that were asked for"""
    exhausted: bool
    """Whether there were fewer settings than that, and all of them were tried"""
    search: Sequence[SearchedField]
    """What is searched, as given"""
    best: BestSettings
    """The best of all trials"""
    best_as_given: BestSettings | None
    """The best of those whose settings lie in the ranges as given; `null` if their models diverged"""
    widened: Sequence[Widening]
    """Ranges that were widened"""
    at_edge: Sequence[AtEdge]
    """Fields whose best value is at the end of what was searched, in the end"""
    trials: Sequence[TunedTrial]
    """The trials"""
    refused: Sequence[RefusedTrial]
    """Settings that no budget admits or that can't be run, beside the trials"""
    full_runs: float
    """What all trials took together, in full runs"""
    full_runs_share: Share
    """The same as a share of what playing every trial to the end would take"""
    seconds: float
    """Wall time of all trials' rounds together, without what an interruption lost"""
