"""Draws by counter: published vectors of Philox, independence of what else is asked for, moments, and calls."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from calls import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl import seeds


# Random123's tests/kat_vectors, the lines "philox4x32 10": counter, key, result.
@pytest.mark.parametrize(
    ("counter", "key", "result"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_vectors(counter, key, result):
    words = np.array([[int(word, 16)] for word in counter.split()], dtype=np.uint64)
    keys = np.array([[int(word, 16)] for word in key.split()], dtype=np.uint64)
    drawn = seeds.philox(words[0::2], words[1::2], keys)
    assert " ".join(f"{int(word):08x}" for word in drawn[:, 0]) == result
    number, block = (int(low) + (int(high) << 32) for low, high in words.reshape(2, 2))
    alone = seeds.philox_of(number, block, (int(keys[0, 0]), int(keys[1, 0])))
    assert " ".join(f"{word:08x}" for word in alone) == result


def test_a_generator_is_numpys_of_the_same_key():
    for index in range(5):
        digest = hashlib.blake2b(f"1/some purpose/{index}".encode(), digest_size=16).digest()
        plain = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
        made = seeds.generator(1, "some purpose", index)
        assert made.choice(400_000, 3, replace=False).tolist() == plain.choice(400_000, 3, replace=False).tolist()
        assert made.integers(10**12, size=7).tolist() == plain.integers(10**12, size=7).tolist()
        jumped = [of.bit_generator.jumped(2).random_raw(3).tolist() for of in (made, plain)]
        assert jumped[0] == jumped[1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=40), st.integers(0, 2**62), st.integers(0, 9))
def test_a_draw_depends_on_its_own_number_alone(numbers, seed, round_):
    for draw in (seeds.uniforms, seeds.normals):
        together = draw(seed, "some purpose", round_, of=np.array(numbers))
        assert together.shape == (len(numbers), 4)
        alone = np.concatenate([draw(seed, "some purpose", round_, of=[number]) for number in numbers])
        assert np.array_equal(together, alone)
        strided = draw(seed, "some purpose", round_, of=np.repeat(numbers, 2)[::2])
        assert np.array_equal(together, strided)


def test_a_draw_is_the_same_in_any_company():
    everybody = seeds.normals(1, "company", of=np.arange(20_000))
    for some in (np.arange(7, 20_000, 13), np.array([19_999]), np.arange(8_190, 8_195), np.arange(20_000)[::-1]):
        assert np.array_equal(seeds.normals(1, "company", of=some), everybody[some])


def test_every_index_is_another_draw():
    drawn = [seeds.uniforms(*args, of=np.arange(50)) for args in ((1, "a"), (2, "a"), (1, "b"), (1, "a", 1))]
    drawn.append(seeds.uniforms(1, "a", of=np.arange(50) + 2**32))  # the upper word of a client counts too
    drawn.append(seeds.uniforms(1, "a", of=np.arange(50), block=1))
    drawn.append(seeds.uniforms(1, "a", of=np.arange(50), block=2**32))
    assert len({values.tobytes() for values in drawn}) == len(drawn)
    assert len(np.unique(np.concatenate(drawn))) == 4 * 50 * len(drawn)
    each = seeds.uniforms(1, "a", of=np.arange(50), block=np.arange(50) % 2)
    assert np.array_equal(each[0::2], drawn[0][0::2])
    assert np.array_equal(each[1::2], drawn[-2][1::2])
    assert seeds.uniforms(1, "a", of=[]).shape == (0, 4)


def test_moments():
    even = seeds.uniforms(1, "moments", of=np.arange(100_000))
    assert even.min() > 0
    assert even.max() < 1
    # five standard errors of a mean and of a mean square over 400,000 numbers
    assert even.mean() == pytest.approx(1 / 2, abs=5 * np.sqrt(1 / 12 / even.size))
    assert (even**2).mean() == pytest.approx(1 / 3, abs=5 * np.sqrt(4 / 45 / even.size))
    bell = seeds.normals(1, "moments", of=np.arange(100_000))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert (bell**power).mean() == pytest.approx(moment, abs=5 * np.sqrt(variance / bell.size))
    assert np.abs(np.corrcoef(bell.T) - np.eye(4)).max() < 5 / np.sqrt(len(bell))
    assert abs(np.corrcoef(bell[:-1, 0], bell[1:, 0])[0, 1]) < 5 / np.sqrt(len(bell))


@pytest.mark.parametrize("draw", [seeds.uniforms, seeds.normals])
@pytest.mark.parametrize("many", [1000, 1_000_000])
def test_a_cohort_is_drawn_in_blocks(draw, many):
    assert calls(lambda: draw(1, "speed", 7, of=np.arange(many))) < 100 + many // 100


def test_global_generators_are_seeded_and_stay_as_they_were():
    """Also where a seeded part begins in another, and where one fails."""

    def draws():
        return random.random(), *np.random.randn(2), torch.rand(()).item()  # noqa: NPY002

    seeds.seed_globals(5)
    expected = draws(), draws()
    seeds.seed_globals(5)
    assert draws() == expected[0]
    with pytest.raises(ZeroDivisionError), seeds.seeding_globals(2**62 + 1):
        first = draws()
        with seeds.seeding_globals(2**62 + 2):
            assert draws() != first
        assert 1 / 0
    with seeds.seeding_globals(2**62 + 1):
        assert draws() == first and draws() != first
        np.random.seed(3)  # noqa: NPY002
        assert np.random.rand() == np.random.RandomState(3).rand()  # noqa: NPY002
    assert draws() == expected[1]
