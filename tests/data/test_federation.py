from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from split_texts import texts_in
from tensors import assert_equal_tensors

from edgefl.data import DataOptions, open_federation
from edgefl.data.collection import Collection
from edgefl.data.figure import draw_partition
from edgefl.data.fingerprints import data_fingerprint
from edgefl.data.opening import _in_colour
from edgefl.data.stored_arrays import Built, entry
from edgefl.errors import DataError, UnknownName
from edgefl.work.description import Pass, TensorSpec

PATTERNS = ("image", "text", "image-text")


def training(pattern, batch=32):
    return Pass("any", "private", (pattern,), batch)


def scoring(pattern, batch=64, data="test", **args):
    return Pass("any", data, (pattern,), batch, train=False, args=args)


def test_kinds_come_in_order_and_no_two_clients_share_a_sample(glyph_federation):
    fed = glyph_federation
    assert fed.kinds == PATTERNS
    assert np.bincount(fed.client_kind).tolist() == [12, 10, 8]
    assert fed.client_samples.min() >= 10
    held = np.concatenate([fed.rows(i) for i in range(30)])
    assert len(held) == len(np.unique(held)) == fed.client_samples.sum()
    assert [fed.task(kind) for kind in fed.kinds] == ["classify", "classify", "retrieve"]


def test_held_out_names_never_occur_in_training(glyph_federation):
    splits = [set(texts_in(glyph_federation, data)) for data in ("train", "validation", "test", "public")]
    assert len(set.union(*splits)) == sum(map(len, splits))
    arrays = glyph_federation._parts[0].arrays
    trained = set(arrays["text"][np.asarray(arrays["client_rows"])].tolist())
    for data in ("validation", "test"):
        for pattern in PATTERNS:
            assert not trained & set(arrays["text"][arrays[f"{data}.{pattern}"]].tolist())
    # nor a masked name that is spelled the same
    masked = json.loads((glyph_federation._parts[0].collection.path / "texts.json").read_text())["masked"]
    assert not {masked[t] for t in trained} & {masked[t] for t in arrays["text"][arrays["test.text"]]}


def test_retrieval_has_one_picture_for_each_name(glyph_federation):
    texts = glyph_federation._parts[0].arrays["text"][glyph_federation._parts[0].arrays["test.image-text"]]
    assert len(texts) == len(np.unique(texts))
    server = glyph_federation.server()
    assert server.size(scoring("image-text")) == 500
    assert server.size(scoring("image-text", samples=100)) == 100
    assert server.counts(scoring("image-text")) == {"image-text": 8}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_batches_are_as_the_spec_says(glyph_federation, pattern):
    client = glyph_federation.client({"image": 0, "text": 12, "image-text": 29}[pattern])
    for source, pass_ in [
        (client, training(pattern)),
        (client, Pass("any", "private", (pattern,), 48, train=False)),
        (glyph_federation.server(), scoring(pattern)),
        (glyph_federation.server(), scoring(pattern, data="validation")),
        (glyph_federation.server(), Pass("any", "public", (pattern,), 16)),
    ]:
        spec = source.spec(pass_, pattern)
        found = list(source.batches(pass_, 5))
        assert len(found) == source.counts(pass_)[pattern] > 0
        for name, batch in found:
            assert name == pattern
            assert {field: TensorSpec.from_tensor(tensor) for field, tensor in batch.items()} == spec


