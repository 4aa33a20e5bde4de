"""A run on real devices: the simulation's rounds on the wall clock, in a run's folder like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from edgefl.arrays import Booleans
from edgefl.cells.fingerprint import inputs_of, run_fingerprint
from edgefl.cells.needs import check
from edgefl.data import Federation
from edgefl.deployment.leaving import check_leaves
from edgefl.deployment.node_roster import NodeRoster
from edgefl.deployment.own_samples import check_own, compose_samples
from edgefl.deployment.remote_clients import RemoteClients
from edgefl.deployment.transport import OwnSamples, Transport
from edgefl.devices.availability import Always
from edgefl.planning.setup import Setup
from edgefl.results.facts import evaluation_of
from edgefl.runs import Run, RunDirectory, read_run
from edgefl.runs.environment import environment
from edgefl.runs.folders import free_folder, new_folder
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.setup.compose import federation_of, predictor_of
from edgefl.simulation import Simulation
from edgefl.simulation.closed_form import Flights, Landings
from edgefl.training import Executor
from edgefl.work.torch_device import threads


class WithNode(Always):
    """An availability in which those clients take part that have had a node."""

    def __init__(self, roster: NodeRoster):
        super().__init__()
        self._roster = roster

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether each client has had a node: `[clients]`."""
        return np.isin(np.asarray(clients), self._roster.clients_with_node)


def play_on_nodes(
    scenario: Scenario,
    transport: Transport,
    out: Path | None,
    on_progress: OnProgress,
    *,
    wait: float,
    patience: float = inf,
) -> Run:
    """Play a scenario's rounds on the nodes of a transport, and return the run.

    The first round begins when every client has a node, or after ``wait`` seconds.  A round gives a node up after
    ``patience`` seconds, or the scenario's ``round.deadline``, whichever comes first.  Raises ScenarioError for a
    scenario that can't leave the simulation, RunError if no node comes.
    """
    check_leaves(scenario)
    on_message = messages(on_progress)
    setup = check(scenario, on_message, Path("runs") if out is None else out)
    federation, clients = federation_of(scenario, on_message), len(setup.clients.client_kind)
    begun = False

    def check_node(client: int, own: OwnSamples | None) -> None:
        check_own(federation, client, own, begun=begun)

    roster = NodeRoster(transport, clients, on_message, federation.scales, check_node)
    roster.wait(clients, wait)
    federation, begun = compose_samples(federation, roster.own), True
    setup = replace(setup, clients=federation)
    played = replace(setup, fleet=replace(setup.fleet, availability=WithNode(roster)), measure="none")
    deadline = min(patience, inf if scenario.round.deadline is None else scenario.round.deadline)
    new = free_folder(f"{scenario.name}-real") if out is None else new_folder(out)
    with create_run(new.path, scenario, played) as directory:
        directory.table("nodes").touch()
        remote = RemoteClients(
            federation, roster, directory.path, deadline=deadline, measure=setup.measure,
            keep_non_finite=setup.method.setting.aggregation.non_finite == "keep",
            on_flight=directory.append, on_message=on_message,
        )  # fmt: skip
        play(directory, scenario, played, remote, remote.land, federation, on_progress)
    new.close()
    return read_run(new.path)


def create_run(folder: Path, scenario: Scenario, setup: Setup) -> RunDirectory:
    """The folder of a new run of a setup, a context manager."""
    models = {name: kind.model for name, kind in setup.method.setting.kinds.items()}
    return RunDirectory.create(folder, scenario_yaml=scenario.to_yaml(), environment=environment(), models=models)


def play(
    directory: RunDirectory,
    scenario: Scenario,
    setup: Setup,
    executor: Executor | None,
    flown: Callable[[Flights], Landings] | None,
    federation: Federation,
    on_progress: OnProgress,
    rounds: int | None = None,
) -> None:
    """Play the rounds of a setup in a new run's folder, on the virtual clock, or on the clock of ``flown``."""
    directory.write_evaluation(evaluation_of(read_run(directory.path), federation.server_samples))
    predictor = predictor_of(scenario)
    simulation = Simulation(
        setup, executor, predictor, directory, on_progress, on_divergence=scenario.training.on_divergence, flown=flown
    )
    directory.made_of = run_fingerprint(scenario, setup, predictor.device)
    directory.inputs = inputs_of(federation, simulation.state.tensors)
    on_progress("start", {"rounds": rounds or setup.schedule.rounds, "round": 0, "clients": {}})
    with threads(1):
        result = simulation.play(rounds)
    directory.finish(setup.method.exported_tensors(simulation.state) if executor is not None else {}, result)
