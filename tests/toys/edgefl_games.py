"""Small simulations for tests: with or without training, from the start or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from edgefl_toys import CopyingMemory, Memory

from edgefl import registry
from edgefl.cost.predict import Predictor
from edgefl.devices import Fleet, FleetOptions, available_memory_bytes
from edgefl.devices.caps import JOB
from edgefl.planning.round_options import RoundOptions
from edgefl.planning.setup import Setup
from edgefl.records.reading import from_data
from edgefl.results.conservation import CheckedFlight, CheckedRound, CheckedVerdict, LedgerFacts, Three
from edgefl.results.conservation import Ledger as Rules
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of
from edgefl.simulation import Simulation
from edgefl.training import Executor, Inline

TABLES = ("rounds", "clients", "eligibility")
Played = tuple[Simulation, Memory]


class Games:
    """Run simulations of setups: ``none`` without training, ``real`` with training.

    ``predictor`` is that of commands unless it is given.
    """

    def __init__(self, tiny: Callable[..., dict[str, Any]], predictor: Predictor | None = None):
        self.tiny = tiny
        self._predictor = predictor

    @property
    def predictor(self) -> Predictor:
        """A predictor that all tests share, so that each prediction is made once."""
        if self._predictor is None:
            self._predictor = predictor_of(load(self.tiny()))
        return self._predictor

    def setup(
        self, round: Mapping[str, Any] | None = None, fleet: Mapping[str, Any] | None = None, **sections: Any
    ) -> Setup:
        """The setup of the ``tiny`` scenario with changed sections, round options and fleet options."""
        return changed(compose(load(self.tiny(**sections))), round, fleet)

    def none(self, setup: Setup, **options: Any) -> Played:
        """Run a setup without training."""
        return self._play(setup, None, **options)

    def real(self, setup: Setup, executor: Executor | None = None, **options: Any) -> Played:
        """Run a setup with training, by the inline executor if none is given."""
        if executor is not None:
            return self._play(setup, executor, **options)
        with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
            return self._play(setup, inline, **options)

    def _play(
        self, setup: Setup, executor: Executor | None, since: Any = None, journal: Memory | None = None, **options: Any
    ) -> Played:
        journal = journal or Memory()
        options = {"checkpoint_seconds": 0.0, **options}
        simulation = Simulation(setup, executor, self.predictor, journal, **options)
        if since is not None:
            simulation.load_data(*since[1:])
        journal.result = simulation.play()  # type: ignore[attr-defined]
        return simulation, journal


def assert_records_resume(play: Callable[..., Played], setup: Setup, tables: Sequence[str] = TABLES) -> Memory:
    """From every checkpoint on, records and result are those of the run that wasn't cut off; gives that run's."""
    _, whole = play(setup, journal=CopyingMemory())
    for round, since in whole.states.items():
        _, again = play(setup, since=(round, *since), journal=CopyingMemory())
        for table in tables:
            assert again.tables.get(table, []) == [r for r in whole.tables[table] if r["round"] > round]
        assert again.result == whole.result  # type: ignore[attr-defined]
    return whole


def changed(
    setup: Setup,
    round: Mapping[str, Any] | None = None,
    fleet: Mapping[str, Any] | None = None,
    *,
    jitter: float | None = None,
) -> Setup:
    """A setup with other round options, another fleet, or ``jitter`` of all devices and links."""
    if round is not None:
        setup = replace(setup, round=RoundOptions.model_validate({"cohort": 1.0, **round}))
    if fleet is not None:
        drawn = Fleet.draw(FleetOptions.model_validate(fleet), len(setup.clients.client_kind), setup.seed)
        setup = replace(setup, fleet=drawn)
    if jitter is not None:
        devices = tuple(replace(d, jitter=jitter) for d in setup.fleet.devices)
        links = tuple(replace(link, jitter=jitter) for link in setup.fleet.links)
        setup = replace(setup, fleet=replace(setup.fleet, devices=devices, links=links))
    return setup


def granted(fleet: Fleet, **budgets: Any) -> Fleet:
    """The fleet with these budgets `[clients]`, which its owners grant whatever its devices have."""
    return replace(fleet, budgets={**fleet.budgets, **budgets}, memory_of_device=np.zeros(len(fleet), bool))


def broken_rules(setup: Setup, journal: Memory) -> list[tuple[str, Any]]:
    """The conservation rules that a run's records break, each with its first violation."""

    def watts(device_name: str, link_name: str) -> tuple[Three, Three]:
        device = next(d for d in setup.fleet.devices if d.name == device_name)
        link = next(x for x in setup.fleet.links if x.name == link_name)
        waits = device.processor.type == "gpu"
        of = [device.idle_watts if waits else device.compute_watts, device.compute_watts]
        least, most = ((device.idle_watts + link.download_watts, w, device.idle_watts + link.upload_watts) for w in of)
        return least, most

    line, deadline = setup.fleet.server_link, setup.round.deadline
    inf = float("inf")
    rates = (inf, inf) if line is None else (line.download or inf, line.upload or inf)
    caps = setup.fleet.caps
    anew = bool(registry.get("round policy", setup.round.policy_name).at_once) or bool(caps and caps.names(JOB))
    # a fleet of ``granted`` ignores its devices
    has = {device.name: available_memory_bytes(device) for device in setup.fleet.devices}
    available = has if setup.fleet.memory_of_device.any() else None
    relays = 0 if setup.fleet.relays is None else int(setup.fleet.relays.of.max()) + 1
    deadline = inf if deadline is None else deadline
    facts = LedgerFacts(watts, deadline, setup.round.gate == "eligible", anew, rates, available, relays)
    rules = Rules(facts)
    for verdict in journal.tables.get("eligibility", []):
        rules.verdict(from_data(CheckedVerdict, verdict, "eligibility"), "eligibility")
    for record in journal.tables["rounds"]:
        mine = [c for c in journal.tables.get("clients", []) if c["round"] == record["round"]]
        clients = [(from_data(CheckedFlight, flight, "clients"), "clients") for flight in mine]
        rules.round(from_data(CheckedRound, record, "rounds"), "rounds", clients)
    rules.result(journal.result, "result")  # type: ignore[attr-defined]
    return [(check.name, check.first) for check in rules.finish_checks() if check.broken]
