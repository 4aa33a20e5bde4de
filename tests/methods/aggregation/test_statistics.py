"""Statistics of batch norms are mixed by share: no policy, rule or server optimizer moves them as directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import edgefl
from edgefl import models, registry
from edgefl.methods import Kind, Method, ServerState, Setting, Update
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.models import ModelOptions
from edgefl.planning.round_options import RoundOptions
from edgefl.registry.registered import PARTS
from edgefl.work.training_options import TrainingOptions

POLICIES = registry.names("round policy")
RULES, OPTIMIZERS = registry.names("aggregation"), registry.names("server optimizer")
RULES = [name for name in RULES if registry.get("aggregation", name).__module__.startswith("edgefl.")]
OPTIMIZERS = [name for name in OPTIMIZERS if registry.get("server optimizer", name).__module__.startswith("edgefl.")]
MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
BLOCK = "image.blocks.0."
Tensors = dict[str, Tensor]


class Stages(nn.Module):
    """Stages of a convolution, a batch norm and a shortcut, as a ResNet has them."""

    blocks = "stages"

    def __init__(self, channels: int, size: int, hidden: int = 8):
        super().__init__()
        self.embedding = nn.Sequential(nn.Conv2d(channels, hidden, 3, 2, 1), nn.BatchNorm2d(hidden), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(hidden, hidden, 3, 1, 1), nn.BatchNorm2d(hidden), nn.ReLU()) for _ in range(2)
        )
        self.width = hidden

    def forward(self, image: Tensor) -> Tensor:
        x = self.embedding(image)
        for stage in self.stages:
            x = x + stage(x)
        return x.mean((2, 3))


@pytest.fixture(autouse=True, scope="module")
def _tower() -> Iterator[None]:
    edgefl.register("tower", "stages")(Stages)
    yield
    PARTS.clear()
    registry.forget()


@cache
def kind_of(name: str) -> Kind:
    """A client kind whose image tower has batch norms."""
    towers = tuple(name.split("-"))
    model = ModelOptions(image={"tower": "stages"}, text={"blocks": 1, "width": 8, "heads": 2, "tokens": 6})
    task = "retrieve" if len(towers) > 1 else "classify"
    return Kind(name, towers, task, models.describe(model, towers, task, FACTS))


def made(name: str, options: dict[str, Any], *kinds: str, **fields: Any) -> Method:
    """A method of clients of these kinds; ``fields`` are its setting's."""
    shape: Any = registry.get("method", name)
    found: Method = shape(
        shape.Options(**options), Setting({k: kind_of(k) for k in kinds}, TrainingOptions(), **fields)
    )
    return found


def drawn(kinds: Iterable[str], draw: torch.Generator) -> Tensors:
    """Values of a block of these kinds' models as training could leave them: variances are from 0.01 to 100."""
    tensors = {}
    for address, spec in ((f"{k}/{n}", s) for k in kinds for n, s in kind_of(k).parameters().items() if BLOCK in n):
        noise = torch.rand(spec.shape, generator=draw)
        tensors[address] = 10 ** (4 * noise - 2) if address.endswith(VARIANCE) else 2 * noise - 1
        if address.endswith(COUNTER):
            tensors[address] = torch.randint(1, 100, (), generator=draw)
    return tensors


def update_of(method: Method, client: int, kind: str, samples: int, base: Tensors, draw: torch.Generator) -> Update:
    """A client's update of a block with drawn values, which began with ``base``."""
    work, sent = method.work(kind, 1), drawn([kind], draw)
    up = work.up[0].only(lambda item: item.source in sent)
    values = {i.name: sent[i.source] for i in up.items}
    return Update(client, kind, {kind: samples}, replace(work, up=(up,)), {up.name: values}, base)


def column(address: str, updates: list[Update], index: int) -> list[float]:
    """What clients sent at an element of an address."""
    return [float(value[index]) for update in updates for a, value in update.uploaded_tensors() if a == address]


