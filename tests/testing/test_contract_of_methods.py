"""The checker finds what it promises to find: each method here breaks one rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from tensors import assert_equal_tensors

from edgefl.errors import MethodError, UnknownName
from edgefl.methods import Method, ServerState, Update
from edgefl.testing import check_part
from edgefl.testing.findings import CheckRule
from edgefl.work import Item, Payload, Work

STEPS = '''
import random
import torch
from torch.nn import functional as F
from edgefl.work import Step


class Growing(Step):
    """Keeps every feature: the more batches, the more memory."""

    def loss(self, ctx, batch, pattern, pass_):
        feature = ctx.client_model.feature(pattern, batch[pattern])
        ctx.notes.setdefault("all", []).append(feature.detach().repeat(1, 64))
        return F.cross_entropy(ctx.model.get_submodule(pattern).head(feature), batch["label"])


class Unseeded(Step):
    """Draws from a generator that no seed reaches."""

    def loss(self, ctx, batch, pattern, pass_):
        loss = F.cross_entropy(ctx.client_model.logits(pattern, batch[pattern]), batch["label"])
        return loss * random.SystemRandom().random()


class Still(Step):
    """Trains nothing."""

    def loss(self, ctx, batch, pattern, pass_):
        return None


class NotANumber(Step):
    """A metric that divides by zero."""

    def loss(self, ctx, batch, pattern, pass_):
        ctx.metrics["ratio"] = torch.zeros(()) / 0
'''


@pytest.fixture(scope="module", autouse=True)
def _steps(install: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_steps.py").write_text(STEPS)
    info = folder / "broken_steps-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-steps\nVersion: 1.0\n")
    points = {"growing": "Growing", "unseeded": "Unseeded", "still": "Still", "not-a-number": "NotANumber"}
    lines = [f"{name} = broken_steps:{value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[edgefl.steps]", *lines]))
    install(folder)


def found(method: type[Method], schedule: str = "end-to-end") -> tuple[str, ...]:
    return check_part("method", method, runs=False, schedules=[schedule], kinds=["image"]).failures


def step(name: str) -> type[Method]:
    class Stepped(Method):
        def work(self, kind: str, round: int) -> Work:
            work = super().work(kind, round)
            return replace(work, passes=tuple(replace(p, step=name) for p in work.passes))

    return Stepped


class Tupled(Method):
    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, passes=tuple(replace(p, args={"classes": (1, 2)}) for p in work.passes))


class Counting(Method):
    asked = 0

    def work(self, kind: str, round: int) -> Work:
        Counting.asked += 1
        work = super().work(kind, round)
        return replace(work, optimizer={**work.optimizer, "lr": 1e-3 / Counting.asked})


class Nowhere(Method):
    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, down=(*work.down, Payload("extra", (Item("extra", (3,), "float32", "table/extra"),))))


class Headless(Method):
    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, down=tuple(p.only(lambda i: ".head." not in i.name) for p in work.down))


class Phantom(Method):
    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, trainable=(*work.trainable, "image.blocks.0.attn.adapter"))


class Forgetful(Method):
    def work(self, kind: str, round: int) -> Work:
        return replace(super().work(kind, round), keep=("image.memory.weight",))


class InPlace(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        for update in updates:
            for address, value in update.uploaded_tensors():
                state.tensors[address].copy_(value)
        return state


class Momentum(Method):
    """Remembers how often it was asked."""

    memory = 0.0

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        self.memory += 1
        new = super().aggregate(state, updates)
        return new.with_tensors({a: t * self.memory for a, t in new.tensors.items()})


class Marking(Method):
    """The same, where the round that it was last asked for decides."""

    asked = 0

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        self.asked = round
        return ()

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        return new.with_tensors({a: t + self.asked for a, t in new.tensors.items()})


class LastWins(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        return state.with_tensors(dict(updates[-1].uploaded_tensors()))


class Partial(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        kept = {a: t for a, t in new.tensors.items() if ".head." not in a}
        return ServerState(kept, {a: new.versions[a] for a in kept})


class Silent(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        return ServerState(super().aggregate(state, updates).tensors, state.versions)


class Restless(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        return new.with_tensors({a: t * 0.9 for a, t in new.tensors.items()})


class Pairwise(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        if len(updates) == 1:
            raise ZeroDivisionError("a variance over one client")
        return super().aggregate(state, updates)


class Blindfolded(Method):
    def evaluate(self, kind: str, split: str) -> Work:
        work = super().evaluate(kind, split)
        return replace(work, passes=tuple(replace(p, step="not-a-number") for p in work.passes))


class Wasteful(Method):
    """Sends a table for each parameter, also of blocks that a stage freezes."""

    def initial(self, seed: int) -> ServerState:
        state = super().initial(seed)
        return ServerState.from_tensors(
            {**state.tensors, **{f"table/momentum/{a}": torch.zeros_like(t) for a, t in state.tensors.items()}}
        )

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        items = tuple(
            Item(f"momentum.{i.name}", i.shape, i.dtype, f"table/momentum/{i.source}") for i in work.down[0].items
        )
        return replace(work, down=(*work.down, Payload("momentum", items)))


class Absent(Method):
    def participates(self, kind: str, round: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("method", "rule", "names"),
    [
        (step("growing"), CheckRule.MEMORY, "image, end-to-end, stage 1"),
        (step("unseeded"), CheckRule.SEED, "image, end-to-end, stage 1"),
        (step("still"), CheckRule.TRAINS, "it must be a scalar tensor, or None in a pass that doesn't train"),
        (Tupled, CheckRule.WRITTEN, "plain JSON"),
        (Counting, CheckRule.BLIND, "two calls give different works"),
        (Nowhere, CheckRule.ADDRESSES, "'table/extra'"),
        (Headless, CheckRule.WHOLE, "'image.head.bias' and 1 more"),
        (Wasteful, CheckRule.LIKE, "like='image.blocks.0.attn.proj.bias'"),
        (Phantom, CheckRule.NAMES, "'image.blocks.0.attn.adapter'"),
        (Forgetful, CheckRule.KEPT, "'image.memory.weight'"),
        (InPlace, CheckRule.PURE, "changed in place"),
        (Momentum, CheckRule.PURE, "differs in a second call"),
        (Marking, CheckRule.PURE, "belongs in the state"),
        (LastWins, CheckRule.ORDER, "sort the updates"),
        (Partial, CheckRule.PURE, "returned a state without 'image/image.head.weight'"),
        (Silent, CheckRule.VERSIONS, "use state.with_tensors()"),
        (Pairwise, CheckRule.SPARSE, "ZeroDivisionError: a variance over one client"),
        (Blindfolded, CheckRule.METRICS, "'ratio': nan"),
        (Absent, CheckRule.SERVES, "image"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_rule_is_named_with_its_place(method, rule, names):
    failures = found(method)
    told = [failure for failure in failures if failure.startswith(f"{rule}: ")]
    assert any(names in failure for failure in told), failures


def test_parts_that_a_stage_freezes_must_not_move():
    failures = found(Restless, "layerwise")
    assert any(f.startswith(f"{CheckRule.INACTIVE}: aggregate(), layerwise, stage 2: ") for f in failures), failures
    assert not any(CheckRule.INACTIVE in f and "stage 1" in f and "blocks.0" in f for f in failures)


class Scaled(Method):
    """A sound method that no entry point names."""

    class Options(Method.Options):
        name: Literal["scaled"] = "scaled"
        scale: float = 1.0

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        moved = {a for a in new.tensors if new.tensors[a] is not state.tensors[a]}
        return state.with_tensors({a: torch.lerp(state.tensors[a], new.tensors[a], self.options.scale) for a in moved})


@pytest.mark.slow(smaller="test_only_a_method_that_cannot_be_loaded_raises")
def test_a_class_needs_no_entry_point_and_takes_its_options():
    report = check_part("method", Scaled, schedules=["progressive"], kinds=["text"], scale=0.5)
    assert report.ok, str(report)
    assert str(report) == f"Scaled: {sum(report.checks.values())} checks of {len(report.checks)} rules, all kept"


def test_a_report_is_read_line_by_line():
    report = check_part("method", Absent, schedules=["end-to-end"], kinds=["image"])
    first, *rest = str(report).splitlines()
    assert first.startswith("Absent: ") and first.endswith(", one broken")
    assert rest == [f"  - {failure}" for failure in report.failures]


def test_checking_leaves_the_global_generators_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state(), torch.get_num_threads()
    check_part("method", "fedavg", runs=False, schedules=["end-to-end"], kinds=["text"])
    assert_equal_tensors(before[0], torch.get_rng_state())
    assert before[1] == torch.get_num_threads()


def test_only_a_method_that_cannot_be_loaded_raises():
    with pytest.raises(UnknownName, match="did you mean 'fedavg'"):
        check_part("method", "fedavgg", runs=False)
    with pytest.raises(MethodError, match="'fedprox' doesn't take these options: mu: "):
        check_part("method", "fedprox", runs=False, mu=-1)
    with pytest.raises(MethodError, match="doesn't take these options: alpha: "):
        check_part("method", Scaled, alpha=1)
    with pytest.raises(MethodError, match="is not a subclass"):
        check_part("method", dict)  # type: ignore[arg-type]
