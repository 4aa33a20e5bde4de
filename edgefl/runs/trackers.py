"""Logs of runs for TensorBoard and MLflow, written while a run goes on and of one that has ended."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from edgefl.errors import RunError, install_hint
from edgefl.records.metrics import split_of
from edgefl.records.reading import from_data
from edgefl.records.rounds import PLANNED, Round
from edgefl.runs import is_comparison
from edgefl.runs.durable import append_file, writing
from edgefl.runs.progress import OnProgress

if TYPE_CHECKING:
    pass

TENSORBOARD, MLFLOW = "tensorboard", "mlflow.db"
"""Names of the folder and of the file in a run's folder."""
MOST_TEXT = 500
"""Longest value of a parameter that every version of MLflow takes; 3.17 takes 6,000 (``mlflow.utils.validation``)."""


class Log(Protocol):
    """A log of one run in the format of TensorBoard or MLflow, with a local store and without a server.

    It is made from a run's records alone: the one that a run writes while it goes on (``tracker`` in the scenario)
    equals the one that ``edgefl export`` writes afterwards.
    """

    def round(self, record: Round) -> None:
        """Add a round's record."""
        ...

    def close(self, *, finished: bool) -> None:
        """Write what is left; ``finished`` tells whether the run is over."""
        ...


def scalars(record: Round) -> dict[str, float]:
    """The numbers of a round's record by their path, lists and the round left out.

    Metrics have their split in it, ``metrics.test.image.accuracy``, so that scores on two splits make no one curve.
    Amounts that were planned, whatever happened, are below ``planned``.
    """

    def walk(value: Any, path: str) -> Iterator[tuple[str, float]]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from walk(inner, f"{path}.{name}" if path else str(name))
        elif isinstance(value, int | float):
            yield path, float(value)

    found = record.to_data() | {"metrics": {split_of(work.when for work in record.server_works): record.metrics}}
    return {
        f"planned.{path}" if path in PLANNED else path: value
        for name, item in found.items() if name != "round" for path, value in walk(item, name)
    }  # fmt: skip


