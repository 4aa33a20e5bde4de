"""Clients that are trained at once: as one by one but for rounding, and never where their work doesn't allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors
from torch import Tensor
from torch.nn import functional as F

from edgefl import models, seeds
from edgefl.commands.compose import compose
from edgefl.planning import Setup
from edgefl.scenario import load
from edgefl.training import Attack, Node, Report, Sources, Task
from edgefl.training.stacked import grouped, submit_together
from edgefl.work import Context, Item, Pass, Payload, Source, Step, Wrapper, distinct
from edgefl.work.stacking import loop, why_alone
from edgefl.work.stacking.loop import clip_stacked
from edgefl.work.stacking.operators import StackedOperators
from edgefl.work.steps import Classify

Tiny = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")
CLIENTS = 4


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TOLD", set())


def setup_of(tiny: Tiny, kind: str = "image", training: Mapping[str, Any] | None = None, **sections: Any) -> Setup:
    base = tiny()
    data = {**base["data"], "clients": {kind: CLIENTS}, **sections.pop("data", {})}
    options = {"batch": 8, "lr": 0.01, "optimizer": "sgd", **(training or {})}
    return compose(load(tiny(data=data, training=options, **sections)))


def tasks_of(setup: Setup) -> list[Task]:
    """A task for each client, which all do the same."""
    state, kind = setup.method.initial(setup.seed), setup.clients.kinds[0]
    work = setup.method.client_work(kind, 1).fitted(setup.clients.client(0).size)
    inputs = state.wire(work)
    return [Task(work.form, work.scalars, inputs, client, 100 + client) for client in range(CLIENTS)]


def together(tasks: list[Task], places: int = CLIENTS) -> Task:
    return replace(tasks[0], others=tuple(tasks[1:]), places=places)


def reports_of(report: Report) -> list[Report]:
    return [replace(report, others=()), *report.others]


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> float:
    """The distance of two models relative to what the other has learnt, but for ``without_key_biases``."""
    one, other, base = (without_key_biases(tensors) for tensors in (one, other, base))
    distance = torch.cat([(one[n] - other[n]).flatten() for n in other]).norm()
    return float(distance / torch.cat([(other[n] - base[n]).flatten() for n in other]).norm())


def without_key_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values without the biases of attention's keys.

    A softmax doesn't change if all its scores do alike, so their gradient is zero but for rounding, of which Adam makes
    steps of full length.
    """
    found = {name: tensor.detach() for name, tensor in tensors.items()}
    for name, tensor in found.items():
        if name.endswith("qkv.bias"):
            query, _, value = tensor.chunk(3)
            found[name] = torch.cat([query, value])
    return found


@pytest.mark.parametrize(
    ("training", "tolerance"),
    [
        ({"epochs": 2}, 1e-5),
        ({"momentum": 0.9, "weight_decay": 0.01}, 1e-5),
        ({"clip": 0.1}, 1e-4),
        ({"accumulation": 2}, 1e-5),
        ({"rates": {"head": 0.1, "image": 0.001}}, 1e-5),
        ({"optimizer": "adam", "lr": 1e-3}, 1e-4),
        ({"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.1, "implementation": "foreach"}, 1e-4),
    ],
)
def test_stacked_clients_learn_what_they_learn_one_by_one(
    tiny: Tiny, training: dict[str, Any], tolerance: float
) -> None:
    setup = setup_of(tiny, training=training)
    tasks, node = tasks_of(setup), Node(setup.clients, CPU)
    alone = [node.run(task) for task in tasks]
    stacked = reports_of(node.run(together(tasks)))
    assert [report.seed for report in stacked] == [100, 101, 102, 103]
    for one, other in zip(stacked, alone, strict=True):
        assert one.result.updates == other.result.updates > 0
        assert one.result.loss == pytest.approx(other.result.loss, rel=1e-5)
        assert apart(one.result.payloads["model"], other.result.payloads["model"], tasks[0].inputs) < tolerance
    losses = {report.result.loss for report in stacked}
    assert len(losses) == CLIENTS  # each its own samples


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        ("text", {}),
        ("image-text", {}),
        ("image-text", {"data": {"tasks": {"image-text": "retrieve"}}}),
        ("image", {"method": {"name": "fedprox", "mu": 1.0}}),
        ("image", {"payload": {"up": "int8"}}),
    ],
)
def test_other_modalities_and_methods_stack_too(tiny: Tiny, kind: str, sections: dict[str, Any]) -> None:
    setup = setup_of(tiny, kind, training={"epochs": 2}, **sections)
    tasks, node = tasks_of(setup), Node(setup.clients, CPU)
    work = tasks[0].work
    for one, task in zip(reports_of(node.run(together(tasks))), tasks, strict=True):
        other = node.run(task)
        assert one.result.loss == pytest.approx(other.result.loss, rel=1e-5)
        bases = work.bases(work.received(task.inputs))
        learnt = [work.up[0].decoded(r.result.payloads[work.up[0].name], bases) for r in (one, other)]
        assert apart(*learnt, bases) < (1e-5 if work.up[0].codec is None else 0.05)


