"""What holds of the methods whatever the numbers.

Elsewhere, beside what they are about: chunked GCA is dense GCA (test_creamfl), absent classes leave prototypes as they
were (test_pmcmfl), the average of equal clients is any one of them, and compensation under elastic (test_robust).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor, nn

from edgefl import models, registry
from edgefl.methods import Kind, Method, ServerState, Setting, Update
from edgefl.methods.fedcola.gate import Gate
from edgefl.models import ModelOptions
from edgefl.schedules import Elastic, EndToEnd, HeteroFL, Layerwise
from edgefl.work import Edit, Item, Payload, Work, run
from edgefl.work.training_options import TrainingOptions

KINDS, BLOCKS = ("image", "text", "image-text"), 3
EVERY = {"image": BLOCKS, "text": BLOCKS}
samples = st.integers(1, 500)
seeds = st.integers(0, 2**31)


@cache
def made(name: str) -> Method:
    model = ModelOptions(
        image={"blocks": BLOCKS, "width": 8, "heads": 2, "patch": 8},
        text={"blocks": BLOCKS, "width": 8, "heads": 2, "tokens": 6},
    )
    kinds = {}
    for kind in KINDS:
        towers, task = tuple(kind.split("-")), "retrieve" if "-" in kind else "classify"
        kinds[kind] = Kind(kind, towers, task, models.describe(model, towers, task, FACTS))
    shape: Any = registry.get("method", name)
    found: Method = shape(shape.Options(), Setting(kinds, TrainingOptions(batch=8), model=model, facts=FACTS))
    return found


@cache
def first(name: str) -> ServerState:
    return made(name).initial(1)


# FedCola's gate -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.booleans(), st.floats(-3, 3), seeds)
def test_what_is_merged_computes_what_was_gated(widths: list[int], bias: bool, gate: float, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = list(pairwise(widths))
    module = nn.Sequential(*(nn.Linear(a, b, bias, dtype=torch.float64) for a, b in sizes))
    partners = {f"{i}.partner": torch.randn(b, a, dtype=torch.float64) for i, (a, b) in enumerate(sizes)}
    edit, x = Edit("gate", {"layers": [str(i) for i in range(len(sizes))]}), torch.randn(5, widths[0]).double()
    Gate.apply(edit, module, partners)
    for layer in module:
        nn.init.constant_(layer.gate, gate)  # type: ignore[arg-type]
        nn.init.normal_(layer.partner)  # type: ignore[arg-type]
    gated = module(x)
    Gate.fold(edit, module)
    torch.testing.assert_close(module(x), gated, rtol=1e-10, atol=1e-10)
    assert set(module.state_dict()) == {f"{i}.{n}" for i in range(len(sizes)) for n in ("weight", "bias")[: 1 + bias]}


# FedCola's Omega ------------------------------------------------------------------------------------------------------

SHARED, OWN = "blocks.1.attn.qkv.weight", "blocks.1.mlp.fc1.weight"


def ones(counts: Mapping[str, list[int]], name: str) -> tuple[ServerState, list[Update]]:
    """Clients by kind with their samples, each of whom moves each of these parameters of its model by 1."""
    base = {f"{k}/{t}.{name}": torch.zeros(2, dtype=torch.float64) for k in KINDS for t in k.split("-")}
    updates = []
    for kind, each in counts.items():
        own = {a: t for a, t in base.items() if a.startswith(f"{kind}/")}
        payload = Payload("model", tuple(Item(a, (2,), "float64", a) for a in own))
        work = Work(kind, {}, (), (), (payload,), (payload,))
        sent = {"model": {a: t + 1 for a, t in own.items()}}
        updates += [Update(len(updates) + i, kind, {kind: n}, work, sent, own) for i, n in enumerate(each)]
    return ServerState.from_tensors(base), updates


cohorts = st.fixed_dictionaries({kind: st.lists(samples, max_size=3) for kind in KINDS})


@settings(deadline=None, max_examples=25)
@given(cohorts)
def test_what_clients_agree_on_moves_by_its_row_of_omega(counts: dict[str, list[int]]) -> None:
    """The rows of pairs sum to (n_v + n_vl) / S and (n_vl + n_l) / S, those of one modality to 1."""
    state, updates = ones(counts, SHARED)
    n_v, n_l, n_vl = (sum(counts[kind]) for kind in KINDS)
    total = n_v + n_l + n_vl
    moved = made("fedcola").aggregate(state, updates).tensors
    for address, expected in {
        f"image/image.{SHARED}": float(n_v + n_vl > 0),
        f"text/text.{SHARED}": float(n_l + n_vl > 0),
        f"image-text/image.{SHARED}": (n_v + n_vl) / max(total, 1),
        f"image-text/text.{SHARED}": (n_l + n_vl) / max(total, 1),
    }.items():
        assert moved[address].tolist() == pytest.approx([expected] * 2)


@settings(deadline=None, max_examples=25)
@given(cohorts)
def test_compensation_is_damped_fedavg(counts: dict[str, list[int]]) -> None:
    """Of what no other kind shares: the share is that of the kind's samples among whoever has one of its modalities."""
    state, updates = ones(counts, OWN)
    n = {kind: sum(counts[kind]) for kind in KINDS}
    plain, damped = (made(name).aggregate(state, updates).tensors for name in ("fedavg", "fedcola"))
    for address, value in plain.items():
        kind = address.split("/", 1)[0]
        near = sum(n[k] for k in KINDS if set(k.split("-")) & set(kind.split("-")))
        torch.testing.assert_close(damped[address], value * (n[kind] / max(near, 1)))


