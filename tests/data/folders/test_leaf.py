"""FEMNIST by writer and Shakespeare by role, from miniatures as LEAF's scripts write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from miniatures import femnist, leaf, shakespeare, write

from edgefl.data import DataOptions, open_federation, with_named_clients
from edgefl.errors import DataError

TOKENS = 81
"""[CLS] and LEAF's 80 characters."""


def test_femnist_is_each_writers_characters_in_leafs_split(read, tmp_path):
    pixels = femnist(tmp_path, writers=3, train=4, test=2)
    made = read("femnist", tmp_path)
    assert "".join(made.classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert made.images.shape == (18, 1, 28, 28) and np.array_equal(made.images[:4].reshape(4, -1), pixels)
    assert made.label.tolist() == [0, 3, 6, 9] * 3 + [0, 3] * 3
    assert made.owner.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 0, 1, 1, 2, 2]
    assert made.official.tolist() == [0] * 12 + [2] * 6
    assert read("femnist", tmp_path / "data", size=14).images.shape == (18, 1, 14, 14)


def test_several_files_of_a_split_are_read_and_a_user_of_only_one_split(read, tmp_path):
    blank = [1.0] * 784
    leaf(tmp_path, {"train": {"a": ([blank], [1])}, "test": {"b": ([blank], [2])}})
    (tmp_path / "train" / "all_data_niid_1_keep_0_train_9.json").rename(tmp_path / "train" / "0.json")
    leaf(tmp_path, {"train": {"b": ([blank] * 2, [3, 4]), "c": ([], [])}})
    made = read("femnist", tmp_path)
    assert made.label.tolist() == [1, 3, 4, 2] and made.owner.tolist() == [0, 1, 1, 1]


