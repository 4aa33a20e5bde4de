"""The run's attackers: what a client's task does for them, and their field in the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from edgefl import registry
from edgefl.planning.setup import Setup
from edgefl.training import Attack

Texts = dict[str, list[bytes]]


def attacks(setup: Setup, client: int) -> bool:
    """Whether a client attacks."""
    return setup.fleet.attackers is not None and bool(setup.fleet.attackers[client])


def attack_of(setup: Setup, client: int, seed: int) -> Attack | None:
    """The attack of a client whose training has this seed, None for an honest one."""
    options = setup.fleet.failures.attack
    if options is None or not attacks(setup, client):
        return None
    part = registry.get("attack", options.kind)
    made: Attack = part(options, setup.clients.classes_of(setup.kind_of(client)) if part.labels else 0, seed)
    return made


def attack_column(setup: Setup, clients: NDArray[Any]) -> Texts:
    """JSON texts of the field ``attack`` for these clients, null for honest ones; no field in a run without attackers.

    The field is in every record of a run with attackers, so that its records have equal fields.
    """
    options, attackers = setup.fleet.failures.attack, setup.fleet.attackers
    if options is None or attackers is None or not attackers.any():
        return {}
    named = orjson.dumps(options.kind)
    return {"attack": [named if attacks else b"null" for attacks in np.asarray(attackers)[clients].tolist()]}
