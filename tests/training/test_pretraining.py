"""Pre-training at the server: what towers start from, where it is kept, and what can't be pre-trained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl import models, seeds
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario import load
from edgefl.setup import compose as composing
from edgefl.setup.compose import compose
from edgefl.training.pretraining import Pretraining
from edgefl.work.torch_device import threads

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def few(tiny: Make) -> Make:
    """A federation with public samples: 64 groups of names, 70 texts."""

    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 40, "test": 40, "public": 64}
        model = {"text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}}
        return tiny(**{"data": data, "model": model, "training": {"batch": 8}, **sections})

    return make


def first_values(scenario: dict[str, Any]) -> dict[str, torch.Tensor]:
    setup = compose(load(scenario))
    return dict(setup.method.initial(setup.seed).tensors)


def test_public_samples_of_another_set_give_no_accuracy_on_validation(few: Make, tmp_path: Path) -> None:
    """Names have 16 classes and glyphs 12: labels of one set say nothing about the other's."""
    data = {**few()["data"], "source": {"text": "names", "public": "glyphs"}, "public": 40}
    scenario = few(data=data, pretrain={"text": {"epochs": 1, "batch": 16}})
    run = edgefl.run(scenario, out=tmp_path / "run", overrides=["schedule={name: end-to-end, rounds: 1}"])
    told = json.loads((run.path / "pretrained.json").read_text())["text"]
    assert run.is_finished and told["epochs"] == 1 and "validation_accuracy" not in told


def test_a_pretrained_tower_starts_every_run_and_its_head_does_not(few: Make, tmp_path: Path) -> None:
    plain = first_values(few())
    scenario = few(pretrain={"text": {"epochs": 2, "batch": 16, "parts": ["embedding", "blocks"]}})
    trained = first_values(scenario)
    moved = {name.split(".")[1] for name in plain if not torch.equal(plain[name], trained[name])}
    assert moved == {"embedding", "blocks"}
    edgefl.run({**scenario, "schedule": {"name": "layerwise", "stages": 2, "allocation": [0, 1]}}, out=tmp_path / "run")
    # a stage without rounds keeps what the tower learned beforehand
    kept = safetensors.torch.load_file(tmp_path / "run" / "weights.safetensors")
    early = [name for name in kept if ".blocks.0." in name or ".embedding." in name]
    assert_equal_tensors({name: kept[name] for name in early}, {name: trained[name] for name in early})
    for name in kept:
        if ".blocks.1.mlp.fc1.weight" in name:
            assert not torch.equal(kept[name], trained[name])
    told = json.loads((tmp_path / "run" / "pretrained.json").read_text())["text"]
    assert told["epochs"] == 2 and told["samples"] == 70 and len(told["losses"]) == 2 and told["flops"] > 0
    assert 0 <= told["validation_accuracy"] <= 1
    # what a run kept can be read by another
    again = first_values(few(seed=9, pretrain={"text": {"from": str(tmp_path / "run"), "parts": ["blocks"]}}))
    weights = [n for n in again if n.endswith("weight") and "norm" not in n]
    assert {n.split(".")[1] for n in weights if torch.equal(again[n], trained[n])} == {"blocks"}


