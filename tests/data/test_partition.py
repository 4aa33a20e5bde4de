from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgefl.data import partition
from edgefl.data.collection import Collection
from edgefl.data.split import SPLITS, assign_kinds, hold_out
from edgefl.errors import DataError

DATA_SETS = Path(__file__).parents[2] / "docs" / "reference" / "data-sets.md"
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 12),
    spare=st.integers(0, 400),
    classes=st.integers(1, 8),
    name=st.sampled_from(["iid", "dirichlet", "quantity"]),
    alpha=st.sampled_from([0.3, 1.0, 100.0]),
)
def test_every_sample_is_held_once_and_every_client_holds_ten(seed, clients, spare, classes, name, alpha):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, 10 * clients + spare)
    try:
        parts = getattr(partition, name)(labels, clients, None if name == "iid" else alpha, rng)
    except DataError:
        assume(name != "dirichlet")  # few samples and a small alpha: no draw may fit
        raise
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= partition.MINIMUM


def test_clients_may_share_samples_and_be_more_than_there_are():
    parts = partition.overlapping_split(np.zeros(40, int), 3000, 10, np.random.default_rng(0))
    assert len(parts) == 3000
    assert all(len(set(part.tolist())) == 10 for part in parts)  # a client holds a sample once
    held = np.bincount(np.concatenate(parts), minlength=40)
    assert held.sum() == 30_000 and abs(held - 750).max() < 5 * (3000 * 0.25 * 0.75) ** 0.5  # as likely each
    again = partition.overlapping_split(np.zeros(40, int), 3000, 10, np.random.default_rng(0))
    assert all(np.array_equal(*both) for both in zip(parts, again))
    for argument in (None, 9, 41, 12.0, True, "12"):
        with pytest.raises(DataError, match="from 10 to the 40 that there are"):
            partition.overlapping_split(np.zeros(40, int), 3, argument, np.random.default_rng(0))


