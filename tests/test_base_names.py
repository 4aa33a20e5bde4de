"""A stranger guesses a file by its name: no base name stands twice in the package, but for these reasons."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "edgefl"

VERTICAL = "each command has one: its function, how it is shown, and what it answers"
ALLOWED = {
    "__init__": "a folder's own text",
    **dict.fromkeys(("command", "table", "page", "chart", "answer"), VERTICAL),
    "options": "a room's fields of the scenario",
    "steps": "the steps of works that a room adds",
    "records": "what the simulation writes of a run, and what figures read of it",
    "fleet": "the fleet, and its figures",
    "kept": "what clients keep: in files of the run's folder, and during a run",
    "attackers": "which clients attack, and what a round says of them",
    "client_evaluation": "the same evaluation, planned and played",
    "processes": "worker processes that train clients, and those that run cells",
    "worker": "the loop of a worker process, and that of a worker on Ray",
    "split": "the splits of data, and the schedule that splits models",
    "halves": "the halves of a split model, and those of its works",
    "rules": "rules of works, and rules of aggregation",
    "eligibility": "the gate, and the record of its verdicts",
    "metrics": "metrics that works compute, and their names and directions in records",
    "host": "what this computer is, and its record in a run",
    "rounds": "the record of a round, and the rounds that a check of a part plays",
    "reading": "records from lines, and the tables of a run's folder",
    "writing": "records as lines, and profiles of devices as files",
    "derived": "commands that follow from functions, and figures that follow from a device's",
    "devices": "the records of profiles, and the page in which they are filtered",
    "base": "what all selections have in common, and all round policies",
    "client": "a client's model, and its round on the virtual clock",
    "relays": "the relays of a fleet, what they do in a round, and their fields of records",
    "carbon": "grams of the clients' energy, and their fields of records",
}


def test_a_base_name_stands_twice_only_with_a_reason() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        places[path.stem].append(path.relative_to(PACKAGE).as_posix())
    assert len(places) > 200
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in ALLOWED} == {}
