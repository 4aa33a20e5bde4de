"""Public pairs that are dealt to the clients with pairs (``data.deal_public``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import cifar100, coco, flickr
from pydantic import ValidationError

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

SOURCE = {"image": "cifar100", "image-text": "flickr30k", "public": "coco", "test": "coco"}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    cifar100(tmp_path / "cifar100", 40)
    flickr(tmp_path / "flickr30k")
    coco(tmp_path / "coco", train=11)
    return tmp_path


def options(folders: Path, **changes: Any) -> DataOptions:
    source = changes.get("source", SOURCE)
    names = [source] if isinstance(source, str) else [*source.values()]
    given = dict[str, Any](source=SOURCE, clients={"image": 2, "image-text": 3}, partition="groups", validation=0)
    given |= {"size": 8, "vocabulary": 64, "public": 8, "folders": {name: folders / name for name in names}}
    return DataOptions(**(given | changes))


def opened(folders: Path, seed: int = 1, **changes: Any) -> Federation:
    return open_federation(options(folders, **changes), seed=seed, tokens=8, cache=folders / "cache")


def samples(found: Federation, client: int, kind: str) -> dict[bytes, list[bytes]]:
    """Texts of each picture of a client, of pictures alone none."""
    (batch,) = (b for _, b in found.client(client).batches(Pass("any", "private", (kind,), 1000, False), 1))
    held = dict[bytes, list[bytes]]()
    for row in np.flatnonzero(batch["label"].numpy() >= 0):
        texts = held.setdefault(batch["image"][row].numpy().tobytes(), [])
        if "text" in batch:
            texts.append(batch["text"][row].numpy().tobytes())
    return held


def test_clients_with_pairs_get_the_public_ones_by_picture(folders: Path) -> None:
    apart, dealt = opened(folders), opened(folders, deal_public=True)
    public = apart.server_samples["public"]["image-text"]
    assert public == 40 and "public" not in dealt.server_samples
    assert dealt.server_samples["test"] == apart.server_samples["test"]
    more = (dealt.client_samples - apart.client_samples).tolist()
    assert more[:2] == [0, 0] and sorted(more[2:]) == [10, 15, 15]  # 8 pictures of five captions
    for client in (0, 1):
        assert apart.rows(client).tobytes() == dealt.rows(client).tobytes()

    part = dealt._part_offsets["image-text"][0]
    assert part.dataset == "flickr30k + coco"
    names = [dict.fromkeys(part.arrays["group"][dealt.rows(client)].tolist()) for client in (2, 3, 4)]
    assert len({group for each in names for group in each}) == sum(map(len, names))  # no picture at two clients


def test_private_pairs_stay_as_they_are_and_public_ones_are_those_of_the_server(folders: Path) -> None:
    # with a tokenizer of all texts that clients train on, tokens may differ: compare pictures
    apart, dealt = opened(folders), opened(folders, deal_public=True)
    flickrs, together = apart._part_offsets["image-text"][0], dealt._part_offsets["image-text"][0]
    first = len(flickrs.arrays["label"])
    seen = list[int]()
    for client in (2, 3, 4):
        rows = dealt.rows(client)
        assert rows[rows < first].tolist() == apart.rows(client).tolist()
        seen += (rows[rows >= first] - first).tolist()
    public = apart.public_part("image-text")
    assert sorted(seen) == sorted(public.arrays["public.image-text"].tolist())
    for row in seen:
        picture = together.arrays["images"][together.arrays["image"][[row + first]]]
        assert picture.tobytes() == public.arrays["images"][public.arrays["image"][[row]]].tobytes()
    assert len(samples(dealt, 2, "image-text")) == len({*together.arrays["image"][dealt.rows(2)].tolist()})


def test_one_set_may_have_private_and_public_pairs(folders: Path) -> None:
    given = {"source": "coco", "clients": {"image-text": 2}, "public": 3}
    apart, dealt = opened(folders, **given), opened(folders, **given, deal_public=True)
    assert "public" not in dealt.server_samples and dealt.client_samples.sum() == apart.client_samples.sum() + 15 == 55
    found = [apart.rows(client).tolist() for client in (0, 1)]
    given_more = [sorted({*dealt.rows(client).tolist()} - {*own}) for client, own in enumerate(found)]
    public = apart._parts[0].arrays["public.image-text"].tolist()
    assert sorted(row for each in given_more for row in each) == sorted(public)
    assert sorted(map(len, given_more)) == [5, 10]


def test_declared_pairs_are_dealt_by_number() -> None:
    given = dict[str, Any](source="declared", clients={"image": 2, "image-text": 3}, samples=20, public=8, test=5)
    dealt = open_federation(DataOptions(**given, deal_public=True), seed=1, tokens=8)
    assert dealt.client_samples.tolist() == [20, 20, 23, 23, 22] and set(dealt.server_samples) == {"validation", "test"}


def test_no_clients_with_pairs_and_nothing_public_are_refused(folders: Path) -> None:
    with pytest.raises(ValidationError, match="deals public pairs to .*: there are no clients with pairs"):
        options(folders, clients={"image": 2}, deal_public=True)
    with pytest.raises(ValidationError, match="deals public pairs to the clients with pairs: set public"):
        options(folders, public=0, deal_public=True)


def test_a_method_that_reads_public_samples_is_refused() -> None:
    declared = {"source": "declared", "clients": {"image-text": 2}, "samples": 20, "public": 8}
    tower = {"blocks": 1, "width": 8, "heads": 1}
    scenario = load(
        {
            "edgefl": 1,
            "data": declared | {"deal_public": True},
            "model": {
                "image": {"tower": "vit", "patch": 32, **tower},
                "text": {"tower": "transformer", "tokens": 8, **tower},
                "dimension": 8,
            },
            "method": "creamfl",
        }
    )
    with pytest.raises(ScenarioError, match=r"2 public image-text samples, .* 0: .*without data.deal_public"):
        compose(scenario, trains=False)
