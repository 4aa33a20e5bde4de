"""Files of what clients keep: values to the byte, nothing but what was written, and no more than is needed."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.errors import RunError
from edgefl.plain_data import from_data, to_data
from edgefl.runs import kept
from edgefl.runs.kept import ALIGNMENT, FACTS, Index, StoredTensors, TensorLayout, new_file
from edgefl.simulation.kept import KeptValues

ODD = {
    "a.weight": torch.arange(35.0).reshape(5, 7), "half": torch.tensor([1.5, -0.0, float("nan")]).half(),
    "b": torch.tensor([1.0, -3.0]).bfloat16(), "count": torch.tensor(7), "empty": torch.empty(0, 4),
    "mask": torch.tensor([True, False, True]), "transposed": torch.arange(6.0).reshape(2, 3).T,
}  # fmt: skip
"""Tensors of many dtypes and shapes."""


def written(folder: Path, clients: dict[int, dict[str, Tensor]], round: int = 1) -> dict[int, StoredTensors]:
    """Write these clients to a file."""
    with new_file(folder, round) as writer:
        begin = {client: writer.add(tensors.values()) for client, tensors in clients.items()}
    layouts = {client: TensorLayout.from_tensors(tensors) for client, tensors in clients.items()}
    return {c: StoredTensors(str(writer.path), begin[c], layouts[c], layouts[c].names) for c in clients}


def reread(index: Index) -> Index:
    """As a checkpoint gives it back."""
    rows, facts = index.to_data()
    return Index.from_data(index.folder, rows.clone(), json.loads(json.dumps(facts)))


def test_values_come_back_to_the_byte_and_changing_them_changes_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    clients = {3: ODD, 1: {"a.weight": torch.ones(1000)}, 2: {}}
    index = reread(Index(folder, written(folder, clients)))
    (path,) = folder.iterdir()
    before = path.read_bytes()
    for client, tensors in clients.items():
        found = index.clients[client].tensors()
        assert list(found) == list(tensors)
        for name, tensor in found.items():
            assert (tensor.dtype, tensor.shape) == (tensors[name].dtype, tensors[name].shape)
            one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (tensor, tensors[name]))
            assert torch.equal(one, other)
            assert tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT == 0
            tensor.zero_()
    assert path.read_bytes() == before
    only = index.clients[3].only(["count", "unknown"])
    assert only is not None and list(only.tensors()) == ["count"] and index.clients[3].only([]) is None
    assert from_data(StoredTensors, json.loads(json.dumps(to_data(only)))) == only


def test_what_a_stranger_writes_into_a_checkpoint_reads_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    stored = written(folder, {0: {"w": torch.ones(8)}})
    rows, facts = Index(folder, stored).to_data()
    name = next(iter(facts["files"]))
    for wrong in ({"../../etc/passwd": 1}, {f"../kept/{name}": 1}, {"x.bin": 1}, {3: 1}):
        with pytest.raises(RunError, match="doesn't say where clients' kept values lie"):
            Index.from_data(folder, rows, {**facts, "files": wrong})
    wrong_items: list[Any] = [[["w", "load", [8]]], [["w", "float32", [-8]]], [["w", "float32", ["8"]]], ["w"], None]
    for layouts in (*([{"items": items}] for items in wrong_items), [["w"]], [], None):
        with pytest.raises(RunError, match="doesn't say where"):
            Index.from_data(folder, rows, {**facts, "layouts": layouts})
    for row in ([0, 1, 0, 0], [0, 0, -64, 0], [0, 0, 0, 7]):
        with pytest.raises(RunError, match="doesn't say where"):
            Index.from_data(folder, torch.tensor([row]), facts)
    beyond = Index.from_data(folder, torch.tensor([[0, 0, 64, 0]]), facts)
    with pytest.raises(RunError, match=f"can't read what a client keeps from .*{name}"):
        beyond.clients[0].tensors()


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_changed_file_is_found(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "kept"
    _, facts = Index(folder, written(folder, {0: {"w": torch.ones(50)}})).to_data()
    kept.check(folder, {FACTS: facts})
    (path,) = folder.iterdir()
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + b"\1" if damage == "flip" else content[:-1])
    reason = "is missing" if damage == "gone" else "has changed since it was written"
    with pytest.raises(ValueError, match=f"kept/{path.name} {reason}"):
        kept.check(folder, {FACTS: facts})
    assert len(kept.differing(folder, {FACTS: facts}, hashes=False)) == (damage != "flip")


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert_equal_tensors(found, expected)


def of(store: KeptValues, client: int, names: list[str]) -> dict[str, Tensor]:
    found = store.client_values(client, names)
    held = dict(found.tensors()) if found else {}
    assert set(found.names if found else ()) == held.keys()
    return held


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events_gives_what_a_dictionary_gives(tmp_path: Path, seed: int) -> None:
    """Random trainings, of which some are lost, checkpoints and resumes; a checkpoint of any age stays as it was."""
    random, folder = Random(seed), tmp_path / "kept"
    names = ["image.blocks.0.w", "image.blocks.1.w", "table"]
    store, truth = KeptValues(folder), dict[int, dict[str, Tensor]]()
    saved: list[tuple[tuple[Tensor, dict] | None, dict[int, dict[str, Tensor]]]] = []  # type: ignore[type-arg]
    under_way: dict[int, tuple[dict[str, Tensor], dict[str, Tensor] | None]] = {}
    for step in range(300):
        client = random.randrange(12)
        event = random.choice(("train", "train", "train", "lose", "checkpoint", "resume"))
        if event in ("train", "lose"):
            wanted = names[: random.randint(1, 3)]  # a shallower stage has fewer blocks
            left = store.write(new := {name: torch.randn(random.choice((0, 3, 200))) for name in wanted})
            if event == "train":
                store.settle(client, left)
                truth[client] = truth.get(client, {}) | new
        elif event == "checkpoint":
            found = store.commit(step, under_way.keys())
            saved.append((found, {client: dict(held) for client, held in truth.items()}))
            # the last two checkpoints are kept
            kept.sweep(folder, {name for c, _ in saved[-2:] if c is not None for name in c[1]["files"]})
            if found is not None:
                disk = sum(path.stat().st_size for path in folder.iterdir())
                live = sum(TensorLayout.from_tensors(held).size for held in truth.values())
                assert disk <= 2 * live + 2 * sum(
                    TensorLayout.from_tensors(h).size for _, t in saved[-2:-1] for h in t.values()
                )
        elif saved:
            saved = saved[: random.choice((-1, len(saved)))] or saved[:1]
            found, truth = saved[-1][0], {client: dict(held) for client, held in saved[-1][1].items()}
            store = KeptValues(folder)
            if found is not None:
                store.load_data(found[0], json.loads(json.dumps(found[1])))
            saved = saved[-1:]
        for each in range(12):
            same(of(store, each, names), truth.get(each, {}))
            same(of(store, each, names[1:2]), {n: t for n, t in truth.get(each, {}).items() if n == names[1]})
        for found, then in saved[-2:]:
            index = Index.from_data(folder, *found) if found is not None else Index(folder)
            assert index.clients.keys() == then.keys()
            for each, held in then.items():
                same(index.clients[each].tensors(), held)


def test_the_files_are_those_of_any_order_in_which_trainings_end(tmp_path: Path) -> None:
    """Workers end in any order; what a checkpoint has depends on the values alone."""
    found = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        store = KeptValues(tmp_path / "".join(map(str, order)) / "kept")
        (tmp_path / "".join(map(str, order))).mkdir()
        lefts = {}
        for client in order:
            values = {name: torch.full((10,), float(client)) for name in ("w", "b")}
            lefts[client] = store.write(values if order[0] == 0 else dict(reversed(values.items())))
        for client in sorted(lefts):
            store.settle(client, lefts[client])
        rows, facts = store.commit(1, ()) or (None, None)
        assert rows is not None
        found.append((rows.tolist(), facts))
    assert found[0] == found[1]


def test_values_of_busy_clients_stay_where_a_training_may_be_reading_them(tmp_path: Path) -> None:
    store = KeptValues(tmp_path / "kept")
    for client in range(10):
        store.settle(client, store.write({"w": torch.full((100,), float(client))}))
    store.commit(1, ())
    reading = store.client_values(3, ["w"])
    assert reading is not None
    for client in range(4, 10):
        store.settle(client, store.write({"w": torch.full((100,), -float(client))}))
    _, facts = store.commit(2, {3}) or (None, {})
    assert len(facts["files"]) == 2
    kept.sweep(tmp_path / "kept", facts["files"])
    assert_equal_tensors(reading.tensors()["w"], torch.full((100,), 3.0))
    _, facts = store.commit(3, ()) or (None, {})  # it has landed: its values move, and the old file isn't needed
    assert [name[:12] for name in facts["files"]] == ["round-000002", "round-000003"]
    assert_equal_tensors(of(store, 3, ["w"])["w"], torch.full((100,), 3.0))


def test_a_disk_that_fills_up_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    """The system refuses to write more than so many bytes to a file, as a full disk does."""
    folder = tmp_path / "kept"
    store = KeptValues(folder)
    store.settle(0, store.write({"w": torch.ones(10)}))
    saved = store.commit(1, ())
    large = {"w": torch.ones(100_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        with pytest.raises(RunError, match="can't write .*kept: File too large"):
            store.write(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.settle(1, store.write(large))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        with pytest.raises(RunError, match="can't write .*kept: File too large"):
            store.commit(2, ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved is not None and [path.name for path in folder.iterdir()] == list(saved[1]["files"])
    assert_equal_tensors(of(KeptValues(folder), 1, ["w"]), {})
    assert store.commit(2, ()) is not None
    assert_equal_tensors(of(store, 1, ["w"]), large)
    assert_equal_tensors(of(store, 0, ["w"])["w"], torch.ones(10))
