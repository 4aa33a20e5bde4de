"""What published data sets say of their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from miniatures import cifar100

from edgefl import registry
from edgefl.data.collection import FolderRequest
from edgefl.data.folders.cifar import CIFAR100
from edgefl.data.folders.coco import COCO
from edgefl.errors import DataError


def test_the_error_about_a_folder_names_what_it_lacks(tmp_path: Path) -> None:
    cifar100(tmp_path)
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    chosen = registry.get("data set", "cifar100")
    with pytest.raises(DataError, match=r"missing test.bin \(10,000 pictures, 30,740,000 bytes\); get it from http"):
        chosen.build(FolderRequest(8, tmp_path, print, tmp_path / "scratch"))


def test_published_numbers_agree_with_each_other() -> None:
    # a record of CIFAR-100 is two labels and three colours of 32 x 32 pixels
    assert [file.size for file in CIFAR100.forms[0]] == [n * (2 + 3 * 32 * 32) for n in (50_000, 10_000)]
    # both years divide the same 123,287 pictures, whose captions nobody added or removed
    years = [[file.holds.replace(",", "").split() for file in form if "captions" in file.name] for form in COCO.forms]
    pictures, captions = ([sum(int(held[place]) for held in year) for year in years] for place in (3, 0))
    assert pictures == [123_287] * 2 and captions == [616_767] * 2
