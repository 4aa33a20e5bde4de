"""Answers to questions at the server: its weights against a loop by hand, what is scored, costs, refusals."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import miniatures
import pytest
import torch
from edgefl_toys import CPU, declared
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import run

PAIRS = 24
VIT = {"blocks": 1, "width": 16, "heads": 2, "patch": 8}
TOWERS = {"image": VIT, "text": {"blocks": 1, "width": 24, "heads": 2, "tokens": 8}, "dimension": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("sets")
    miniatures.flickr(root / "flickr30k", 16)
    miniatures.vqa(root / "vqa", 20, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_DATA", str(root))
        patch.setenv("EDGEFL_CACHE", str(root / "cache"))
        yield root


def scenario(name: str = "creamfl", **changes: Any) -> dict[str, Any]:
    """Clients with pairs of Flickr30k; public questions and those of the test are VQA's."""
    data = {
        "source": {"image-text": "flickr30k", "public": "vqa-310", "test": "vqa-310"},
        "clients": {"image-text": 2}, "partition": "groups", "public": 20, "size": 16, "vocabulary": 60,
        "validation": 0, "samples": 16,
    }  # fmt: skip
    method = {"name": name, "server_task": "classify", "pairs": PAIRS, "public_batch": 8,
              "model": {**TOWERS, "fusion": {"hidden": [12]}}}  # fmt: skip
    given = {
        "name": "answers", "data": data, "model": {**TOWERS, "dimension_for": "all"}, "method": method,
        "schedule": {"name": "end-to-end", "rounds": 2}, "training": {"batch": 8, "lr": 0.01},
        "executor": {"name": "inline", "device": "cpu"}, "evaluation": {"split": "test"}, "round": {"cohort": 1.0},
    }  # fmt: skip
    for path, value in changes.items():
        section, _, key = path.partition("__")
        given = {**given, section: {**given[section], key: value} if key else value}  # type: ignore[dict-item]
    return copy.deepcopy(given)


@pytest.mark.parametrize(("name", "order"), [("creamfl", "server-first"), ("creamfl", "server-last"), ("fedet", None)])
def test_without_distillation_the_server_trains_plainly_on_the_answers(name: str, order: Any, folders: Path) -> None:
    """Two rounds of AdamW on VQA's loss of a classifier of both features, by a loop that shares no code."""
    given = scenario(name, method__distillation=0.0)
    if order:
        given["method"]["order"] = order
    setup = compose(load(given))
    method, state, source = setup.method, setup.method.initial(1), setup.clients.server()
    start = state
    for round in (1, 2):
        for works in (method.before, method.after):
            for work in works(state, round):
                module = models.build(work.model)
                inputs = {**state.inputs(work)}
                state = method.absorb(
                    state, work, run(work, inputs, source, module=module, device=CPU, seed=round)
                )  # fmt: skip
    work = next(w for w in (*method.before(start, 1), *method.after(start, 1)) if any(p.train for p in w.passes))
    trained: Any = models.build(work.model).train()
    trained.load_state_dict({n: start.tensors[f"server/{n}"].clone() for n in trained.state_dict()})
    steps = 0
    for round in (1, 2):
        optimizer = torch.optim.AdamW(trained.parameters(), 0.01, weight_decay=0.0)
        for _, batch in source.batches(work.passes[0], seeds.key(round, "shuffle", 0, 0)):
            both = torch.cat([trained.feature("image", batch["image"]), trained.feature("text", batch["text"])], 1)
            scores = trained.joint.head[2](F.relu(trained.joint.head[0](both)))
            right = batch["target"]
            loss = -(right * F.logsigmoid(scores) + (1 - right) * F.logsigmoid(-scores)).sum() / len(scores)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    assert steps == 6
    for parameter, value in trained.state_dict().items():
        ours = state.tensors[f"server/{parameter}"]
        if parameter.endswith("qkv.bias"):  # a key's bias changes no attention: its gradient is rounding
            width = len(value) // 3
            ours, value = (torch.cat([t[:width], t[2 * width :]]) for t in (ours, value))
        torch.testing.assert_close(ours, value, atol=1e-5, rtol=1e-4)
    assert any(
        not torch.equal(state.tensors[f"server/{n}"], start.tensors[f"server/{n}"]) for n in trained.state_dict()
    )


