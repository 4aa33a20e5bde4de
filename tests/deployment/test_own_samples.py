"""Samples of a node's own: the run is the one of the set that has them all, and what doesn't fit is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcess
from people_notes import Row, sections, tables_of_people, write_table
from PIL import Image
from tensors import assert_equal_tensors

import edgefl
from edgefl.deployment.own_samples import open_own
from edgefl.deployment.real_run import play_on_nodes
from edgefl.deployment.transport import Message
from edgefl.errors import RunError
from edgefl.scenario import load
from edgefl.setup.compose import federation_of
from edgefl.work import Pass

Scenario = Callable[..., dict[str, Any]]


@pytest.fixture
def notes(tiny: Scenario, tmp_path: Path) -> dict[str, Any]:
    return tiny(**sections(tmp_path), training={"batch": 25})


def play(raw: dict[str, Any], folder: Path, data: dict[int, Path]) -> tuple[edgefl.Run, list[str]]:
    scenario, said = load(raw), list[str]()
    transport = InProcess(scenario, folder / "nodes", {100 + client: client for client in range(3)})
    transport.data = data

    def on_progress(event: str, facts: Any) -> None:
        if event == "prepare":
            said.append(facts["what"])

    try:
        return play_on_nodes(scenario, transport, folder / "real", on_progress, wait=0), said
    except RunError as error:
        raise AssertionError(said) from error


def test_nodes_with_their_own_tables_train_what_one_table_of_all_trains(notes: dict[str, Any], tmp_path: Path) -> None:
    """Each node's table lacks a class, its own texts would give another tokenizer, and one has less than a batch."""
    own = {100 + person: table for person, table in tables_of_people(tmp_path).items()}
    simulated = edgefl.run(notes, out=tmp_path / "simulated")
    real, said = play(notes, tmp_path, own)
    assert not [each for each in said if "isn't used" in each]
    assert_equal_tensors(real.weights(), simulated.weights())
    assert real.clients["samples"].tolist() == simulated.clients["samples"].tolist()


def test_the_server_counts_what_a_node_says(notes: dict[str, Any], tmp_path: Path) -> None:
    """The node of client 1 has twelve samples of one class; the set has 25 of two."""
    more = [{"text": f"saw {number}", "label": "tool", "client": "me", "split": "train"} for number in range(12)]
    real, _ = play(notes, tmp_path, {101: write_table(tmp_path / "more.csv", more)})
    assert real.clients.set_index("client")["samples"].loc[1].tolist() == [12, 12]
    assert real.clients.set_index("client")["samples"].loc[2].tolist() == [30, 30]
    assert [row["samples"] for row in real.records("rounds")] == [{"text": 62}] * 2


def test_samples_that_do_not_fit_are_told_with_the_node(notes: dict[str, Any], tmp_path: Path) -> None:
    row = {"text": "saw", "label": "tool", "client": "me", "split": "train"}
    wrong: dict[int, Row] = {101: {"label": "star"}, 102: {"text": ""}}
    own = {node: write_table(tmp_path / f"{node}.csv", [row | change] * 12) for node, change in wrong.items()}
    real, told = play(notes, tmp_path, own)
    assert set(real.clients["client"]) == {0}
    unused = [each for each in told if "isn't used: " in each]
    assert [each[:8] for each in unused] == ["node 101", "node 102"]
    assert "the class 'star' isn't one of the server's: fruit, pet, tool" in unused[0]


@pytest.mark.parametrize(("own", "said"), [
    ({"kind": "image", "samples": [3, 3, 3, 0]}, "its samples are image, and client 1 is text"),
    ({"kind": "text", "samples": [3, 3]}, "it says 2 numbers of samples"),
    ({"kind": "text", "samples": [3, -3, 9, 0]}, "it says 4 numbers of samples"),
    ({"kind": "text", "samples": [0, 0, 0, 0]}, "it says 4 numbers of samples"),
])  # fmt: skip
def test_numbers_that_can_not_be_are_told_with_the_node(
    notes: dict[str, Any], tmp_path: Path, own: dict[str, object], said: str
) -> None:
    scenario, told = load(notes), list[str]()
    transport = InProcess(scenario, tmp_path / "nodes", {101: 1})
    greeting = {"version": edgefl.__version__, "client": 1, "own": own}
    transport.replies[101] = lambda order, honest: Message(greeting)
    with pytest.raises(RunError, match="no node has come"):
        play_on_nodes(scenario, transport, tmp_path / "real", lambda event, facts: told.append(f"{facts}"), wait=0)
    assert any(f"node 101 isn't used: {said}" in each for each in told), told


def test_pictures_of_a_node_are_normalised_by_the_server_and_have_its_classes(tmp_path: Path) -> None:
    """The node has bright pictures of the last two of the server's classes; its own mean would make them 0."""
    draw, folders = np.random.default_rng(0), {"server": ("across", "along", "wavy"), "node": ("along", "wavy")}
    pixels: dict[str, list[Any]] = {}
    for folder, classes in folders.items():
        for name in classes:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(6 if (folder, name) == ("node", "wavy") else 30):
                picture = draw.integers(200 if folder == "node" else 0, 256, (8, 8), dtype=np.uint8)
                Image.fromarray(picture).save(tmp_path / folder / name / f"{number:02}.png")
                pixels.setdefault(folder, []).append(picture)
    data = {"source": "images", "folders": {"images": str(tmp_path / "server")}, "clients": {"image": 2},
            "partition": "iid", "size": 8, "validation": 10, "test": 10}  # fmt: skip
    tower = {"blocks": 1, "width": 8, "heads": 2, "patch": 4}
    scenario = load({"name": "n", "data": data, "model": {"image": tower}, "schedule": {"rounds": 1}})
    scales = json.loads(json.dumps(federation_of(scenario, lambda _: None).scales))
    own = open_own(scenario, tmp_path / "node", None, tmp_path / "copies", scales)
    assert own.count().samples == (0, 30, 6, 0)
    again = open_own(scenario, tmp_path / "node", None, tmp_path / "copies", {})  # a later process
    [(_, batch)] = again.client(1).batches(Pass("classify", "private", ("image",), 36, train=False), 0)
    assert batch["label"].tolist() == [1] * 30 + [2] * 6
    expected = (np.stack(pixels["node"]) - scales["mean"][0]) / scales["deviation"][0]
    np.testing.assert_allclose(batch["image"][:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert expected.mean() > 0.5