def options_of(scenario: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """The scenario's fields by their path, as text."""
    found: dict[str, str] = {}
    for name, value in scenario.items():
        if isinstance(value, Mapping) and value:
            found |= options_of(value, f"{prefix}{name}.")
        elif name != "compare":
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def check_tracker(tracker: str, folder: Path) -> None:
    """Raise RunError if a tracker's package is missing, with the command that installs it, or if it can't write there.

    MLflow names its store by a URL, and versions of the package behind it that take a path with "?" or "%" for
    something else would write elsewhere.
    """
    from importlib.util import find_spec

    for module in {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}.get(tracker, ()):
        if find_spec(module) is None:
            package = {"mlflow": "mlflow-skinny"}.get(module, module)
            raise RunError(
                f"{tracker} needs a package that isn't installed: pip install {package} (or, {install_hint(tracker)})"
            )
    if tracker == "mlflow":
        _store_url(folder / MLFLOW)


def _store_url(file: Path) -> str:
    """The URL of an SQLite store.  Raises RunError if it would be read as another path."""
    from sqlalchemy.engine import make_url

    url = f"sqlite:///{file.absolute()}"  # not escaped: MLflow makes the folder of a path that it reads itself
    if make_url(url).database != str(file.absolute()):
        raise RunError(
            f"MLflow can't keep its store at {file}, whose path has a character of URLs; choose another --out, or "
            "tracker: tensorboard"
        )
    return url


class TensorBoardLog:
    """Event files in ``folder``, one scalar for each number of a round.

    The wall time of an event is the virtual time at the round's end, so that TensorBoard's axis "Relative" is virtual
    time.  Raises RunError if the folder can't be written.
    """

    def __init__(self, folder: Path, label: str, scenario: Mapping[str, object]):
        check_tracker("tensorboard", folder)
        with warnings.catch_warnings(action="ignore"):  # the packages behind it warn of each other
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
            from torch.utils.tensorboard import summary

            self._event: Any = Event
            self._framed: Any = RecordWriter
            self._summary: Any = summary
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
        self.file = folder / "events.out.tfevents.0.edgefl"
        lines = "\n".join(f"    {path}: {value}" for path, value in options_of(scenario).items())
        told = self._event(step=0, wall_time=0.0, summary=self._summary.text("scenario", f"{label}\n\n{lines}"))
        self._write([self._event(file_version="brain.Event:2", wall_time=0.0), told])

    def round(self, record: Round) -> None:
        """Add a round's record: all of its events or none."""
        at, step = record.finished_virtual_seconds, record.round
        self._write([
            self._event(step=step, wall_time=at, summary=self._summary.scalar(path.replace(".", "/"), value))
            for path, value in scalars(record).items()
        ])  # fmt: skip

    def close(self, *, finished: bool) -> None:
        """Nothing is left to be written."""

    def _write(self, events: Sequence[Any]) -> None:
        records = BytesIO()
        writer = self._framed(records)
        for event in events:
            writer.write(event.SerializeToString())
        append_file(self.file, records.getvalue())


class MlflowLog:
    """A run in the SQLite store ``file``, in the experiment named like the scenario.

    A round is a step; the timestamp of a metric is the virtual time at the round's end, in ms.  A former run of the
    same label is replaced.  Raises RunError if the store can't be written.
    """

    def __init__(self, file: Path, label: str, scenario: Mapping[str, object]):
        check_tracker("mlflow", file.parent)
        self.file = file
        # MLflow would keep an id in the home directory, and send figures of its use
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with _mlflow(file):
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient

            self._metric: Callable[..., Any] = Metric
            _make_store(file)
            _check_store(file)
            self._client = MlflowClient(tracking_uri=_store_url(file))
            name = str(scenario.get("name") or "edgefl")
            found = self._client.get_experiment_by_name(name)
            artifacts = (file.parent / "mlflow-artifacts").absolute().as_uri()
            experiment = found.experiment_id if found else self._client.create_experiment(name, artifacts)
            # MLflow's filters have no escape for quotes: each is searched as any character, and tags are compared
            like = re.sub("['\"]", "_", label)
            for old in self._client.search_runs([experiment], f"tags.`edgefl.label` LIKE '{like}'"):
                if old.data.tags["edgefl.label"] == label:
                    self._client.delete_run(old.info.run_id)
            self.run_id = self._client.create_run(experiment, start_time=0, run_name=label).info.run_id
            options = options_of(scenario)
            names = mlflow_names(options)
            params = [Param(names[path], text[:MOST_TEXT]) for path, text in options.items()]
            for first in range(0, len(params), 100):
                tags = [RunTag("edgefl.label", label)] if first == 0 else []
                self._client.log_batch(self.run_id, params=params[first : first + 100], tags=tags)
        self._last = 0

    def round(self, record: Round) -> None:
        """Add a round's record."""
        at = self._last = round(1000 * record.finished_virtual_seconds)
        found = scalars(record)
        names = mlflow_names(found)
        metrics = [self._metric(names[path], value, at, record.round) for path, value in found.items()]
        with _mlflow(self.file):
            for first in range(0, len(metrics), 500):
                self._client.log_batch(self.run_id, metrics=metrics[first : first + 500])

    def close(self, *, finished: bool) -> None:
        """Say whether the run is over."""
        with _mlflow(self.file):
            status = "FINISHED" if finished else "KILLED"
            self._client.set_terminated(self.run_id, status=status, end_time=self._last)


LONGEST_NAME = 250
"""Longest name of a parameter or metric that MLflow takes (``MAX_ENTITY_KEY_LENGTH`` of 3.17)."""


def mlflow_names(paths: Iterable[str]) -> dict[str, str]:
    """Paths as MLflow takes them, ``{path: name}``, no two alike.

    ``r@1`` becomes ``r_at_1``, and brackets, slashes and the like become ``_``.  A name that is too long, or that two
    paths would have, ends with a hash of its path.
    """
    plain = {path: re.sub(r"[^\w\-. ]|^\.", "_", path.replace("@", "_at_")) for path in paths}
    times = Counter(plain.values())
    return {
        path: name
        if times[name] == 1 and len(name) <= LONGEST_NAME
        else f"{name[: LONGEST_NAME - 17]}-{blake2b(path.encode(), digest_size=8).hexdigest()}"
        for path, name in plain.items()
    }


def _check_store(file: Path) -> None:
    """Raise RunError if this isn't an SQLite file that can be written; MLflow would try again for a minute and more."""
    try:
        with closing(sqlite3.connect(file, timeout=5.0)) as store:
            store.execute("BEGIN IMMEDIATE")
            store.rollback()
    except sqlite3.Error as error:
        raise RunError(f"can't write {file}: {error}") from error


def _make_store(file: Path) -> None:
    """Make MLflow's store, if it isn't there, and let it take its place when it is whole."""
    from mlflow.tracking import MlflowClient

    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size:
        return
    partial = file.with_name(f".partial-{uuid4().hex}-{file.name}")
    try:
        MlflowClient(tracking_uri=_store_url(partial)).search_experiments(max_results=1)
        if not (file.exists() and file.stat().st_size):  # another run of a comparison may have made it meanwhile
            os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _mlflow(file: Path) -> Iterator[None]:
    """Call MLflow.  Raises RunError if its store ``file`` can't be written.

    MLflow and the packages behind it warn of each other's future versions and log their migrations.
    """
    import logging

    with warnings.catch_warnings(action="ignore"), writing(file):
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        for name in ("mlflow", "alembic"):  # mlflow sets the level of its own when it is imported
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        except (CommandError, MlflowException, SQLAlchemyError) as error:
            raise RunError(f"can't write {file}: {str(error).partition(chr(10))[0]}") from error


def log_of(tracker: str, folder: Path, label: str, scenario: Mapping[str, object]) -> Log | None:
    """The log that a run in ``folder`` writes while it goes on; None for ``none``.

    The runs of a comparison share an MLflow store in its folder, so that its pages can compare them.
    """
    if tracker == "tensorboard":
        return TensorBoardLog(folder / TENSORBOARD, label, scenario)
    if tracker == "mlflow":
        shared = folder.parent if is_comparison(folder.parent) else folder
        return MlflowLog(shared / MLFLOW, label, scenario)
    return None


class Tracked:
    """An ``on_progress`` that adds each finished round to a log, and passes everything on.

    A log that can't be written any more ends with a warning; the run goes on, since ``edgefl export`` makes the same
    log from its records.
    """

    def __init__(self, on_progress: OnProgress):
        self._log: Log | None = None
        self._on_progress = on_progress

    def open(self, make: Callable[[], Log | None]) -> None:
        """Log from now on in what ``make`` returns; None logs nothing."""
        try:
            self._log = make()
        except RunError as error:
            self._ends(error)

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        """Log a finished round, then pass the event on."""
        if event == "record":
            self.round(from_data(Round, facts, "the round's record"))
        self._on_progress(event, facts)

    def round(self, record: Round) -> None:
        """Log a finished round."""
        self._do(lambda log: log.round(record))

    def close(self, *, finished: bool) -> None:
        """Close the log."""
        self._do(lambda log: log.close(finished=finished))

    def _do(self, act: Callable[[Log], None]) -> None:
        if self._log is None:
            return
        try:
            act(self._log)
        except Exception as error:  # whatever a tracker's package raises
            self._ends(error)

    def _ends(self, error: Exception) -> None:
        self._log = None
        reason = " ".join(str(error).split())
        warnings.warn(
            f"the tracker's log ends here, and the run goes on ({reason}); edgefl export makes it from the records",
            RuntimeWarning,
            stacklevel=3,
        )