def test_shakespeare_is_the_character_after_80_others(read, tmp_path):
    text = "To be, or not to be, that is the question:\n" * 12
    shakespeare(tmp_path, {"HAMLET": text})
    made = read("shakespeare", tmp_path)
    assert len(made.classes) == 80 and made.classes[0] == "\n" and made.classes[-1] == "}"
    assert made.texts[1] == text[1:81] and made.classes[made.label[1]] == text[81]
    assert made.official.tolist() == [0] * 348 + [2] * 9  # 79 samples between them overlap both, and LEAF drops them
    assert made.texts[348] == text[427:507] and made.owner.tolist() == [0] * 357


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"users": [], "num_samples": []}, "x.json: not LEAF's format: it lacks the field 'user_data' of users, num_"),
        ([], "x.json: not LEAF's format: it lacks the field 'users'"),
        (([[1.0] * 784], []), "x.json: user_data.w: 1 x, but 0 y"),
        (([[1.0] * 783], [0]), "x.json: user_data.w.x: a picture must be 784 numbers from 0 to 1"),
        (([[255] * 784], [0]), "x.json: user_data.w.x: a picture must be 784 numbers from 0 to 1"),
        ((["a"], [0]), "x.json: user_data.w.x: a picture must be 784 numbers from 0 to 1"),
        (([[1.0] * 784], [62]), "x.json: user_data.w.y: 62 is not a class; classes are 0..61"),
    ],
)
def test_another_format_is_one_line(content, said, read, tmp_path):
    if isinstance(content, tuple):
        content = {"users": ["w"], "num_samples": [1], "user_data": {"w": dict(zip("xy", content, strict=True))}}
    write(tmp_path / "train" / "x.json", json.dumps(content))
    write(tmp_path / "test" / "x.json", json.dumps({"users": ["w"], "num_samples": [1], "user_data": {}}))
    with pytest.raises(DataError, match=said) as caught:
        read("femnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_fields_are_told(read, tmp_path):
    femnist(tmp_path, writers=1, train=1, test=1)
    (file,) = (tmp_path / "data" / "test").iterdir()
    file.write_text(json.dumps({"users": ["w"], "num_samples": [1], "user_data": {"w": {"x": []}}}))
    with pytest.raises(DataError, match="user_data.w: not LEAF's format: it lacks the field 'y' of x, y"):
        read("femnist", tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"missing test/\*.json \(784 numbers a sample\); get it from https://.*leaf"):
        read("femnist", tmp_path)


def test_answers_outside_leafs_alphabet_are_left_out(read, tmp_path):
    leaf(tmp_path, {"train": {"A": (["x" * 80] * 2, ["é", "e"])}, "test": {"A": (["x" * 80], ["e"])}})
    assert read("shakespeare", tmp_path).classes[read("shakespeare", tmp_path).label[0]] == "e"
    assert read.said[-1] == "shakespeare: of 3 samples, left out: 1 whose next character isn't in LEAF's alphabet"
    leaf(tmp_path, {"train": {"A": (["x" * 80], ["ab"])}})
    with pytest.raises(DataError, match="user_data.A.y: 'ab' is not one character"):
        read("shakespeare", tmp_path)


# --- clients ---------------------------------------------------------------------------------------------------------


def options(source: str, folder: Path, **more: object) -> DataOptions:
    return with_named_clients(DataOptions.model_validate({"source": source, "folders": {source: folder}, **more}))


def test_a_client_is_a_writer(tmp_path: Path) -> None:
    femnist(tmp_path, writers=5, train=12, test=3)
    found = options("femnist", tmp_path, validation=0)
    assert found.partition == "natural" and found.clients == {"image": 5}
    made = open_federation(found, seed=1, tokens=8)
    assert made.client_samples.tolist() == [12] * 5 and made.server_samples["test"] == {"image": 15}
    rows = [made.rows(client, "image") for client in range(5)]
    assert [sorted(own.tolist()) for own in rows] == [[*range(12 * i, 12 * i + 12)] for i in range(5)]


def test_fewer_clients_are_drawn_by_the_seed_and_more_are_refused(tmp_path: Path) -> None:
    femnist(tmp_path, writers=6, train=12, test=1)
    few = options("femnist", tmp_path, validation=0, clients={"image": 2})
    drawn = {seed: [int(open_federation(few, seed=seed, tokens=8).rows(c, "image").min()) // 12 for c in (0, 1)]
             for seed in (1, 1, 2, 3, 4)}  # fmt: skip
    assert all(len(set(writers)) == 2 for writers in drawn.values()) and len({*map(tuple, drawn.values())}) > 1
    with pytest.raises(DataError, match="natural: 7 clients are requested, but only 6 of the 6 that the data name"):
        open_federation(options("femnist", tmp_path, validation=0, clients={"image": 7}), seed=1, tokens=8)


def test_another_partition_is_kept_and_sets_by_person_stand_beside_others(tmp_path: Path) -> None:
    assert options("femnist", tmp_path, clients={"image": 2}, partition="iid").partition == "iid"
    both = options("femnist", tmp_path, clients={"image": 2, "text": 1})
    assert both.vocabulary == 1000
    mixed = DataOptions.model_validate(
        {"source": {"image": "digits", "text": "shakespeare"}, "clients": {"image": 2, "text": 1}}
    )
    settled = with_named_clients(mixed)
    assert settled.partition == {"image": {"dirichlet": 0.5}, "text": "natural"}
    assert settled.vocabulary == "characters"


def test_a_role_classifies_the_next_character_with_a_token_for_each(tmp_path: Path) -> None:
    shakespeare(tmp_path)
    made = open_federation(options("shakespeare", tmp_path, validation=0), seed=1, tokens=TOKENS)
    assert made.tasks == {"text": "classify"} and made.classes_of("text") == 80
    letters = sorted({*"To be, or not to be, that is the question: Out, damned spot! Out, I say! One; two: why, then "})
    assert made.facts["text"]["vocabulary"] == 3 + len(letters)
    of = made.client(0)
    assert of.fields is not None
    fields = of.fields("private", "text", "text", np.sort(made.rows(0, "text"))[:1], ("text",))
    first = "To be, or not to be, that is the question: " * 12
    assert fields["text"].tolist() == [[2, *(3 + letters.index(letter) for letter in first[:80])]]
    assert made.class_names[int(fields["label"])] == first[80]
