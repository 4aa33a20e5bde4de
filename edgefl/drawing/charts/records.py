"""What figures need of a run's records, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from edgefl.records.clients import FlightCourse, FlightRecord, MemoryParts
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.record import UNSET, Keys, Maybe, or_nan, part_of
from edgefl.records.settings import Settings
from edgefl.records.summary import RunSummary
from edgefl.results.facts import FlightFacts, RoundFacts, VerdictFacts, facts_of
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors


@part_of(FlightRecord)
class ShownFlight(FlightCourse, FlightFacts):
    """What figures show of a flight."""

    memory_bytes: MemoryParts
    serialised_download_bytes: int
    serialised_upload_bytes: int
    reserved_memory_bytes: int | Maybe = UNSET


@part_of(VerdictRecord)
class ShownVerdict(VerdictFacts):
    """What figures show of a verdict."""

    bytes_limit: str | Maybe | None = UNSET
    joules_limit: str | Maybe | None = UNSET
    margins: Annotated[Mapping[str, float | None], Keys("BUDGET")]


@dataclass(frozen=True)
class Curves:
    """The rounds of a run, and what curves need beside them."""

    label: str
    rounds: Sequence[RoundFacts]
    settings: Settings
    kinds: Sequence[str]
    """The client kinds, in the scenario's order"""
    chance: Mapping[str, Mapping[str, Mapping[str, float]]]
    """By split, kind and metric"""

    @classmethod
    def of_rounds(cls, run: Run, label: str) -> Curves:
        """Read them; no large table is."""
        rounds = list(run.read(RoundFacts))
        kinds = list(dict.fromkeys(kind for r in rounds for kind in r.clients))
        return Curves(label, rounds, run.settings, kinds, run.evaluation.chance)

    def clocks(self) -> dict[str, list[float]]:
        """Where each round ends: ``rounds``, ``seconds`` (virtual), and all ``bytes`` and ``joules`` until then."""
        return {
            "rounds": [r.round for r in self.rounds],
            "seconds": [r.finished_virtual_seconds for r in self.rounds],
            "bytes": list(accumulate(r.carried_bytes for r in self.rounds)),
            "joules": list(accumulate(or_nan(r.energy_joules) for r in self.rounds)),
        }


@dataclass(frozen=True)
class Records(Curves):
    """A run's records: its rounds, flights and verdicts, and their summary."""

    flights: Sequence[ShownFlight]
    verdicts: Sequence[ShownVerdict]
    facts: RunSummary

    @property
    def stages(self) -> list[int]:
        """The stages that were played."""
        return [stage.stage for stage in self.facts.stages]

    def verdicts_of(self, stage: int) -> list[ShownVerdict]:
        """The last verdict on each client (in a large fleet: on each group of clients) in the rounds of a stage."""
        numbers = {r.round for r in self.rounds if r.stage == stage}
        last: dict[object, ShownVerdict] = {}
        for v in self.verdicts:
            if v.stage == stage or v.round in numbers:
                last[v.client if v.clients == 1 else (v.kind, v.device, v.link, v.eligible)] = v
        return list(last.values())


@raise_run_errors
def records_of(run: Run, label: str = "") -> Records:
    """A run's records.  Raises RunError for records that lack a field or hold another kind of value."""
    facts = facts_of(run, label or run.name)
    return Records(
        label or run.name,
        list(run.read(RoundFacts)),
        run.settings,
        list(facts.kinds),
        run.evaluation.chance,
        list(run.read(ShownFlight)),
        list(run.read(ShownVerdict)),
        facts,
    )
