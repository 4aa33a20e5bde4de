"""The trials of a search on disk: Optuna's journal in the folder, which its own tools open too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from edgefl.errors import RunError
from edgefl.files import read_regular
from edgefl.runs.digests import changed_parts
from edgefl.runs.durable import lock_folder, writing
from edgefl.runs.tables import mend

JOURNAL = "optuna.journal"
TRIALS = "trials"
"""The subfolder for the runs of the trials."""
_OURS = (JOURNAL, TRIALS, "tune.json", "best.yaml", "writer.lock")


@dataclass(frozen=True)
class Ended:
    """What a trial gave: ``scores`` `[rungs reached][seeds]`, None where the model had diverged, and what it took.

    ``rounds`` are those that each seed played.
    """

    scores: tuple[tuple[float | None, ...], ...]
    rounds: tuple[int, ...]
    seconds: float
    diverged: str | None

    @property
    def means(self) -> list[float | None]:
        """The mean over the seeds at each rung; None if one of them had diverged."""
        return [mean_of(values) for values in self.scores]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class StoredTrial:
    """A trial: what was drawn for each field, its batch, its rungs, and why it was refused or what it gave."""

    number: int
    drawn: Mapping[str, Any]
    batch: int
    rungs: tuple[int, ...]
    refused: str | None
    ended: Ended | None

    @property
    def complete(self) -> bool:
        """Whether it reached its last rung with a score."""
        ended = self.ended
        return ended is not None and len(ended.scores) == len(self.rungs) and ended.means[-1] is not None

    @property
    def score(self) -> float | None:
        """Its score at the last rung that it reached; None if it diverged, or hasn't ended."""
        return self.ended.means[-1] if self.ended is not None else None


class TrialStore:
    """The trials of a search in their order.  A trial is there with all its settings, or not at all.

    Raises RunError for a folder that another process writes, that holds something else, or the trials of another
    search: then it names what differs.
    """

    def __init__(self, library: Any, folder: Path, made_of: Mapping[str, object], *, lower: bool):
        self.folder, self.path, self._library = folder, folder / JOURNAL, library
        with writing(folder):
            if folder.exists() and not folder.is_dir():
                raise RunError(f"{folder} is a file; a search needs a new or empty folder")
            others = [path.name for path in folder.iterdir() if path.name not in _OURS] if folder.is_dir() else []
            if others and not self.path.exists():
                raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(folder)  # until this object goes
        with writing(self.path):
            self.path.touch()
            read_regular(self.path)  # a pipe or a device might never end
        mend(self.path)
        self._check_lines()
        journal = library.storages.journal
        try:
            self._storage = library.storages.JournalStorage(
                journal.JournalFileBackend(str(self.path), lock_obj=_FolderLock())
            )
            self._id = self._study(lower)
            self._check_same(made_of)
            self.trials = [self._stored_trial(each) for each in self._storage.get_all_trials(self._id)]
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise RunError(
                f"{self.path} isn't the journal of a search ({type(error).__name__}: {error}); choose another folder"
            ) from error

    def _check_lines(self) -> None:
        for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
            with suppress(ValueError, RecursionError):
                if isinstance(json.loads(line), dict):
                    continue
            raise RunError(f"{self.path}:{number}: this line is damaged: {line[:60]!r}; choose another folder")

    def _study(self, lower: bool) -> int:
        """The study in the journal, a new one if it is empty."""
        if studies := self._storage.get_all_studies():
            return int(studies[0]._study_id)
        direction = self._library.study.StudyDirection
        with writing(self.path):
            return int(self._storage.create_new_study([direction.MINIMIZE if lower else direction.MAXIMIZE], "edgefl"))

    def _check_same(self, made_of: Mapping[str, object]) -> None:
        """Raise RunError if these are the trials of another search."""
        now = json.loads(json.dumps(made_of))
        before = self._storage.get_study_user_attrs(self._id).get("made_of")
        if before is None:
            if self._storage.get_all_trials(self._id):
                raise RunError(f"{self.path} has trials that edgefl tune didn't make; choose another folder")
            with writing(self.path):
                self._storage.set_study_user_attr(self._id, "made_of", now)
        elif differences := changed_parts(before, now):
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise RunError(
                f"{self.folder} holds the trials of another search: {'; '.join(differences[:3])}{more} (then -> now); "
                "undo that, or choose another folder"
            )

    def _stored_trial(self, trial: Any) -> StoredTrial:
        attributes = trial.user_attrs
        ended = attributes.get("ended") if trial.state.is_finished() else None
        return StoredTrial(
            trial.number,
            dict(trial.params),
            attributes["batch"],
            tuple(attributes["rungs"]),
            attributes.get("refused"),
            None
            if ended is None
            else Ended(tuple(map(tuple, ended["scores"])), tuple(ended["rounds"]), ended["seconds"], ended["diverged"]),
        )

    def add(self, drawn: Mapping[str, Any], given: Mapping[str, Any], batch: int, rungs: Sequence[int],
            refused: str | None) -> StoredTrial:  # fmt: skip
        """Add a trial with what was drawn from the distributions ``given``: one to be run, or a refused one."""
        states = self._library.trial.TrialState
        attributes = {"batch": batch, "rungs": list(rungs)} | ({} if refused is None else {"refused": refused})
        template = self._library.trial.create_trial(
            state=states.RUNNING if refused is None else states.PRUNED,
            params=dict(drawn), distributions=dict(given), user_attrs=attributes,
        )  # fmt: skip
        with writing(self.path):
            self._storage.create_new_trial(self._id, template_trial=template)
        self.trials.append(StoredTrial(len(self.trials), dict(drawn), batch, tuple(rungs), refused, None))
        return self.trials[-1]

    def end(self, number: int, ended: Ended) -> None:
        """Write what a trial gave; one that has ended stays as it is."""
        trial = self.trials[number]
        if trial.ended is not None:
            return
        self.trials[number] = trial = StoredTrial(number, trial.drawn, trial.batch, trial.rungs, None, ended)
        states = self._library.trial.TrialState
        known = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        facts = {
            "scores": [list(values) for values in ended.scores], "rounds": list(ended.rounds),
            "seconds": ended.seconds, "diverged": ended.diverged,
        }  # fmt: skip
        with writing(self.path):
            self._storage.set_trial_user_attr(known, "ended", facts)
            for step, mean in enumerate(ended.means, start=1):
                if mean is not None:
                    self._storage.set_trial_intermediate_value(known, step, mean)
            if trial.complete:
                self._storage.set_trial_state_values(known, states.COMPLETE, [ended.means[-1]])
            else:
                self._storage.set_trial_state_values(known, states.PRUNED)


class _FolderLock:
    """A lock of Optuna's journal that is always held: the folder's own lock keeps other processes away.

    Optuna's would outlive a killed process and keep the next one waiting.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass
