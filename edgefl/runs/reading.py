"""Reading a run's folder: tables, results and trained models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic import ValidationError
from safetensors import SafetensorError

from edgefl import html
from edgefl.errors import RunError, UnknownName
from edgefl.files import read_regular
from edgefl.records.clients import Executed
from edgefl.records.metrics import Metrics, split_of
from edgefl.records.reading import decode as decode_record
from edgefl.records.reading import from_data, located_records
from edgefl.records.record import Record, or_nan, part_of, whole_of
from edgefl.records.rounds import EarlyStop, Round, RoundTimes, ServerWorkRecord
from edgefl.records.run import BestRecord, Environment, EvaluationFacts, FinalSummary
from edgefl.records.settings import Settings
from edgefl.runs import tables
from edgefl.runs.columns import flatten, prepend_columns, varied_columns
from edgefl.runs.contents import BEST_FILE, CHECKPOINTS, PREPROCESSING, check_contents, read_bytes, read_json
from edgefl.runs.folders import (
    RECORDS,
    TABLES,
    Table,
    check_formats,
    check_run_folder,
    comparison,
    comparison_sets,
    is_comparison,
    is_run,
)
from edgefl.units import show_bytes, show_seconds
from edgefl.yaml_lines import KeyPath, decode
from edgefl.yaml_lines import parse_yaml as read_yaml

if TYPE_CHECKING:  # a finished run is shown without them
    import pandas as pd
    from torch import Tensor, nn

    from edgefl.models.model import ModelDescription
    from edgefl.models.preprocessing import Preprocessing


R = TypeVar("R", bound=Record)

_FILES: Mapping[type[Record], str] = {
    FinalSummary: "result.json", EvaluationFacts: "evaluation.json", Environment: "environment.json"
}  # fmt: skip


@part_of(Round)
class _Headline(RoundTimes, Executed):
    """What a notebook shows of a round."""

    server_works: Sequence[ServerWorkRecord]
    metrics: Metrics
    energy_joules: float | None


Frame = Table | Literal["client_evaluations", "client_metrics"]
"""Tables that a run gives as DataFrames; the last two are parts of the records of clients and of rounds."""


class Run:
    """One run, finished or not, or a comparison of several runs.

    Tables are DataFrames with one column per field; nested fields are joined by a dot (``memory_bytes.activations``).
    Each has the columns ``method``, ``schedule`` and ``seed`` of its run.  In a comparison ``runs`` has every run by
    its label, and each table holds the rows of all runs, with the label in a first column ``run`` and every field that
    the comparison varies in a column of its path (``training.batch``).  The page about records has every field with
    its unit.

    Examples:
        >>> import edgefl
        >>> run = edgefl.read_run("runs/small")
        >>> run.rounds[["round", "selected", "finished"]]
           round  selected  finished
        0      1         2         2
        1      2         2         2
        >>> run.result.rounds
        2
        >>> sorted(run.result.metrics["image"])[:2]
        ['accuracy', 'balanced_accuracy']
    """

    def __init__(self, path: Path):
        self.path = path

    def __fspath__(self) -> str:
        """The folder, so that a run stands where a folder of one is asked for."""
        return str(self.path)

    def __repr__(self) -> str:
        """The folder, and what was run there: ``<Run runs/mine: fedavg, layerwise, seed 1, 12 rounds>``."""
        try:
            if is_comparison(self.path):
                of = len(comparison(self.path))
                done = sum(run.is_finished for run in self.runs.values())
                words = f"comparison of {of} runs{'' if done == of else f', {done} of them finished'}"
            else:
                method, schedule, seed = self._names().values()
                rounds = f"{self.result.rounds} rounds" if self.is_finished else "not finished"
                words = f"{method}, {schedule}, seed {seed}, {rounds}"
        except RunError as error:
            words = str(error)
        return f"<Run {self.path}: {words}>"

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The runs of a comparison that were begun, by label; empty for one run."""
        if not is_comparison(self.path):
            return {}
        folders = {label: folder for label, folder in comparison(self.path).items() if is_run(folder)}
        for folder in folders.values():
            check_contents(folder)
        return {label: Run(folder) for label, folder in folders.items()}

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """The scenario with every default written out.  Raises RunError if it can't be read."""
        path = self.path / "scenario.yaml"

        def refuse(message: str, line: int | None, _: KeyPath) -> RunError:
            return RunError(f"can't read {path}{f':{line}' if line else ''}: {message}")

        try:
            text = decode(read_regular(path), refuse)
        except OSError as error:
            raise RunError(f"can't read {path}: {error.strerror or error}") from error
        scenario, _ = read_yaml(text, refuse, nouns="scenarios")
        if not isinstance(scenario, dict):
            raise RunError(f"can't read {path}: it holds no mapping of sections")
        return scenario

    @property
    def name(self) -> str:
        """The scenario's name, or the folder's if it has none.  Raises RunError if the scenario can't be read."""
        return str(self.scenario.get("name", self.path.name))

    @cached_property
    def settings(self) -> Settings:
        """What the scenario says of the run, as far as its records are read with it.  Raises RunError."""
        return from_data(Settings, self.scenario, self.path / "scenario.yaml")

    @cached_property
    def environment(self) -> Environment:
        """What the run ran on: versions and hardware.  Raises RunError if it can't be read."""
        return self._file(Environment)

    @cached_property
    def models(self) -> dict[str, ModelDescription]:
        """The description of each client kind's model at full depth, ``{kind: description}``."""
        return cast("dict[str, ModelDescription]", read_json(self.path / "models.json"))

    @cached_property
    def evaluation(self) -> EvaluationFacts:
        """Server evaluation: ``samples`` by split and kind, ``chance`` (chance levels) by split, kind and metric.

        Both are empty until data are open.  Raises RunError for a comparison.
        """
        self._one_run()
        return self.read_file(EvaluationFacts) or EvaluationFacts(samples={}, chance={})

    @property
    def is_finished(self) -> bool:
        """Whether the run, or every run of the comparison, is finished."""
        if is_comparison(self.path):
            return len(self.runs) == len(comparison(self.path)) and all(run.is_finished for run in self.runs.values())
        return (self.path / "result.json").exists()

    @property
    def result(self) -> FinalSummary:
        """The final summary: rounds, virtual seconds, metrics and totals.

        Raises RunError if the run isn't finished, if it is a comparison, and if the file can't be read.
        """
        self._finished_run()
        return self._file(FinalSummary)

    def records(self, table: Table) -> list[dict[str, Any]]:
        """The records of a table as they were written, a dictionary for each line.

        ``table`` is one of ``TABLES``, such as ``"rounds"``.  Raises UnknownName, and RunError for a damaged file.
        """
        return list(self.each(table))

    def each(self, table: Table) -> Iterator[dict[str, Any]]:
        """The same records one after the other, for a table that is larger than memory.  Raises the same."""
        if table not in TABLES:
            raise UnknownName("table", table, TABLES)
        return tables.each(self.path / f"{table}.jsonl")

    def read(self, cls: type[R]) -> Iterator[R]:
        """The records of a class, or of a part of one (``edgefl.records``), one after the other, from their table.

        Raises RunError, with file, line and field, for a record that isn't one.
        """
        return (record for record, _ in self.read_lines(cls))

    def read_lines(self, cls: type[R]) -> Iterator[tuple[R, str]]:
        """The same with the place of each, ``clients.jsonl:3``."""
        return located_records(self.path / f"{RECORDS[whole_of(cls)]}.jsonl", cls)

    def read_file(self, cls: type[R]) -> R | None:
        """The record in a file of its own: a Result, an Evaluation, an Environment; None if it isn't there.

        Raises RunError, with file and field, for one that holds something else.
        """
        return self._file(cls) if (self.path / _FILES[whole_of(cls)]).exists() else None

    def _file(self, cls: type[R]) -> R:
        path = self.path / _FILES[whole_of(cls)]
        return decode_record(cls, read_bytes(path), path)

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per round."""
        return self._frame("rounds")

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client that was sent off, in the round in which it landed."""
        return self._frame("clients")

    @property
    def client_evaluations(self) -> pd.DataFrame:
        """One row per evaluation of a client on its own held-out samples; empty without ``evaluation.clients``."""
        return self._frame("client_evaluations")

    @property
    def client_metrics(self) -> pd.DataFrame:
        """One row per evaluated round and group of clients, with each metric's mean, spread and worst tenth.

        Groups are ``by`` all, eligibility, kind, device and modality; empty without ``evaluation.clients``.
        """
        return self._frame("client_metrics")

    @property
    def scratch(self) -> pd.DataFrame:
        """One row per call of an operator whose kernel's memory a prediction needed."""
        return self._frame("scratch")

    @property
    def eligibility(self) -> pd.DataFrame:
        """One row per verdict: a client (in a large fleet all alike) and the stage that it was judged for."""
        return self._frame("eligibility")

    @property
    def host(self) -> pd.DataFrame:
        """What clients' works took on the machine that ran the simulation: not equal between equal runs."""
        return self._frame("host")

    @property
    def nodes(self) -> pd.DataFrame:
        """One row per task of a client that is a device of its own, by the wall clock; empty for a simulation."""
        return self._frame("nodes")

    @property
    def tokenizer_path(self) -> Path | None:
        """The file of the tokenizer, or None if no text was trained."""
        path = self.path / "tokenizer.json"
        return path if path.exists() else None

    def weights(self, which: str = "final") -> dict[str, Tensor]:
        """The final weights on the CPU, ``{address: tensor}``; an address is ``KIND/PARAMETER`` or ``table/NAME``.

        ``export/KIND/PARAMETER`` is what ``model`` has instead, if the method exports other values.
        ``which="best"`` gives those of the best evaluation (``evaluation.best``), whose round and value ``best`` says.
        Raises RunError if the run isn't finished, if it is a comparison, if it has no best weights, or if the file
        can't be read.
        """
        from safetensors.torch import load_file

        self._finished_run()
        if which not in WEIGHTS:
            raise RunError(f"a run has final and best weights, not {which!r:.80}")
        if which != "final" and not self.best:
            raise RunError(f"{self.path} has no best weights: it has no evaluation.best and no stop.metric")
        try:
            tensors: dict[str, Tensor] = load_file(self.path / WEIGHTS[which])
        except (OSError, SafetensorError) as error:
            raise RunError(f"can't read the weights of {self.path}: {error}") from error
        return tensors

    def client_tensors(self) -> Mapping[int, dict[str, Tensor]]:
        """What clients keep for themselves at the newest checkpoint, ``{client: {name: tensor}}``.

        Clients that never left anything are missing.  The values of a client are read from the disk when they are asked
        for.  Raises RunError for a comparison, and if the checkpoints can't be read.
        """
        from edgefl.runs import checkpoints
        from edgefl.runs.kept import Values

        self._one_run()
        newest = checkpoints.latest(self.path / CHECKPOINTS, hashes=False)
        return Values.from_checkpoint(self.path, *newest[1:]) if newest else {}

    def _one_run(self) -> None:
        """Raise RunError for a comparison."""
        if is_comparison(self.path):
            raise RunError(f"{self.path} holds several runs; choose one: .runs[{next(iter(self.runs), 'label')!r}]")

    def _finished_run(self) -> None:
        """Raise RunError for a comparison, and for a run that isn't finished."""
        self._one_run()
        if not self.is_finished:
            raise RunError(f"the run at {self.path} isn't finished; continue it with --resume {self.path}")

    @property
    def best(self) -> BestRecord | None:
        """``metric``, ``value`` and ``round`` of the best evaluation; None if the run follows no metric.

        Raises RunError as ``result``.
        """
        return self.result.best or None

    @property
    def early_stop(self) -> EarlyStop | None:
        """Why the run ended before its last round; None if it didn't.  Raises RunError as ``result``.

        The ``reason`` is ``target`` or ``patience`` of a metric, or ``on_round``, without a metric.
        """
        return self.result.stopped or None

    def preprocessing(self, kind: str) -> Preprocessing:
        """How raw pictures, texts and spectrograms become the inputs of a kind's model, and the names of its classes.

        ``run.model(kind)(*run.preprocessing(kind)(images, texts))`` are the scores of a batch; ``.image``, ``.text``
        and ``.audio`` are the parts, each to be called with one raw sample or several.  Raises UnknownName for a kind
        that the run doesn't have, RunError if the run has no such file.
        """
        from edgefl.models.preprocessing import Preprocessing

        self._one_run()
        path = self.path / PREPROCESSING
        if kind not in self.models:
            raise UnknownName("client kind", kind, self.models)
        if not path.exists():
            raise RunError(
                f"{path} isn't there: runs without training don't write it; "
                "run its scenario again, or prepare the inputs as its data set does"
            )
        found = read_json(path)
        if kind not in found:
            there = ", ".join(found) or "no kind"
            raise RunError(f"{path} doesn't say how inputs of {kind!r} are made; it has {there}")
        try:
            return Preprocessing.model_validate(found[kind]).beside(self.path)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, (kind, *first["loc"])))
            raise RunError(f"can't read {path}: {where}: {first['msg']}, found {first['input']!r:.60}") from error

    def model(self, kind: str, which: str = "final", *, merged: bool = True) -> nn.Module:
        """The trained model of a client kind at full depth, a torch module in evaluation mode on the CPU.

        Its ``forward`` takes a batch of each of its modalities, as ``preprocessing`` makes them, and gives class
        scores; of a kind that retrieves embeddings, of one that predicts scores of each next token.
        ``which="best"`` has the weights of the best evaluation, as ``weights`` does.  A scenario's ``adapter`` is added
        to the weights that it stands beside; with ``merged=False`` it keeps parameters of its own.
        Raises UnknownName for a kind that the run doesn't have, RunError if the run isn't finished or the weights
        don't fit the model.
        """
        from edgefl.runs.trained import trained_model

        return trained_model(self.path, self.models, kind, self.weights(which), merged=merged)

    def library_model(self, kind: str, modality: str | None = None, which: str = "final") -> nn.Module:
        """A trained tower as the model of its own library, timm, torchvision or transformers, with its names.

        Its ``state_dict`` fits the model that the library itself builds, with the classifier where the library's reads
        the same feature.  ``modality`` is needed for a kind with two.  An adapter is merged.  Raises UnknownName for a
        kind or a modality that the run doesn't have, RunError for a tower that no library has.
        """
        from edgefl.models.libraries import as_library
        from edgefl.models.model import Model

        model = self.model(kind, which)
        towers = self.models[kind]["towers"]
        if modality is None and len(towers) > 1:
            raise RunError(f"{kind} has towers of {' and '.join(towers)}: choose one, library_model({kind!r}, 'image')")
        modality = modality or next(iter(towers))
        if modality not in towers:
            raise UnknownName("tower", modality, towers)
        found = as_library(model, modality, towers[modality]) if isinstance(model, Model) else None
        if found is None:
            name = towers[modality].get("tower", modality)
            raise RunError(f"the tower {name} is no model of another library: use run.model({kind!r})")
        return found

    def _repr_html_(self) -> str:
        """The run's figures and headline numbers as a table, for notebooks."""
        members = self.runs if is_comparison(self.path) else {str(self.scenario.get("name")): self}
        rows = [member._headline(label) for label, member in members.items()]
        pictures = [self.path / name for name in ("curves.png", "partition.png")]
        return html.table(str(self.path), rows) + "".join(
            html.picture(read_regular(path), f"{path.stem} of the run") for path in pictures if path.is_file()
        )

    def _headline(self, label: str) -> dict[str, str]:
        """The last round's figures of one run, as text by column."""
        rounds = 0
        scores: dict[str, str] = {}
        clock = energy = traffic = 0.0
        for record in self.read(_Headline):
            rounds, split = record.round, split_of(work.when for work in record.server_works)
            clock = record.finished_virtual_seconds
            energy += or_nan(record.energy_joules)
            traffic += record.carried_bytes
            scores = {
                f"{kind} {name}, {split}": "-" if values[name] is None else f"{values[name]:.3f}"
                for kind, values in record.metrics.items()
                for name in ("accuracy", "r@10")
                if name in values
            } or scores
        names = {name: str(value) for name, value in self._names().items()}
        joules = "-" if energy != energy else f"{energy:.4g}"
        return {
            "run": label, **names, "rounds": f"{rounds}{'' if self.is_finished else ' so far'}",
            "virtual time": show_seconds(clock), "traffic": show_bytes(traffic), "energy, J": joules, **scores,
        }  # fmt: skip

    def _frame(self, table: Frame) -> pd.DataFrame:
        import pandas as pd

        optional = table not in TABLES  # without rows it has no columns either
        if not is_comparison(self.path):
            rows = self._rows(table)
            return rows if optional and rows.empty else prepend_columns(rows, self._names())
        varied = varied_columns({label: run._names() for label, run in self.runs.items()}, comparison_sets(self.path))
        parts = {label: run._rows(table) for label, run in self.runs.items()}
        frames = [
            prepend_columns(rows, {"run": label, **varied[label]})
            for label, rows in parts.items()
            if not (optional and rows.empty)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def _of_frame(self, table: Frame) -> Iterable[Mapping[str, object]]:
        if table == "client_evaluations":
            return self.each("scored")
        if table == "client_metrics":
            return (
                {"round": record["round"], **row}
                for record in self.each("rounds")
                for row in record.get("client_metrics", ())
            )
        records = self.each(table)
        if table == "rounds":  # its list of groups is a table of its own
            return (
                {name: v for name, v in record.items() if name != "client_metrics"}
                | {"metrics_split": split_of(work["when"] for work in record.get("server_works", ())) or None}
                for record in records
            )
        return records

    def _rows(self, table: Frame) -> pd.DataFrame:
        """The records of one run's table."""
        import pandas as pd

        return pd.DataFrame([flatten(record) for record in self._of_frame(table)])

    def _names(self) -> dict[str, object]:
        """Method, schedule and seed, by column."""
        names: dict[str, object] = {}
        for section in ("method", "schedule"):
            value = self.scenario.get(section)
            names[section] = value.get("name") if isinstance(value, dict) else value
        return {**names, "seed": self.scenario.get("seed")}


WEIGHTS = {"final": "weights.safetensors", "best": BEST_FILE}
"""The files of a finished run's weights."""


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the folder of a run or of a comparison, finished or still being written.

    Args:
        path: The folder.

    Returns:
        The run; its tables and weights are read when they are asked for.

    Raises:
        RunError: The folder is neither a run's nor a comparison's, or a run in it has another version's format.

    Examples:
        >>> import edgefl
        >>> run = edgefl.read_run("runs/small")
        >>> run.is_finished
        True
        >>> run.clients[["round", "client", "device"]].head(2)
           round  client              device
        0      1       2  raspberry-pi-4-4gb
        1      1       3  raspberry-pi-4-4gb
    """
    path = Path(path)
    if is_comparison(path):
        check_formats(path)
    else:
        check_run_folder(path)
    return Run(path)
