"""Who holds which data: what leaves with clients that can't take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data import Federation
from edgefl.planning.setup import Setup

Booleans = NDArray[np.bool_]
Integers = NDArray[Any]


@dataclass(frozen=True)
class DataCoverage:
    """Who holds what: ``samples`` `[clients]`; ``classes`` `[clients, classes]` counts them, None of declared data.

    ``everyone`` has the clients of each kind as masks `[clients]`.
    """

    samples: Integers
    classes: NDArray[Any] | None
    names: tuple[str, ...]
    everyone: Mapping[str, Booleans]

    @classmethod
    def of(cls, setup: Setup) -> DataCoverage:
        """The holdings of a federation."""
        clients = setup.clients
        kind = np.asarray(clients.client_kind)
        classes: Integers | None = None
        names: tuple[str, ...] = ()
        if isinstance(clients, Federation) and not clients.declared_only:
            classes = np.asarray(clients.class_counts())[:, :-1]  # the last column has those of no class
            names = tuple(clients.class_names)
        everyone = {name: kind == index for index, name in enumerate(clients.kinds)}
        return cls(np.asarray(clients.client_samples), classes, names, everyone)

    def left(self, clients: Booleans, able: Booleans) -> dict[str, Any]:
        """What of these clients' data the ``able`` of them hold, and what leaves with the others."""
        all_samples, samples = int(self.samples[clients].sum()), int(self.samples[able].sum())
        found: dict[str, Any] = {
            "eligible_samples_share": share(samples, all_samples),
            "class_coverage": None,
            "excluded_samples": all_samples - samples,
            "lost_classes": None,
            "lost_modalities": [],
            "modality_samples_share": {},
        }
        if self.classes is not None and self.classes.shape[1]:
            there, kept = self.classes[clients].any(axis=0), self.classes[able].any(axis=0)
            found["class_coverage"] = float(kept.mean())
            found["lost_classes"] = [self.names[i] for i in np.flatnonzero(there & ~kept)]
        held: dict[str, list[int]] = {}
        for kind, mine in self.everyone.items():
            whole, part = int(self.samples[mine & clients].sum()), int(self.samples[mine & able].sum())
            if (mine & clients).any():
                for modality in kind.split("-"):
                    counted = held.setdefault(modality, [0, 0])
                    counted[0], counted[1] = counted[0] + whole, counted[1] + part
        for modality, (whole, part) in held.items():
            found["modality_samples_share"][modality] = share(part, whole)
            if whole and not part:
                found["lost_modalities"].append(modality)
        return found


def share(part: int, whole: int) -> float:
    """``part`` of ``whole``, 0 of nothing."""
    return part / whole if whole else 0.0
