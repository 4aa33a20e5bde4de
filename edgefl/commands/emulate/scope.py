"""What an emulation can play, and what is refused before anything begins."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from edgefl import registry
from edgefl.devices import FailureOptions
from edgefl.emulation.links import MOST_OTHERS
from edgefl.errors import EmulationError
from edgefl.planning import Setup
from edgefl.scenario import Scenario

SCHEDULES = ("end-to-end", "layerwise", "progressive")
SELECTIONS = ("random", "round-robin")


def check_scope(scenario: Scenario, setup: Setup) -> None:
    """Raise EmulationError for a scenario with something that only the simulation plays."""
    if refused := next(_refused(scenario, setup), None):
        raise EmulationError(f"{scenario.name}: {refused}")


def _refused(scenario: Scenario, setup: Setup) -> Iterator[str]:
    fleet = scenario.fleet
    if scenario.compare:
        yield "an emulation plays one scenario, and this one compares several: --set compare=null"
    if scenario.training.mode != "real":
        yield "an emulation trains: leave out training.mode"
    if not registry.get("round policy", scenario.round.policy_name).waits_for_all:
        yield f"only synchronous rounds are emulated, not round.policy: {scenario.round.policy_name}"
    if scenario.round.over_selection:
        yield "round.over_selection isn't emulated: leave it out"
    if scenario.schedule_name not in SCHEDULES:
        yield f"schedule {scenario.schedule_name} isn't emulated: {', '.join(SCHEDULES)} are"
    if scenario.round.selection_name not in SELECTIONS:
        yield f"selection {scenario.round.selection_name} isn't emulated: {', '.join(SELECTIONS)} are"
    if scenario.executor.device_type == "cuda":
        yield "clients are emulated on processors, not on GPUs: --set executor.device=cpu"
    if scenario.training.stack != "off":
        yield "training.stack: clients of an emulation train one by one: --set training.stack=off"
    if scenario.evaluation.clients:
        yield "evaluation.clients isn't emulated: leave it out"
    if fleet.availability != "always" or fleet.battery is not None or fleet.throttling:
        yield "availability, battery and throttling aren't emulated: leave them out"
    if fleet.failures != FailureOptions():
        yield "fleet.failures aren't emulated: leave them out"
    if fleet.server_link is not None and fleet.server_link.sharing != "fair":
        yield "a server's link is emulated with sharing: fair only"
    if fleet.server_link is not None and fleet.server_link.others[0] > MOST_OTHERS:
        yield f"fleet.server_link.background: {MOST_OTHERS} flows at most are emulated"
    if scenario.payload.codecs() != (None, None):
        yield "encoded payloads aren't emulated: leave out payload"
    if any(not isfinite(link.download_goodput + link.upload_goodput) for link in setup.fleet.links):
        yield "a link without a finite rate isn't emulated"
