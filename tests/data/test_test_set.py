"""The server's test on the pairs of another set (``data.source.test``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import cifar100, coco, flickr, medmnist, vqa
from split_texts import texts_in

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.errors import DataError
from edgefl.work import Pass

SOURCE = {"image": "cifar100", "image-text": "flickr30k"}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    cifar100(tmp_path / "cifar100")
    flickr(tmp_path / "flickr30k")
    coco(tmp_path / "coco")
    return tmp_path


def opened(folders: Path, **changes: Any) -> Federation:
    source = changes.pop("source", SOURCE)
    places = {name: folders / name for name in {*source.values()}}
    given = {"clients": {"image": 2, "image-text": 2}, "partition": "iid", "validation": 0, "size": 8, "vocabulary": 64}
    options = DataOptions(source=source, folders=places, **(given | changes))
    return open_federation(options, seed=1, tokens=8, cache=folders / "cache")


def texts_and_pictures(found: Federation, kind: str = "image-text") -> tuple[Any, Any]:
    pass_ = Pass("any", "test", (kind,), 50, False, {"samples": 50})
    ((_, batch),) = found.server().batches(pass_, 1)
    real = batch["label"] >= 0
    return batch["text"][real], batch["image"][real]


def test_the_server_tests_on_the_pairs_of_the_set_and_clients_keep_theirs(folders: Path) -> None:
    own, other = opened(folders), opened(folders, source={**SOURCE, "test": "coco"})
    assert own.server_samples["test"] == {"image": 12, "image-text": 5}
    assert other.server_samples["test"] == {"image": 12, "image-text": 20}  # 4 validation pictures of COCO
    assert len(texts_and_pictures(other)[0]) == 20 and [
        name for name in texts_in(other, "test") if "view" in name
    ] == sorted(f"Thing {900 + i}, view {n}." for i in range(4) for n in range(5))
    mine = (opened(folders, source={"image-text": "coco"}, clients={"image-text": 2}), other)
    # standardised by the training pictures of their own set
    pictures = [np.sort(texts_and_pictures(each)[1].flatten(1).mean(1).numpy()) for each in mine]
    assert np.allclose(*pictures, atol=1e-6)

    assert own.tokenizer.to_str() == other.tokenizer.to_str()
    for client in range(4):
        kind = own.kinds[own.client_kind[client]]
        pass_ = Pass("any", "private", (kind,), 4)
        for (_, a), (_, b) in zip(
            own.client(client).batches(pass_, 1), other.client(client).batches(pass_, 1), strict=True
        ):
            assert a.keys() == b.keys() and all(a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a)
    # whoever holds samples out of training tests on the same
    assert np.allclose(*(texts_and_pictures(each)[1] for each in (other, other.with_held_out(0.2, 1))))


def test_one_set_may_have_the_public_and_the_test_samples(folders: Path) -> None:
    found = opened(folders, source={**SOURCE, "public": "coco", "test": "coco"}, public=8)
    assert found.server_samples["public"]["image-text"] == 40 and found.server_samples["test"]["image-text"] == 20
    part = found.public_part("image-text")
    assert not set(part.arrays["public.image-text"]) & set(part.arrays["test.image-text"])
    assert found.title == "cifar100 + flickr30k + coco"


@pytest.mark.parametrize(
    ("test", "changes", "said"),
    [
        ("cifar100", {}, "data.source.test: cifar100 has no pairs of pictures with texts or sounds"),
        ("flickr30k", {"test": 0}, "data.source.test: flickr30k holds nothing out for it: set data.test"),
        ("vqa",
         {"tasks": {"image-text": "classify"}, "source": {"image-text": "vqa-310"}, "clients": {"image-text": 1}},
         "data.source.test: image-text clients classify, but the classes of vqa aren't those of vqa-310"),
        ("coco", {"source": {"image": "organcmnist"}, "clients": {"image": 1}},
         "one image tower can't read both: channels is 1 in organcmnist, 3 in coco; set data.channels: 3"),
    ],
)  # fmt: skip
def test_a_set_that_does_not_fit_is_named(folders: Path, test: str, changes: dict[str, Any], said: str) -> None:
    vqa(folders / "vqa", train=1, val=1)
    vqa(folders / "vqa-310", train=20)
    medmnist(folders / "organcmnist" / "organcmnist.npz")
    with pytest.raises(DataError, match=said):
        opened(folders, **{**changes, "source": {**changes.get("source", SOURCE), "test": test}})
