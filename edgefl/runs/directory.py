"""Writing a run's folder: create, append records, write checkpoints, finish; and open it again to resume.

::

    scenario.yaml        the resolved scenario, with all defaults
    environment.json     versions and hardware, and the version of this format
    models.json          {kind: description for edgefl.models.build}
    begun.json           what the run was made of when it began
    evaluation.json      samples of each server split by client kind, and the chance level of each metric
    preprocessing.json   {kind: how raw samples become the inputs of its model}
    tokenizer.json       if text is trained
    rounds.jsonl clients.jsonl scored.jsonl eligibility.jsonl
    scratch.jsonl        what kernels take, which predictions used: a resumed run takes it from here
    host.jsonl           wall time, memory and ids of processes: differ between equal runs
    nodes.jsonl          the same of clients that are devices of their own, if the run is on real devices
    checkpoints/round-000012/{state.safetensors,state.json}
    kept/round-000012-<hash>.bin    what clients keep, if the method lets them: checkpoints refer to these files
    unfinished/client-000017-<key>.bin      what clients of a long round have trained, until its checkpoint
    weights.safetensors  {address: tensor}, written at the end
    best.safetensors     the same at the best evaluation, if the scenario follows a metric
    files.json           digests of all these files, written at the end
    result.json          written last: if it exists, the run is finished
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from edgefl.errors import RunError
from edgefl.files import sync
from edgefl.records.reading import decode
from edgefl.records.record import Record, to_data
from edgefl.records.run import Begun, BestRecord, Environment, EvaluationFacts, FinalSummary, Resumed
from edgefl.records.writing import line
from edgefl.runs import best, checkpoints, digests, kept, tables
from edgefl.runs.background import Background
from edgefl.runs.contents import CHECKPOINTS, KEPT, PREPROCESSING, read_bytes, read_json
from edgefl.runs.durable import boot, lock_folder, replace_file, writing
from edgefl.runs.folders import (
    FILES,
    FIRST,
    OF_EVERY_RUN,
    RECORDS,
    TABLES,
    Table,
    check_run_folder,
    drop_leftovers,
    json_text,
    new_folder,
)
from edgefl.runs.unfinished import UnfinishedWorks

if TYPE_CHECKING:
    from torch import Tensor

    from edgefl.models.model import ModelDescription
    from edgefl.models.preprocessing import Preprocessing


SYNC_SECONDS = 5.0
"""Wall time after which a checkpoint and its records are synced to the disk again: a power cut may take the rounds
since then, but a killed process none.  A choice, as Linux's ext4 does by default."""
PAUSE_SECONDS = 2.0
"""Wall time between two checkpoints in the background; rounds may be shorter, and a killed process loses them.  One
after each round of half a second took 5 % of the time."""


BEGUN = "begun.json"
"""The file that says what a run was made of when it began."""


def _changed_meanwhile(path: Path, how: str) -> str:
    return (
        f"another program changed {path} while the run was writing it: {how}; the run stops here. Restore that file "
        f"from a copy and go on with --resume {path.parent}, or start a new run"
    )


