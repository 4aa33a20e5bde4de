"""Random numbers: every draw is a pure function of (scenario seed, purpose, indices).

edgefl uses no global generator for a decision, so results don't depend on the executor, the number of workers or the
order in which tasks complete.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import pi
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import ArrayLike, NDArray

from edgefl.arrays import Floats

if TYPE_CHECKING:
    import torch

_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
(_MULTIPLIER_0,), (_MULTIPLIER_1,) = _MULTIPLIERS.tolist()
(_KEY_STEP_0,), (_KEY_STEP_1,) = _KEY_STEPS.tolist()
_ROUNDS = 10
"""Philox4x32-10's own numbers (Salmon et al. 2011), which Random123's known answers in the tests check.  Every draw of
every run changes with any of them."""
_BLOCKS_AT_ONCE = 8192
"""Counters in one array operation, so that its arrays stay in a core's cache.  A million counters took 36 ms by 8192,
58 ms by 4096, and 84 ms at once."""
_SPARE = [np.random.MT19937(0)]
"""What numpy's global functions draw from while they are seeded, as many as are seeded at once.  To copy the state of
theirs there and back took 65 us of each work, to exchange it 2; a normal number that they drew ahead is lost."""
_FEW = 8
"""Up to so many counters a Python loop is faster than array operations: 8 took 38 us against 68 us, and 16 as long."""


def key(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for this draw, for example for ``torch.manual_seed``."""
    return int.from_bytes(_digest(8, seed, purpose, *indices), "big") >> 1


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A counter-based generator (Philox) for this draw.

    For a whole fleet, draw once per purpose and index the result by client: a generator and four draws per client took
    6 s for a million clients. ``uniforms`` took 0.04 s, and costs nothing for clients that aren't in ``of``.
    """
    key = _DrawKey(_digest(16, seed, purpose, *indices))
    return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type] # numpy's stubs lack ISeedSequence


class _DrawKey(ISeedSequence):
    """The key of a Philox generator, for its constructor: with ``key=`` that also asks the system for entropy, which
    takes longer than all the rest."""

    def __init__(self, digest: bytes):
        self._digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        """The two words of the key, the lower one first: `[2]`."""
        return np.frombuffer(self._digest, ">u8")[::-1].astype(np.uint64)


def uniforms(seed: int, purpose: str, *indices: int, of: ArrayLike, block: ArrayLike = 0) -> Floats:
    """Four uniform numbers from the open interval (0, 1) for each integer in ``of``: `[len(of), 4]`.

    The integers are indices, such as client indices. A row depends only on its own integer and its ``block``, not on
    which others are in ``of``. ``block`` is one integer for all rows or one for each row, and counts the groups of four
    numbers of the same index. Neighbouring values are 2^-32 apart.
    """
    return np.ascontiguousarray(columns_of(counter_key(seed, purpose, *indices), of, block).T)


def counter_key(seed: int, purpose: str, *indices: int) -> NDArray[np.uint64]:
    """The key of ``columns_of`` under which ``uniforms`` draws: two words of 32 bits, `[2, 1]`."""
    return np.frombuffer(_digest(8, seed, purpose, *indices), dtype=">u4").astype(np.uint64)[:, None]


def columns_of(keys: NDArray[np.uint64], of: ArrayLike, block: ArrayLike = 0) -> Floats:
    """``uniforms`` by their keys, transposed: `[4, len(of)]`.

    ``keys`` hold one ``counter_key`` for all integers in ``of``, `[2, 1]`, or one for each, `[2, len(of)]`.
    """
    numbers = np.ascontiguousarray(of, dtype=np.int64)
    if len(numbers) <= _FEW:
        of_each = [block] * len(numbers) if isinstance(block, int) else np.broadcast_to(block, numbers.shape).tolist()
        of_keys = keys.T.tolist() if keys.shape[1] > 1 else keys.T.tolist() * len(numbers)
        words = [philox_of(*counter) for counter in zip(numbers.tolist(), of_each, of_keys, strict=True)]
        return (np.array(words, dtype=float).reshape(-1, 4).T + 0.5) * 2.0**-32
    blocks = np.ascontiguousarray(np.broadcast_to(np.asarray(block, dtype=np.int64), numbers.shape))
    drawn = np.empty((4, len(numbers)))
    for start in range(0, len(numbers), _BLOCKS_AT_ONCE):
        part = slice(start, start + _BLOCKS_AT_ONCE)
        counters_of_part = np.stack([numbers[part].view(np.uint64), blocks[part].view(np.uint64)])
        part_keys = keys if keys.shape[1] == 1 else keys[:, part]
        drawn[:, part] = philox(counters_of_part & _WORD, counters_of_part >> _HALF, part_keys)
    drawn += 0.5
    drawn *= 2.0**-32
    return drawn


def normals(seed: int, purpose: str, *indices: int, of: ArrayLike) -> Floats:
    """As ``uniforms``, but four independent standard normal numbers per row (Box and Muller 1958): `[len(of), 4]`."""
    uniform = uniforms(seed, purpose, *indices, of=of)
    # columns are made contiguous: numpy may take another code path for strided arrays, with other rounding
    radius = np.sqrt(-2 * np.log(np.ascontiguousarray(uniform[:, :2])))
    angle = (2 * pi) * np.ascontiguousarray(uniform[:, 2:])
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def philox(even: NDArray[np.uint64], odd: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011): four random words of 32 bits for each counter, `[4, n]`.

    ``even`` `[2, n]` holds words 0 and 2 of the counters, ``odd`` `[2, n]` words 1 and 3, ``key`` two words for all,
    `[2, 1]`, or for each, `[2, n]`.
    """
    for _ in range(_ROUNDS):
        product = (even * _MULTIPLIERS)[::-1]
        even = (product >> _HALF) ^ odd ^ key
        odd = product & _WORD
        key = (key + _KEY_STEPS) & _WORD
    return np.stack([even[0], odd[0], even[1], odd[1]])


