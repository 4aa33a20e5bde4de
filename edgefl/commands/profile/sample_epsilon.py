"""The epsilon of a sample of a client that trains by DP-SGD, by dp-accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import numpy as np

from edgefl.planning.privacy import accountants
from edgefl.planning.setup import Setup
from edgefl.planning.subjects import Subject
from edgefl.records.record import UNSET, Maybe
from edgefl.work import Work
from edgefl.work.private import PRIVATE
from edgefl.work.training_options import PrivateOptions


def sample_epsilon(setup: Setup, subject: Subject, works: Iterable[tuple[Work, int]]) -> float | Maybe:
    """Epsilon at ``private.delta`` of ``works`` that the subject's client with the fewest samples does so often.

    The largest of any modality pattern, since a sample is of one; UNSET without a delta, and where nobody trains.
    Raises MethodError if dp-accounting isn't installed.
    """
    private, sizes = setup.method.setting.training.private, setup.clients.client_samples[subject.members]
    if private is None or private.delta is None or not sizes.any():
        return UNSET
    source = setup.clients.client(int(subject.members[np.argmin(np.where(sizes, sizes, sizes.max() + 1))]))
    batches = Counter[tuple[tuple[str, ...], int, int]]()
    for p, times in ((p, n) for work, n in works for p in work.limit_batches(source.size).passes):
        if PRIVATE in p.around:
            batches[p.patterns, source.size(p), p.batch] += times * sum(source.counts(p).values())
    each = (_epsilon_of(private, *key[1:], count) for key, count in batches.items() if count)
    return max(each, default=UNSET)


@cache
def _epsilon_of(private: PrivateOptions, samples: int, batch: int, batches: int) -> float:
    """Epsilon of so many noised sums of Poisson samples that are cut off at a batch, for one sample more or less."""
    library = accountants()
    accountant, chance = library.pld.PLDAccountant(), (private.poisson or 0.0) * batch / samples
    accountant.compose(library.TruncatedSubsampledGaussianDpEvent(samples, chance, batch, private.noise), batches)
    return float(accountant.get_epsilon(private.delta))
