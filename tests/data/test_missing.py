"""What samples lack, and federations of several data sets, published splits, natural clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

import edgefl
from edgefl import seeds
from edgefl.data import Collection, DataOptions, DataSet, FolderRequest, FolderSet, open_federation
from edgefl.data.missing import DROPPED, draw, parse_missing, patterns_of
from edgefl.data.opening import _open
from edgefl.data.partition import natural
from edgefl.data.split import order_by_group
from edgefl.errors import DataError
from edgefl.methods import Kind, Setting
from edgefl.methods.fedavg import FedAvg
from edgefl.modalities import KINDS
from edgefl.models import ModelOptions, describe
from edgefl.scenario import load
from edgefl.setup.compose import federation_of
from edgefl.work import Pass
from edgefl.work.training_options import TrainingOptions

N = 400


def pairs(**more: Any) -> Collection:
    """Noise with a word each: for what is dealt to whom, which the noise doesn't decide."""
    rng = np.random.default_rng(3)
    label = np.arange(N) % 5
    texts = tuple(f"word{i} of {label[i]}" for i in range(N))
    images = rng.integers(0, 256, (N, 1, 8, 8), np.uint8)
    return Collection(tuple("abcde"), label, np.arange(N), images, np.arange(N), texts, texts, **more)


def opened(cache: Path, made: Collection, **options: Any) -> Any:
    wanted = {"source": "toy", "clients": {"image-text": 4}, "partition": "iid", "validation": 0, "test": 40, **options}
    sets = {"toy": DataSet(lambda size, report: made)}
    return _open(sets, DataOptions(**wanted), 1, 8, cache, lambda _: None)


def test_bernoulli_rates_give_the_shares_of_the_paper() -> None:
    n, q = 40_000, 0.3
    code = draw("image-text", {"image": q, "text": q}, n, seeds.generator(1, "test"))
    share = np.array([(1 - q) ** 2, q * (1 - q), q * (1 - q), q**2])  # whole, image, text, none
    found = np.array([(code == each).mean() for each in (0, 1, 2, DROPPED)])
    assert np.abs(found - share).max() < 4 * np.sqrt(0.25 / n)
    # image-only samples are those that lack the text
    lacking_text = draw("image-text", {"text": 1.0}, 10, seeds.generator(1, "test"))
    assert (lacking_text == patterns_of("image-text").index("image")).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 300), st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda each: sum(each) > 0.01))
def test_shares_of_patterns_are_met_to_within_a_sample(n: int, raw: list[float]) -> None:
    shares = dict(zip(patterns_of("image-audio"), np.array(raw) / sum(raw), strict=True))
    code = draw("image-audio", {"patterns": shares}, n, seeds.generator(2, "test"))
    assert len(code) == n
    for index, share in enumerate(shares.values()):
        assert abs((code == index).sum() - share * n) <= 1