def test_a_loop_by_hand_learns_the_same(tiny: Tiny) -> None:
    setup = setup_of(tiny)
    tasks = tasks_of(setup)
    work, inputs = tasks[0].work, tasks[0].inputs
    stacked = reports_of(Node(setup.clients, CPU).run(together(tasks)))
    for report, task in zip(stacked, tasks, strict=True):
        assert task.client is not None
        module: Any = models.build(work.model)
        module.load_state_dict(dict(inputs))
        order = seeds.key(task.seed, "shuffle", 0, 0)
        for pattern, batch in setup.clients.client(task.client).batches(work.passes[0], order):
            module.zero_grad()
            F.cross_entropy(module.classify(pattern, batch), batch["label"]).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.01 * parameter.grad
        assert apart(report.result.payloads["model"], dict(module.named_parameters()), inputs) < 1e-5


@dataclass(frozen=True)
class Spoilt:
    """The data of all clients; client 1 has pictures that aren't numbers."""

    inner: Sources

    def client(self, index: int) -> Source:
        return Blank(self.inner.client(index)) if index == 1 else self.inner.client(index)

    def server(self) -> Source:
        return self.inner.server()


class Blank:
    """A source whose pictures are NaN."""

    def __init__(self, inner: Source):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for pattern, batch in self._inner.batches(pass_, seed):
            yield pattern, {**batch, "image": torch.full_like(batch["image"], torch.nan)}


def test_a_client_that_diverges_spoils_no_other(tiny: Tiny) -> None:
    setup = setup_of(tiny, training={"clip": 1.0})
    tasks = tasks_of(setup)
    sound = reports_of(Node(setup.clients, CPU).run(together(tasks)))
    beside = reports_of(Node(Spoilt(setup.clients), CPU).run(together(tasks)))
    assert not all(t.isfinite().all() for t in beside[1].result.payloads["model"].values())
    for client in (0, 2, 3):
        assert_equal_tensors(beside[client].result.payloads, sound[client].result.payloads, rtol=1e-5, atol=1e-7)


def test_places_that_are_left_change_nothing(tiny: Tiny) -> None:
    tasks = tasks_of(setup := setup_of(tiny))
    full = reports_of(Node(setup.clients, CPU).run(together(tasks)))
    node = Node(setup.clients, CPU)
    few = reports_of(node.run(together(tasks[:3])))
    assert len(few) == 3
    for one, other in zip(few, full, strict=False):
        assert_equal_tensors(one.result.payloads, other.result.payloads, rtol=1e-5, atol=1e-7)
    node.run(together(tasks[1:]))
    assert len(node._stacked._graphs) == 1  # one graph for any number of clients