def philox_of(number: int, block: int, key: Sequence[int]) -> tuple[int, int, int, int]:
    """``philox`` for one counter, without arrays: ``number`` is its words 0 and 1, ``block`` its words 2 and 3."""
    mask, first, second = 0xFFFFFFFF, *key
    a, b, c, d = number & mask, number >> 32 & mask, block & mask, block >> 32 & mask
    for _ in range(_ROUNDS):
        product, partner = c * _MULTIPLIER_1, a * _MULTIPLIER_0
        a, b, c, d = product >> 32 ^ b ^ first, product & mask, partner >> 32 ^ d ^ second, partner & mask
        first, second = first + _KEY_STEP_0 & mask, second + _KEY_STEP_1 & mask
    return a, b, c, d


@contextmanager
def seeding_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """The global generators of torch (CPU and ``device``), numpy and random, seeded; afterwards they are as before.

    edgefl draws from ``edgefl.seeds`` and from torch's; a user's model or step may draw from any.
    ``torch.manual_seed`` draws the same numbers, but seeds all devices and takes a stack trace without CUDA.
    """
    import torch

    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    of_random, of_numpy = random.getstate(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    spare = _SPARE.pop() if _SPARE else np.random.MT19937(0)
    try:
        for generator in generators:
            generator.manual_seed(seed)
        np.random.set_bit_generator(spare)  # type: ignore[attr-defined]
        _seed_others(seed)
        yield
    finally:
        random.setstate(of_random)
        np.random.set_bit_generator(of_numpy)  # type: ignore[attr-defined]
        _SPARE.append(spare)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def seed_globals(seed: int) -> None:
    """Seed the global generators of torch, on all devices, numpy and random."""
    import torch

    torch.manual_seed(seed)
    _seed_others(seed)


def _seed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _digest(size: int, seed: int, purpose: str, *indices: int) -> bytes:
    text = "/".join([str(seed), purpose, *map(str, indices)])
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