def test_one_share_is_for_every_modality_of_every_kind_of_pairs() -> None:
    assert parse_missing("30%") == {k: dict.fromkeys(k.split("-"), 0.3) for k in KINDS if "-" in k}
    assert parse_missing({"text": 0.1}) == {"image-text": {"text": 0.1}, "image-audio": {}}
    assert DataOptions(missing={"image-text": {"patterns": {"image": "25%", "text": 0.75}}}).missing_of("image-text")
    assert DataOptions(missing=0).missing_of("image-text") == {}


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({"image": {}}, "image"),
        ({"smell": 0.5}, "audio, image, text"),
        ({"image-text": {"audio": 0.5}}, "image, text"),
        ({"image-text": {"patterns": {"image": 0.5}}}, "add up to 0.5"),
        ({"image-text": {"patterns": {"audio": 1}}}, "image-text, image, text"),
        ({"text-image": 0.5}, "image-text, image-audio"),
        (1.5, "1.5"),
        ("100%", "no image-text sample would be left"),
        ({"image-audio": {"image": 1, "audio": 1}}, "no image-audio sample"),
    ],
)
def test_what_cannot_be_missing_is_said(missing: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        DataOptions(missing=missing)


def test_a_client_has_the_samples_of_each_pattern_and_not_those_that_lack_all(tmp_path: Path) -> None:
    whole = opened(tmp_path, pairs())
    some = opened(tmp_path, pairs(), missing={"image": 0.4, "text": 0.2}, tasks={"image-text": "classify"})
    assert some.patterns("image-text") == ("image-text", "image", "text")
    assert whole.patterns("image-text") == ("image-text",) and whole.client_dropped is None
    for client in range(4):
        source = some.client(client)
        rows = [set(source.rows("private", pattern).tolist()) for pattern in some.patterns("image-text")]
        assert not rows[0] & rows[1] and not rows[0] & rows[2] and not rows[1] & rows[2]
        everything = set(whole.client(client).rows("private", "image-text").tolist())
        assert set.union(*rows) <= everything
        assert len(everything) == sum(map(len, rows)) + some.client_dropped[client]
        assert [len(each) for each in rows] == some.client_patterns[client].tolist()
        assert some.client_samples[client] == sum(map(len, rows))
        batches = list(source.batches(Pass("classify", "private", ("image",), 5, True, {}), 1))
        assert batches and all(set(batch) == {"image", "label"} for _, batch in batches)
    assert some.client_dropped.sum() > 0
    # equal clients cost the same, others don't
    group = some.client_group
    for a in range(4):
        for b in range(4):
            assert (group[a] == group[b]) == (some.client_patterns[a] == some.client_patterns[b]).all()


def test_a_clients_soft_answers_come_with_samples_that_lack_a_modality_too(tmp_path: Path) -> None:
    options = {"missing": {"image": 0.4, "text": 0.2}, "tasks": {"image-text": "classify"}}
    scored = pairs(answer=(np.arange(N) % 5)[:, None], score=np.ones((N, 1), np.float32))
    found = opened(tmp_path, scored, **options)
    towers = {"image": {"blocks": 1, "width": 8, "heads": 1, "patch": 4}, "text": {"blocks": 1, "width": 8, "heads": 1}}
    model = describe(ModelOptions.model_validate(towers), ("image", "text"), "classify", found.facts)
    kind = Kind(
        "image-text", ("image", "text"), "classify", model, {}, found.patterns("image-text"), found.extras("image-text")
    )
    work = FedAvg(FedAvg.Options(name="fedavg"), Setting({"image-text": kind}, TrainingOptions(batch=4))).work(
        "image-text", 1
    )
    source = found.client(0)
    assert [source.size(p) for p in work.passes] == found.client_patterns[0].tolist()
    for pass_ in work.passes:
        (_, batch), *_ = source.batches(pass_, 1)
        assert set(batch) == {*pass_.patterns[0].split("-"), "label", "target"}


def test_a_declared_client_lacks_as_many_without_any_samples() -> None:
    options = DataOptions(source="declared", clients={"image-text": 3, "image": 2}, samples=1000, missing="50%")
    found = open_federation(options, seed=1, tokens=8)
    assert found.client_patterns is not None and found.client_dropped is not None
    assert (found.client_patterns.sum(1) == found.client_samples).all()
    assert (found.client_samples + found.client_dropped == 1000).all()
    pair = found.client(4)
    assert len(pair.rows("private", "text")) == found.client_patterns[4, 2] > 100
    assert (found.client_patterns[:2] == [1000, 0, 0]).all()  # an image client can't lack its one modality


def test_a_test_with_missing_modalities_is_the_same_every_time(tmp_path: Path) -> None:
    server = opened(tmp_path, pairs(), tasks={"image-text": "classify"}).server()
    args = {"missing": {"image-text": {"text": 0.5}}, "whole": "image-text"}
    pass_ = Pass("score-classify", "test", ("image-text", "image", "text"), 8, False, args)
    counts = {pattern: len(server._rows(pass_, pattern)) for pattern in pass_.patterns}
    assert sum(counts.values()) == 40 == server.size(pass_) and counts["text"] == 0 < counts["image"] < 40
    seen = [b["label"].tolist() for _, b in server.batches(pass_, 1)]
    assert seen == [b["label"].tolist() for _, b in server.batches(pass_, 2)]


def test_each_kind_may_have_a_data_set_of_its_own(tmp_path: Path) -> None:
    """Classes, samples and public pairs come from where the scenario says; one tokenizer reads all texts."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 1, 8, 8), np.uint8)
    pictures = Collection(tuple("xyz"), np.arange(60) % 3, np.arange(60), images)
    words = tuple(f"alpha{i} beta" for i in range(50))
    news = Collection(("p", "q"), np.arange(50) % 2, np.arange(50), None, np.arange(50), words, words)
    sets = {"pictures": pictures, "news": news, "pairs": pairs(), "more": pairs()}
    options = DataOptions(
        source={"image": "pictures", "text": "news", "image-text": "pairs", "public": "more"},
        clients={"image": 2, "text": 2, "image-text": 3}, partition="iid", validation=0, test=6, public=30,
    )  # fmt: skip
    chosen = {name: DataSet(lambda size, report, made=made: made) for name, made in sets.items()}
    found = _open({name: chosen[name] for name in options.sources}, options, 1, 8, tmp_path, lambda _: None)
    assert options.sources == ("pictures", "news", "pairs", "more")
    assert [found.facts_of(k)[k.split("-")[0]]["classes"] for k in found.kinds] == [3, 2, 5]
    assert found.server_samples["test"] == {"image": 6, "text": 6, "image-text": 6}
    assert found.server_samples["public"]["image-text"] == 30
    counts = found.class_counts()
    assert counts.shape == (7, 3 + 2 + 5 + 5 + 1) and (counts.sum(1) == found.client_samples).all()
    assert counts[:2, 3:].sum() == 0 and counts[2:4, 3:5].sum() == found.client_samples[2:4].sum()
    vocabulary = set(found.tokenizer.get_vocab())
    assert {"beta", "of"} <= vocabulary  # of both sets' texts
    public = Pass("represent", "public", ("image-text",), 10, False, {})
    for client in (0, 3, 6):
        kind = found.kinds[found.client_kind[client]]
        private = Pass("classify", "private", (kind,), 4, True, {})
        assert {m for _, b in found.client(client).batches(private, 1) for m in b} == {*kind.split("-"), "label"}
        assert len(list(found.client(client).batches(public, 1))) == 3
    assert not {"public"} & {d for d, sizes in found.server_samples.items() if "audio" in sizes}


def test_pictures_of_different_size_are_no_one_tower(tmp_path: Path) -> None:
    small = Collection(("x", "y"), np.arange(40) % 2, np.arange(40), np.zeros((40, 1, 4, 4), np.uint8))
    options = DataOptions(
        source={"image": "small", "image-text": "pairs"}, clients={"image": 1, "image-text": 1}, partition="iid"
    )
    chosen = {"small": DataSet(lambda size, report: small), "pairs": DataSet(lambda size, report: pairs())}
    with pytest.raises(DataError, match="size is 4 in small, 8 in pairs; set data.size"):
        _open(chosen, options, 1, 8, tmp_path, lambda _: None)


def test_a_published_split_is_kept(tmp_path: Path) -> None:
    official = np.repeat([0, 2], [300, 100])
    found = opened(tmp_path, pairs(official=official), test=0.08, validation=30)
    assert found.server_samples["test"]["image-text"] == 100  # all of it, unless a number says less
    assert found.server_samples["validation"]["image-text"] == 30
    assert found.client_samples.sum() == 270
    assert opened(tmp_path, pairs(official=official), test=25).server_samples["test"]["image-text"] == 25
    rows = np.concatenate([found.rows(client) for client in range(4)])
    assert rows.max() < 300


def test_natural_clients_are_those_that_the_data_name(tmp_path: Path) -> None:
    owner = np.repeat(np.arange(10), 40)
    found = opened(tmp_path, pairs(owner=owner), partition="natural", test=0)
    whose = [set(owner[found.rows(client)].tolist()) for client in range(4)]
    assert all(len(each) == 1 for each in whose) and len(set.union(*whose)) == 4
    with pytest.raises(DataError, match="only 2 of the 3 that the data name"):
        natural(np.array([1] * 12 + [2] * 9 + [3] * 11), 3, None, np.random.default_rng(0))
    with pytest.raises(DataError, match="the data name no clients"):
        opened(tmp_path / "other", pairs(), partition="natural")


def test_one_class_is_no_classification(tmp_path: Path) -> None:
    made = pairs()
    alone = replace(made, label=np.zeros(N, np.int64))
    with pytest.raises(DataError, match="all training samples of image clients, who classify, are of one class, 'a'"):
        opened(tmp_path, alone, clients={"image": 2})
    said: list[str] = []
    split = replace(made, official=np.where(made.label == 2, 2, 0))
    options = DataOptions(source="toy", clients={"text": 2}, partition="iid")
    _open({"toy": DataSet(lambda size, report: split)}, options, 1, 8, tmp_path / "split", said.append)
    assert "all test samples of text clients are of one class, 'c': who guesses it has 1" in said


def site_table(folder: Path, *, mixed: bool = False) -> Path:
    """A table of nine sites with 30 rows each: three with pictures, three with texts, three with both.

    With ``mixed`` the last lacks a third of its texts.
    """
    rows = ["image,text,label,client"]
    for i in range(270):
        kind = ("image", "text", "image-text")[i // 30 % 3]
        Image.fromarray(np.full((8, 8), i % 256, np.uint8)).save(folder / f"{i}.png")
        has_text = "text" in kind and not (mixed and i >= 240 and i % 3 == 0)
        rows.append(
            f"{f'{i}.png' if 'image' in kind else ''},{f'word {i}' if has_text else ''},{'ab'[i % 2]},site {i // 30}"
        )
    (folder / "sites.csv").write_text("\n".join(rows))
    return folder / "sites.csv"


MODELS = {"image": {"tower": "vit", "blocks": 1, "width": 16, "heads": 2, "patch": 4},
          "text": {"tower": "transformer", "blocks": 1, "width": 16, "heads": 2, "tokens": 8}}  # fmt: skip


@pytest.mark.parametrize("mixed", [False, True])
def test_a_table_decides_who_holds_its_rows(tmp_path: Path, mixed: bool) -> None:
    data = {"source": "table", "folders": {"table": str(site_table(tmp_path, mixed=mixed))}, "validation": 0,
            "test": 0.1, "size": 8}  # fmt: skip
    scenario = load({"model": MODELS, "data": data})
    assert scenario.data.clients == {"image": 3, "text": 3, "image-text": 3} and scenario.data.partition == "natural"
    assert load(scenario.to_data()) == scenario
    found = federation_of(scenario, lambda _: None)
    assert found.kinds == ("image", "text", "image-text") and found.client_kind.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    (part,) = found._parts
    owner, filled = np.asarray(part.arrays["owner"]), {1: "image", 2: "text", 3: "image-text"}
    sites = [set(owner[found.rows(client)].tolist()) for client in range(9)]
    assert all(len(site) == 1 for site in sites) and set.union(*sites) == set(range(9))
    assert [site.pop() % 3 for site in sites] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    has = (np.asarray(part.arrays["image"]) >= 0) + 2 * (np.asarray(part.arrays["text"]) >= 0)
    for client, kind in enumerate(found.client_kind.tolist()):
        for pattern in found.patterns(found.kinds[kind]):
            assert {filled[each] for each in has[found.rows(client, pattern)].tolist()} <= {pattern}
    assert found.patterns("image-text") == (("image-text", "image") if mixed else ("image-text",))
    assert found.client_samples.sum() + len(part.arrays["split"]) - (part.arrays["split"] == 0).sum() == 270


@pytest.mark.slow(smaller="test_a_table_decides_who_holds_its_rows")
def test_a_run_on_a_table_with_gaps_trains_all_three_kinds(tmp_path: Path) -> None:
    data = {"source": "table", "folders": {"table": str(site_table(tmp_path, mixed=True))}, "validation": 0,
            "test": 0.2, "size": 8}  # fmt: skip
    run = edgefl.run(
        {"model": MODELS, "data": data, "schedule": {"name": "end-to-end", "rounds": 1}, "training": {"batch": 8},
         "round": {"cohort": 1.0}},
        out=tmp_path / "run",
    )  # fmt: skip
    clients = run.records("clients")
    assert sorted(client["kind"] for client in clients) == ["image"] * 3 + ["image-text"] * 3 + ["text"] * 3
    assert all(client["outcome"] == "finished" and client["loss"] is not None for client in clients)


def test_named_clients_that_are_not_used_are_told_of(tmp_path: Path) -> None:
    data = {"source": "table", "folders": {"table": str(site_table(tmp_path))}, "size": 8, "validation": 0,
            "clients": {"image": 2, "image-text": 2}}  # fmt: skip
    assert load({"model": MODELS, "data": data}).data.partition == "natural"  # of the numbers that are asked for
    scenario = load({"model": MODELS, "data": {**data, "partition": "iid"}})
    said: list[str] = []
    found = federation_of(scenario, said.append)
    assert "the column client isn't used, because data.partition deals the rows; natural follows the column" in said
    has_text = np.asarray(found._parts[0].arrays["text"]) >= 0
    assert [bool(has_text[found.rows(client)].any()) for client in range(4)] == [False, False, True, True]
    assert all(has_text[found.rows(client)].all() for client in (2, 3))


def test_soft_targets_and_captions_of_one_image_are_fields_that_a_pass_asks_for(tmp_path: Path) -> None:
    base = pairs()
    answer = np.stack([base.label, np.where(np.arange(N) % 2, (base.label + 1) % 5, -1)], 1)
    score = np.tile(np.array([[1.0, 0.3]], np.float32), (N, 1))
    made = pairs(answer=answer, score=score)
    found = opened(tmp_path, made, tasks={"image-text": "classify"})
    assert found.extras("image-text") == ("target",)
    pass_ = Pass("classify", "private", ("image-text",), 16, True, {"fields": ["image", "label", "target"]})
    source = found.client(0)
    assert source.spec(pass_, "image-text")["target"].shape == (16, 5)
    for _, batch in source.batches(pass_, 1):
        assert (batch["target"].gather(1, batch["label"][:, None]) == 1).all()
        second = batch["target"].gather(1, (batch["label"][:, None] + 1) % 5)
        assert set(second.flatten().tolist()) <= {0.0, np.float32(0.3).item()}
    captions = Collection(
        base.classes, base.label, np.arange(N) // 4, base.images[: N // 4], base.text, base.texts, base.masked,
        image=np.arange(N) // 4,
    )  # fmt: skip
    several = opened(tmp_path / "captions", captions)
    assert several.extras("image-text") == ("group",)
    ask = Pass("score-retrieve", "test", ("image-text",), 10, False, {"fields": ["image", "text", "label", "group"]})
    groups = np.concatenate([b["group"].numpy() for _, b in several.server().batches(ask, 1)])
    assert len(np.unique(groups)) == 40 and len(groups) == 160


def test_the_first_pairs_have_whole_images() -> None:
    rows = np.array([5, 1, 4, 0, 3, 2])
    assert order_by_group(rows, np.array([7, 9, 9, 7, 8, 9])).tolist() == [5, 0, 1, 4, 2, 3]


def test_audio_is_normalised_over_the_training_samples(tmp_path: Path) -> None:
    audio = np.random.default_rng(1).normal(-4, 3, (N, 6, 5)).astype(np.float32)
    made = Collection(tuple("abcde"), np.arange(N) % 5, np.arange(N), audio=audio)
    found = opened(tmp_path, made, clients={"audio": 2})
    assert found.facts == {"audio": {"bins": 5, "frames": 6, "classes": 5}}
    heard = [b["audio"] for c in (0, 1) for _, b in found.client(c).batches(
        Pass("classify", "private", ("audio",), 10, True, {}), 1)]  # fmt: skip
    values = np.concatenate([each.numpy().ravel() for each in heard])
    assert abs(values.mean()) < 0.02 and abs(values.std() - 0.5) < 0.02  # as AST: mean 0, deviation 1/2


def test_a_folder_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "n.txt").write_text("1")
    read: list[str] = []

    def build(wanted: FolderRequest) -> Collection:
        assert wanted.scratch.is_dir() and wanted.columns == {"label": "class"}
        read.append((wanted.folder / "n.txt").read_text())
        return pairs()

    def find(given: Path | None) -> Path:
        assert given is not None
        return given

    def again() -> None:
        options = DataOptions(
            source="mine", clients={"image-text": 2}, partition="iid", folders={"mine": folder},
            columns={"label": "class"},
        )  # fmt: skip
        _open({"mine": FolderSet(build, find)}, options, 1, 8, tmp_path / "cache", lambda _: None)

    again()
    again()
    (folder / "n.txt").write_text("22")
    again()
    assert read == ["1", "22"]
    assert not list((tmp_path / "cache").glob(".scratch*"))
