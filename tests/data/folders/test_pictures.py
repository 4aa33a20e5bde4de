"""CIFAR, MedMNIST and folders of pictures, from miniatures in their formats on disk."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from miniatures import FRUIT, cifar100, medmnist, picture, write
from PIL import Image

from edgefl.data.collection import FolderRequest
from edgefl.data.folders.medmnist import ORGANS
from edgefl.data.folders.pictures import read_pictures
from edgefl.errors import DataError


def test_cifar_100s_binary_version_is_read_to_the_byte(read, tmp_path):
    label, pixels = cifar100(tmp_path)
    made = read("cifar100", tmp_path)
    assert made.classes == tuple(FRUIT)
    assert (made.label == label).all() and (made.images == pixels).all()
    assert made.official.tolist() == [0] * 30 + [2] * 12
    larger = read("cifar100", tmp_path, 64)
    assert larger.images.shape == (42, 3, 64, 64)
    assert isinstance(larger.images, np.memmap)
    whole = Image.fromarray(pixels[3].transpose(1, 2, 0)).resize((64, 64), Image.Resampling.BILINEAR)
    assert (larger.images[3] == np.asarray(whole).transpose(2, 0, 1)).all()


def test_cifar_10_has_five_parts(read, tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 2, (12, 3073), np.uint8)
    for i in range(5):
        write(tmp_path / f"data_batch_{i + 1}.bin", records[2 * i : 2 * i + 2].tobytes())
    write(tmp_path / "test_batch.bin", records[10:].tobytes())
    write(tmp_path / "batches.meta.txt", "airplane\nautomobile\n\n")
    made = read("cifar10", tmp_path)
    assert made.label.tolist() == records[:, 0].tolist()
    assert made.classes == ("airplane", "automobile")
    assert np.bincount(made.official).tolist() == [10, 0, 2]
    (tmp_path / "batches.meta.txt").unlink()
    assert len(read("cifar10", tmp_path).classes) == 10


def test_a_pickle_is_named_and_never_read(read, tmp_path):
    for name in ("train", "test", "meta"):
        write(tmp_path / "cifar-100-python" / name, b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(
        DataError, match=r"looked for train.bin.*found cifar-100-python/.*pickles, which are never read"
    ):
        read("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "0 bytes are not"), (bytes(3073), "3,073 bytes are not"), (b"\0\3" + bytes(3072), "has class 3; .* 0..2")],
)
def test_broken_records_are_one_line(content, said, read, tmp_path):
    cifar100(tmp_path)
    write(tmp_path / "cifar-100-binary" / "test.bin", content)
    with pytest.raises(DataError, match=said):
        read("cifar100", tmp_path)


def test_organs_keep_grey_and_their_published_splits(read, tmp_path):
    medmnist(tmp_path / "organamnist.npz")
    made = read("organamnist", tmp_path)
    assert made.classes == ORGANS and len(ORGANS) == 11
    assert made.images.shape == (44, 1, 28, 28)
    assert np.bincount(made.official).tolist() == [22, 11, 11]
    assert made.label.tolist() == [*range(11)] * 4
    assert read("medmnist", tmp_path / "organamnist.npz").classes == ORGANS


def test_of_several_resolutions_the_smallest_that_is_large_enough_is_read(read, tmp_path):
    medmnist(tmp_path / "organcmnist.npz")
    medmnist(tmp_path / "organcmnist_64.npz", size=64)
    before = np.load(tmp_path / "organcmnist_64.npz")["train_images"]
    assert (read("organcmnist", tmp_path, 64).images[:22, 0] == before).all()
    assert read("organcmnist", tmp_path, 32).images.shape == (44, 1, 32, 32)
    assert read("organcmnist", tmp_path, 96).images.shape == (44, 1, 96, 96)


def test_any_medmnist_file_is_read_by_name(read, tmp_path):
    medmnist(tmp_path / "bloodmnist.npz", classes=8, colours=True)
    made = read("medmnist", tmp_path)
    assert made.images.shape == (32, 3, 28, 28)
    assert made.classes[7] == "class 7"
    medmnist(tmp_path / "dermamnist.npz")
    with pytest.raises(DataError, match="several sets, bloodmnist, dermamnist: name one file"):
        read("medmnist", tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"test_labels": np.zeros((11, 14), np.uint8)}, "several labels per picture"),
        ({"val_images": np.zeros((11, 28, 28, 28), np.uint8)}, "volumes are not supported"),
        ({"val_labels": np.zeros((3, 1), np.uint8)}, "11 val_images, but 3 val_labels"),
        ({"train_labels": np.full((22, 1), 11, np.uint8)}, "a label is 11; classes are 0..10"),
        ({"test_labels": np.array([None] * 11)}, "plain arrays"),
    ],
)
def test_other_arrays_are_one_line(other, said, read, tmp_path):
    medmnist(tmp_path / "organamnist.npz", **other)
    with pytest.raises(DataError, match=said) as caught:
        read("organamnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_torn_or_other_npz_is_one_line(read, tmp_path):
    medmnist(tmp_path / "organamnist.npz")
    whole = (tmp_path / "organamnist.npz").read_bytes()
    for content in (whole[:400], b"", b"not an archive", b"\x80\x04K\x01."):
        write(tmp_path / "organamnist.npz", content)
        with pytest.raises(DataError, match="it can't be read as .npz of plain arrays") as caught:
            read("organamnist", tmp_path)
        assert "\n" not in str(caught.value)
    np.savez(tmp_path / "organamnist.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="there is no train_images; found images"):
        read("organamnist", tmp_path)


def test_own_pictures_by_folder(read, tmp_path):
    for seed, name in enumerate(["cat/1.jpg", "cat/2.png", "dog/a.JPG", "dog/b.gif"]):
        kind = {"jpg": "JPEG", "png": "PNG", "gif": "GIF"}[name[-3:].lower()]
        write(tmp_path / name, picture(seed, kind=kind))
    write(tmp_path / "dog" / "torn.png", picture(9, kind="PNG")[:50])
    write(tmp_path / "dog" / "notes.txt", "no picture")
    grey = io.BytesIO()
    Image.new("L", (30, 10), 77).save(grey, "PNG")
    write(tmp_path / "dog" / "grey.png", grey.getvalue())
    made = read("images", tmp_path, 8)
    assert made.classes == ("cat", "dog") and made.label.tolist() == [0, 0, 1, 1, 1]
    assert made.images.shape == (5, 3, 8, 8) and made.official is None
    assert made.images[1].max((1, 2)).tolist() == [37, 91, 53]  # picture 1, as a PNG
    assert (made.images[4] == 77).all()
    assert any("1 unreadable (first: " in said and "torn.png" in said for said in read.said)
    assert any("1 files that are not pictures" in said for said in read.said)


def test_own_pictures_may_have_published_splits(read, tmp_path):
    for seed, name in enumerate(["train/cat/1.jpg", "train/dog/2.jpg", "val/dog/3.jpg", "test/cat/4.jpg"]):
        write(tmp_path / name, picture(seed))
    made = read("images", tmp_path)
    assert made.images.shape == (4, 3, 224, 224)
    assert list(zip(made.official.tolist(), made.label.tolist())) == [(2, 0), (0, 0), (0, 1), (1, 1)]
    assert made.classes == ("cat", "dog")


def test_own_pictures_without_classes_or_pictures(read, tmp_path):
    write(tmp_path / "1.jpg", picture(1))
    with pytest.raises(DataError, match=r"found 1.jpg: 0 class folders; at least 2 are needed"):
        read("images", tmp_path)
    write(tmp_path / "cat" / "x.txt", "")
    write(tmp_path / "dog" / "y.txt", "")
    with pytest.raises(DataError, match=r"the class folder cat in .* holds no picture that can be read"):
        read("images", tmp_path)
    write(tmp_path / "cat" / "x.jpg", "torn")
    write(tmp_path / "dog" / "y.jpg", "torn")
    with pytest.raises(DataError, match="none of 2 pictures can be read: 2 unreadable"):
        read("images", tmp_path)
    write(tmp_path / "cat" / "x.jpg", picture(1))
    with pytest.raises(DataError, match=r"the class folder dog in .* holds no picture that can be read .*; remove it"):
        read("images", tmp_path)


def test_copies_of_own_pictures_stand_together_and_are_told_of_in_a_test_set(read, tmp_path):
    for seed, name in ((1, "cat/1.png"), (1, "cat/2.png"), (2, "dog/1.png")):
        write(tmp_path / "all" / name, picture(seed, kind="PNG"))
        write(tmp_path / "split" / "train" / name, picture(seed, kind="PNG"))
    assert read("images", tmp_path / "all", 4).group.tolist() == [0, 0, 1] and not read.said
    write(tmp_path / "split" / "test" / "cat" / "9.png", picture(1, kind="PNG"))
    write(tmp_path / "split" / "test" / "dog" / "9.png", picture(3, kind="PNG"))
    read("images", tmp_path / "split", 4)
    assert [said.partition(" have")[0] for said in read.said] == ["images: 1 of 2 validation and test samples"]


def test_class_folders_that_look_alike_are_refused(read, tmp_path):
    for name in ("train/caf\u00e9", "train/tea", "test/cafe\u0301"):
        write(tmp_path / name / "1.png", picture(len(name), kind="PNG"))
    with pytest.raises(DataError, match="the class folders .* are two, but seem to be one in another Unicode form"):
        read("images", tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    cut=st.floats(0, 1),
)
def test_a_broken_picture_is_left_out_whatever_is_wrong_with_it(tmp_path_factory, kind, changes, cut):
    content = bytearray(picture(3, (20, 16), kind))
    for place, value in changes:
        content[int(place * len(content))] = value
    content = bytes(content[: max(int(cut * 2 * len(content)), 1)])
    scratch = tmp_path_factory.mktemp("broken")
    wanted = FolderRequest(8, scratch, lambda _: None, scratch)
    whole = picture(3, (20, 16), "PNG")
    images, place = read_pictures([whole, content, whole], wanted, "these")
    assert place[0] == 0 and place[2] == len(images) - 1 and place[1] in (-1, 1)
    assert (images[0] == images[-1]).all()