def test_what_draws_random_numbers_trains_one_by_one_with_the_same_bits(tiny: Tiny) -> None:
    image = {**tiny()["model"]["image"], "drop_path": 0.2}
    setup = setup_of(tiny, model={"image": image})
    tasks, node = tasks_of(setup), Node(setup.clients, CPU)
    alone = [node.run(task) for task in tasks]
    with pytest.warns(RuntimeWarning, match=r"works of kind 'image' train one by one: .*random"):
        stacked = reports_of(node.run(together(tasks)))
    for one, other in zip(stacked, alone, strict=True):
        assert_equal_tensors(one.result.payloads, other.result.payloads)
        assert one.result.loss == other.result.loss
    again = reports_of(node.run(together(tasks)))  # told once
    assert_equal_tensors(again[0].result.payloads, alone[0].result.payloads)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"training": {"precision": "bfloat16"}}, "precision is bfloat16"),
        ({"training": {"attention": "flash"}}, "kernel flash"),
        ({"method": "fedper"}, "keep values"),
        ({"method": "scaffold"}, "keep values"),
        ({"training": {}}, None),
    ],
)
def test_a_work_says_why_it_trains_alone(tiny: Tiny, sections: dict[str, Any], why: str | None) -> None:
    said = why_alone(tasks_of(setup_of(tiny, **sections))[0].work)
    assert said is None if why is None else said is not None and why in said


def test_a_work_with_a_table_trains_alone(tiny: Tiny) -> None:
    work = tasks_of(setup_of(tiny))[0].work
    table = Payload("tables", (Item("table", (2, 3), "float32", "table/of"),))
    said = why_alone(replace(work, down=(*work.down, table)))
    assert said is not None and "tables or tensors beside" in said


class Other(Classify):
    """A loss of its own, which doesn't say that it stacks."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return 2 * super().loss(ctx, batch, pattern, pass_)


class Counting(Wrapper):
    """Says that it stacks, but does something at the end."""

    stacks = True

    def finish(self, ctx: Context, pass_: Pass) -> None:
        ctx.output("count", (1,)).add_(1)


class Plain(Step):
    """Says nothing."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        return None


def test_a_step_stacks_only_if_the_class_of_its_loss_says_so() -> None:
    assert loop._stacks(Classify())
    assert not any(loop._stacks(step) for step in (Other(), Plain(), Counting(Classify())))


