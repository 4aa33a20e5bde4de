"""Choice of a client's stage among those offered: the first that fits its budgets, or else the nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.planning.eligibility import gate

Offer = Callable[[Integers], tuple[Integers, Mapping[str, ArrayLike]]]
"""One stage, called with client indices: returns the row of each client in the caller's table of costs, and these
costs by the names of budgets.  Costs are arrays as long as the indices, or one number for all."""


@dataclass(frozen=True)
class StageChoices:
    """Stage chosen for each client: arrays `[clients]`.

    ``stage`` is the index of the stage and ``row`` the row that its offer returned.  ``eligible`` says whether it
    fits; ``binding`` indexes the offers' costs, -1 if all are unlimited.
    """

    stage: NDArray[np.int16]
    row: NDArray[np.int32]
    eligible: Booleans
    binding: NDArray[np.int8]


def choose_stages(offers: Mapping[int, Offer], budgets: Mapping[str, Floats], *, why: bool = True) -> StageChoices:
    """Choose for each client the first offered stage that fits its budgets, or else the nearest stage.

    ``offers`` are by index of the stage, best first; each is called once, with the clients that no earlier offer
    fits.  ``budgets`` are arrays `[clients]` by the names of budgets.  The nearest stage has the largest
    ``Verdicts.nearness``; ties go to the stage with the higher index.

    ``why=False`` is faster: ``binding`` is -1 throughout, and a client that fits no stage gets the first offer.
    Raises DeviceError for costs that ``gate`` rejects.
    """
    clients = len(next(iter(budgets.values())))
    stage, row = np.full(clients, -1, np.int16), np.full(clients, -1, np.int32)
    eligible, binding = np.zeros(clients, bool), np.full(clients, -1, np.int8)
    left, nearest = np.arange(clients), np.full(clients, -np.inf)
    for index, offer in offers.items():
        rows, costs = offer(left)
        allowed = budgets if len(left) == clients else {name: values[left] for name, values in budgets.items()}
        if why:
            verdicts = gate(costs, allowed)
            fits = verdicts.eligible
            taken = fits | (stage[left] < 0)
            if len(offers) > 1:  # a single offer needs no comparison
                near = verdicts.nearness
                taken |= (near > nearest[left]) | ((near == nearest[left]) & (index > stage[left]))
                nearest[left[taken]] = near[taken]
            binding[left[taken]] = verdicts.binding[taken]
        else:
            fits = np.logical_and.reduce([np.less_equal(costs[name], allowed[name]) for name in allowed])
            taken = fits | (stage[left] < 0)
        chosen = left[taken]
        stage[chosen], row[chosen], eligible[chosen] = index, rows[taken], fits[taken]
        left = left[~fits]
        if not len(left):
            break
    return StageChoices(stage, row, eligible, binding)
