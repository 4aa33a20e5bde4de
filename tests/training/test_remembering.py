"""Works of a long round are answered from the run's folder by their content alone, and writing them is bounded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import Toy, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.runs import unfinished
from edgefl.runs.unfinished import UnfinishedWorks
from edgefl.training import Assignment, Inline, RememberingExecutor
from edgefl.work.update import Update

CHANGES: dict[str, Callable[[Assignment], Assignment]] = {
    "client": lambda task: replace(task, client=4),
    "the server": lambda task: replace(task, client=None),
    "seed": lambda task: replace(task, seed=6),
    "metered": lambda task: replace(task, metered=True),
    "scalars": lambda task: replace(task, scalars={name: 2 * value for name, value in task.scalars.items()}),
    "form": lambda task: of(make_work(passes=(training_pass(batch=4),) * 2)),
    "a value": lambda task: replace(task, inputs={**task.inputs, **_raised(task.inputs)}),
    "a name": lambda task: replace(task, inputs={f"{name}'": tensor for name, tensor in task.inputs.items()}),
    "kept": lambda task: replace(task, kept=Left(torch.ones(2))),
    "others": lambda task: replace(task, others=(replace(task, client=4),)),
}


class Toys:
    """Toy data for every node."""

    def client(self, index: int) -> Toy:
        return Toy(40 + index)

    def server(self) -> Toy:
        return Toy(60)


@dataclass
class Left:
    """What a client kept."""

    value: Tensor
    names = ("left",)

    def tensors(self) -> dict[str, Tensor]:
        return {"left": self.value}


class Counting:
    """An executor that trains inline, or gives one update for all tasks, and counts them."""

    window = 0

    def __init__(self, update: Update | None = None):
        self.tasks, self._update = 0, update
        self._inline = Inline(Toys(), "cpu")  # type: ignore[arg-type]

    def submit(self, task: Assignment) -> Future[Update]:
        self.tasks += 1
        if self._update is None:
            return self._inline.submit(task)
        future: Future[Update] = Future()
        future.set_result(self._update)
        return future

    def close(self) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


def of(work: Any, **more: Any) -> Assignment:
    return Assignment(work.form, work.scalars, inputs_of(work), more.pop("client", 3), more.pop("seed", 5), **more)


def _raised(inputs: Any) -> dict[str, Tensor]:
    name, tensor = next((n, t) for n, t in sorted(inputs.items()) if t.is_floating_point())
    return {name: tensor + 1e-6}


def again(folder: Path, update: Update, facts: object = "as it was") -> tuple[RememberingExecutor, Counting]:
    """The executor of a run that is resumed; what isn't remembered is answered by ``update``."""
    works, counting = UnfinishedWorks(folder), Counting(update)
    works.look()
    return RememberingExecutor(counting, works, lambda: {"made_of": facts}), counting


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works are written as they end, however short the round."""
    monkeypatch.setattr(unfinished, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(unfinished, "LEAST_RATIO", 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A wall clock that stands still: its first entry is the time."""
    now = [1000.0]
    monkeypatch.setattr(unfinished, "monotonic", lambda: now[0])
    return now


@pytest.mark.usefixtures("at_once")
def test_a_work_is_answered_by_its_content_alone(tmp_path: Path) -> None:
    task, counting = of(make_work()), Counting()
    remembering = RememberingExecutor(counting, UnfinishedWorks(tmp_path), lambda: {"made_of": "as it was"})
    update = remembering.submit(task).result()
    other = replace(update, loss=-1.0)
    for name, change in CHANGES.items():
        executor, inner = again(tmp_path, other)
        assert (executor.submit(change(task)).result().loss, inner.tasks) == (-1.0, 1), name
    executor, inner = again(tmp_path, other, "something else")
    assert (executor.submit(task).result().loss, inner.tasks) == (-1.0, 1)
    executor, inner = again(tmp_path, other)
    same = of(make_work(), peak=7)  # equal tensors elsewhere; what is predicted decides nothing
    back = executor.submit(same).result()
    assert inner.tasks == 0 and back.host == update.host
    assert (back.loss, back.metrics, back.updates, back.client, back.seed) == (
        update.loss, update.metrics, update.updates, update.client, update.seed,
    )  # fmt: skip
    for payload in update.payloads:
        assert_equal_tensors(back.payloads[payload], update.payloads[payload])
    assert executor.submit(same).result().loss == -1.0  # asked for twice, as no run does


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_work_trains_again(tmp_path: Path, damage: str) -> None:
    task = of(make_work())
    update = RememberingExecutor(Counting(), UnfinishedWorks(tmp_path), dict).submit(task).result()
    (path,) = (tmp_path / "unfinished").iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "changed": whole[:-1] + bytes([whole[-1] ^ 1]), "emptied": b""}[damage])
    works, counting = UnfinishedWorks(tmp_path), Counting()
    works.look()
    with pytest.warns(RuntimeWarning, match=f"{path.name} is damaged, and its client trains again"):
        back = RememberingExecutor(counting, works, dict).submit(task).result()
    assert counting.tasks == 1 and back.loss == update.loss
    assert UnfinishedWorks.read(path).partition(b"\n")[2] == whole.split(b"\n", 2)[2]  # written anew


def test_short_rounds_write_nothing_and_long_ones_a_small_part_of_the_time(tmp_path: Path, clock: list[float]) -> None:
    works = UnfinishedWorks(tmp_path)

    def content() -> tuple[str, bytes]:
        clock[0] += 10.0
        return f"{clock[0]:032.0f}", b"x"

    clock[0] += 59.0
    assert not works.is_due()
    clock[0] += 1.0
    assert works.is_due()
    works.write(3, 1, content)  # ten seconds: the next one is due after twenty times as many
    assert not works.is_due()
    clock[0] += 129.0
    assert not works.is_due()
    clock[0] += 1.0
    assert works.is_due()
    works.drop(works.list_superseded({}))  # a checkpoint, from which the time counts
    assert not works.is_due() and not (tmp_path / "unfinished").exists()


def test_what_finds_no_room_is_left_out_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MOST_BYTES", 250)
    works = UnfinishedWorks(tmp_path)
    for client in range(4):
        works.write(client, 100, lambda client=client: (f"{client:032}", bytes(100)))  # type: ignore[misc]
    assert sorted(path.name[:13] for path in (tmp_path / "unfinished").iterdir()) == ["client-000000", "client-000001"]
    monkeypatch.setattr(unfinished, "MOST_SHARE", 0.0)
    works.drop(works.list_superseded({}))
    works.write(5, 100, lambda: pytest.fail("the disk has no free space"))
    assert not (tmp_path / "unfinished").exists()


def test_works_go_with_a_checkpoint_but_for_clients_under_way_and_works_nobody_asked_for(tmp_path: Path) -> None:
    before = UnfinishedWorks(tmp_path)
    for client in (1, 2):
        before.write(client, 1, lambda client=client: (f"{client:032}", b"x"))  # type: ignore[misc]
    works = UnfinishedWorks(tmp_path)
    works.look()
    for client in (3, None):
        works.write(client, 1, lambda: ("0" * 32, b"x"))
    assert works.find(f"{1:032}") is not None and works.find("9" * 32) is None
    works.drop(works.list_superseded({"flights": {"rows": [{"flight": {"client": 3}}]}}))
    left = sorted(path.name.split("-0000000000")[0] for path in (tmp_path / "unfinished").iterdir())
    assert left == ["client-000002", "client-000003"]
    works.close()
    works.write(4, 1, lambda: pytest.fail("the run is closed"))
    works.end()
    assert not (tmp_path / "unfinished").exists()