@pytest.mark.slow(smaller="test_a_pretrained_tower_starts_every_run_and_its_head_does_not")
def test_what_was_learned_is_trained_once(few: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    scenario = few(pretrain={"text": {"epochs": 1, "batch": 32}})
    one = first_values(scenario)
    (kept,) = (tmp_path / "pretrained").iterdir()
    before = kept.stat().st_mtime_ns
    two = first_values(scenario)
    assert kept.stat().st_mtime_ns == before
    assert_equal_tensors(two, one)
    first_values(few(seed=4, pretrain={"text": {"epochs": 1, "batch": 32}}))
    assert len(list((tmp_path / "pretrained").iterdir())) == 2


def test_what_was_learned_from_a_folder_is_not_kept_for_other_files_in_it(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    table = tmp_path / "table.csv"
    data = {"source": "table", "folders": {"table": str(table)}, "clients": {"text": 1}, "partition": "iid"}
    scenario = tiny(
        data={**data, "validation": 4, "test": 4, "public": 16},
        model={"text": {"blocks": 1, "width": 8, "heads": 1, "tokens": 4}},
        training={"batch": 4},
        pretrain={"text": {"epochs": 1, "batch": 8}},
    )
    found = []
    for words in ("abcdefgh", "ponmlkji"):
        rows = [f"{words[i % 8]}{i} {words[i // 8]},{i % 2}" for i in range(64)]
        table.write_text("\n".join(["text,label", *rows]) + "\n")
        found.append(first_values(scenario))
        composing._federations.clear()
    assert len(list((tmp_path / "cache" / "pretrained").iterdir())) == 2
    assert any(not torch.equal(t, found[1][n]) for n, t in found[0].items() if ".blocks." in n)


def test_without_training_nothing_is_pretrained(few: Make, tmp_path: Path) -> None:
    scenario = few(pretrain={"text": {"epochs": 500, "batch": 16}}, training={"mode": "none", "batch": 8})
    edgefl.run(scenario, out=tmp_path / "run")  # 500 epochs would take minutes
    assert not (tmp_path / "run" / "pretrained.json").exists()


@pytest.mark.parametrize(
    ("pretrain", "told"),
    [
        ({"text": {}}, "give either epochs, to train the tower, or from"),
        ({"text": {"epochs": 1, "from": "x"}}, "give either epochs, to train the tower, or from"),
        ({"image": {"epochs": 1}}, "no image tower to pre-train; it has: text"),
        ({"text": {"epochs": 1, "batch": 71}}, "at least one batch of 71 public samples, but there are 70"),
        ({"text": {"from": "nowhere.safetensors"}}, "no file or folder nowhere.safetensors"),
        ({"text": {"epochs": 1, "parts": ["head"]}}, "embedding"),
        ({"smell": {"epochs": 1}}, "smell"),
        ({"seed": 3}, "seed needs a tower that is trained"),
        ({"stop": {"patience": 2}, "text": {"from": "x"}}, "stop needs a tower that is trained"),
        ({"stop": {}, "text": {"epochs": 1}}, "patience"),
        ({"stop": {"patience": 0}, "text": {"epochs": 1}}, "patience"),
        ({"stop": {"patience": 1, "validation": 1}, "text": {"epochs": 1}}, "validation"),
        ({"stop": {"patience": 1, "validation": 0.01}, "text": {"epochs": 1}}, "0.01 of 70 public text samples holds"),
        (
            {"stop": {"patience": 1, "validation": 0.5}, "text": {"epochs": 1, "batch": 40}},
            "at least one batch of 40 public samples, but there are 35 beside the 35 held out",
        ),
    ],
)
def test_what_cannot_be_pretrained_is_said_before_anything_is(few: Make, pretrain: Any, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        compose(load(few(pretrain=pretrain)))


def test_a_file_that_does_not_fit_is_said(few: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"no such format")
    with pytest.raises(EdgeflError, match="is not a safetensors file"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "bad.safetensors")}}))
    safetensors.torch.save_file({"text.blocks.0.norm1.weight": torch.zeros(3)}, tmp_path / "wide.safetensors")
    with pytest.raises(EdgeflError, match=r"has shape \(3,\), but the model's has \(16,\)"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "wide.safetensors")}}))
    safetensors.torch.save_file({"text.blocks.0.norm1.weight": torch.zeros(16)}, tmp_path / "few.safetensors")
    with pytest.raises(EdgeflError, match="has no text.embedding"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "few.safetensors")}}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgeflError, match="0 .safetensors files"):
        compose(load(few(pretrain={"text": {"from": str(tmp_path / "empty")}})))


def pretraining(scenario: dict[str, Any]) -> Pretraining:
    found = compose(load(scenario)).method.setting.pretrained
    assert isinstance(found, Pretraining)
    return found


