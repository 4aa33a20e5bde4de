"""Every random draw starts here: a pure function of (scenario seed, purpose, indices).

Nothing in edgefl calls a global generator for a decision, so a result never depends on the executor, the number of
workers or the order of completion.
"""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit integer that identifies this draw: for ``torch.manual_seed`` and the like."""
    text = "/".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A counter-based generator (Philox) for this draw.

    For a fleet draw once per purpose and round and index the result by client: a generator object per client
    halves the speed of a large simulation.
    """
    text = "/".join([str(seed), purpose, *map(str, indices)])
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
