"""What of a scenario can't leave the simulation: real devices have their own links, batteries and faults."""

from __future__ import annotations

from collections.abc import Iterator

from edgefl import registry
from edgefl.devices import FailureOptions
from edgefl.scenario import Scenario
from edgefl.scenario.problems import raise_all

SELECTIONS = ("random", "round-robin")
"""Selections that real seconds don't change, so that cohorts are the simulation's."""


def check_leaves(scenario: Scenario) -> None:
    """Raise ScenarioError with all that keeps a scenario from real devices, each with its field and line."""
    raise_all([scenario.error(path, f"not on real devices: {why}") for path, why in _reasons(scenario)])


def _reasons(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    fleet, round, method = scenario.fleet, scenario.round, registry.get("method", scenario.method_name)
    whole = "a round waits for its whole cohort"
    if scenario.compare:
        yield ("compare",), "they play one scenario; write --set compare=null"
    if scenario.training.mode != "real":
        yield ("training", "mode"), "they train"
    if not round.build_policy().waits_for_all:
        yield ("round", "policy"), f"{whole}; write synchronous"
    if round.over_selection:
        yield ("round", "over_selection"), whole
    if round.gate != "eligible":
        yield ("round", "gate"), "a client whose memory doesn't suffice isn't asked"
    if round.below_quorum == "wait":
        yield ("round", "below_quorum"), "its wait takes virtual time alone; write skip or fail"
    if round.selection_name not in SELECTIONS:
        yield ("round", "selection"), f"it depends on seconds or losses; write {' or '.join(SELECTIONS)}"
    if scenario.schedule_name == "split":
        yield ("schedule",), "no message leaves in the middle of a step"
    if scenario.method_name == "central":
        yield ("method",), "the server trains on all samples, and no client does"
    if method.scores_own_models:
        yield ("method",), "the server scores the clients' own models, which stay with them"
    if scenario.evaluation.clients:
        yield ("evaluation", "clients"), "no client is scored on its device"
    if scenario.payload.codecs() != (None, None):
        yield ("payload",), "tensors travel as they are"
    given = {
        "availability": fleet.availability != "always", "battery": fleet.battery is not None,
        "throttling": bool(fleet.throttling), "failures": fleet.failures != FailureOptions(),
        "relays": fleet.relays is not None, "server_link": fleet.server_link is not None,
        "carbon_intensity": fleet.carbon_intensity is not None,
    }  # fmt: skip
    yield from ((("fleet", name), "they have their own") for name, is_given in given.items() if is_given)
    if any(cap is not None for cap in fleet.budgets.caps().values()):
        yield ("fleet", "budgets"), "nobody measures how much of a cap over rounds they have spent"
    for file, _ in registry.for_workers().files:
        yield (), f"the plug-in file {file} doesn't travel with the app; install it as a package on every node"