def by_hand(given: Pretraining, epochs: int, seed: int) -> tuple[list[dict[str, torch.Tensor]], list[float], int]:
    """The values of the text tower and its accuracy on the samples held out after each epoch, and the latter's number:
    a plain loop over arrays, without works, nodes, tasks and sources."""
    part = given.federation.public_part("text")
    with threads(1), torch.random.fork_rng([]):
        torch.manual_seed(seeds.key(seed, "initial", 1))
        module = models.build(given.descriptions["text"])
        rows = np.asarray(part.arrays["public.text"])
        held = np.zeros(len(rows), bool)
        if given.options.stop is not None:
            taken = given._split_public("text", given.options.stop)[1].public_part("text").arrays["public.text"]
            held = np.isin(rows, taken)
        tokens = torch.from_numpy(part.arrays["tokens_masked"][part.arrays["text"][rows]].astype(np.int64))
        label = torch.from_numpy(part.arrays["label"][rows].astype(np.int64))
        x, y = tokens[torch.from_numpy(~held)], label[torch.from_numpy(~held)]
        values, accuracies = [], []
        for epoch in range(epochs):
            share = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * epoch / epochs)).item())
            optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3 * max(share, 0.01), weight_decay=0.0, fused=True)
            module.train()
            key = seeds.key(seeds.key(seed, "pre-training", epoch), "shuffle", 0, 0)
            order = torch.from_numpy(seeds.generator(key, "shuffle", 0).permutation(len(x)))
            for batch in order[: len(x) // 16 * 16].split(16):
                scores = module.classify("text", {"text": x[batch], "label": y[batch]}, "zero")
                torch.nn.functional.cross_entropy(scores, y[batch]).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            values.append({n: p.detach().clone() for n, p in module.named_parameters() if n.startswith("text.")})
            module.eval()
            with torch.no_grad():
                own = torch.from_numpy(held)
                scores = module.classify("text", {"text": tokens[own], "label": label[own]}, "zero")
                accuracies.append((scores.argmax(-1) == label[own]).double().mean().item())
    return values, accuracies, int(held.sum())


def test_a_loop_by_hand_trains_the_same_tower(few: Make) -> None:
    given = pretraining(few(pretrain={"text": {"epochs": 3, "batch": 16, "lr": 3e-3}}))
    found = {n: t for n, t in given().items() if n.split(".")[1] != "head"}
    values, _, _ = by_hand(given, 3, 3)
    assert_equal_tensors(found, {n: t for n, t in values[-1].items() if n in found})


def test_it_stops_after_epochs_without_a_better_one_and_keeps_the_best(few: Make, tmp_path: Path) -> None:
    tower = {"epochs": 30, "batch": 16, "lr": 3e-3}
    scenario = few(pretrain={"text": tower, "seed": 5, "stop": {"patience": 3, "validation": 0.3}})
    given = pretraining(scenario)
    found = given()
    values, accuracies, held = by_hand(given, 30, 5)
    best, epochs = 1, 0
    for epoch, accuracy in enumerate(accuracies, 1):
        best = epoch if accuracy > accuracies[best - 1] else best
        epochs = epoch
        if epoch - best == 3:
            break
    assert epochs < 30, "the case must stop"
    assert_equal_tensors(dict(found), {n: t for n, t in values[best - 1].items() if n in found})
    told = given.told["text"]
    assert (told["epochs"], told["best_epoch"], told["stopped"], told["seed"]) == (epochs, best, True, 5)
    assert told["accuracies"] == pytest.approx(accuracies[:epochs])
    assert told["best_accuracy"] == pytest.approx(accuracies[best - 1])
    assert 0 < held <= 0.3 * 70 and (told["held_out"], told["samples"]) == (held, 70 - held)
    # beside each run
    edgefl.run(scenario, out=tmp_path / "run", overrides=["schedule.rounds=1"])
    assert json.loads((tmp_path / "run" / "pretrained.json").read_text())["text"] == told


def test_after_of_stop_counts_as_in_a_run(few: Make) -> None:
    def epochs(**stop: Any) -> int:
        tower = {"epochs": 12, "batch": 16, "lr": 1e-12}
        given = pretraining(few(pretrain={"text": tower, "stop": {"patience": 2, "validation": 0.3, **stop}}))
        given()
        return given.told["text"]["epochs"]

    assert epochs() == 3  # no epoch is better than the first
    assert epochs(after=5) == 7


def test_what_is_held_out_to_stop_are_whole_groups_of_public_samples(few: Make) -> None:
    given = pretraining(few(pretrain={"text": {"epochs": 1, "batch": 16}, "stop": {"patience": 1, "validation": 0.4}}))
    assert given.options.stop is not None
    parts = [each.public_part("text") for each in given._split_public("text", given.options.stop)]
    rows = [set(part.arrays["public.text"].tolist()) for part in parts]
    public = set(given.federation.public_part("text").arrays["public.text"].tolist())
    assert not rows[0] & rows[1] and rows[0] | rows[1] == public and rows[1]
    groups = [set(parts[0].arrays["group"][list(each)].tolist()) for each in rows]
    assert not groups[0] & groups[1]


@pytest.mark.slow(smaller="test_a_pretrained_tower_starts_every_run_and_its_head_does_not")
def test_runs_of_other_seeds_share_a_pre_training_of_its_own_seed(
    few: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    told: list[str] = []
    found = []
    for seed in (1, 2, 3):
        scenario = few(seed=seed, pretrain={"seed": 7, "text": {"epochs": 1, "batch": 16}})
        given = compose(load(scenario), told.append).method.setting.pretrained
        assert given is not None
        found.append(dict(given()))
    assert len(list((tmp_path / "pretrained").iterdir())) == 1
    assert sum("epoch 1 of 1" in line for line in told) == 1
    assert_equal_tensors(found[1], found[0])
    assert_equal_tensors(found[2], found[0])
    own = first_values(few(seed=7, pretrain={"text": {"epochs": 1, "batch": 16}}))
    assert_equal_tensors(
        {n: t for n, t in own.items() if n in found[0]}, {n: t for n, t in found[0].items() if n in own}
    )
    assert len(list((tmp_path / "pretrained").iterdir())) == 1  # the seed of a scenario and of a pre-training are one
    # other public samples are another pre-training
    given = pretraining(few(pretrain={"seed": 7, "text": {"epochs": 1, "batch": 16}}))
    fewer = few(data={**few()["data"], "public": 50}, pretrain={"seed": 7, "text": {"epochs": 1, "batch": 16}})
    given, other = given(), pretraining(fewer)()
    assert any(not torch.equal(other[n], t) for n, t in given.items() if other[n].shape == t.shape)


@pytest.mark.slow(smaller="test_processes_open_damage_and_rebuild_one_entry_at_once")
def test_two_processes_that_need_it_at_once_train_it_once(few: Make, tmp_path: Path) -> None:
    program = """
        import json, sys
        from edgefl.setup.compose import compose
        from edgefl.scenario import load
        setup = compose(load(json.loads(sys.argv[1])), lambda line: print(line, flush=True))
        sys.stdin.readline()
        values = setup.method.setting.pretrained()
        print(sum(float(t.double().abs().sum()) for t in values.values()).hex())
    """
    scenarios = [few(seed=s, pretrain={"seed": 7, "text": {"epochs": 40, "batch": 16}}) for s in (1, 2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), json.dumps(scenario)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "EDGEFL_CACHE": str(tmp_path)},
        )
        for scenario in scenarios
    ]  # fmt: skip
    # each waits for its line once it is prepared, so that both begin together
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=900)[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    trained = [sum("epoch" in line for line in lines) for lines in told]
    assert sorted(trained) == [0, 40]
    assert told[0][-1] == told[1][-1]
    assert len(list((tmp_path / "pretrained").iterdir())) == 1


@pytest.mark.slow(smaller="test_a_pretrained_tower_starts_every_run_and_its_head_does_not")
def test_a_comparison_over_seeds_trains_it_once_also_side_by_side(
    few: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    scenario = few(
        pretrain={"seed": 7, "text": {"epochs": 30, "batch": 16}},
        schedule={"name": "end-to-end", "rounds": 1},
        compare={"seed": [1, 2]},
    )
    edgefl.run(scenario, out=tmp_path / "both", jobs=2)
    (kept,) = (tmp_path / "cache" / "pretrained").iterdir()
    before = kept.read_bytes()
    folders = sorted(path.parent for path in (tmp_path / "both").glob("*/pretrained.safetensors"))
    assert len(folders) == 2
    assert len({(folder / "pretrained.safetensors").read_bytes() for folder in folders}) == 1
    for shard in ("2/2", "1/2"):  # in another order, and from an empty cache
        kept.unlink()
        edgefl.run(scenario, out=tmp_path / "shards", shard=shard)
        assert kept.read_bytes() == before


def overlap(seen: dict[str, Any], held: dict[str, Any]) -> dict[str, int]:
    """Samples by holder that share a group with a public text of another federation, counted one by one."""
    part = composing.federation_of(load(seen), str).public_part("text")
    groups = {int(part.arrays["group"][row]) for row in part.arrays["public.text"]}
    federation = composing.federation_of(load(held), str)
    arrays = federation.public_part("text").arrays
    rows = {"samples of clients": {int(r) for i in range(len(federation.client_kind)) for r in federation.rows(i)}}
    for data in ("validation", "test"):
        patterns = federation.server_samples[data]
        rows[f"{data} samples"] = {int(row) for pattern in patterns for row in arrays[f"{data}.{pattern}"]}
    return {whose: sum(int(arrays["group"][row]) in groups for row in own) for whose, own in rows.items()}


@pytest.fixture
def trained(few: Make, tmp_path: Path) -> dict[str, Any]:
    """A scenario with a pre-training, which the run in ``tmp_path / "run"`` has played."""
    scenario = few(pretrain={"text": {"epochs": 1, "batch": 16}})
    edgefl.run(scenario, out=tmp_path / "run", overrides=["schedule.rounds=1"])
    return scenario


def test_a_federation_that_holds_what_weights_have_seen_is_refused(
    few: Make, trained: dict[str, Any], tmp_path: Path
) -> None:
    reads = {"text": {"from": str(tmp_path / "run")}}
    # another seed deals other samples to clients, but holds out the same: what that run began with says the same
    edgefl.run(few(seed=8, pretrain=reads), out=tmp_path / "next", overrides=["schedule.rounds=1"])
    data = few()["data"]
    for changed in ({"public": 20}, {"public": 0, "validation": 60, "test": 60}, {"validation": 90, "public": 10}):
        other = few(data={**data, **changed})
        counts = overlap(trained, other)
        assert sum(counts.values()), "the case must overlap"
        for source in (tmp_path / "run", tmp_path / "run" / "weights.safetensors", tmp_path / "next"):
            with pytest.raises(ScenarioError) as refused:
                compose(load({**other, "pretrain": {"text": {"from": str(source)}}}))
            told = str(refused.value)
            assert "\n" not in told and str(source) in told
            for whose, count in counts.items():
                assert (f" {whose} in names" in told) is bool(count)
                if count:
                    assert re.search(rf"\b{count} of \d+ {whose} in names", told)


def test_samples_are_known_in_a_copy_with_other_rows(tiny: Make, tmp_path: Path) -> None:
    rows = [f"{'abcdefgh'[i % 8] * 3} {i},{i % 2}" for i in range(64)]

    def scenario(name: str, rows: list[str], **sections: Any) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        data = {"source": "table", "folders": {"table": str(tmp_path / name / "table.csv")}, "clients": {"text": 1}}
        return tiny(
            data={**data, "partition": "iid", "validation": 4, "test": 4, **sections.pop("data", {})},
            model={"text": {"blocks": 1, "width": 8, "heads": 1, "tokens": 6}},
            training={"batch": 4},
            **sections,
        )

    pretrain = {"text": {"epochs": 1, "batch": 8}}
    first = scenario("first", rows, data={"public": 16}, pretrain=pretrain)
    edgefl.run(first, out=tmp_path / "run", overrides=["schedule.rounds=1"])
    part = composing.federation_of(load(first), str).public_part("text")
    texts = json.loads(part.collection.text("texts.json"))["texts"]
    public = {texts[part.arrays["text"][row]] for row in part.arrays["public.text"]}
    assert len(public) == 16
    # another vocabulary has another embedding
    with safetensors.safe_open(tmp_path / "run" / "pretrained.safetensors", "pt") as file:
        blocks = {name: file.get_tensor(name) for name in file.keys() if ".blocks." in name}  # noqa: SIM118
        safetensors.torch.save_file(blocks, tmp_path / "blocks.safetensors", file.metadata())
    reads = {"text": {"from": str(tmp_path / "blocks.safetensors"), "parts": ["blocks"]}}
    mixed = [*rows[::-1][:50], *(f"new {i},{i % 2}" for i in range(9))]  # a part of the texts in another order
    second = scenario("second", mixed, data={"public": 0}, pretrain=reads)
    held = sum(row.rpartition(",")[0] in public for row in mixed)
    with pytest.raises(ScenarioError) as refused:
        compose(load(second))
    counted = [
        int(count) for count in re.findall(r"(\d+) of \d+ (?:samples of clients|validation|test)", str(refused.value))
    ]
    assert sum(counted) == held > 0, str(refused.value)
    others = scenario("third", [f"other {i},{i % 2}" for i in range(64)], data={"public": 0}, pretrain=reads)
    compose(load(others))


def test_a_file_that_says_nothing_of_samples_is_read(few: Make, trained: dict[str, Any], tmp_path: Path) -> None:
    values = safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors")
    safetensors.torch.save_file(values, tmp_path / "plain.safetensors")
    reads = {"text": {"from": str(tmp_path / "plain.safetensors")}}
    compose(load(few(data={**few()["data"], "public": 20}, pretrain=reads)))


@pytest.mark.parametrize("told", ["", "no json", "{}", "[1]", '[{"dataset": "names"}]', "[" * 9999])
def test_damaged_facts_about_seen_samples_are_said(
    few: Make, trained: dict[str, Any], tmp_path: Path, told: str
) -> None:
    values = safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors")
    safetensors.torch.save_file(values, tmp_path / "odd.safetensors", {"seen.text": told})
    with pytest.raises(ScenarioError, match="which samples its weights have seen can't be read"):
        compose(load(few(pretrain={"text": {"from": str(tmp_path / "odd.safetensors")}})))


@pytest.mark.slow(smaller="test_samples_are_known_in_a_copy_with_other_rows")
def test_weights_of_a_run_have_a_field_of_their_own(few: Make, trained: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "run" / "pretrained.safetensors"
    model = {"text": {**few()["model"]["text"], "weights": str(source)}}
    with pytest.raises(EdgeflError, match=r"pretrain: \{text: \{from: .*pretrained.safetensors\}\}"):
        edgefl.run(few(model=model), out=tmp_path / "other")
