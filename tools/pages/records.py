"""Tables of the reference: the fields of the records in a run's folder, from their classes."""

from __future__ import annotations

from collections.abc import Iterable

from edgefl.commands.validate.schemas import records
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.host import HostWork, NodeFlight, Scratch
from edgefl.records.record import FieldRow, Record, fields_of
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, Environment, EvaluationFacts, FinalSummary
from tools.pages.markdown import table

ON_RECORDS: dict[str, type[Record]] = {
    "rounds.jsonl": Round, "clients.jsonl": FlightRecord, "scored.jsonl": ScoredClient,
    "eligibility.jsonl": VerdictRecord, "scratch.jsonl": Scratch, "host.jsonl": HostWork,
    "nodes.jsonl": NodeFlight, "result.json": FinalSummary,
    "environment.json": Environment, "evaluation.json": EvaluationFacts, "compare.json": Comparison,
}  # fmt: skip
"""Each block of the page about a run's folder: a file, and the class of its records."""


def record_blocks() -> dict[str, str]:
    """The blocks of ``reference/records.md``."""
    return {
        **{f"fields of {file}": fields_table(cls) for file, cls in ON_RECORDS.items()},
        "schemas": ", ".join(f"`{name}`" for name in records()),
    }


def fields_table(cls: type[Record]) -> str:
    """A table with a row for each field of a record."""
    return table(("Field", "Unit", "Meaning"), _rows(fields_of(cls)))


def _rows(rows: Iterable[FieldRow]) -> Iterable[tuple[str, str, str]]:
    for row in rows:
        yield f"`{row.name}`", row.unit or "–", row.meaning.removesuffix(".")
