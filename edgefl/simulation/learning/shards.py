"""Clients of a large cohort whose changes are added up where they train, so that one sum travels for all of them.

Which clients belong together is decided by the cohort alone, so results don't depend on the executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefl.methods import Method, ServerState
from edgefl.methods.aggregation.mean import Fold
from edgefl.models.model import DTYPES
from edgefl.planning.planner import Start
from edgefl.planning.setup import Setup
from edgefl.schedules import Stage
from edgefl.simulation.attackers import is_attacker
from edgefl.simulation.learning.interface import part_of_stage
from edgefl.work import Form
from edgefl.work.sums import Means, SharedSum, is_averaged

if TYPE_CHECKING:
    from edgefl.simulation.learning.training import Started

FEWEST_SHARDS, LARGEST = 64, 16
"""Clients with equal works make so many shards at least, of so many clients at most.

64 keep as many workers busy, and 16 bound what is lost with one.  Both are choices.  Another number adds floats up in
another order, and so changes the bits of a large cohort's model.
"""


@dataclass(eq=False)
class Shard:
    """Clients under way whose changes are added up where they train, as ``rule`` says.

    ``left`` of the ``members`` haven't landed; ``used`` is whether an update of one that has was accepted.  ``means``
    are their sums, once the first has landed.
    """

    rule: SharedSum
    members: Sequence[Started]
    left: int
    used: bool = False
    means: Means | None = None


def largest_shard(clients: int) -> int:
    """The number of clients in a shard, of so many with equal works; 1 if their updates are added up one by one."""
    return max(1, min(LARGEST, clients // FEWEST_SHARDS))


def may_share(setup: Setup) -> bool:
    """Whether updates can be added up where clients train: each one's weight is known before, and nothing else is read.

    Clipping needs each update's norm; a method with weights of its own may need what the client reports.
    """
    method, setting = setup.method, setup.method.setting
    own = type(method)
    usual = own.update_weight is Method.update_weight and own.rebuild is Method.rebuild and method.adds_up
    return usual and setting.aggregation.clip is None


def share(setup: Setup, state: ServerState, clients: Sequence[Started], stage: Stage, mean: Fold) -> None:
    """Decide whose changes are added up together where they train: neighbours among ``clients`` with equal works.

    Attackers, and works that keep values or send tables, are left out.
    """
    classes: dict[tuple[Form, Start], list[Started]] = {}  # of one dispatch: those of a start have the same scalars
    suits: dict[Form, bool] = {}
    for started in clients:
        form = started.plan.form
        if form not in suits:
            suits[form] = _suits(form, state, stage)
        if suits[form] and not is_attacker(setup, started.client):
            classes.setdefault((form, started.plan.start), []).append(started)
    for alike in classes.values():
        size = largest_shard(len(alike))
        for first in range(0, len(alike), size):
            members = alike[first : first + size]
            expected = [each.expected for each in members if each.expected is not None]
            if len(members) > 1:
                shard = Shard(mean.shared_sum(expected), members, len(members))
                for started in members:
                    started.shard = shard


def _suits(work: Form, state: ServerState, stage: Stage) -> bool:
    """Whether nothing but a work's parameters is sent, which the server has in the same precision."""
    items = [item for payload in work.up for item in payload.items]
    return (
        bool(items)
        and not work.keep
        and part_of_stage(work, stage) is work
        and all(is_averaged(i.source) and state.tensors[i.source].dtype == DTYPES[i.dtype] for i in items)
        and all(i.like is None for payload in work.down for i in payload.items)
    )
