"""Files that data sets are read from, and those that are missing, found without opening them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from miniatures import (
    ag_news,
    cifar100,
    coco,
    femnist,
    flickr,
    medmnist,
    mtsamples,
    shakespeare,
    speech_commands,
    uci_har,
    vqa,
    write,
)

from edgefl.data import DataOptions
from edgefl.data.folders.cifar import CIFAR100
from tools.paper_tables.needed_files import needed_files


def wanted(source: str, folder: Path | None = None) -> tuple[list[str], list[str]]:
    given = {} if folder is None else {source: folder}
    (found,) = needed_files(DataOptions(source=source, clients={"image": 1}, folders=given))
    return [file.name for file in found.files], [file.name for file in found.missing]


def test_a_whole_miniature_lacks_nothing(tmp_path: Path) -> None:
    written = {"cifar100": cifar100, "ag-news": ag_news, "flickr30k": flickr, "coco": coco, "vqa": vqa,
               "mtsamples": mtsamples, "femnist": femnist, "shakespeare": shakespeare,
               "speech-commands": speech_commands, "uci-har": uci_har}  # fmt: skip
    for name, write_set in written.items():
        write_set(tmp_path / name)
    medmnist(tmp_path / "organcmnist" / "organcmnist_64.npz")
    for name in (*written, "organcmnist"):
        files, missing = wanted(name, tmp_path / name)
        assert files and not missing, name
    assert wanted("organcmnist", tmp_path / "organcmnist" / "organcmnist_64.npz")[1] == []  # the file itself
    assert wanted("vqa-310", tmp_path / "vqa") == wanted("vqa", tmp_path / "vqa")
    assert not (tmp_path / "cache").exists()  # nothing is built


def test_what_is_missing_is_that_of_the_form_that_lacks_least(tmp_path: Path) -> None:
    coco(tmp_path / "coco", "2014")
    assert wanted("coco-50k", tmp_path / "coco")[1] == ["coco_train_ids.npy", "coco_test_ids.npy"]
    np.save(tmp_path / "coco" / "coco_train_ids.npy", np.arange(3))
    assert wanted("coco-50k", tmp_path / "coco")[1] == ["coco_test_ids.npy"]
    (tmp_path / "coco" / "annotations" / "captions_val2014.json").unlink()
    assert wanted("coco", tmp_path / "coco") == (
        ["captions_train2014.json", "train2014/*.jpg", "captions_val2014.json", "val2014/*.jpg"],
        ["captions_val2014.json"],
    )
    uci_har(tmp_path / "uci-har", people=2, windows=1)
    (tmp_path / "uci-har" / "test" / "subject_test.txt").unlink()
    assert wanted("uci-har", tmp_path / "uci-har")[1] == ["test/subject_test.txt"]
    write(tmp_path / "ag-news" / "data" / "train-00000.parquet", b"")
    assert wanted("ag-news", tmp_path / "ag-news")[1] == ["*test*.parquet"]
    write(tmp_path / "flickr30k" / "images" / "1.jpg", b"")
    assert wanted("flickr30k", tmp_path / "flickr30k")[1] == ["dataset_flickr30k.json"]


def test_places_are_told_if_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFL_DATA", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    source = {"image": "cifar100", "text": "names", "image-text": "coco-50k", "test": "coco-50k"}
    found = needed_files(DataOptions(source=source, clients={"image": 1, "text": 1, "image-text": 1}))
    assert [each.source for each in found] == ["cifar100", "coco-50k"]  # names is made from an installed package
    assert [str(path.relative_to(tmp_path)) for path in found[1].tried] == [
        "sets/coco-50k", "sets/coco", "data/coco-50k", "data/coco",
    ]  # fmt: skip
    assert found[0].folder is None and found[0].missing == found[0].files == CIFAR100.forms[0]
    for told in (str(tmp_path / "sets" / "cifar100"), "train.bin (50,000 pictures, 153,700,000 bytes)"):
        assert told in found[0].problem
    (tmp_path / "data" / "coco").mkdir(parents=True)
    assert needed_files(DataOptions(source="coco", clients={"image": 1}))[0].folder == tmp_path / "data" / "coco"