# stages ---------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    method=st.sampled_from(["fedavg", "fedprox", "fedcola", "fedmml"]),
    stages=st.sampled_from([1, 2, 3, [1, 2], [2, 1]]),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    data=st.data(),
)
def test_frozen_blocks_stay_as_they_are_to_the_bit(
    method: str, stages: int | list[int], kinds: list[str], data: st.DataObject
) -> None:
    schedule = Layerwise(Layerwise.Options(stages=stages, rounds=3), EVERY)
    stage = schedule.stage(data.draw(st.integers(1, 3)))
    state, updates = first(method), list[Update]()
    for client, kind in enumerate(kinds):
        work, source = stage.restrict_work(made(method).work(kind, 1)), Toy(8)
        inputs = state.inputs(work)
        result = run(work, inputs, source, module=models.build(work.model), device=CPU, seed=client)
        updates.append(Update(client, kind, {kind: 8}, work, result.payloads, state.base(work)))
    after = made(method).aggregate(state, updates)
    frozen = [a for a in state.tensors if ".blocks." in a and not stage.is_active(a.split("/", 1)[1])]
    assert bool(frozen) == (len(schedule.stages) > 1)
    assert_equal_tensors({a: after.tensors[a] for a in frozen}, {a: state.tensors[a] for a in frozen})
    for address in frozen:
        assert after.versions[address] == state.versions[address]
    trained = [a for u in updates for a, _ in u.uploaded_tensors() if ".mlp.fc1.weight" in a]
    assert trained and not any(torch.equal(after.tensors[a], state.tensors[a]) for a in trained)


@settings(deadline=None, max_examples=25)
@given(
    method=st.sampled_from(["fedavg", "fedcola"]),
    kind=st.sampled_from(KINDS),
    stages=st.integers(1, BLOCKS),
    depth=st.sampled_from(["part", "whole"]),
    parts=st.permutations(["progressive", "layerwise"]).map(lambda some: ("all", *some)),
    round=st.integers(1, 10),
)
def test_whom_nothing_limits_does_what_end_to_end_asks(
    method: str, kind: str, stages: int, depth: Any, parts: Any, round: int
) -> None:
    """The first part that elastic and HeteroFL offer, which whoever can takes, is the whole work, every round."""
    work = made(method).work(kind, round)
    options = Elastic.Options(stages=stages, depth=depth, parts=parts, rounds=10)
    whole = EndToEnd(EndToEnd.Options(rounds=10), EVERY).stage(round).restrict_work(work)
    for schedule in (Elastic(options, EVERY), HeteroFL(HeteroFL.Options(rounds=10), EVERY)):
        part = schedule.candidates(round)[0]
        assert part.restrict_work(work) == whole
        assert part.rounds == schedule.rounds == 10 and schedule.stage(round) == part


@settings(deadline=None, max_examples=25)
@given(counts=st.lists(samples, min_size=1, max_size=4), kind=st.sampled_from(KINDS), seed=seeds, data=st.data())
def test_the_average_of_equal_clients_is_any_one_of_them(
    counts: list[int], kind: str, seed: int, data: st.DataObject
) -> None:
    """FedAvg, whatever part each of them trained, as long as somebody trained it."""
    method, draw = made("fedavg"), torch.Generator().manual_seed(seed)
    state = first("fedavg")
    goal = {a: t + torch.randn(t.shape, generator=draw) for a, t in state.tensors.items() if t.is_floating_point()}
    schedule = Elastic(Elastic.Options(stages=BLOCKS, rounds=3), EVERY)
    updates = []
    for client, n in enumerate(counts):
        work = data.draw(st.sampled_from(schedule.candidates(1))).restrict_work(method.work(kind, 1))
        sent: dict[str, dict[str, Tensor]] = {p.name: {i.name: goal[i.source] for i in p.items} for p in work.up}
        updates.append(Update(client, kind, {kind: n}, work, sent, state.base(work)))
    after = method.aggregate(state, updates).tensors
    trained = {address for update in updates for address, _ in update.uploaded_tensors()}
    for address, value in state.tensors.items():
        expected = goal[address] if address in trained else value
        torch.testing.assert_close(after[address], expected, rtol=1e-5, atol=1e-5)
