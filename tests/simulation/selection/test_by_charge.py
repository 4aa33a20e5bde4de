"""A selection of one's own that asks the clients with the fullest batteries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgefl
from edgefl import registry
from edgefl.registry.registered import PARTS
from edgefl.simulation import Selection
from edgefl.simulation.selection import Chosen
from edgefl.simulation.selection.base import GroupDraw


class Fullest(Selection):
    def pick(self, share: GroupDraw) -> Chosen:
        ready = share.clients[share.candidates.ready(share.clients)]
        order = ready[np.argsort(-share.candidates.charge(ready), kind="stable")]
        return Chosen(order[: share.count], len(share.clients), len(share.clients) - len(ready))


@pytest.fixture(autouse=True)
def fullest() -> Iterator[None]:
    edgefl.register("selection", "fullest")(Fullest)
    yield
    PARTS.clear()
    registry.forget()


def test_the_clients_that_have_spent_the_least_are_asked(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """All batteries are equal and full at first: the fullest is whose recorded joules are the fewest."""
    scenario = tiny(
        data={"source": "glyphs", "clients": {"image": 5}, "samples": 40, "validation": 40, "test": 40},
        schedule={"name": "end-to-end", "rounds": 8},
        training={"batch": 8, "mode": "none"},
        fleet={"devices": ["raspberry-pi-4-4gb", "raspberry-pi-3b-plus"], "battery": {"capacity": "100 J"}},
        round={"cohort": 2, "selection": "fullest"},
    )
    rows = edgefl.run(scenario, out=tmp_path / "run").records("clients")
    spent = dict.fromkeys(range(5), 0.0)
    for round in range(1, 9):
        joules = {row["client"]: row["energy_joules"] for row in rows if row["round"] == round}
        assert sorted(joules) == sorted(sorted(spent, key=lambda client: (spent[client], client))[:2])
        spent |= {client: spent[client] + more for client, more in joules.items()}
    assert min(spent.values()) > 0
