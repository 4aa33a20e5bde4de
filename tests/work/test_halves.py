"""Halves of a split work, against a loop by hand, torch's allocator and the files of safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl import models, seeds
from edgefl.cost.client_cost import NO_COMPUTE, exchange_cost
from edgefl.devices import load_device
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of, scenario_of
from edgefl.work import AllocatorPeak, Source, Work, run
from edgefl.work.halves import ArrivingBatches, Exchanging, halves, run_halves

Tiny = Callable[..., dict[str, Any]]
TOWER = {"tower": "vit", "blocks": 4, "width": 16, "heads": 2, "patch": 8}
DATA = {"source": "glyphs", "clients": {"image": 1}, "samples": 80, "size": 16, "validation": 20, "test": 20}
CPU = torch.device("cpu")


def split(tiny: Tiny, after: int = 1, **more: Any) -> dict[str, Any]:
    sections = {"data": DATA, "model": {"image": TOWER}, "schedule": {"name": "split", "after": after, "rounds": 1}}
    return tiny(**{**sections, **more})


def work_of(scenario: Mapping[str, Any]) -> tuple[Setup, Work, Source, dict[str, Tensor]]:
    """The work of client 0, its data, and the tensors that it starts from."""
    setup = compose(load(scenario))
    kind = next(iter(setup.clients.kinds))
    work = setup.schedule.stage(1).restrict_work(setup.method.client_work(kind, 1))
    source = setup.clients.client(0)
    return setup, work, source, dict(setup.method.at_start(1).inputs(work))


def run_split(work: Work, inputs: dict[str, Tensor], source: Source, record: list[Exchanging] | None = None) -> Any:
    return run_halves(work, inputs, source, lambda half: models.build(half.model), device=CPU, seed=7, record=record)


@pytest.mark.parametrize(
    ("optimizer", "after"),
    [
        ("sgd", 1), ("adamw", 2), ("sgd", 3),
        *(pytest.param(*rare, marks=pytest.mark.slow) for rare in (("adamw", 1), ("sgd", 2), ("adamw", 3))),
    ],
)  # fmt: skip
def test_twenty_steps_are_those_of_a_loop_by_hand(tiny: Tiny, optimizer: str, after: int) -> None:
    """To the bit: two optimizers, of which each knows its half alone, and gradients handed over by hand."""
    settings = {"sgd": {"lr": 0.05, "momentum": 0.9}, "adamw": {"lr": 1e-3, "weight_decay": 0.01}}[optimizer]
    training = {"optimizer": optimizer, **settings, "batch": 8, "steps": 20}
    _, work, source, inputs = work_of(split(tiny, after, training=training))
    update = run_split(work, inputs, source)
    given = {name: tensor for payload in update.payloads.values() for name, tensor in payload.items()}

    model: Any = models.build(work.model)
    model.load_state_dict({name: tensor.clone() for name, tensor in inputs.items()})
    tower = model.train().image
    first = [*tower.embedding.parameters(), *tower.blocks[:after].parameters()]
    last = [*tower.blocks[after:].parameters(), *tower.norm.parameters(), *tower.head.parameters()]
    make: Any = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    at_client, at_server = (make(half, **settings, fused=True) for half in (first, last))
    losses = []
    for _, batch in source.batches(work.passes[0], seeds.key(7, "shuffle", 0, 0)):
        at_client.zero_grad()
        at_server.zero_grad()
        tokens = tower.embedding(batch["image"])
        for block in tower.blocks[:after]:
            tokens = block(tokens)
        arrived = tokens.detach().requires_grad_()
        hidden = arrived
        for block in tower.blocks[after:]:
            hidden = block(hidden)
        loss = F.cross_entropy(tower.head(tower.norm(hidden)[:, 0]), batch["label"], ignore_index=-1)
        loss.backward()
        at_server.step()
        tokens.backward(arrived.grad)
        at_client.step()
        losses.append(loss.item())
    assert len(losses) == 20
    by_hand = dict(model.named_parameters())
    assert given.keys() == by_hand.keys()
    assert all(torch.equal(given[name], by_hand[name]) for name in given)
    assert update.loss == pytest.approx(sum(losses) / 20, rel=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"training": {"optimizer": "adamw", "batch": 16, "precision": "bfloat16"}},
        {"adapter": {"name": "lora", "rank": 2}},
        {"data": {**DATA, "clients": {"image-text": 1}, "samples": 40},
         "model": {"image": TOWER, "text": {"blocks": 3, "width": 16, "heads": 2, "tokens": 12}}},
    ],
    ids=["adamw", "bfloat16", "lora", "pairs"],
)  # fmt: skip
def test_each_half_peaks_as_the_allocator_says(tiny: Tiny, more: dict[str, Any]) -> None:
    training = {"optimizer": "adamw", "lr": 1e-3, "batch": 16}
    scenario = split(tiny, 2, **{"training": training, **more})
    setup, work, source, inputs = work_of(scenario)
    record: list[Exchanging] = []
    run_split(work, inputs, source, record)
    planner = Planner(setup, predictor_of(scenario_of(scenario)))
    predicted = planner.demand(0, 1, setup.schedule.stage(1)).compute
    assert predicted.exchange is not None
    first, last = halves(work)
    answers, sent = iter(record), iter(record)
    peaks = []
    for half, data, peer in (
        (first, source, lambda _: {n: t.clone() for n, t in next(answers)[1].items()}),
        (last, Replayed(source, sent), lambda _: {}),
    ):
        module = models.build(half.model)
        own = {i.name: inputs[i.name] for p in half.down for i in p.items}
        watch = AllocatorPeak(CPU, [*module.parameters(), *module.buffers()])
        run(half, own, owned(data), module=module, device=CPU, seed=7, watch=watch, peer=peer)
        peaks.append(watch.bytes)
    assert abs(predicted.peak_memory_bytes - peaks[0]) <= 64
    assert abs(predicted.exchange.server.peak_memory_bytes - peaks[1]) <= 64


class Replayed(ArrivingBatches):
    """What a client has sent, once more."""

    def __init__(self, source: Source, sent: Any):
        super().__init__(source)
        self.sent = sent

    def batches(self, pass_: Any, seed: int) -> Any:
        for pattern, count in self.counts(pass_).items():
            for _ in range(count):
                yield pattern, {name: tensor.clone() for name, tensor in next(self.sent)[0].items()}


def owned(source: Any) -> Any:
    """A source whose batches torch's allocator made."""

    class Owned:
        spec, counts, size = source.spec, source.counts, source.size

        def batches(self, pass_: Any, seed: int) -> Any:
            for pattern, batch in source.batches(pass_, seed):
                cloned = {n: t if t.untyped_storage().resizable() else t.clone() for n, t in batch.items()}
                del batch
                yield pattern, cloned
                del cloned

    return Owned()


