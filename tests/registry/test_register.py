"""Parts that a program or a notebook registers: found like installed ones, replaced by a cell that runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field

import edgefl
from edgefl import registry
from edgefl.commands.parts.schema_parts import parts_of
from edgefl.errors import PluginError, ScenarioError, UnknownName
from edgefl.methods import Method
from edgefl.registry.registered import PARTS
from edgefl.scenario import json_schema, load
from edgefl.setup.compose import compose
from edgefl.work import Step

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    PARTS.clear()
    registry.forget()


@pytest.fixture
def small(tiny: Tiny) -> Callable[..., dict[str, Any]]:
    """Two clients with images, a block, a round."""

    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 24, "test": 24}
        model = {"image": {"blocks": 1, "width": 16, "heads": 2}}
        schedule = {"name": "end-to-end", "rounds": 1}
        return tiny(data=data, model=model, schedule=schedule) | sections

    return make


class Damped(Method):
    """FedAvg that goes a share of the way."""

    class Options(Method.Options):
        rate: float = Field(0.5, gt=0, le=1, description="share of the mean update that is taken")

    def aggregate(self, state: Any, updates: Any) -> Any:
        return state.with_tensors(self.combine(state, updates, lambda address, cohort: {address: self.options.rate}))


def cell(source: str) -> None:
    """Run source as a notebook's cell does: it belongs to the main module and is in no file."""
    exec(compile(source, "<cell>", "exec"), NOTEBOOK)


NOTEBOOK: dict[str, Any] = {"__name__": "__main__", "edgefl": edgefl, "Step": Step, "Method": Method}

SMOOTH = """
def smoothed(x):
    return {factor} * x

@edgefl.register("step", "smooth")
class Smooth(Step):
    def loss(self, ctx, batch, pattern, pass_):
        return smoothed(ctx.client_model.logits(pattern, batch[pattern])).square().mean()
"""


def test_a_registered_method_goes_its_share_of_the_way(small: Tiny, tmp_path: Path) -> None:
    """After one round its model is the middle between the first one and FedAvg's."""
    assert edgefl.register("method", "damped")(Damped) is Damped
    first = compose(load(small())).method.initial(small()["seed"]).tensors
    whole = edgefl.run(small(), out=tmp_path / "fedavg").weights()
    half = edgefl.run(small(method={"name": "damped", "rate": 0.5}), out=tmp_path / "damped").weights()
    assert any(not torch.equal(first[name], whole[name]) for name in first)
    for name, value in half.items():
        torch.testing.assert_close(value, (first[name] + whole[name]) / 2)


def test_a_registered_part_is_listed_with_its_options_and_they_are_checked(small: Tiny) -> None:
    edgefl.register("method", "damped")(Damped)
    entry = next(each for each in parts_of(["method"]).sections["method"] if each.name == "damped")
    assert entry["summary"] == "FedAvg that goes a share of the way"
    assert [option["name"] for option in entry["options"]] == ["rate", "personal"]
    assert "method.damped" in json_schema()["$defs"]
    with pytest.raises(ScenarioError, match=r"method\.rate.*must be at most 1"):
        load(small(method={"name": "damped", "rate": 3}))
    with pytest.raises(ScenarioError, match=r"method\.speed"):
        load(small(method={"name": "damped", "speed": 3}))


@pytest.mark.parametrize(
    ("kind", "name", "part", "says"),
    [
        ("metod", "mine", Damped, "no sort of part 'metod'; allowed: method, schedule"),
        (["step"], "mine", Damped, "no sort of part"),
        ("method", "my method", Damped, "'my method' can't name a part, here a method"),
        ("method", "", Damped, "'' can't name a part"),
        ("method", 3, Damped, "3 can't name a part"),
        ("method", "fedavg", Damped, "the name 'fedavg' is taken by the method of edgefl"),
        ("method", "mine", int, "can't be registered: .* has no initial, work, aggregate, evaluate"),
        ("step", "mine", None, "is None"),
        (
            "round_policy",
            "synchronous",
            Damped,
            "has no at_once, holds, over, overlapping, play",
        ),
        ("profile library", "mine", 3, "not the path of a folder"),
    ],
)
def test_what_cannot_be_registered_is_one_line_and_changes_nothing(kind: Any, name: Any, part: Any, says: str) -> None:
    with pytest.raises(PluginError, match=says) as raised:
        edgefl.register(kind, name)(part)
    assert "\n" not in str(raised.value)
    assert not PARTS


def test_a_cell_that_runs_again_replaces_its_part_and_another_part_does_not() -> None:
    cell(SMOOTH.format(factor=1))
    before = registry.get("step", "smooth")
    cell(SMOOTH.format(factor=1))
    assert registry.get("step", "smooth") is not before
    with pytest.raises(PluginError, match=r"the name 'smooth' is taken by the step of .*<cell>"):
        cell(SMOOTH.format(factor=1).replace("class Smooth", "class Other"))
    assert registry.get("step", "smooth").__name__ == "Smooth"


def test_the_hash_of_a_notebooks_part_follows_what_it_calls_and_nothing_else() -> None:
    """It is part of the key of costs on disk, and of what a resumed run is made of."""

    def hashed(source: str) -> str:
        cell(source)
        return registry.fingerprint("step", "smooth")

    first = hashed(SMOOTH.format(factor=1))
    assert hashed(SMOOTH.format(factor=1)) == first
    assert hashed("unrelated = 3\ndef other(): return unrelated\n" + SMOOTH.format(factor=1)) == first
    assert hashed(SMOOTH.format(factor=2)) != first
    by_name = hashed("factor = 1\n" + SMOOTH.format(factor="factor"))
    assert by_name != first
    assert hashed("factor = 2\n" + SMOOTH.format(factor="factor")) != by_name


def test_workers_refuse_a_notebooks_step_before_there_is_a_folder(small: Tiny, tmp_path: Path) -> None:
    cell(SMOOTH.format(factor=1))
    cell(
        """
from dataclasses import replace

@edgefl.register("method", "mine")
class Mine(Method):
    def work(self, kind, round):
        work = super().work(kind, round)
        return replace(work, passes=tuple(replace(p, step="smooth") for p in work.passes))
"""
    )
    workers = {"name": "processes", "workers": 1, "device": "cpu"}
    with pytest.raises(ScenarioError, match=r"executor\.name.*import the step 'smooth'.*--plugin.*executor: inline"):
        edgefl.run(small(method="mine", executor=workers), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert edgefl.run(small(method="mine"), out=tmp_path / "run").is_finished


def test_a_name_that_is_no_longer_registered_is_unknown() -> None:
    edgefl.register("method", "damped")(Damped)
    PARTS.clear()
    registry.forget()
    with pytest.raises(UnknownName):
        registry.get("method", "damped")


def test_a_changed_partition_deals_anew(small: Tiny) -> None:
    """Not from the cache in memory, nor from the one on disk."""
    even = """
import numpy as np

@edgefl.register("partition", "slices")
def slices(keys, clients, argument, rng):
    return {parts}
"""

    def samples() -> list[int]:
        data = {**small()["data"], "partition": "slices", "samples": 100}
        return compose(load(small(data=data))).clients.client_samples.tolist()

    cell(even.format(parts="[np.arange(0, 10), np.arange(10, 30)]"))
    assert samples() == [10, 20]
    cell(even.format(parts="[np.arange(0, 20), np.arange(20, 30)]"))
    assert samples() == [20, 10]
