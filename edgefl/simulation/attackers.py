"""The run's attackers: what a client's assignment does for them, their field in the records, and rounds where they are
too many for the rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from edgefl import registry
from edgefl.arrays import AnyArray
from edgefl.methods.aggregation.rules import ByUpdate, Rule, rule
from edgefl.planning.setup import Setup
from edgefl.training import Attack
from edgefl.work.slices import Cut, covers
from edgefl.work.sums import is_averaged
from edgefl.work.update import Update

Texts = dict[str, list[bytes]]


def is_attacker(setup: Setup, client: int) -> bool:
    """Whether a client attacks."""
    return setup.fleet.attackers is not None and bool(setup.fleet.attackers[client])


def attack_of(setup: Setup, client: int, seed: int) -> Attack | None:
    """The attack of a client whose training has this seed, None for an honest one."""
    options = setup.fleet.failures.attack
    if options is None or not is_attacker(setup, client):
        return None
    part = registry.get("attack", options.name)
    made: Attack = part(options, setup.clients.classes_of(setup.kind_of(client)) if part.labels else 0, seed)
    return made


def excess_attackers(setup: Setup, updates: Sequence[Update]) -> str | None:
    """Of these updates, which are aggregated together, the first that a rule compares and of which more are of
    attackers than it withstands, in words; None if there are none."""
    if setup.fleet.attackers is None or setup.method.setting.aggregation.adds_up:
        return None
    named = rule(setup.method.setting.aggregation)
    for kind, clients in _compared_groups(named, [update for update in updates if update.weight]):
        bad, most = sum(is_attacker(setup, client) for client in clients), named.withstands(len(clients))
        if most is not None and bad > most:
            return (
                f"{setup.method.setting.aggregation.rule_name} of {len(clients)} updates of {kind} clients, {bad} of "
                f"them attackers', withstands {most}"
            )
    return None


def _compared_groups(named: Rule, updates: Sequence[Update]) -> Iterator[tuple[str, Sequence[int]]]:
    """Kind and clients of the updates that a rule compares with each other: whole ones of a kind that send the same,
    or those that have a coordinate."""
    whole: dict[tuple[str, object], list[int]] = {}
    parts: dict[str, list[tuple[Update, Cut | None]]] = {}
    for update in updates:
        items = [item for payload in update.work.up for item in payload.items if is_averaged(item.source)]
        whole.setdefault((update.kind, frozenset((i.source, i.cut) for i in items)), []).append(update.client)
        for item in items:
            parts.setdefault(item.source, []).append((update, item.cut))
    if isinstance(named, ByUpdate):
        yield from ((kind, clients) for (kind, _), clients in whole.items())
        return
    for senders in parts.values():
        for cut in {cut for _, cut in senders}:
            having = [update for update, own in senders if covers(own, cut)]
            yield having[0].kind, [update.client for update in having]


def attack_column(setup: Setup, clients: AnyArray) -> Texts:
    """JSON texts of the field ``attack`` for these clients, null for honest ones; no field in a run without attackers.

    The field is in every record of a run with attackers, so that its records have equal fields.
    """
    options, attackers = setup.fleet.failures.attack, setup.fleet.attackers
    if options is None or attackers is None or not attackers.any():
        return {}
    named = orjson.dumps(options.name)
    return {"attack": [named if attacks else b"null" for attacks in np.asarray(attackers)[clients].tolist()]}