def test_groups_stay_together_and_each_client_keeps_its_share():
    of = np.repeat(np.arange(103), 5)
    parts = partition.groups(of, 10, None, np.random.default_rng(0))
    assert sorted(len(part) for part in parts) == [50] * 7 + [55] * 3
    assert sorted(np.concatenate(parts).tolist()) == list(range(515))
    fewer = partition.groups(np.repeat(np.arange(1000), 5), 8, [0.95, 0.99], np.random.default_rng(1))
    sizes = [len(part) / 625 for part in fewer]
    assert min(sizes) >= 0.95 and max(sizes) <= 0.992 and len(set(sizes)) > 1
    held = [set((part // 5).tolist()) for part in fewer]
    assert all(len(part) == 5 * len(groups) for part, groups in zip(fewer, held))
    assert len(set.union(*held)) == sum(map(len, held))
    for argument in (0.5, [0, 1], [0.9, 0.5], "all"):
        with pytest.raises(DataError, match="is not a range of shares; write groups"):
            partition.groups(of, 10, argument, np.random.default_rng(0))


def test_a_set_for_public_samples_alone_may_give_all():
    made = Collection(
        (), np.zeros(20, int), np.arange(20) // 5, text=np.arange(20), texts=("a",) * 20, masked=("a",) * 20
    )
    public = SPLITS.index("public")
    assert (hold_out(made, 0, 0, "all", np.random.default_rng(0), whole=True) == public).all()
    assert (hold_out(made, 0, 0, 4, np.random.default_rng(0), whole=True) == public).all()
    beside = hold_out(made, 0.25, 1, "all", np.random.default_rng(0), whole=True)
    assert np.bincount(beside, minlength=4).tolist() == [0, 5, 5, 10]
    with pytest.raises(DataError, match=r"\(data.public: 50,000\), but there are 4; data.public: all takes"):
        hold_out(made, 0, 0, 50_000, np.random.default_rng(0), whole=True)
    for size in ("all", 50_000):
        with pytest.raises(DataError, match="nothing is left to train on"):
            hold_out(made, 0, 0, size, np.random.default_rng(0))


def test_iid_parts_differ_by_one_at_most():
    sizes = [len(part) for part in partition.iid(np.zeros(103, int), 10, None, np.random.default_rng(0))]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_dirichlet_nears_iid_as_alpha_grows():
    labels = np.repeat(np.arange(4), 500)

    def spread(alpha):
        parts = partition.dirichlet(labels, 5, alpha, np.random.default_rng(3))
        return np.std([np.bincount(labels[part], minlength=4) / len(part) for part in parts], axis=0).mean()

    assert spread(1e4) < 0.02 < spread(0.3)
    assert spread(0.1) > spread(10)


def test_dirichlet_is_balanced():
    # A client at n / clients or above gets none of the next class: it can pass that line by one class at most.
    labels = np.repeat(np.arange(10), 100)
    for seed in range(20):
        parts = partition.dirichlet(labels, 5, 0.1, np.random.default_rng(seed))
        assert max(map(len, parts)) < 1000 / 5 + 100


def test_samples_of_no_class_are_dealt_evenly():
    labels = np.concatenate([np.repeat(np.arange(3), 50), np.full(90, -1)])
    parts = partition.dirichlet(labels, 6, 0.5, np.random.default_rng(0))
    assert [int((labels[part] < 0).sum()) for part in parts] == [15] * 6


@QUICK
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 12),
    spare=st.integers(0, 400),
    classes=st.integers(1, 8),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
    classless=st.booleans(),
)
def test_equal_sizes_are_equal_and_no_sample_is_held_twice(seed, clients, spare, classes, alpha, classless):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-classless, classes, 11 * clients + spare)
    drawn = [partition.dirichlet_equal(labels, clients, alpha, np.random.default_rng(seed)) for _ in range(2)]
    parts = drawn[0]
    of_none = int((labels < 0).sum())
    assert {len(part) for part in parts} == {of_none // clients + (len(labels) - of_none) // clients}
    assert {int((labels[part] < 0).sum()) for part in parts} == {of_none // clients}
    held = np.concatenate(parts)
    assert len(held) == len(np.unique(held)) and held.max() < len(labels)
    assert all(np.array_equal(*pair) for pair in zip(*drawn, strict=True))


@pytest.mark.parametrize(("alpha", "lost"), [(5.0, 0.25), (50.0, 0.1)])
def test_equal_sizes_have_hsus_mean_and_variance_of_classes(alpha, lost):
    """q ~ Dir(alpha p) has the mean p and the variance p (1 - p) / (alpha + 1).

    The shares among m samples drawn from q vary by p (1 - p) (1 / m + (1 - 1 / m) / (alpha + 1)).  Classes that run
    out take some of it (``lost``): the less, the nearer all q are to p.  600 clients give a variance to within 15 %.
    """
    p = np.array([0.5, 0.2, 0.2, 0.1])
    labels = np.repeat(np.arange(4), (p * 60_000).astype(int))
    shares = []
    for seed in range(5):
        parts = partition.dirichlet_equal(labels, 120, alpha, np.random.default_rng(seed))
        assert {len(part) for part in parts} == {500}
        shares += [np.bincount(labels[part], minlength=4) / 500 for part in parts]
        assert np.mean(shares[-120:], axis=0) == pytest.approx(p)  # all samples are held
    variance = np.mean((np.array(shares) - p) ** 2, axis=0)
    expected = p * (1 - p) * (1 / 500 + (1 - 1 / 500) / (alpha + 1))
    ratio = variance / expected
    assert (ratio > 1 - lost).all() and (ratio < 1.15).all()


def test_the_skew_of_both_dirichlets_is_the_table_of_the_docs():
    """Total variation between a client's classes and those of all samples: mean over 20 clients and 3 seeds."""
    labels = np.repeat(np.arange(10), 1000)

    def skew(draw, alpha):
        parts = [part for seed in range(3) for part in draw(labels, 20, alpha, np.random.default_rng(seed))]
        shares = np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
        return np.abs(shares - 0.1).sum(1).mean() / 2

    rows = re.findall(r"^\| (0\.1|0\.5|1) \| (0\.\d+) \| .*? \| (0\.\d+) \| (0\.\d+) \|$", DATA_SETS.read_text(), re.M)
    assert len(rows) == 3
    for row in rows:
        alpha, *found = map(float, row)
        expected = skew(partition.dirichlet, alpha), skew(partition.dirichlet_equal, 10 * alpha)
        assert found == pytest.approx([*expected, skew(partition.dirichlet_equal, alpha)], abs=6e-4)


def test_quantity_keeps_the_mix_of_classes_but_not_the_sizes():
    labels = np.tile(np.arange(2), 5000)
    parts = partition.quantity(labels, 8, 0.5, np.random.default_rng(0))
    assert max(map(len, parts)) > 3 * min(map(len, parts))
    large = max(parts, key=len)
    assert labels[large].mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet_equal", "quantity"])
def test_too_few_samples_say_how_many_clients_there_can_be(name):
    argument = None if name == "iid" else 0.5
    with pytest.raises(DataError, match="at most 4 clients"):
        getattr(partition, name)(np.zeros(49, int), 5, argument, np.random.default_rng(0))


def test_a_hopeless_alpha_gives_up_and_says_so():
    with pytest.raises(DataError, match="fewer clients or a larger value"):
        partition.dirichlet(np.repeat(np.arange(2), 100), 18, 0.01, np.random.default_rng(0))


@pytest.mark.parametrize("argument", [None, 0, -1, "much", True, float("nan")])
def test_a_bad_alpha_is_named(argument):
    for draw, name in ((partition.dirichlet, "dirichlet"), (partition.dirichlet_equal, "dirichlet-equal")):
        with pytest.raises(DataError, match=f"^{name} needs a number above 0"):
            draw(np.zeros(100, int), 2, argument, np.random.default_rng(0))


def pairs(names: int, pictures: int, classes: int = 3) -> Collection:
    text = np.repeat(np.arange(names), pictures)
    words = tuple(f"name {i}" for i in range(names))
    return Collection(
        tuple(map(str, range(classes))),
        text % (classes + 1),
        text.copy(),
        np.zeros((len(text), 1, 4, 4), np.uint8),
        text,
        words,
        words,
    )


@QUICK
@given(
    seed=st.integers(0, 1000),
    pictures=st.integers(1, 4),
    clients=st.fixed_dictionaries(
        {"image": st.integers(0, 5), "text": st.integers(0, 5), "image-text": st.integers(1, 5)}
    ),
)
def test_kinds_share_no_sample_and_texts_are_not_repeated(seed, pictures, clients):
    made = pairs(120, pictures)
    dealt = assign_kinds(made, np.arange(len(made.label)), clients, np.random.default_rng(seed))
    held = np.concatenate(list(dealt.values()))
    assert len(held) == len(np.unique(held)) == len(made.label)
    for kind in ("image", "text"):
        if kind in dealt:
            assert made.label[dealt[kind]].max() < 3
    if "text" in dealt:
        assert len(np.unique(made.text[dealt["text"]])) == len(dealt["text"])


def test_kinds_get_samples_in_proportion_to_their_clients():
    made = pairs(4000, 1)
    dealt = assign_kinds(made, np.arange(4000), {"image": 3, "text": 2, "image-text": 1}, np.random.default_rng(0))
    assert [len(dealt[kind]) for kind in ("image", "text")] == pytest.approx([1500, 1000], abs=5)
    assert len(dealt["image-text"]) == pytest.approx(500 + 1000, abs=5)  # and all that have no class


@QUICK
@given(seed=st.integers(0, 1000), validation=st.integers(0, 20), test=st.integers(1, 20), public=st.integers(0, 9))
def test_groups_are_held_out_whole(seed, validation, test, public):
    made = pairs(60, 3)
    split = hold_out(made, validation, test, public, np.random.default_rng(seed))
    assert all(len(np.unique(split[made.group == group])) == 1 for group in range(60))
    sizes = [len(np.unique(made.group[split == place])) for place in range(len(SPLITS))]
    assert sizes[1:] == [validation, test, public]


def test_holding_out_everything_is_refused():
    with pytest.raises(DataError, match="nothing is left to train on: of 60 different samples"):
        hold_out(pairs(60, 1), 0.5, 0.5, 0, np.random.default_rng(0))