def test_training_drops_the_rest_and_evaluation_fills_it(glyph_federation):
    client = glyph_federation.client(0)
    n = client.size(training("image"))
    assert n == glyph_federation.client_samples[0]
    assert client.counts(training("image")) == {"image": n // 32}
    look = Pass("any", "private", ("image",), 32, train=False)
    labels = torch.cat([batch["label"] for _, batch in client.batches(look, 0)])
    assert len(labels) == -(-n // 32) * 32
    assert (labels[:n] >= 0).all()
    assert (labels[n:] == -1).all()
    last = list(client.batches(look, 0))[-1][1]["image"]
    if n % 32:
        assert_equal_tensors(last[n % 32], last[0])


def test_a_pass_larger_than_the_data_is_filled_by_repeating(glyph_federation):
    server = glyph_federation.server()
    ((_, batch),) = server.batches(scoring("image-text", batch=16, samples=3), 0)
    assert batch["label"][3:].tolist() == [-1] * 13
    assert_equal_tensors(batch["image"][0], batch["image"][3])


def test_the_seed_shuffles_training_only(glyph_federation):
    client = glyph_federation.client(3)

    def labels(pass_, seed):
        return torch.cat([batch["label"] for _, batch in client.batches(pass_, seed)])

    assert_equal_tensors(labels(training("image"), 1), labels(training("image"), 1))
    assert not torch.equal(labels(training("image"), 1), labels(training("image"), 2))
    look = Pass("any", "private", ("image",), 32, train=False)
    assert_equal_tensors(labels(look, 1), labels(look, 2))


def test_batches_are_fresh(glyph_federation):
    client = glyph_federation.client(0)
    first = next(client.batches(training("image"), 1))[1]["image"].clone()
    next(client.batches(training("image"), 1))[1]["image"].zero_()
    assert_equal_tensors(next(client.batches(training("image"), 1))[1]["image"], first)


def test_pictures_are_normalised_by_the_training_pictures(glyph_federation):
    look = scoring("image", batch=1000)
    pixels = next(glyph_federation.server().batches(look, 0))[1]["image"]
    assert abs(float(pixels.mean())) < 0.1
    assert float(pixels.std()) == pytest.approx(1, abs=0.1)


def test_texts_start_with_cls_and_have_a_fixed_length(glyph_federation):
    tokenizer = glyph_federation.tokenizer
    encoding = tokenizer.encode("Latin small letter a")
    assert encoding.tokens[0] == "[CLS]"
    assert len(encoding.ids) == 16
    assert tokenizer.get_vocab_size() == glyph_federation.facts["text"]["vocabulary"] <= 1000
    _, batch = next(glyph_federation.client(12).batches(training("text"), 0))
    assert (batch["text"][:, 0] == tokenizer.token_to_id("[CLS]")).all()


def test_words_of_held_out_names_alone_are_not_in_the_vocabulary(glyph_federation):
    seen = {word for name in texts_in(glyph_federation, "train") for word in name.replace("-", " ").split()}
    entries = set(glyph_federation.tokenizer.get_vocab())
    unseen = {w for n in texts_in(glyph_federation, "test") for w in n.replace("-", " ").split()} - seen
    assert unseen
    assert not {word for word in unseen if len(word) > 3} & entries


@pytest.mark.slow(smaller="test_batches_are_fresh")
def test_the_same_options_give_the_same_data_in_another_cache(tmp_path, data_cache):
    options = DataOptions(source="names", clients={"text": 4}, samples=50)
    one, two = (open_federation(options, seed=7, tokens=12, cache=place) for place in (tmp_path, data_cache))
    assert all(np.array_equal(one._parts[0].arrays[name], two._parts[0].arrays[name]) for name in one._parts[0].arrays)
    assert one.tokenizer.to_str() == two.tokenizer.to_str()
    other = open_federation(options, seed=8, tokens=12, cache=tmp_path)
    assert not np.array_equal(one._parts[0].arrays["client_rows"], other._parts[0].arrays["client_rows"])
    assert texts_in(one, "test") == texts_in(other, "test")  # seeds are compared on the same names
    assert one.client_samples.tolist() == [50] * 4


@pytest.mark.slow(smaller="test_processes_open_damage_and_rebuild_one_entry_at_once")
def test_another_process_opens_what_was_built(glyph_federation, data_cache):
    program = (
        "import os, sys; from pathlib import Path; from edgefl.data import DataOptions, open_federation;"
        "from edgefl.work.description import Pass; written = [];"
        "sys.addaudithook(lambda event, args: event in ('open', 'os.mkdir', 'os.rename') and "
        "str(args[0]).startswith(sys.argv[1]) and (event != 'open' or args[2] & (os.O_WRONLY | os.O_RDWR)) and "
        "written.append(args[0]));"
        "fed = open_federation(DataOptions(public=0.02), seed=1, tokens=16, cache=Path(sys.argv[1]));"
        "batch = next(fed.client(0).batches(Pass('any', 'private', ('image',), 32), 1))[1];"
        "print(len(written), batch['image'].double().sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(data_cache)], capture_output=True, text=True, check=True)
    written, total = done.stdout.split()
    assert written == "0"  # nothing is built again
    batch = next(glyph_federation.client(0).batches(training("image"), 1))[1]
    assert float(total) == batch["image"].double().sum().item()


def test_class_counts_add_up(glyph_federation):
    counts = glyph_federation.class_counts()
    assert counts.shape == (30, 13)
    assert counts.sum(1).tolist() == glyph_federation.client_samples.tolist()
    assert not counts[:22, -1].any()  # classification needs a class


def test_partition_figure(glyph_federation, tmp_path):
    draw_partition(glyph_federation, tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 10_000


def test_no_draft_is_left_behind(tmp_path):
    made = entry(tmp_path, "one-entry", lambda: Built({"a": np.arange(3)}, {"padding": 3}, {"t.txt": "text"}))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["one-entry"]
    assert made.arrays["a"].tolist() == [0, 1, 2] and made.meta == {"padding": 3} and made.text("t.txt") == "text"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "glyphz"}, "did you mean 'glyphs'"),
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
    ],
)
def test_a_wrong_name_answers_with_the_right_one(options, message, tmp_path):
    with pytest.raises(UnknownName, match=message):
        open_federation(DataOptions(**options), seed=1, tokens=16, cache=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": {"image": 4}}, "no samples for image clients; it serves: text"),
        ({"clients": {"text": 1000}}, "text clients of names: .*at most"),
        ({"clients": {"text": 4}, "test": 0.99}, "nothing is left"),
        ({"clients": {"text": 4}, "partition": {"dirichlet": -1}}, "number above 0"),
        ({"clients": {"text": 4}, "partition": {"iid": 3}}, "takes no argument"),
    ],
)
def test_impossible_options_say_what_is_possible(options, message, data_cache):
    with pytest.raises(DataError, match=message):
        open_federation(DataOptions(source="names", **options), seed=1, tokens=16, cache=data_cache)


