"""What a combination of a scenario consists of: its rounds, clients, samples, models and fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.cells.needs import brief_predictor, idle_parts
from edgefl.commands.validate.answer import ValidCombination
from edgefl.data import Federation
from edgefl.data.missing import patterns_of
from edgefl.models import quantised
from edgefl.planning.setup import Setup
from edgefl.records.record import UNSET
from edgefl.scenario import Scenario
from edgefl.setup.compose import predictor_of


def valid_combination(label: str, scenario: Scenario, setup: Setup) -> ValidCombination:
    """The combination of this label, which has been checked.  Raises MethodError for towers that can't be paired."""
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
        fewest_rounds=setup.shortest.schedule.rounds if setup.shortest else UNSET,
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
