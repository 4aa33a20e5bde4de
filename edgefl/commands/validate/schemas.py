"""The JSON Schema of scenarios, and of records: those of a run's files, and the answers of commands."""

from __future__ import annotations

import json

from edgefl import registry
from edgefl.console.derived import all_commands, import_named
from edgefl.errors import UnknownName
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.host import HostWork, NodeFlight, Scratch
from edgefl.records.reading import schema
from edgefl.records.record import Record
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, Environment, EvaluationFacts, FinalSummary
from edgefl.scenario.library import SCHEMA, library_folder

FILES: dict[str, type[Record]] = {
    "rounds": Round, "clients": FlightRecord, "scored": ScoredClient, "eligibility": VerdictRecord, "scratch": Scratch,
    "host": HostWork, "nodes": NodeFlight, "result": FinalSummary, "environment": Environment,
    "evaluation": EvaluationFacts, "compare.json": Comparison,
}  # fmt: skip
"""The record of each table and file of a run's folder."""


def answers() -> dict[str, type[Record]]:
    """What each command prints with ``--as json``, as the help lists them.

    Not the answer of ``doctor``, which is no record: it must come where their libraries are broken.
    """
    found = {name: import_named(command.answer) for name, command in all_commands().items()}
    return {name: cls for name, cls in found.items() if issubclass(cls, Record)}


def records() -> dict[str, type[Record]]:
    """Every record that has a JSON Schema to print."""
    return {**FILES, **answers()}


def schema_text(name: str) -> str:
    """The JSON Schema of ``scenario``, or of a record by its name, as text.  Raises UnknownName."""
    if name == "scenario":
        return scenario_schema_text()
    if name not in (known := FILES if name in FILES else records()):
        raise UnknownName("record", name, ["scenario", *known])
    return json.dumps(schema(known[name]), indent=2) + "\n"


def scenario_schema_text() -> str:
    """The JSON Schema of a scenario with the names of all registered parts, as text.

    It is the shipped file, unless parts of plug-ins are installed.
    """
    nouns = (noun for noun in registry.GROUPS if noun != "profile library")
    if all(registry.origin(noun, name).package == "edgefl" for noun in nouns for name in registry.names(noun)):
        return (library_folder() / SCHEMA).read_text(encoding="utf-8")
    from edgefl.scenario.schema import json_schema

    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