@pytest.mark.parametrize(
    "bad",
    [
        {"clients": {}},
        {"clients": {"image": 0}},
        {"clients": {"sound": 3}},
        {"clients": {"image": -1}},
        {"partition": {"iid": None, "dirichlet": 1}},
        {"partition": {}},
        {"samples": 0},
        {"shapes": {}},
        {"sorce": "glyphs"},
    ],
)
def test_options_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="."):
        DataOptions(**bad)


def test_partitions_can_differ_by_kind():
    options = DataOptions(partition={"image": {"dirichlet": 0.1}, "text": "iid"})
    assert [options.partition_of(kind) for kind in PATTERNS] == [("dirichlet", 0.1), ("iid", None), ("iid", None)]


def test_what_isnt_there_is_said(glyph_federation):
    with pytest.raises(DataError, match=r"clients are 0\.\.29"):
        glyph_federation.client(30)
    with pytest.raises(DataError, match="private image samples only"):
        glyph_federation.client(0).size(training("text"))
    with pytest.raises(DataError, match="no private image samples; it has"):
        glyph_federation.server().size(training("image"))


def test_the_cache_folder_can_be_named(monkeypatch):
    from edgefl.memo import cache_folder

    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("EDGEFL_CACHE", raising=False)
    assert cache_folder() == Path("/somewhere/edgefl")
    monkeypatch.setenv("EDGEFL_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_declared_has_shapes_but_no_samples():
    options = DataOptions(
        source="declared",
        clients={"image": 2, "image-text": 1},
        samples={"image": 416},
        test=1000,
        shapes={"image": {"classes": 100}, "text": {"vocabulary": 30522, "classes": 4}},
    )
    fed = open_federation(options, seed=1, tokens=40)
    assert fed.client_samples.tolist() == [416, 416, 500]
    assert fed.facts == {
        "image": {"channels": 3, "size": 224, "classes": 100},
        "text": {"vocabulary": 30522, "tokens": 40, "classes": 4},
        "audio": {"bins": 128, "frames": 1024, "classes": 13},
        "motion": {"readings": 128, "channels": 9, "classes": 6},
    }
    assert fed.client(0).spec(training("image"), "image") == {
        "image": TensorSpec((32, 3, 224, 224)),
        "label": TensorSpec((32,), "int64"),
    }
    assert fed.client(0).counts(training("image")) == {"image": 13}
    assert fed.server().counts(scoring("image-text", batch=100)) == {"image-text": 5}
    assert fed.server().counts(scoring("image", batch=100)) == {"image": 10}
    with pytest.raises(DataError, match="declared only"):
        next(fed.client(0).batches(training("image"), 1))
    with pytest.raises(DataError, match="no tokenizer"):
        _ = fed.tokenizer


def test_a_million_declared_clients_are_arrays():
    options = DataOptions(source="declared", clients={"image": 500_000, "text": 500_000})
    fed = open_federation(options, seed=1, tokens=40)
    assert len(fed.client_samples) == 1_000_000
    assert fed.client(999_999).counts(training("text")) == {"text": 15}


def test_more_clients_than_samples_share_them(data_cache, tmp_path):
    options = DataOptions(source="glyphs", clients={"image": 5000}, partition={"shared": 12}, size=8)
    fed = open_federation(options, seed=1, tokens=12, cache=data_cache)
    held = np.concatenate([fed.rows(client) for client in range(5000)])
    assert set(fed.client_samples.tolist()) == {12}
    assert len(np.unique(held)) < len(held) / 2
    assert fed.client(4999).counts(training("image", 4)) == {"image": 3}  # batches
    assert not fed.client_group.any()  # all have the cost of one
    draw_partition(fed, tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 10_000


def test_quantity_sizes_differ(data_cache):
    options = DataOptions(source="names", clients={"text": 6}, partition={"quantity": 0.5})
    sizes = np.sort(open_federation(options, seed=1, tokens=12, cache=data_cache).client_samples)
    assert all(a <= b for a, b in pairwise(sizes))
    assert sizes[-1] > 3 * sizes[0]


def test_grey_pictures_are_read_in_colour_where_a_scenario_asks(tmp_path: Path) -> None:
    digits = {"source": "digits", "clients": {"image": 2}, "validation": 0.1, "test": 0.1}
    grey, colour = (
        open_federation(DataOptions.model_validate(digits | more), seed=1, tokens=4, cache=tmp_path)
        for more in ({}, {"channels": 3})
    )
    assert (grey.facts["image"]["channels"], colour.facts["image"]["channels"]) == (1, 3)
    pictures, coloured = (np.asarray(each._parts[0].collection.arrays["images"]) for each in (grey, colour))
    for channel in range(3):
        assert np.array_equal(coloured[:, channel], pictures[:, 0])
    said: list[str] = []
    photos = Collection(("a",), np.zeros(2, int), np.arange(2), np.zeros((2, 3, 4, 4), np.uint8))
    assert _in_colour(photos, "photos", said.append) is photos
    assert said == ["photos has no grey pictures, so data.channels changes nothing of it"]


def test_the_cache_key_has_channels_only_where_they_are_asked_for() -> None:
    plain, coloured = (
        data_fingerprint(DataOptions.model_validate({"source": "digits", "clients": {"image": 2}} | more))
        for more in ({}, {"channels": 3})
    )
    assert "channels" not in plain[0] and coloured[0] == plain[0] | {"channels": 3}