# made updates ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(
    policy=st.sampled_from(POLICIES),
    rule=st.sampled_from(RULES),
    optimizer=st.sampled_from(OPTIMIZERS),
    fields=st.fixed_dictionaries(
        {}, optional={"clip": st.sampled_from([0.5, 20.0]), "compensation": st.just(True), "lr": st.just(3.0)}
    ),
    clients=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=6),
    products=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_statistic_stays_between_the_old_value_and_the_clients(
    policy: str, rule: str, optimizer: str, fields: dict[str, Any], clients: list[tuple[int, int]], products: bool,
    seed: int,
) -> None:  # fmt: skip
    """Whatever model they began with.  Under the mean and the median the value is that of a formula by hand."""
    draw = torch.Generator().manual_seed(seed)
    aggregation = AggregationOptions.model_validate({"rule": rule, "optimizer": optimizer, **fields})
    method = made("fedavg", {}, "image", aggregation=aggregation, averages_products=products)
    options = RoundOptions.model_validate({"policy": policy})
    plays = options.build_policy()
    old_models = plays.overlapping and not plays.at_once
    state = ServerState.from_tensors(drawn(["image"], draw))
    updates = []
    for client, (samples, staleness) in enumerate(clients[:1] if plays.at_once else clients):
        base = drawn(["image"], draw) if old_models else dict(state.tensors)
        update = update_of(method, client, "image", samples, base, draw)
        factor = plays.weight(staleness) if plays.overlapping else 1.0
        updates.append(replace(update, weight_factor=factor, equal=options.has_equal_weights))

    after = method.aggregate(state, updates).tensors
    assert set(after) >= set(state.tensors)
    shares = [u.weight / sum(other.weight for other in updates) for u in updates]
    for address, old in state.tensors.items():
        if address.endswith(COUNTER):
            assert after[address].dtype == torch.int64 and torch.equal(after[address], old)
        if not address.endswith((MEAN, VARIANCE)):
            continue
        for index in range(len(old)):
            w, new, sent = float(old[index]), float(after[address][index]), column(address, updates, index)
            assert len(sent) == len(updates)
            near = 1e-5 * max(map(abs, [w, *sent]))
            assert min(w, *sent) - near <= new <= max(w, *sent) + near
            assert new > 0 or address.endswith(MEAN)
            steps = [u.weight_factor * (x - w) for u, x in zip(updates, sent, strict=True)]
            if "clip" not in fields and rule == "mean":
                steps = [share * step for share, step in zip(shares, steps, strict=True)]
                assert new == pytest.approx(w + sum(steps), abs=near)
            if "clip" not in fields and rule == "median":
                assert new == pytest.approx(w + median(steps), abs=near)


@settings(deadline=None, max_examples=25)
@given(
    compensation=st.booleans(),
    counts=st.fixed_dictionaries({kind: st.lists(st.integers(1, 50), max_size=2) for kind in ("image", "image-text")}),
    seed=st.integers(0, 2**31),
)
def test_another_kinds_statistic_is_mixed_as_a_value(
    compensation: bool, counts: dict[str, list[int]], seed: int
) -> None:
    """FedCola: where kinds differ, a change of one kind's statistic is no change of the other's."""
    draw = torch.Generator().manual_seed(seed)
    options = {"complementary": "none", "collaborate": "blocks", "compensation": compensation}
    method = made("fedcola", options, *counts)
    state = ServerState.from_tensors(drawn(counts, draw))
    updates: list[Update] = []
    for kind, samples in counts.items():
        for n in samples:
            updates.append(update_of(method, len(updates), kind, n, dict(state.tensors), draw))
    after = method.aggregate(state, updates).tensors
    total = sum(update.total for update in updates)
    name = f"{BLOCK}1.{VARIANCE}"
    for kind in counts:
        for index in range(8):
            w = float(state.tensors[f"{kind}/{name}"][index])
            expected = largest = w
            for other in counts:
                sent = column(f"{other}/{name}", [u for u in updates if u.kind == other], index)
                expected += sum(n / total * (x - w) for n, x in zip(counts[other], sent, strict=True))
                largest = max(largest, *sent, float(state.tensors[f"{other}/{name}"][index]))
            assert float(after[f"{kind}/{name}"][index]) == pytest.approx(expected, abs=1e-5 * largest)


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "buffered", "buffer": 2, "concurrency": 8},
        {"policy": "semi-synchronous", "window": "3 ms", "staleness": "constant"},
    ],
    ids=lambda options: options["policy"],
)
@pytest.mark.filterwarnings("ignore:the model diverged")  # its scores are NaN if a variance is negative
def test_no_variance_is_negative_where_rounds_overlap(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, options: dict[str, Any]
) -> None:
    data = {"source": "glyphs", "clients": {"image": 8}, "samples": 60, "size": 16, "validation": 40, "test": 40}
    run = edgefl.run(
        tiny(
            data=data, model={"image": {"tower": "stages"}},
            training={"batch": 8, "lr": 0.01, "epochs": 2, "optimizer": "sgd", "on_divergence": "continue"},
            fleet={"devices": {"raspberry-pi-4-4gb": "50%", "raspberry-pi-5-8gb": "50%"}},
            schedule={"name": "end-to-end", "rounds": 6 if options["policy"] == "buffered" else 12},
            round={**options, "cohort": 8}, evaluation={"every": 100},
        ),
        out=tmp_path / "run",
    )  # fmt: skip
    weights = run.weights()
    variances = {name: value for name, value in weights.items() if name.endswith(VARIANCE)}
    assert len(variances) == 3
    assert max(row["staleness"] for row in run.records("clients") if row["outcome"] == "finished") > 0
    for name, value in variances.items():
        assert (value > 0).all() and not torch.equal(value, torch.ones(8)), name
    assert all(value.dtype == torch.int64 for name, value in weights.items() if name.endswith(COUNTER))
