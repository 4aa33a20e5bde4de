"""What of a scenario can't leave the simulation: real devices have their own links, batteries and faults."""

from __future__ import annotations

from collections.abc import Iterator

from edgefl import registry
from edgefl.devices import FailureOptions
from edgefl.errors import ScenarioError
from edgefl.methods import Method
from edgefl.scenario import Scenario

SELECTIONS = ("random", "round-robin")
"""Selections that real seconds don't change, so that cohorts are the simulation's."""


def check_leaves(scenario: Scenario, method: type[Method] | None = None) -> None:
    """Raise ScenarioError with all that keeps a scenario from real devices."""
    if reasons := list(_reasons(scenario, method or registry.get("method", scenario.method_name))):
        told = "\n".join(f"- {each}" for each in reasons)
        raise ScenarioError(f"{scenario.name} can't leave the simulation:\n{told}")


def _reasons(scenario: Scenario, method: type[Method]) -> Iterator[str]:
    fleet, round = scenario.fleet, scenario.round
    if scenario.compare:
        yield "compare: devices play one scenario, so write --set compare=null"
    if scenario.training.mode != "real":
        yield f"training.mode {scenario.training.mode}: devices train"
    if not round.build_policy().waits_for_all:
        yield f"round.policy {round.policy_name}: a round waits for its whole cohort, so write synchronous"
    if round.over_selection:
        yield "round.over_selection: a round waits for its whole cohort"
    if round.gate != "eligible":
        yield f"round.gate {round.gate}: a client whose memory doesn't suffice isn't asked"
    if round.selection_name not in SELECTIONS:
        yield f"round.selection {round.selection_name}: it depends on seconds or losses, so write one of {SELECTIONS}"
    if scenario.schedule_name == "split":
        yield "schedule split: no message leaves in the middle of a step"
    if method.scores_own_models:
        yield f"method {scenario.method_name}: the server scores the clients' own models, which stay on the devices"
    if scenario.evaluation.clients:
        yield "evaluation.clients: no client is scored on its device"
    if scenario.payload.codecs() != (None, None):
        yield "payload: tensors travel as they are"
    given = {
        "availability": fleet.availability != "always", "battery": fleet.battery is not None,
        "throttling": bool(fleet.throttling), "failures": fleet.failures != FailureOptions(),
        "relays": fleet.relays is not None, "server_link": fleet.server_link is not None,
        "carbon_intensity": fleet.carbon_intensity is not None,
    }  # fmt: skip
    for name, is_given in given.items():
        if is_given:
            yield f"fleet.{name}: real devices have their own"
    if any(cap is not None for cap in fleet.budgets.caps().values()):
        yield "fleet.budgets: nobody measures what a device has spent of a cap over rounds"
    for path, _ in registry.for_workers().files:
        yield f"the plug-in file {path}: the app doesn't take it along, so install it as a package on every node"