def test_every_question_of_the_test_is_scored(folders: Path, tmp_path: Path) -> None:
    """``evaluation.pairs`` limits retrieval alone."""
    found = edgefl.run(scenario(evaluation__pairs=2), out=tmp_path / "run")
    metrics = found.records("rounds")[-1]["metrics"]["image-text"]
    assert {"accuracy", "soft_score"} <= set(metrics) and "r@1" not in metrics
    setup = compose(load(scenario()))
    work = setup.method.evaluate("image-text", "test")
    source = setup.clients.server()
    assert source.size(work.passes[0]) == 16 == setup.clients.server_samples["test"]["image-text"]
    module: Any = models.build(work.model).eval()
    weights = found.weights()
    module.load_state_dict({n: weights[f"server/{n}"] for n in module.state_dict()})
    (batch,) = [b for _, b in source.batches(work.passes[0], 0)]
    right = batch["label"] >= 0
    with torch.no_grad():
        chosen = module.classify("image-text", batch).argmax(1)
    score = batch["target"].gather(1, chosen[:, None])[right].mean()
    assert metrics["soft_score"] == pytest.approx(float(score), abs=1e-6)


def test_what_travels_and_what_clients_do_stays(folders: Path) -> None:
    own, plain = (compose(load(scenario(method__server_task=task))).method for task in ("classify", "retrieve"))
    assert own.client_work("image-text", 1) == plain.client_work("image-text", 1)
    assert {p.step for p in plain.before(plain.initial(1), 1)[0].passes} == {"contrast", "represent"}
    head = [n for n in own.server.parameters() if n.startswith("joint.head")]
    answers = own.setting.answers["public"]
    shapes = [own.server.parameters()[name].shape for name in head]
    assert answers > 2 and shapes == [(12, 16), (12,), (answers, 12), (answers,)]


def test_costs_are_predicted_for_declared_shapes() -> None:
    plain = scenario(data__source="glyphs", data__partition="iid", method__pairs=None, data__vocabulary=1000)
    rows = edgefl.profile(declared(plain))["server_rows"]
    before = next(row for row in rows if row["when"] == "before")
    retrieves = edgefl.profile(declared({**plain, "method": {**plain["method"], "server_task": "retrieve"}}))
    other = next(row for row in retrieves["server_rows"] if row["when"] == "before")
    head = 16 * 12 + 12 + 12 * 12 + 12  # of both representations, a hidden layer and twelve classes
    assert before["memory_bytes"]["parameters"] - other["memory_bytes"]["parameters"] == 4 * head
    assert before["steps"] == ["classify", "represent"] and other["steps"] == ["contrast", "represent"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"data__source": {"image-text": "flickr30k", "public": "flickr30k"}, "data__public": 4, "method__pairs": 8},
            r"server_task: classify learns answers, and the public pairs have none: set data\.source\.public to a set",
        ),
        (
            {"data__source": {"image-text": "flickr30k", "public": "vqa-310"}},
            r"server_task: classify is scored by answers, and pairs of the test split aren't .*: name it as data\.sour",
        ),
        (
            {"method": {"name": "creamfl", "server": "federated", "server_task": "classify", "pairs": PAIRS}},
            "server_task applies to server: own only, but server is federated",
        ),
        ({"method": {"name": "fedavg", "server_task": "classify"}}, r"method\.server_task: unknown key 'server_task'"),
        ({"method__server_task": "answer"}, r"method\.server_task: .*retrieve.*classify"),
    ],
    ids=["no answers", "another test", "federated", "fedavg", "unknown"],
)
def test_where_there_is_nothing_to_answer_it_is_refused(changes: Any, says: str, folders: Path, tmp_path: Path) -> None:
    with pytest.raises(EdgeflError, match=says) as error:
        edgefl.run(scenario(**changes), out=tmp_path / "run")
    assert error.value.exit_code == 2
