"""An update that the scaler of float16 skips is none: what is counted is how often the parameters moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import Toy, do, make_work, training_pass
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import edgefl
from edgefl import models, registry
from edgefl.methods import ServerState, Setting, Update
from edgefl.methods.drift.fednova import FedNova
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Context, Item, Pass, Payload, Work
from edgefl.work.steps import ClassifyStep
from edgefl.work.training_options import TrainingOptions

SEEN: list[float] = []
"""What the parameters added up to where each batch began."""
SPOILED = {1, 3}


def total(module: nn.Module) -> float:
    return sum(float(p.detach().double().abs().sum()) for p in module.parameters())


class Spoiled(ClassifyStep):
    """The loss of some batches is infinite."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Any:
        SEEN.append(total(ctx.model))
        loss = super().loss(ctx, batch, pattern, pass_)
        return loss * float("inf") if len(SEEN) - 1 in SPOILED else loss


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("step", "spoiled")(Spoiled)
    SEEN.clear()
    yield
    PARTS.clear()
    registry.forget()


def moves(module: nn.Module) -> int:
    """How often the parameters changed from one batch to the next, the last update included."""
    seen = [*SEEN, total(module)]
    return sum(one != other for one, other in pairwise(seen))


@pytest.mark.parametrize("implementation", ["fused", "foreach", "for-loop"])
@pytest.mark.parametrize("clip", [None, 1e6])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_skipped_update_is_not_counted(implementation: str, clip: float | None, name: str) -> None:
    optimizer = {"name": name, "lr": 1e-2, "implementation": implementation, **({"clip": clip} if clip else {})}
    work = make_work(passes=(replace(training_pass(), step="spoiled"),), optimizer=optimizer, precision="float16")
    module = models.build(work.model)
    result = do(work, Toy(samples=48), module=module)
    assert len(SEEN) == 6
    # the scaler begins with a scale of 2^16, so that other batches may overflow too
    assert result.updates == moves(module) <= 4
    assert result.updates


def test_an_update_of_several_batches_is_skipped_as_one() -> None:
    optimizer = {"name": "sgd", "lr": 1e-2, "implementation": "fused", "accumulation": 2}
    work = make_work(passes=(replace(training_pass(), step="spoiled"),), optimizer=optimizer, precision="float16")
    module = models.build(work.model)
    result = do(work, Toy(samples=48), module=module)
    assert result.updates == moves(module) <= 1  # batches 0 and 1, 2 and 3; 4 and 5 are left


def test_in_float32_every_update_counts() -> None:
    work = make_work(passes=(training_pass(),) * 2)
    assert do(work, Toy(samples=40)).updates == 10


@pytest.mark.parametrize("spoiled", [(1, 3), (0, 1, 2, 3, 4)], ids=["two", "all"])
def test_scaffold_divides_by_the_updates_that_there_were(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: Sequence[int]
) -> None:
    """c_i+ = c_i - c + (x - y) / (K lr), K the updates that weren't skipped; c_i and c begin at zero."""
    monkeypatch.setattr(ClassifyStep, "loss", spoiling(ClassifyStep.loss, set(spoiled)))
    lr, K = 0.01, 5 - len(spoiled)
    data = {"source": "glyphs", "clients": {"image": 1}, "samples": 40, "size": 16, "validation": 20, "test": 20}
    training = {"batch": 8, "precision": "float16", "optimizer": "sgd", "lr": lr}
    scenario = tiny(data=data, training=training, method="scaffold", schedule={"name": "end-to-end", "rounds": 1})
    run = edgefl.run(scenario | {"round": {"cohort": 1.0}}, out=tmp_path / "run")
    (kept,) = run.client_tensors().values()
    setup = compose(load({"edgefl": 1, **scenario}))
    before, after = setup.method.initial(setup.seed).tensors, run.weights()
    controls = {name.removeprefix("own."): value for name, value in kept.items()}
    assert controls.keys() == set(setup.method.setting.kinds["image"].trainable())
    for name, control in controls.items():
        moved = before[f"image/{name}"] - after[f"image/{name}"]
        torch.testing.assert_close(control, moved / (max(K, 1) * lr), rtol=1e-4, atol=1e-5)
    assert bool(K) == any(control.any() for control in controls.values())


def spoiling(loss: Callable[..., Any], spoiled: set[int]) -> Callable[..., Any]:
    """A step's loss whose gradient isn't finite in some batches of real training."""
    batches = count()

    def made(self: ClassifyStep, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Any:
        found = loss(self, ctx, batch, pattern, pass_)
        if isinstance(found, FakeTensor):
            return found
        # a scale of 2^16 overflows without the factor, which isn't what is to be counted
        zero = sum(p.sum() for p in ctx.trained.values()) * 0
        return found * 1e-3 + (zero.sqrt() if next(batches) in spoiled else 0)

    return made


def test_a_client_of_fednova_without_updates_changes_nothing() -> None:
    """x + tau_eff sum_i n_i d_i / tau_i / sum_i n_i, with tau_eff = sum_i n_i tau_i / sum_i n_i."""
    setting = Setting({}, TrainingOptions(optimizer="sgd", batch=8))
    method = FedNova(FedNova.Options(), setting)
    payload = Payload("model", (Item("w", (1,), "float64", "image/w"),))
    work = Work("image", {}, (), (), (payload,), (payload,))
    base = {"image/w": torch.ones(1, dtype=torch.float64)}

    def sent(client: int, samples: int, updates: int, change: float) -> Update:
        values = {"model": {"w": base["image/w"] + change}}
        return Update(client, "image", {"image": samples}, work, values, base, updates=updates)

    rows = [(10, 4, 0.5), (30, 0, 0.0), (20, 2, -0.2)]
    after = method.aggregate(ServerState.from_tensors(base), [sent(i, *row) for i, row in enumerate(rows)])
    samples = sum(n for n, _, _ in rows)
    effective = sum(n * tau for n, tau, _ in rows) / samples
    expected = 1 + effective * sum(n * d / tau for n, tau, d in rows if tau) / samples
    assert float(after.tensors["image/w"]) == pytest.approx(expected, rel=1e-12)
