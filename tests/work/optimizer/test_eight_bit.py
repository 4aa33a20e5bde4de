"""AdamW with states in 8 bits: against its paper's loop by hand and the library's own, what it takes, refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described, inputs_of, make_work
from tensors import assert_equal_tensors
from torch import Tensor, nn

import edgefl
from edgefl import models
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchTable
from edgefl.errors import EdgeflError, MethodError
from edgefl.machine.kernel_scratch import probe
from edgefl.models import quantised
from edgefl.scenario import load
from edgefl.work import AllocatorPeak, execute
from edgefl.work.optimizer import eight_bit
from edgefl.work.optimizer.gradient_trainer import make_optimizer

Tiny = Callable[..., dict[str, Any]]
LR, BETAS, DECAY = 1e-2, (0.9, 0.99), 0.1
SHAPES = [(70, 100), (64, 64), (64, 63), (10,), (300, 17), ()]
"""Of 7,000 and 5,100 numbers, whose last blocks aren't whole; of 4,096, the fewest in 8 bits; and of fewer."""


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def gradients(step: int, like: list[nn.Parameter]) -> None:
    torch.manual_seed(100 + step)
    for parameter in like:
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [2**18, 2048])
def test_a_step_is_the_librarys(dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, however large the pieces are that a parameter is updated in, and whatever its layout."""
    quantised.library()
    from bitsandbytes.optim import AdamW8bit

    monkeypatch.setattr(eight_bit, "PIECE", piece)
    ours, theirs = parameters(dtype), parameters(dtype)
    ours[0].data = ours[0].data.t().contiguous().t()
    made = eight_bit.ReferenceAdamW8bit(ours, LR, BETAS, DECAY)
    library = AdamW8bit(theirs, lr=LR, betas=BETAS, weight_decay=DECAY)
    for step in range(4):
        gradients(step, ours)
        gradients(step, theirs)
        made.step()
        library.step()
    for one, other in zip(ours, theirs, strict=True):
        assert_equal_tensors(one.detach().contiguous(), other.detach())
    assert not torch.equal(ours[0], parameters(dtype)[0])


def dynamic(signed: bool) -> Tensor:
    """The values of Dettmers et al. 2022: an exponent of tens by leading zeros, and means of a linear fraction."""
    values = [0.0, 1.0]
    for exponent in range(7):
        count = 2**exponent if signed else 2 ** (exponent + 1)
        edges = [0.1 + 0.9 * i / count for i in range(count + 1)]
        means = [10.0 ** (exponent - 6) * (a + b) / 2 for a, b in pairwise(edges)]
        values += means + [-mean for mean in means if signed]
    return torch.tensor(sorted(values + [0.0] * (256 - len(values))))


def rounded(state: Tensor, signed: bool) -> Tensor:
    """A state `[n]` after its way through 8 bits: the nearest values times the largest magnitude of each block.

    The kernel for a CPU looks them up by the nearest of 65,536 points from -1 to 1.
    """
    values, found = dynamic(signed), []
    for block in state.split(256):
        largest = block.abs().max()
        points = ((block / largest + 1) * 32767.5).round() / 32767.5 - 1
        found.append(values[(points[:, None] - values).abs().argmin(1)] * largest)
    return torch.cat(found)


def test_a_step_is_that_of_a_loop_by_hand() -> None:
    """AdamW (Loshchilov and Hutter 2019) whose moments are rounded after each step, but for those of few numbers."""
    trained = parameters(torch.float32)
    expected = [parameter.detach().clone().view(-1) for parameter in trained]
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in expected]
    made = eight_bit.ReferenceAdamW8bit(trained, LR, BETAS, DECAY)
    for step in range(1, 4):
        gradients(step, trained)
        for i, parameter in enumerate(trained):
            assert parameter.grad is not None
            gradient = parameter.grad.view(-1)
            first = BETAS[0] * moments[i][0] + (1 - BETAS[0]) * gradient
            second = BETAS[1] * moments[i][1] + (1 - BETAS[1]) * gradient**2
            size = LR / (1 - BETAS[0] ** step)
            expected[i] = expected[i] * (1 - LR * DECAY) - size * first / (
                second.sqrt() / sqrt(1 - BETAS[1] ** step) + 1e-8
            )
            small = len(gradient) < 4096
            moments[i] = (first, second) if small else (rounded(first, True), rounded(second, False))
        made.step()
        for parameter, value in zip(trained, expected, strict=True):
            # a tie that is rounded otherwise moves one number by a part of its step
            far = (parameter.detach().view(-1) - value).abs() > 1e-5
            assert far.float().mean() < 2e-3
            torch.testing.assert_close(parameter.detach().view(-1), value, rtol=0, atol=LR / 4)


def test_states_take_a_byte_a_number() -> None:
    """Two bytes a number, two scales a block of 256, and two maps of 256 values that all parameters share."""
    (large, small) = trained = [nn.Parameter(torch.randn(100, 300)), nn.Parameter(torch.randn(4095))]
    made = eight_bit.ReferenceAdamW8bit(trained, LR, BETAS, DECAY)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    made.step()
    storages = {
        v.untyped_storage()._cdata: v.untyped_storage().nbytes()
        for state in made.state.values() for v in state.values() if isinstance(v, Tensor)
    }  # fmt: skip
    assert sum(storages.values()) == 2 * 30_000 + 2 * 4 * 118 + 2 * 4 * 256 + 2 * 4 * 4095
    assert made.state[large]["state1"].dtype == torch.uint8 and made.state[small]["state1"].dtype == torch.float32


def test_pieces_bound_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = nn.Parameter(torch.randn(2**16))
    parameter.grad = torch.randn(2**16)
    made = eight_bit.ReferenceAdamW8bit([parameter], LR, BETAS, DECAY)
    made.step()
    taken = []
    for piece in (2**16, 2**12):
        monkeypatch.setattr(eight_bit, "PIECE", piece)
        with AllocatorPeak(CPU) as peak:
            made.step()
        taken.append(peak.bytes / piece)
    assert taken == [pytest.approx(20, abs=0.1)] * 2  # bytes an element of a piece


def test_memory_against_the_allocator_with_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eight_bit, "PIECE", 4096)
    settings = {"name": "adamw-8bit", "lr": 1e-3, "step_in_backward": True}
    work = make_work(model=described(blocks=1, width=48), optimizer=settings)
    table = ScratchTable("here", partial(probe, device="cpu"))
    trace = Predictor(scratch=table).trace(work, Toy())
    # equal pieces are one call for each number of updates that is predicted
    updates = [row for row in table.rows.values() if "blockwise" in row.operator]
    assert 0 < len(updates) <= 9 and not any(row.assumed for row in updates)
    module, inputs = models.build(work.model), inputs_of(work)
    with AllocatorPeak(CPU, [*module.parameters()]) as seen:
        execute(work, inputs, Toy(), module=module, device=CPU, seed=1)
    assert trace.peak_memory_bytes == pytest.approx(seen.bytes, abs=16)


IMAGES = {"source": "glyphs", "clients": {"image": 2}, "samples": 24, "size": 16, "validation": 20, "test": 20}


def test_a_run_that_was_cut_goes_on_to_the_same_weights(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(
        data=IMAGES, model={"image": {"blocks": 1, "width": 48, "heads": 2}},
        training={"batch": 8, "optimizer": "adamw-8bit", "step_in_backward": True},
        schedule={"name": "end-to-end", "rounds": 3},
    )  # fmt: skip
    whole = edgefl.run(scenario, out=tmp_path / "whole")

    def interrupt(event: str, facts: Any) -> None:
        if event == "record" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "run", on_progress=interrupt)
    again = edgefl.run(resume=tmp_path / "run")
    for name, value in whole.weights().items():
        assert_equal_tensors(again.weights()[name], value)


@pytest.mark.parametrize("precision", ["float16", "float64"])
def test_other_precisions_are_refused(tiny: Tiny, precision: str) -> None:
    says = f"optimizer adamw-8bit has no step in precision {precision}; allowed: float32, bfloat16"
    with pytest.raises(EdgeflError, match=says):
        load(tiny(training={"optimizer": "adamw-8bit", "precision": precision}))


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.partition(".")[0] != "bitsandbytes"})
    work = make_work(optimizer={"name": "adamw-8bit", "lr": 1e-3})
    with pytest.raises(MethodError, match=r"adamw-8bit needs a package .* pip install bitsandbytes"):
        make_optimizer(work, {"w": nn.Parameter(torch.ones(3))})
