"""Several data sets of one kind: each client holds one, the classes follow each other in one head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import FRUIT, ag_news, cifar100, coco, flickr, medmnist, mtsamples, vqa
from pydantic import ValidationError
from split_texts import texts_in

import edgefl
from edgefl.data import DataOptions, Federation, open_federation, pack_federation, unpack_federation
from edgefl.errors import DataError, ScenarioError
from edgefl.scenario import load
from edgefl.work import Pass

SOURCE = {"image": ["cifar100", "organcmnist"], "image-text": "flickr30k"}
CLIENTS = {"image": {"cifar100": 3, "organcmnist": 2}, "image-text": 2}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    cifar100(tmp_path / "cifar100")
    medmnist(tmp_path / "organcmnist" / "organcmnist.npz")
    flickr(tmp_path / "flickr30k")
    ag_news(tmp_path / "ag-news")
    coco(tmp_path / "coco")
    vqa(tmp_path / "vqa", train=20)
    mtsamples(tmp_path / "mtsamples")
    return tmp_path


def options(folders: Path, **changes: Any) -> DataOptions:
    source = changes.pop("source", SOURCE)
    names = [source] if isinstance(source, str) else [*source.values()]
    names = [name for each in names for name in ([each] if isinstance(each, str) else each)]
    given = dict[str, Any](clients=CLIENTS, partition={"image": {"dirichlet": 5}}, validation=0, size=8, channels=3)
    given |= {"vocabulary": 64, "folders": {name: folders / name for name in names}}
    return DataOptions(source=source, **(given | changes))


def opened(folders: Path, **changes: Any) -> Federation:
    return open_federation(options(folders, **changes), seed=1, tokens=8, cache=folders / "cache")


def test_each_client_holds_one_set_and_labels_of_the_second_follow_the_first(folders: Path) -> None:
    found = opened(folders)
    alone = opened(folders, source={**SOURCE, "image": "cifar100"}, clients={"image": 3, "image-text": 2})
    organs = opened(folders, source="organcmnist", clients={"image": 2})
    part, other = found._part_offsets["image"][0], organs._parts[0]
    assert found.title == "cifar100 + organcmnist + flickr30k" and part.classes == (*FRUIT, *other.classes)
    assert found.facts_of("image")["image"]["classes"] == found.classes_of("image") == 3 + 11
    first = len(alone._part_offsets["image"][0].arrays["label"])
    for client in range(3):
        assert found.rows(client).tobytes() == alone.rows(client).tobytes()
    held = np.concatenate([found.rows(client) for client in (3, 4)]) - first
    assert sorted(held.tolist()) == sorted(np.concatenate([organs.rows(client) for client in (0, 1)]).tolist())
    assert (part.arrays["label"][held + first] == other.arrays["label"][held] + 3).all()
    assert part.arrays["images"][held + first].tobytes() == other.arrays["images"][held].tobytes()
    counts = found.class_counts()
    assert not counts[:3, 3:].any() and not counts[3:5, :3].any() and counts[:5].sum() == found.client_samples[:5].sum()
    assert [found.rows(client).tobytes() for client in (5, 6)] == [alone.rows(client).tobytes() for client in (3, 4)]


def test_batches_have_the_pictures_of_their_set_in_one_scale(folders: Path) -> None:
    found = opened(folders)
    part = found._part_offsets["image"][0]
    seen = list[np.ndarray]()
    for client in range(5):
        pass_ = Pass("any", "private", ("image",), 100, False)
        ((_, batch),) = found.client(client).batches(pass_, 1)
        real, rows = batch["label"] >= 0, found.rows(client)
        assert batch["label"][real].tolist() == part.arrays["label"][rows].tolist()
        raw = np.stack([part.arrays["images"][np.int64(row)] for row in rows]).astype(np.float32)
        mean, deviation = (np.float32(part.entry.meta[name])[:, None, None] for name in ("mean", "deviation"))
        assert np.allclose(batch["image"][real].numpy(), (raw - mean) / deviation, atol=1e-5)
        seen.append(raw)
    pixels = np.concatenate(seen).astype(np.float64)
    assert np.allclose(part.entry.meta["mean"], pixels.mean((0, 2, 3)))  # of all training pictures of both sets


def test_the_server_tests_a_kind_on_all_its_sets(folders: Path) -> None:
    found = opened(folders)
    assert found.server_samples["test"]["image"] == 12 + 11
    labels = found._part_offsets["image"][0].arrays["label"][found._parts[0].arrays["test.image"]]
    assert np.bincount(labels).tolist() == [4, 4, 4] + [1] * 11


def test_texts_of_two_sets_share_a_tokenizer(folders: Path) -> None:
    source, clients = {"text": ["ag-news", "mtsamples"]}, {"text": {"mtsamples": 2, "ag-news": 3}}
    found = opened(folders, source=source, clients=clients, partition="iid", channels=None)
    part, texts = found._parts[0], texts_in(found, "train")
    assert any("story number" in text for text in texts)
    # in the order in which clients are written
    assert [{*part.arrays["label"][found.rows(client)].tolist()} <= {*range(4)} for client in range(5)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    written = found.rows(0)[0]
    tokens = part.load("text", np.array([written]), ("text",))["text"]
    wanted = found.tokenizer.encode(f"SUBJECTIVE:, patient {written - 52} was seen").ids
    assert tokens[0].tolist() == wanted and "SUBJECTIVE:, patient 1 was seen" in texts


def test_pairs_of_two_sets_keep_their_pictures_and_public_ones_are_of_the_first(folders: Path) -> None:
    source, clients = {"image-text": ["flickr30k", "coco"]}, {"image-text": {"flickr30k": 1, "coco": 1}}
    found = opened(folders, source=source, clients=clients, partition="groups", channels=None, public=3)
    part = found._parts[0]
    first = part.arrays["label"].shape[0] - 60  # COCO's: 8 pictures to train and 4 to test on, five captions each
    assert found.server_samples["public"]["image-text"] == 15 and part.arrays["public.image-text"].max() < first
    assert found.rows(0).max() < first <= found.rows(1).min() and found.client_samples.tolist() == [40, 40]
    texts = texts_in(found, "train") + texts_in(found, "test")
    assert sum(text.startswith("Thing") for text in texts) == 60
    coco_alone = opened(folders, source="coco", clients={"image-text": 1}, channels=None)._parts[0]
    for row in found.rows(1)[::5]:
        pictures = [
            of.arrays["images"][of.arrays["image"][[at]]] for of, at in ((part, row), (coco_alone, row - first))
        ]
        assert pictures[0].tobytes() == pictures[1].tobytes()


def test_another_machine_gets_all_that_it_needs(folders: Path) -> None:
    found = opened(folders)
    sent = unpack_federation(pack_federation(found, options(folders)), options(folders))
    pass_ = Pass("any", "private", ("image",), 100, False)
    for client in range(5):
        ((_, here),), ((_, there),) = (of.client(client).batches(pass_, 1) for of in (found, sent))
        assert here["image"].numpy().tobytes() == there["image"].numpy().tobytes()
        assert here["label"].tolist() == there["label"].tolist()


def test_a_run_on_two_sets_trains_one_head(folders: Path) -> None:
    run = edgefl.run(
        {
            "edgefl": 1,
            "data": {
                "source": {"image": SOURCE["image"]}, "clients": {"image": CLIENTS["image"]}, "partition": "iid",
                "folders": {name: str(folders / name) for name in SOURCE["image"]}, "channels": 3, "size": 8,
                "validation": 0,
            },
            "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 1, "patch": 8}},
            "schedule": {"rounds": 1},
            "training": {"batch": 10},
            "evaluation": {"split": "test"},
        },
        out=folders / "run",
    )  # fmt: skip
    assert 0 <= run.rounds["metrics.image.accuracy"].iloc[-1] <= 1
    assert run.weights()["image/image.head.weight"].shape[0] == 14
    again = load(folders / "run" / "scenario.yaml")
    assert again.data.clients == {"image": 5} and again.data.clients_by_set == {"image": CLIENTS["image"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": None},
         "one image tower can't read 3 x 32 x 32 in cifar100 and 3 x 28 x 28 in organcmnist; set data.size"),
        ({"channels": None}, "3 x 8 x 8 in cifar100 and 1 x 8 x 8 in organcmnist; .* data.channels: 3"),
        ({"source": {"image": ["cifar100", "ag-news"], "image-text": "flickr30k"},
          "clients": {"image": {"cifar100": 1, "ag-news": 1}}},
         "cifar100 and ag-news have no modality in common"),
        ({"source": {"image-text": ["flickr30k", "vqa"]}, "clients": {"image-text": {"flickr30k": 1, "vqa": 1}}},
         "vqa scores several answers to a sample, which can't be joined with other classes"),
        ({"partition": "natural"}, "cifar100 . organcmnist: partition natural: the data name no clients"),
        ({"clients": {"image": {"cifar100": 4, "organcmnist": 2}, "image-text": 2}},
         "image clients of cifar100: 30 samples can't give 4 clients 10 each"),
    ],
)  # fmt: skip
def test_sets_that_no_client_can_hold_are_refused(folders: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        opened(folders, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": {"image": ["cifar100", "cifar100"]}},
         "image has the data sets cifar100, cifar100; write two sets or more, each once"),
        ({"source": {"image": ["cifar100"]}}, "image has the data sets cifar100; write two sets or more, each once"),
        ({"source": {"image": "cifar100", "public": ["coco", "flickr30k"]}},
         "public has the data sets coco, flickr30k; write the name of one set"),
        ({"clients": {"image": 24}},
         r"hold samples of cifar100, organcmnist: write clients: {image: {cifar100: 12, organcmnist: 12}}"),
        ({"clients": {"image": {"cifar100": 12, "organmnist": 12}}}, "hold samples of cifar100, organcmnist: write"),
        ({"source": {"image": "cifar100"}}, "image clients hold samples of cifar100: write clients: {image: 24}"),
        ({"clients_by_set": {"image": {"cifar100": 12, "organcmnist": 3}}, "clients": {"image": 24}},
         "write clients: {image: {cifar100: 12, organcmnist: 12}}"),
        ({"clients": {"image": {"cifar100": 12, "organcmnist": 0}}}, "clients.image\n.*valid integer"),
        ({"clients": {"image": {}}}, "clients.image\n.*valid integer"),
    ],
)  # fmt: skip
def test_numbers_of_clients_that_do_not_fit_the_sets_are_refused(changes: dict[str, Any], said: str) -> None:
    given = {"source": {"image": SOURCE["image"]}, "clients": {"image": {"cifar100": 12, "organcmnist": 12}}}
    with pytest.raises(ValidationError, match=said):
        DataOptions(**(given | changes))


def test_an_unknown_set_of_several_is_named() -> None:
    with pytest.raises(ScenarioError, match="unknown data set 'organcmnis'; did you mean 'organcmnist'"):
        load(
            "papers/fedcola-flickr30k",
            ["data.source.image=[cifar100, organcmnis]", "data.clients.image={cifar100: 12, organcmnis: 12}"],
        )
