"""The single files of a run's folder, and ``compare.json`` of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.metrics import Metrics
from edgefl.records.record import UNSET, Keys, Maybe, Record, Rounds, Share
from edgefl.records.rounds import EarlyStop, RoundSums


class BestRecord(Record):
    """The best evaluation of a run that follows a metric, whose weights are in ``best.safetensors``."""

    metric: str
    """The metric of `best.safetensors`, `KIND.NAME`; only in runs that follow a metric"""
    value: Share | None
    """Its best value on `evaluation.split`"""
    round: int | None
    """The round of that evaluation"""


class FinalSummary(Record):
    """``result.json``: the final summary.  If it is there, the run is finished."""

    rounds: Rounds
    """Rounds that were played"""
    virtual_seconds: float
    """Virtual time at the end"""
    metrics: Metrics
    """Metrics of the last evaluation, on `evaluation.final`; or what `evaluation.reported` says"""
    totals: RoundSums
    """Sums over all rounds of the fields of these names in `rounds.jsonl`"""
    stopped: EarlyStop | Maybe | None = UNSET
    """Why the run ended before its last round, as in `rounds.jsonl`; `null` or missing if it didn't"""
    best: BestRecord | Maybe = UNSET
    """The best evaluation; only in runs that follow a metric"""


class EvaluationFacts(Record):
    """``evaluation.json``: sizes of the server's splits and chance levels, which tables show when data are absent."""

    samples: Annotated[Mapping[str, Mapping[str, int]], Keys("SPLIT.KIND")]
    """Samples of each of the server's splits, by client kind"""
    chance: Annotated[Mapping[str, Mapping[str, Mapping[str, float]]], Keys("SPLIT.KIND.METRIC")]
    """Chance level of each metric"""


class PlugInFileRecord(Record):
    """A file that registered parts."""

    file: str
    """Its name"""
    sha256: str
    """The hash of what it holds"""


class Resumed(Record):
    """A time at which a run went on."""

    round: int
    """The round after which it went on"""
    set: Sequence[str]
    """Changes of the scenario, as `--set` takes them"""
    environment: Annotated[Mapping[str, object], Keys("FIELD")]
    """Versions and hardware that had changed"""


class Environment(Record):
    """``environment.json``: versions and hardware of the machine that ran the simulation."""

    run_format: int
    """Version of the folder's format"""
    plug_ins: Sequence[PlugInFileRecord] | Maybe = UNSET
    """Files that registered parts; only in runs with some"""
    edgefl: str
    """edgefl's version"""
    python: str
    """Python's version"""
    packages: Annotated[Mapping[str, str | None], Keys("PACKAGE")]
    """Versions of the packages that results depend on; `null` for one that isn't installed"""
    system: str
    """The operating system"""
    machine: str
    """The processor's architecture"""
    cpu: str
    """The processor's name"""
    cpu_cores: int | None
    """Its cores"""
    ram_bytes: int
    """Its memory"""
    gpu: str | None
    """The GPU's name; `null` without one"""
    cuda: str | None
    """CUDA's version; `null` without a GPU"""
    resumed: Sequence[Resumed] | Maybe = UNSET
    """When the run went on, after it was interrupted; only then"""


class Begun(Record):
    """``begun.json``: what a run was made of when it began, which each checkpoint says too."""

    made_of: Annotated[Mapping[str, object], Keys("PART")]
    """The scenario, profiles, trace and plug-ins"""
    inputs: Annotated[Mapping[str, object], Keys("INPUT")]
    """Digests of the data and of the initial weights"""


class ComparisonMember(Record):
    """A run of a comparison."""

    label: str
    """Name of the combination in tables"""
    folder: str
    """Its folder"""
    sets: Annotated[Mapping[str, object], Keys("PATH")]
    """The value of a field that is compared"""


class Comparison(Record):
    """``compare.json``: the runs of a comparison, in order."""

    runs: Sequence[ComparisonMember]
    """The runs"""
