"""Data coverage: samples, classes and modalities that are lost with clients that can't take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.arrays import AnyArray, Booleans, Integers
from edgefl.data import Federation
from edgefl.planning.setup import Setup
from edgefl.records.eligibility import Coverage


@dataclass(frozen=True)
class DataCoverage:
    """Numbers of samples: ``samples`` `[clients]` and ``classes`` `[clients, classes]` (None for declared data).

    ``everyone`` has the clients of each kind as masks `[clients]`.
    """

    samples: Integers
    classes: AnyArray | None
    names: tuple[str, ...]
    everyone: Mapping[str, Booleans]

    @classmethod
    def from_setup(cls, setup: Setup) -> DataCoverage:
        """Data held by the clients of a setup."""
        clients = setup.clients
        kind = np.asarray(clients.client_kind)
        classes: Integers | None = None
        names: tuple[str, ...] = ()
        if isinstance(clients, Federation) and not clients.is_declared_only:
            classes = np.asarray(clients.class_counts())[:, :-1]  # the last column counts samples without a class
            names = clients.class_names
        everyone = {name: kind == index for index, name in enumerate(clients.kinds)}
        return cls(np.asarray(clients.client_samples), classes, names, everyone)

    def measure_coverage(self, clients: Booleans, able: Booleans) -> Coverage:
        """Data of ``clients`` held by the ``able`` ones, and data lost with the others; both are masks `[clients]`."""
        all_samples, samples = int(self.samples[clients].sum()), int(self.samples[able].sum())
        class_coverage: float | None = None
        lost_classes: list[str] | None = None
        if self.classes is not None and self.classes.shape[1]:
            present, remaining = self.classes[clients].any(axis=0), self.classes[able].any(axis=0)
            class_coverage = float(remaining.mean())
            lost_classes = [self.names[i] for i in np.flatnonzero(present & ~remaining)]
        held: dict[str, list[int]] = {}
        for kind, members in self.everyone.items():
            whole, part = int(self.samples[members & clients].sum()), int(self.samples[members & able].sum())
            if (members & clients).any():
                for modality in kind.split("-"):
                    totals = held.setdefault(modality, [0, 0])
                    totals[0], totals[1] = totals[0] + whole, totals[1] + part
        return Coverage(
            eligible_samples_share=share(samples, all_samples),
            class_coverage=class_coverage,
            excluded_samples=all_samples - samples,
            lost_classes=lost_classes,
            lost_modalities=[modality for modality, (whole, part) in held.items() if whole and not part],
            modality_samples_share={modality: share(part, whole) for modality, (whole, part) in held.items()},
        )


def share(part: int, whole: int) -> float:
    """``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
