"""Tasks and reports as what travels to another process, and the node that does them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors

from edgefl.errors import TrainingError
from edgefl.training import Assignment, Node
from edgefl.training.assignment import deserialise, encode
from edgefl.work import Item, Pass, Payload, Work
from edgefl.work.torch_device import device_of
from edgefl.work.update import Update


def travelled(update: Update, task: Assignment) -> Update:
    """An update as it comes out of another process."""
    head, body = encode(update)
    return Update.from_data(json.loads(head), task.work, task.client, deserialise(body))


class Toys:
    """Toy data for every node."""

    def client(self, index: int) -> Toy:
        return Toy(40 + index)

    def server(self) -> Toy:
        return Toy(60)


def task(work: Work | None = None, **more: Any) -> Assignment:
    work = work or make_work(gate="trainable")
    return Assignment(work.form, work.scalars, inputs_of(work), more.pop("client", 3), more.pop("seed", 5), **more)


def test_a_task_comes_back_as_it_was() -> None:
    one = task(metered=True)
    two = Assignment.decode(*one.encode())
    assert (two.work, two.client, two.seed, two.metered) == (one.work, 3, 5, True)
    assert_equal_tensors(two.inputs, one.inputs)
    assert Assignment.decode(*task(client=None).encode()).client is None


def test_tensors_that_share_storage_travel_one_by_one() -> None:
    shared = torch.arange(6.0)
    one = replace(task(), inputs={"a": shared, "b": shared, "c": shared[2:4], "d": shared.view(2, 3).T})
    two = Assignment.decode(*one.encode())
    assert_equal_tensors(two.inputs, one.inputs)


def test_a_report_comes_back_as_it_was() -> None:
    report = Node(Toys(), CPU).run_assignment(task(metered=True))
    report = kept = replace(report, kept={"image.blocks.0/odd": torch.ones(2, dtype=torch.bfloat16)})
    back = travelled(report, task(metered=True))
    assert back.loss == report.loss and back.metrics == report.metrics
    assert back.updates == report.updates > 0
    assert_equal_tensors(back.payloads["model"], report.payloads["model"])
    assert_equal_tensors(back.kept, kept.kept)
    assert back.trace == report.trace and back.peak_memory_bytes == report.peak_memory_bytes is not None
    assert back.host == report.host


def test_payloads_of_any_name_even_empty_ones() -> None:
    sent = {"a/b": {"x/y": torch.ones(2)}, "empty": {}, "kept": {"z": torch.zeros(1)}}
    result = Update(1, "image", {}, task().work, sent, {}, metrics={"m": float("inf")})
    back = travelled(result, task())
    assert list(back.payloads) == ["a/b", "empty", "kept"]
    assert_equal_tensors(back.payloads, result.payloads)
    assert back.metrics == {"m": float("inf")} and back.loss is None


def test_a_nodes_history_changes_nothing() -> None:
    fresh, used = Node(Toys(), CPU), Node(Toys(), CPU)
    used.run_assignment(task(seed=9, client=1))
    used.run_assignment(task(make_work(), seed=8))
    a, b = fresh.run_assignment(task()), used.run_assignment(task())
    assert_equal_tensors(b.payloads["model"], a.payloads["model"])
    assert a.loss == b.loss


def test_a_client_gets_nothing_of_the_one_before_it() -> None:
    """What a work doesn't receive is as in a new module, not what another client trained on this node."""
    work = make_work()
    part = replace(work, down=tuple(payload.only(lambda item: ".blocks.0." not in item.name) for payload in work.down))
    fresh, used = Node(Toys(), CPU), Node(Toys(), CPU)
    used.run_assignment(task(work, client=1))
    a, b = fresh.run_assignment(task(part)), used.run_assignment(task(part))
    assert a.loss == b.loss
    assert_equal_tensors(b.payloads["model"], a.payloads["model"])


def test_a_node_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Node(Toys(), CPU).run_assignment(task())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("client", "name"), [(3, "client 3"), (None, "the server")])
def test_a_failing_work_names_its_node(client: int | None, name: str) -> None:
    node = Node(Toys(), CPU)
    broken = make_work(passes=(Pass("toy-broken", "private", ("image",), 8),), gate="frozen")
    with pytest.raises(TrainingError, match=rf"kind 'own' failed on {name}.*the toy is broken") as caught:
        node.run_assignment(task(broken, client=client))
    assert caught.value.exit_code == 1
    after, fresh = node.run_assignment(task()), Node(Toys(), CPU).run_assignment(task())
    assert_equal_tensors(after.payloads["model"], fresh.payloads["model"])


def test_only_metered_tasks_are_measured() -> None:
    node = Node(Toys(), CPU)
    assert node.run_assignment(task()).trace is None
    measured = node.run_assignment(task(metered=True))
    assert measured is not None and measured.trace is not None
    assert measured.peak_memory_bytes == measured.trace.peak_memory_bytes > 0


def test_outputs_travel_too() -> None:
    table = Payload("confusion", (Item("confusion", (5, 5), "float32", "table/confusion"),))
    work = replace(make_work(passes=(Pass("score-classify", "validation", ("image",), 16, False),)), up=(table,))
    one = task(work, client=None)
    report = Node(Toys(), CPU).run_assignment(one)
    assert float(travelled(report, one).payloads["confusion"]["confusion"].sum()) == 60


def test_a_work_without_a_full_batch_sends_what_it_received() -> None:
    work = make_work(passes=(training_pass(batch=64),))
    one = task(work)
    result = Node(Toys(), CPU).run_assignment(one)
    assert result.loss is None
    assert_equal_tensors(result.payloads["model"], one.inputs)


def test_devices() -> None:
    assert device_of("cpu").type == "cpu"
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(TrainingError, match="no CUDA device") as caught:
            device_of("cuda")
        assert caught.value.exit_code == 2
