"""What figures need of a run's records, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from edgefl.errors import RunError
from edgefl.report.facts import facts_of

if TYPE_CHECKING:
    from edgefl.runs import Run

Record = Mapping[str, Any]

_OF_FLIGHTS = (
    "round", "client", "kind", "device", "link", "stage", "part", "outcome", "phase", "dispatched_virtual_seconds",
    "ended_virtual_seconds", "download_seconds", "compute_seconds", "upload_seconds", "virtual_seconds",
    "energy_joules", "peak_memory_bytes", "memory_bytes", "measured_peak_memory_bytes", "forward_flops",
    "backward_flops", "measured_forward_flops", "measured_backward_flops", "serialised_download_bytes",
    "serialised_upload_bytes", "carried_download_bytes", "carried_upload_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Records:
    """A run's records: ``rounds``, ``flights`` (clients.jsonl) and ``verdicts`` (eligibility.jsonl), and its facts."""

    label: str
    rounds: Sequence[Record]
    flights: Sequence[Record]
    verdicts: Sequence[Record]
    scenario: Mapping[str, Any]
    facts: Mapping[str, Any]
    """See ``edgefl.report.facts_of``."""

    @classmethod
    def of(cls, run: Run, label: str = "") -> Records:
        """Read them.  Raises RunError for records that lack a field or hold another kind of value."""
        label = label or str(run.scenario.get("name", run.path.name))
        facts = facts_of(run, label)
        flights = [{name: record.get(name) for name in _OF_FLIGHTS} for record in run.flights()]
        return cls(label, run.records("rounds"), flights, run.records("eligibility"), run.scenario, facts)

    @classmethod
    def of_rounds(cls, run: Run, label: str, *, finished: bool) -> Records:
        """The rounds alone, and what curves need beside them; reads no large table."""
        rounds, scenario = run.records("rounds"), run.scenario
        last = finished and bool(rounds) and bool(rounds[-1]["metrics"])
        split = scenario["evaluation"]["final" if last else "split"]
        chance = run.evaluation.get("chance", {}).get(split, {})
        kinds = dict.fromkeys(kind for r in rounds for kind in r["clients"])
        facts = {"finished": finished, "kinds": kinds, "chance": chance}
        return cls(label, rounds, [], [], scenario, facts)

    @property
    def kinds(self) -> list[str]:
        """The client kinds, in the scenario's order."""
        return list(self.facts["kinds"])

    @property
    def stages(self) -> list[int]:
        """The stages that were played."""
        return [stage["stage"] for stage in self.facts["stages"]]

    def verdicts_of(self, stage: int) -> list[Record]:
        """The last verdict on each client (in a large fleet: on each group of clients) in the rounds of a stage."""
        numbers = {r["round"] for r in self.rounds if r["stage"] == stage}
        last: dict[Any, Record] = {}
        for v in self.verdicts:
            if v["stage"] == stage or v["round"] in numbers:
                same = v["client"] if v["clients"] == 1 else (v["kind"], v["device"], v["link"], v["eligible"])
                last[same] = v
        return list(last.values())

    def clocks(self) -> dict[str, list[float]]:
        """Where each round ends: ``rounds``, ``seconds`` (virtual), and all ``bytes`` and ``joules`` until then."""
        return {
            "rounds": [r["round"] for r in self.rounds],
            "seconds": [r["started_virtual_seconds"] + r["virtual_seconds"] for r in self.rounds],
            "bytes": list(accumulate(r["download_bytes"] + r["upload_bytes"] for r in self.rounds)),
            "joules": list(accumulate(r["energy_joules"] for r in self.rounds)),
        }


def damaged(run: Run, error: Exception) -> RunError:
    """The error for records from which no figure can be drawn."""
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return RunError(f"{run.path}: its files hold other values than edgefl writes: {reason}")
