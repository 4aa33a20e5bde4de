"""Which of the offered stages a client takes: the first that fits its budgets, or else the one that comes nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.planning.eligibility import gate

Integers = NDArray[Any]

Offer = Callable[[Integers], tuple[Integers, Mapping[str, ArrayLike]]]
"""One stage, for clients given by their places in the arrays `[clients]`: which row of the caller's costs each of them
would have, and these costs by the keys of BUDGETS; arrays as long as what is given, or one number for all."""


@dataclass(frozen=True)
class Choices:
    """What each client takes: arrays `[clients]`.

    ``stage`` is the index of the stage and ``row`` what its offer gave for the client.  ``eligible`` says whether it
    fits; ``binding`` indexes BUDGETS, -1 if all are unlimited.
    """

    stage: NDArray[np.int16]
    row: NDArray[np.int32]
    eligible: NDArray[np.bool_]
    binding: NDArray[np.int8]


def choose_stages(
    offers: Mapping[int, Offer], budgets: Mapping[str, NDArray[np.float64]], *, why: bool = True
) -> Choices:
    """The first offered stage that fits a client's budgets, or else the one that comes nearest; for all clients.

    ``offers`` are by index of the stage, best first; each is called once, with the clients that nothing before it
    fits.  ``budgets`` are arrays `[clients]` by the keys of BUDGETS.  The nearest stage has the largest
    ``Verdicts.nearness``; of equally near ones it is the later stage, wherever it is among the offers.

    Without ``why``, which is faster, ``binding`` is -1 throughout and a client that fits nothing has the first offer.
    Raises DeviceError for costs that ``gate`` refuses.
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
            if len(offers) > 1:  # of one nothing else comes nearer
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
    return Choices(stage, row, eligible, binding)
