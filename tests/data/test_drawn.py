"""Samples that are drawn before they are dealt (``data.draw``), and pooled splits (``data.pool``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import cifar100, coco, flickr, vqa
from pydantic import ValidationError
from split_texts import texts_in

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.errors import DataError

ANSWERED: dict[str, Any] = {"source": "vqa", "tasks": {"image-text": "classify"}}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    vqa(tmp_path / "vqa", train=30, val=10)  # two questions about each picture
    coco(tmp_path / "coco", train=12)  # five captions of each
    cifar100(tmp_path / "cifar100")
    return tmp_path


def opened(folders: Path, seed: int = 1, told: list[str] | None = None, **changes: Any) -> Federation:
    source = changes.pop("source", "coco")
    names = [source] if isinstance(source, str) else [*source.values()]
    given: dict[str, Any] = {
        "clients": {"image-text": 2},
        "partition": "iid",
        "validation": 0,
        "size": 8,
        "vocabulary": 64,
    }
    options = DataOptions(source=source, folders={name: folders / name for name in names}, **(given | changes))
    hear = (lambda _: None) if told is None else told.append
    return open_federation(options, seed=seed, tokens=8, cache=folders / "cache", on_message=hear)


def rows(found: Federation) -> list[int]:
    return sorted(row for client in range(len(found.client_kind)) for row in found.rows(client).tolist())


def pictures(found: Federation, of: Any) -> Counter[int]:
    """How often each picture is among samples at these positions."""
    return Counter(found._parts[0].arrays["image"][of].tolist())


def test_captions_are_drawn_by_picture_and_questions_one_by_one(folders: Path) -> None:
    whole, drawn = opened(folders), opened(folders, draw={"image-text": 33})
    assert whole.client_samples.sum() == 60 and drawn.client_samples.tolist() == [17, 16]
    assert set(rows(drawn)) < set(rows(whole)) and len(set(rows(drawn))) == 33
    assert sorted(pictures(drawn, rows(drawn)).values()) == [3, 5, 5, 5, 5, 5, 5]
    assert rows(opened(folders, seed=2, draw={"image-text": 33})) != rows(drawn)

    asked = opened(folders, **ANSWERED, draw={"image-text": 30})
    # 30 of 60: as likely 16 pictures or fewer as a draw of 1 in 10,000,000
    assert asked.client_samples.tolist() == [15, 15] and len(pictures(asked, rows(asked))) > 16


def test_all_samples_drawn_are_as_none_drawn(folders: Path) -> None:
    whole, drawn = opened(folders), opened(folders, draw={"image-text": 60})
    for client in range(2):
        assert whole.rows(client).tobytes() == drawn.rows(client).tobytes()


def test_the_test_is_drawn_alike_for_every_seed(folders: Path) -> None:
    whole = opened(folders, **ANSWERED)._parts[0].arrays["test.image-text"]
    first, second = (opened(folders, seed, **ANSWERED, draw={"test": 9}) for seed in (1, 2))
    found = first._parts[0].arrays["test.image-text"]
    assert len(whole) == 20 and set(found) < set(whole) and len(set(found)) == 9
    assert first.server_samples["test"]["image-text"] == 9 and len(pictures(first, found)) > 5
    assert found.tobytes() == second._parts[0].arrays["test.image-text"].tobytes()
    captions = opened(folders, draw={"test": 9})
    assert sorted(pictures(captions, captions._parts[0].arrays["test.image-text"]).values()) == [4, 5]


def test_training_and_test_questions_come_of_both_published_parts(folders: Path) -> None:
    def parts(found: Federation, of: Any) -> Counter[int]:
        return Counter(found._parts[0].arrays["official"][of].tolist())

    apart, pooled = opened(folders, **ANSWERED), opened(folders, **ANSWERED, pool=True, test=12)
    held = pooled._parts[0].arrays["test.image-text"]
    assert parts(apart, rows(apart)) == {0: 60} and parts(apart, apart._parts[0].arrays["test.image-text"]) == {2: 20}
    assert len(held) == 24 and len(rows(pooled)) == 56 and not set(held) & set(rows(pooled))
    assert set(pictures(pooled, held).values()) == {2}  # whole pictures, so that none is also trained on
    assert set(parts(pooled, held)) == {0, 2} and parts(pooled, held) + parts(pooled, rows(pooled)) == {0: 60, 2: 20}
    drawn = opened(folders, **ANSWERED, pool=True, test=12, draw={"image-text": 40, "test": 10})
    assert drawn.client_samples.sum() == 40 and drawn.server_samples["test"]["image-text"] == 10
    assert set(drawn._parts[0].arrays["test.image-text"]) < set(held)

    told: list[str] = []
    flickr(folders / "flickr30k")
    opened(folders, told=told, source="flickr30k", pool=True)
    assert "flickr30k is published without splits, so data.pool changes nothing of it" in told


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draw": {"image-text": 61}},
         "data.draw asks for 61 training samples of image-text clients of coco, but there are 60"),
        ({**ANSWERED, "draw": {"test": 21}},
         "data.draw asks for 21 test samples of image-text clients of vqa, but there are 20"),
        ({"draw": {"image-text": 19}}, "19 samples can't give 2 clients 10 each"),
        ({"source": {"image": "cifar100", "public": "coco"}, "clients": {"image": 2}, "public": 100_000},
         r"coco: 100,000 different samples are to be held out \(data.public: 100,000\), but there are 12"),
        ({"public": "all"}, "coco: nothing is left to train on"),
    ],
)  # fmt: skip
def test_more_samples_than_there_are_is_refused(folders: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        opened(folders, **changes)


def test_all_of_a_public_set_is_public(folders: Path) -> None:
    source = {"image": "cifar100", "public": "coco"}
    found = opened(folders, source=source, clients={"image": 2}, public="all")
    counted = opened(folders, source=source, clients={"image": 2}, public=12)
    assert found.server_samples["public"]["image-text"] == 60
    rows = [each._parts[1].arrays["public.image-text"] for each in (found, counted)]
    assert rows[0].tobytes() == rows[1].tobytes()


def test_a_declared_set_has_the_samples_that_are_written() -> None:
    with pytest.raises(ValidationError, match="a declared set has as many samples as samples says: leave out draw"):
        DataOptions(source="declared", draw={"image-text": 5})
    with pytest.raises(
        ValidationError, match=r"size: pictures of a declared set .* write shapes: \{image: \{size: 8\}\}"
    ):
        DataOptions(source="declared", size=8)
    with pytest.raises(ValidationError, match=r"write shapes: \{image: \{channels: 3\}\}"):
        DataOptions(source="declared", channels=3)
    with pytest.raises(DataError, match="give their number"):
        open_federation(DataOptions(source="declared", public="all"), seed=1, tokens=8)
    with pytest.raises(ValidationError, match="draw"):
        DataOptions(draw={"imag": 5})  # type: ignore[dict-item]


def test_what_is_not_drawn_is_in_no_split(folders: Path) -> None:
    drawn = opened(folders, draw={"image-text": 33})
    assert np.flatnonzero(drawn._parts[0].arrays["split"] == 0).tolist() == rows(drawn)
    assert len(texts_in(drawn, "train")) == 33