def test_what_is_exchanged_is_so_many_bytes(tiny: Tiny) -> None:
    """By the closed form, and by files of safetensors with the tensors of one exchange."""
    _, work, source, inputs = work_of(split(tiny, training={"batch": 16, "epochs": 2}))
    record: list[Exchanging] = []
    update = run_split(work, inputs, source, record)
    planned = exchange_cost(work, source, NO_COMPUTE, load_device("server-a5000"))
    trips, tokens = 2 * (80 // 16), 1 + (16 // 8) ** 2
    assert len(record) == planned.trips == update.exchanged.trips == trips
    assert planned.upload_bytes == trips * (4 * 16 * tokens * 16 + 8 * 16)
    assert planned.download_bytes == trips * (4 * 16 * tokens * 16 + 4)
    up, down = (len(safetensors.torch.save(dict(tensors))) for tensors in record[0])
    assert planned.serialised_upload_bytes == update.exchanged.upload_bytes == trips * up
    assert planned.serialised_download_bytes == update.exchanged.download_bytes == trips * down


def test_flops_of_both_halves_are_the_whole_models(tiny: Tiny) -> None:
    whole, half = ({**split(tiny, 2), "schedule": {"name": name, "rounds": 1}} for name in ("end-to-end", "split"))
    setups = [compose(load(each)) for each in (whole, half)]
    one, two = (Planner(s, predictor_of(scenario_of(whole))).demand(0, 1, s.schedule.stage(1)).compute for s in setups)
    assert two.exchange is not None
    for direction in ("forward_flops", "backward_flops"):
        assert getattr(one, direction) == getattr(two, direction) + getattr(two.exchange.server, direction)
    assert (
        two.memory_bytes["parameters"] + two.exchange.server.memory_bytes["parameters"]
        == (one.memory_bytes["parameters"])
    )


def test_a_client_without_a_batch_sends_back_what_it_got(tiny: Tiny) -> None:
    _, work, source, inputs = work_of(split(tiny, data={**DATA, "samples": 5}, training={"batch": 16}))
    update = run_split(work, inputs, source)
    given = {name: tensor for payload in update.payloads.values() for name, tensor in payload.items()}
    assert update.exchanged.trips == 0 and given.keys() == inputs.keys()
    assert all(torch.equal(given[name], inputs[name]) for name in given)


def test_halves_hold_each_parameter_once(tiny: Tiny) -> None:
    _, work, _, _ = work_of(split(tiny, 3))
    names = [{n for n, _ in models.build(half.model).named_parameters()} for half in halves(work)]
    whole = {n for n, _ in models.build(work.model).named_parameters()}
    assert names[0] | names[1] == whole and not names[0] & names[1]