class RunDirectory:
    """Writes a run's folder; only one process at a time may have it open.

    ``create`` and ``open`` return one.  It is a context manager that closes itself.
    """

    def __init__(self, path: Path):
        self.path = path
        self.made_of: Mapping[str, object] = {}
        """What the run is made of (scenario, profiles, plug-ins), as plain JSON data; each checkpoint holds it."""
        self.inputs: Mapping[str, object] = {}
        """Digests of its data and initial weights, which each checkpoint holds too."""
        self._synced_round: int | None = None
        self._best_round: int | None = None
        self._synced_at = 0.0
        self.in_background = False
        """Whether checkpoints are written while the caller goes on; their errors are raised by a later call."""
        self._background: Background | None = None
        self.keep = 1
        """Number of checkpoints that the run keeps when it is finished; under way it keeps two at least."""
        self._digests: dict[Table, digests.TableDigest] = {}
        self._kept_files: dict[int, frozenset[str]] = {}
        self.works = UnfinishedWorks(path)
        """What clients of the round under way have trained."""
        self._lock = lock_folder(path)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        scenario_yaml: str,
        environment: Environment,
        models: Mapping[str, ModelDescription],
    ) -> RunDirectory:
        """Begin a run in a folder that doesn't exist, is empty, or in which a start was cut short.

        Raises RunError if the folder holds anything else, is another process's, or can't be written; existing files
        aren't changed.
        """
        new = new_folder(path)
        path = new.path
        run = cls(path)
        new.close()
        drop_leftovers(path)
        replace_file(path / "scenario.yaml", scenario_yaml.encode())
        replace_file(path / "environment.json", json_text(environment.to_data()))
        for table in OF_EVERY_RUN:
            with writing(path):
                run.table(table).touch()
        replace_file(path / "models.json", json_text(models))
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Open a run to continue it: ``latest`` returns the newest checkpoint, ``rewind`` drops later records.

        Raises RunError if it isn't a run's folder, if it is of another format, or if another process is writing it.
        """
        path = Path(path)
        check_run_folder(path)
        run = cls(path)
        check_run_folder(path)  # its start may have failed, and been undone, before this process had the lock
        drop_leftovers(path)
        run.works.look()
        for table in TABLES:
            tables.mend(run.table(table))
        return run

    def table(self, name: Table) -> Path:
        """The path of a table's file."""
        return self.path / f"{name}.jsonl"

    @property
    def kept_folder(self) -> Path:
        """The folder of what clients keep, to whose files checkpoints refer; it needn't be there."""
        return self.path / KEPT

    @property
    def tokenizer_path(self) -> Path:
        """The path of the tokenizer's file, which may not exist."""
        return self.path / "tokenizer.json"

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenario as YAML text, as given to ``create``."""
        return (self.path / "scenario.yaml").read_text(encoding="utf-8")

    @property
    def models(self) -> dict[str, ModelDescription]:
        """``{kind: description}`` as given to ``create``."""
        models: dict[str, ModelDescription] = json.loads((self.path / "models.json").read_bytes())
        return models

    def record_resume(self, round: int, scenario_yaml: str, overrides: Sequence[str], environment: Environment) -> None:
        """Record that the run goes on after ``round``: with which changes, and on which versions and hardware.

        ``environment.json`` gets an entry under ``resumed``, and ``scenario.yaml`` the changed scenario.
        Raises RunError if a file can't be written.
        """
        first = read_json(self.path / "environment.json")
        now = environment.to_data()
        changed = {name: value for name, value in now.items() if first.get(name) != value and name != "run_format"}
        entry = Resumed(round=round, set=overrides, environment=changed).to_data()
        if overrides:
            replace_file(self.path / "scenario.yaml", scenario_yaml.encode())
        resumed = [*first.get("resumed", []), entry]
        replace_file(self.path / "environment.json", json_text({**first, "resumed": resumed}))

    def write_evaluation(self, evaluation: EvaluationFacts) -> None:
        """Write the number of evaluation samples and the chance levels, which tables show when the data are absent.

        Raises RunError if the file can't be written.
        """
        replace_file(self.path / "evaluation.json", json_text(evaluation.to_data()))

    def write_preprocessing(self, of_kinds: Mapping[str, Preprocessing]) -> None:
        """Write how raw samples become the inputs of each kind's model.  Raises RunError if it can't be written."""
        facts = {kind: each.model_dump(mode="json", exclude_none=True) for kind, each in of_kinds.items()}
        replace_file(self.path / PREPROCESSING, json_text(facts))

    def write_tokenizer(self, text: str) -> None:
        """Write the tokenizer, JSON of the tokenizers library.  Raises RunError if it can't be written."""
        replace_file(self.tokenizer_path, text.encode())

    def write_begun(self) -> None:
        """Write what the run is made of, unless that was written before.  Raises RunError if it can't be written."""
        if not (self.path / BEGUN).exists():
            begun = Begun(made_of=to_data(self.made_of), inputs=to_data(self.inputs))
            replace_file(self.path / BEGUN, json_text(begun.to_data()))

    @property
    def is_finished(self) -> bool:
        """Whether ``finish`` has completed."""
        return (self.path / "result.json").exists()

    def append(self, *records: Record) -> None:
        """Append records to their table: all of one class, one of ``RECORDS``.  What isn't finite becomes null.

        Raises RunError if the file can't be written, and TypeError for a value that JSON can't represent.
        """
        if records:
            self.append_lines(type(records[0]), [line(record) for record in records])

    def append_lines(self, cls: type[Record], lines: Sequence[bytes]) -> None:
        """Append records of a class that are lines of JSON already, with a final newline (``Columns``).

        Raises RunError if the file can't be written, or if another program changed its size since the last time.
        """
        table = RECORDS[cls]
        digest = self._digest(table)
        with writing(self.table(table)):
            size = self.table(table).stat().st_size if self.table(table).exists() else 0
        if size != digest.size:
            raise RunError(_changed_meanwhile(self.table(table), f"it holds {size} bytes, not {digest.size}"))
        tables.append_lines(self.table(table), lines)
        digest.add(b"".join(lines))

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Write a checkpoint with everything that the next round needs.

        ``state`` is JSON data; tuples are read back as lists.  It and the records are synced to the disk if
        ``SYNC_SECONDS`` have passed since the last time: after a power cut the checkpoint that was synced last is
        there.  The tensors must not change afterwards if it is written ``in_background``, where the newest is written
        every ``PAUSE_SECONDS``, unless a finished run keeps several.  Raises RunError if this checkpoint, or one in
        the background, can't be written, TypeError for a state that JSON can't represent.
        """
        for table in OF_EVERY_RUN:
            with writing(self.table(table)):
                self.table(table).touch()
        records = {table: self._digest(table).record() for table in TABLES}
        facts = {"made_of": self.made_of, "inputs": self.inputs, "records": records}
        works = self.works.list_superseded(state)
        if not self.in_background or self.kept_folder.exists():
            # what clients keep is written and removed beside the checkpoints, one after the other
            self.settle()
            self._write(round, tensors, state, facts, works)
            self._sweep()
            return
        if self._background is None:
            self._background = Background(PAUSE_SECONDS if self.keep == 1 else 0.0)
        if self.keep > 1:
            self.settle()
        self._background.give(partial(self._write, round, dict(tensors), checkpoints.copy_state(state), facts, works))

    def _write(
        self,
        round: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, object],
        facts: Mapping[str, object],
        works: Sequence[Path],
    ) -> None:
        synced = self._synced_round is None or time.monotonic() - self._synced_at > SYNC_SECONDS
        if synced:
            for table in filter(lambda each: self.table(each).exists(), TABLES):
                with writing(self.table(table)):
                    sync(self.table(table))
        else:
            facts = {**facts, "written_since_boot": boot()}
        checkpoints.write(
            self.path / CHECKPOINTS, round, tensors, state, to_data(facts), max(self.keep, checkpoints.KEEP),
            synced=synced, besides=self._synced_round,
        )  # fmt: skip
        if synced:
            self._synced_round, self._synced_at = round, time.monotonic()
        if self._best_round is not None:
            best.settle(self.path, self._best_round)
            self._best_round = None
        self._kept_files[round] = frozenset(kept.files_of(state))
        self.works.drop(works)

    def settle(self) -> None:
        """Write the checkpoint that waits in the background.  Raises RunError if it can't be written."""
        if self._background is not None:
            self._background.settle()

    def facts(self) -> dict[str, object]:
        """What the run is made of, and its inputs, as plain JSON data."""
        facts: dict[str, object] = to_data({"made_of": self.made_of, "inputs": self.inputs})
        return facts

    def keep_best(self, weights: Mapping[str, Tensor], facts: BestRecord) -> None:
        """Write new best weights, ``{address: tensor}``, which count from the next checkpoint on.

        Raises RunError if a file can't be written.
        """
        self.settle()
        best.write(self.path, weights, facts)
        self._best_round = facts.round

    def latest(self) -> tuple[int, dict[str, Tensor], dict[str, object]] | None:
        """``(round, tensors, state)`` of the newest undamaged checkpoint, or None if there is none.

        Tensors are on the CPU.  Damaged checkpoints are skipped with a RuntimeWarning, and so are those that weren't
        synced to the disk before the machine went down, if records of theirs are lost.  Raises RunError if all are
        damaged.
        """
        self.settle()
        return checkpoints.latest(self.path / CHECKPOINTS, why_not=self._lost_by_power_cut)

    def _lost_by_power_cut(self, round: int) -> str:
        """Which records of a checkpoint that was written but not synced before a boot are missing, "" if none is."""
        manifest = checkpoints.manifest_of(self.path / CHECKPOINTS / checkpoints.name(round))
        for table in () if manifest.get("written_since_boot", boot()) == boot() else TABLES:
            path, written = self.table(table), manifest["records"].get(table, digests.EMPTY)
            if (path.stat().st_size if path.exists() else 0) < written["bytes"]:
                return f"{path} lacks records of its rounds"
        return ""

    def check_unchanged(self, round: int) -> dict[str, object]:
        """Compare the records and ``made_of`` with what the checkpoint of ``round`` says of them.

        Round 0 is the beginning, before any checkpoint.  Returns the ``inputs`` of that time.
        Raises RunError, with the difference, if a table lacks records or holds others, or if the run is now made of
        something else.
        """
        if round == 0:
            return self._check_begun()
        manifest = checkpoints.manifest_of(self.path / CHECKPOINTS / checkpoints.name(round))
        for table in TABLES:
            written = manifest["records"].get(table, digests.EMPTY)
            if difference := digests.table_difference(self.table(table), written, round):
                raise RunError(f"{difference}; restore that file from a copy, or start a new run")
        digests.check_unchanged(self.path, manifest["made_of"], to_data(self.made_of), round)
        return manifest["inputs"]

    def _check_begun(self) -> dict[str, object]:
        path = self.path / BEGUN
        if path.is_file():
            begun = decode(Begun, read_bytes(path), path)
            digests.check_unchanged(self.path, begun.made_of, to_data(self.made_of), 0)
            return dict(begun.inputs)
        if (rounds := self.recorded_rounds()) > 0:
            raise RunError(
                f"{self.path} has records of {rounds} rounds, but neither a checkpoint nor {BEGUN}, so nothing says "
                f"what they were made of; run its scenario.yaml anew in another folder, or remove rounds.jsonl to "
                "begin this run again at round 1"
            )
        return dict(self.inputs)

    def recorded_rounds(self) -> int:
        """The last round that ``rounds.jsonl`` has a record of, 0 if it has none.  Raises RunError if it is damaged."""
        return max((record["round"] for record in tables.each(self.table("rounds"))), default=0)

    def rewind(self, round: int, best_round: int | None = None) -> None:
        """Restore the folder to its state after ``round``.

        Removes later records, incomplete last lines, later checkpoints, the final weights, the result, and best weights
        that aren't those of ``best_round``.  What clients of the next round have trained stays.  Raises
        RunError for a table that is damaged before its last line.
        """
        self.settle()
        checkpoints.whole(self.path / CHECKPOINTS, round)
        with writing(self.path):
            for name in ("result.json", "files.json", "weights.safetensors"):
                (self.path / name).unlink(missing_ok=True)
        for table in TABLES:
            tables.rewind(self.table(table), round)
        self._digests.clear()
        checkpoints.drop_after(self.path / CHECKPOINTS, round)
        best.rewind(self.path, best_round)
        self._kept_files.clear()
        self._sweep()

    def finish(self, tensors: Mapping[str, Tensor], result: FinalSummary) -> None:
        """Write the final weights, ``{address: tensor}``, then the result, which marks the run as finished.

        Of its checkpoints the newest ``keep`` remain; the last one leaves what equals the weights to their file.
        Raises RunError if a file can't be written.
        """
        self.settle()
        text = json_text(result.to_data())
        # clones prevent aliases: the file must hold every address, so that other tools can read it
        weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        checkpoints.write_tensors(self.path / "weights.safetensors", weights)
        with writing(self.path):
            for table in TABLES:
                if self.table(table).exists():
                    sync(self.table(table))
            files = digests.file_digests(self.path, FILES)
            self._check_own(files)
            files |= kept.file_digests(self.kept_folder, self._needed_files(self.keep))
        files["result.json"] = {"bytes": len(text), "blake2b": digests.text_digest(text)}
        # what a full disk may refuse comes before the result, so that a resumed run does it again
        checkpoints.share_weights(self.path / CHECKPOINTS, self.path / checkpoints.WEIGHTS)
        checkpoints.keep_newest(self.path / CHECKPOINTS, self.keep)
        self._sweep()
        self.works.end()
        replace_file(self.path / "files.json", json_text({"files": files}))
        replace_file(self.path / "result.json", text)

    def _check_own(self, files: Mapping[str, digests.FileDigest]) -> None:
        """Raise RunError if another program changed the tables while this process wrote the run, or removed a file.

        ``files`` are the digests of the files that are there.
        """
        for name in FIRST:
            if name not in files:
                raise RunError(_changed_meanwhile(self.path / name, "it is gone"))
        for table, digest in self._digests.items():
            written, now = digest.record(), files.get(self.table(table).name, digests.EMPTY)
            if now["blake2b"] != written["blake2b"]:
                size, was = now["bytes"], written["bytes"]
                how = f"it holds {size} bytes, not {was}" if size != was else "its bytes differ"
                raise RunError(_changed_meanwhile(self.table(table), how))

    def _needed_files(self, newest: int = 0) -> set[str]:
        """The files of what clients keep to which the ``newest`` checkpoints refer, 0: all."""
        for round in (rounds := checkpoints.rounds(self.path / CHECKPOINTS)[-newest:]):
            if round not in self._kept_files:
                self._kept_files[round] = checkpoints.kept_files(self.path / CHECKPOINTS, round)
        return set().union(*(self._kept_files[round] for round in rounds))

    def _sweep(self) -> None:
        """Remove what no checkpoint refers to any more.  Raises RunError if it can't be removed."""
        kept.sweep(self.kept_folder, self._needed_files())

    def _digest(self, table: Table) -> digests.TableDigest:
        """The digest of all that the table holds, read from the file at the first call."""
        if table not in self._digests:
            with writing(self.table(table)):
                self._digests[table] = digests.TableDigest.from_file(self.table(table))
        return self._digests[table]

    def close(self) -> None:
        """Let other processes open the run.  Raises RunError if a checkpoint in the background can't be written."""
        self.works.close()
        try:
            self.settle()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._background is not None:
            self._background.close()
            self._background = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(RunError, OSError):  # the error of the body says more
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.close()
