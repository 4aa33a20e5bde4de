"""``edgefl validate``: check that a scenario can be run, and write out every default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.cells.needs import brief_predictor, check, idle_parts
from edgefl.commands.validate.answer import ValidCombination, ValidScenario
from edgefl.data import Federation
from edgefl.data.missing import patterns_of
from edgefl.models import quantised
from edgefl.planning.setup import Setup
from edgefl.records.record import UNSET
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.setup.compose import Given, check_sections, predictor_of, scenario_of
from edgefl.setup.progress import public_command


@public_command
def validate(scenario: Given, overrides: Sequence[str] = (), *, on_progress: OnProgress = silent) -> ValidScenario:
    """Check a scenario, and every combination that it compares, without running it.

    The check is the one with which ``edgefl.run`` begins: data are opened, fleets drawn, works described, files of
    weights compared with the towers, and a step of each kind's work is priced on tensors without data.  Nothing is
    trained and no run is written.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.lr=1e-3"``.
        on_progress: Called with the name of an event and its facts.

    Returns:
        ``scenario`` (its name), ``seed``, ``combinations`` and ``resolved``, the scenario with every default written
        out. A combination has its ``label``, ``method`` and ``schedule``, the ``rounds`` in all and by stage, and
        counts of ``clients``, private ``samples``, ``parameters`` (by kind), ``devices``, ``links`` (clients by name)
        and, where samples lack modalities, ``lacking`` (samples by kind and pattern).

    Raises:
        ScenarioError: The scenario can't be run; also DataError, DeviceError, MethodError, UnknownName, UnitError.
    """
    whole = scenario_of(scenario, overrides)
    combinations = whole.combinations()
    check_sections([combination for _, combination in combinations])
    return ValidScenario(
        scenario=whole.name,
        seed=whole.seed,
        combinations=[
            _summary(label, combination, check(combination, messages(on_progress), brief=True))
            for label, combination in combinations
        ],
        resolved=whole.to_data(),
    )


def _summary(label: str, scenario: Scenario, setup: Setup) -> ValidCombination:
    kinds = setup.clients.kinds
    samples = setup.clients.client_samples
    fleet = setup.fleet
    for kind, variant in setup.variants:
        setup.method.client_work(kind, 1, variant)  # raises for towers that the method can't pair
    described = setup.method.setting.kinds
    plain = {name: replace(kind, model=quantised.without(kind.model)) for name, kind in described.items()}
    return ValidCombination(
        label=label,
        method=scenario.method_name,
        schedule=scenario.schedule_name,
        rounds=setup.schedule.rounds,
        rounds_by_stage=[stage.rounds for stage in setup.schedule.stages],
        clients={kind: len(setup.of_kind(kind)) for kind in kinds},
        samples={kind: int(samples[setup.of_kind(kind)].sum()) for kind in kinds},
        lacking=_lacking(setup),
        parameters={k: sum(prod(s.shape) for s in plain[k].parameters().values()) for k in kinds},
        nobody_fits=idle_parts(setup, predictor_of(scenario), brief_predictor(scenario)),
        devices=_count_clients([device.name for device in fleet.devices], fleet.device_index),
        links=_count_clients([link.name for link in fleet.links], fleet.link_index),
        relays={fleet.relays.link.name: len(np.unique(fleet.relays.of))} if fleet.relays is not None else UNSET,
    )


def _count_clients(names: Sequence[str], index: AnyArray) -> dict[str, int]:
    """Number of clients by name, most first; ``index`` is into ``names``, `[clients]`."""
    counts: Counter[str] = Counter()
    for name, count in zip(names, np.bincount(index, minlength=len(names)).tolist(), strict=True):
        if count:
            counts[name] += count
    return dict(counts.most_common())


def _lacking(setup: Setup) -> dict[str, dict[str, int]]:
    """Samples by kind and modality pattern, ``dropped`` for those without any; only kinds that lack modalities."""
    clients, lacking = setup.clients, {}
    if isinstance(clients, Federation) and clients.client_patterns is not None and clients.client_dropped is not None:
        for kind in clients.kinds:
            members = setup.of_kind(kind)
            if len(patterns := clients.patterns(kind)) > 1:
                counts = dict(zip(patterns_of(kind), clients.client_patterns[members].sum(0).tolist(), strict=True))
                lacking[str(kind)] = {p: counts[p] for p in patterns} | {
                    "dropped": int(clients.client_dropped[members].sum())
                }
    return lacking