def test_the_rest_of_a_class_makes_a_group_if_it_is_half_of_one(tiny: Tiny) -> None:
    one = tasks_of(setup_of(tiny))[0]
    alike = [replace(one, client=client) for client in range(14)]
    assert grouped(alike[:10], [0] * 10, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert grouped(alike[:9], [0] * 9, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grouped(alike[:1], [0], 2) == []
    assert grouped(alike[:3], [0] * 3, 5) == [[0, 1, 2]]
    assert grouped(alike[:4], [0, 1, 0, 1], 2) == [[0, 2], [1, 3]]
    alike[0], alike[2] = replace(alike[0], metered=True), replace(alike[2], attack=Attack(None))
    assert grouped(alike[:6], [0] * 6, 4) == [[1, 3, 4, 5]]
    other = replace(one, inputs=dict(one.inputs))
    assert grouped([one, other, one, other], [0] * 4, 2) == [[0, 2], [1, 3]]
    slower = replace(one, scalars={**one.scalars, "lr": 0.5})
    assert grouped([one, slower, one], [0] * 3, 2) == [[0, 2]]


def test_a_task_with_others_comes_back_as_it_was(tiny: Tiny) -> None:
    setup = setup_of(tiny)
    task = together(tasks_of(setup), 6)
    back = Task.decode(*task.encode())
    assert [each.client for each in back.others] == [1, 2, 3] and back.places == 6
    report = Node(setup.clients, CPU).run(back)
    there = Report.decode(*report.encode())
    for one, other in zip(reports_of(there), reports_of(report), strict=True):
        assert (one.seed, one.result.loss, one.result.updates) == (other.seed, other.result.loss, other.result.updates)
        assert_equal_tensors(one.result.payloads, other.result.payloads)


class Held:
    """An executor whose tasks never begin."""

    def __init__(self) -> None:
        self.futures: list[Future[Report]] = []

    def submit(self, task: Task) -> Future[Report]:
        self.futures.append(Future())
        return self.futures[-1]


def test_a_training_is_cancelled_when_nobody_waits_for_it(tiny: Tiny) -> None:
    executor, tasks = Held(), tasks_of(setup_of(tiny))[:2]
    first, second = submit_together(executor, tasks, 2)
    assert first.cancel() and not executor.futures[0].cancelled()
    assert second.cancel() and executor.futures[0].cancelled()
    first, second = submit_together(executor, tasks, 2)
    first.cancel()
    error = ValueError("broken")
    executor.futures[1].set_exception(error)
    assert second.exception() is error and first.cancelled()


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 5), (5,)])
@pytest.mark.parametrize("bias", [True, False])
def test_stacked_linear_layers(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    assert_as_one_by_one(lambda x, w, *b: F.linear(x, w, *b), *([shape, (6, 5), (6,)] if bias else [shape, (6, 5)]))


@pytest.mark.parametrize("options", [{"stride": 4}, {"stride": 2, "padding": 1}, {"stride": (4, 4)}])
def test_stacked_convolutions(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    assert_as_one_by_one(lambda x, w, b: F.conv2d(x, w, b, **options), (2, 3, 8, 8), (5, 3, 4, 4), (5,))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_stacked_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    shape = (2, 3, 7, 4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert_as_one_by_one(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), shape, shape, shape)


def assert_as_one_by_one(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
    """Values and gradients under ``StackedOperators`` are those of a loop over the clients."""
    inputs = [torch.randn(CLIENTS, *shape, requires_grad=True) for shape in shapes]

    def inside(*given: Tensor) -> Tensor:
        with StackedOperators():
            return function(*given)

    stacked = torch.vmap(inside)(*inputs)
    looped = torch.stack([function(*each) for each in zip(*inputs, strict=True)])
    assert_equal_tensors(stacked, looped, rtol=1e-5, atol=1e-6)
    weights = torch.randn_like(looped)
    found, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (stacked, looped))
    assert_equal_tensors(found, expected, rtol=1e-4, atol=1e-5)


def test_each_clients_gradients_are_clipped_by_their_own_norm() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(3, 4, 2), torch.randn(3), torch.zeros(3, 1)]
    gradients[0][1] *= 1e-3
    gradients[1][1] *= 1e-3
    expected = [[g[client].clone() for g in gradients] for client in range(3)]
    for own in expected:
        parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in own]
        for parameter, gradient in zip(parameters, own, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    clip_stacked(gradients, 0.5)
    assert_equal_tensors([[g[client] for g in gradients] for client in range(3)], expected, rtol=1e-6)


def test_the_graph_of_a_step_is_made_again_for_another_stage(tiny: Tiny) -> None:
    setup = setup_of(tiny, schedule={"name": "layerwise", "stages": 2, "rounds": 2})
    node, state = Node(setup.clients, CPU), setup.method.initial(setup.seed)
    for stage in setup.schedule.stages:
        work = setup.staged(setup.method.client_work("image", 1), stage).fitted(setup.clients.client(0).size)
        inputs = state.inputs(work)
        tasks = [Task(work.form, work.scalars, inputs, client, client) for client in range(CLIENTS)]
        for one, task in zip(reports_of(node.run(together(tasks))), tasks, strict=True):
            learnt = node.run(task).result.payloads
            assert_equal_tensors(one.result.payloads, learnt, rtol=1e-4, atol=1e-6)
        assert distinct(work)
    assert len(node._stacked._graphs) == 2
