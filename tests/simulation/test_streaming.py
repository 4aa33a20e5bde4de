"""A synchronous round adds updates up as they land: the same bits, and memory that doesn't grow with the cohort."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.errors import MethodError
from edgefl.methods import Kind, Method, ServerState, Update
from edgefl.methods.aggregation.updates import Updates
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]


class AtOnce(Method):
    """FedAvg that takes all updates at once."""

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        assert isinstance(updates, Updates) and updates.mean is None
        assert all(
            value.device.type == "cpu" or value.is_meta for update in updates for _, value in update.uploaded_tensors()
        )
        return state.with_tensors(self.combine(state, updates, lambda address, cohort: {address: 1.0}))


class Reading(Method):
    """Says that it reads parameters by combine alone, and doesn't."""

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        return state.with_tensors(
            {address: value for address, value in updates[0].uploaded_tensors() if address in state.tensors}
        )


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("method", "at-once")(AtOnce)
    edgefl.register("method", "reading")(Reading)
    yield
    PARTS.clear()
    registry.forget()


@pytest.fixture
def small(tiny: Tiny) -> Callable[..., dict[str, Any]]:
    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 12, "text": 4}, "partition": {"quantity": 1.0},
                "samples": 40, "validation": 20, "test": 20}  # fmt: skip
        schedule = {"name": "end-to-end", "rounds": 2}
        return tiny(data=data, schedule=schedule, round={"cohort": 1.0}) | sections

    return make


def test_who_streams_is_said_by_who_aggregates() -> None:
    assert Method.streams and not AtOnce.streams and Reading.streams
    assert type("Deeper", (AtOnce,), {}).streams is False
    streaming = {name for name in registry.names("method") if registry.get("method", name).streams}
    assert {"fedavg", "fedprox", "fedcola", "fediot", "fednova", "creamfl", "depthfl", "fedmml"} <= streaming
    assert not streaming & {"scaffold", "feddyn", "qfedavg", "pmcmfl", "fedmd"}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "compensated": {"aggregation": {"compensation": True, "clip": 0.5, "optimizer": "adam", "lr": 0.01}},
    "slices": {"schedule": {"name": "heterofl", "rounds": 2}, "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "over-selected": {"round": {"cohort": 0.7, "over_selection": 0.5}, "executor": {"clock": "events"}},
    "two bytes": {"payload": {"up": "bfloat16"}},
    "sparse": {"payload": {"up": {"top_k": 0.2}}, "aggregation": {"clip": 0.1}},
    "batch norm": {
        "model": {"image": {"tower": "resnet", "stem": "small"}},
        "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 10, "validation": 20, "test": 20},
    },
    "personal": {"personal": ["norm"]},
    "attacked": {"fleet": {"failures": {"attack": {"name": "sign-flip", "share": 0.3}}}},
    "everyone": {"round": {"cohort": 1.0, "gate": "everyone"}, "fleet": {"budgets": {"memory": "0.3..6 MiB"}}},
}  # fmt: skip
SLOW = ("two bytes", "personal", "attacked", "everyone", "batch norm")


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_the_bits_are_those_of_all_updates_at_once(
    small: Callable[..., dict[str, Any]], tmp_path: Path, case: str
) -> None:
    sections = dict(CASES[case])
    personal = {"personal": personal} if (personal := sections.pop("personal", None)) else {}
    streamed = edgefl.run(small(method={"name": "fedavg", **personal}, **sections), out=tmp_path / "streamed")
    at_once = edgefl.run(small(method={"name": "at-once", **personal}, **sections), out=tmp_path / "at-once")
    assert_equal_tensors(streamed.weights(), at_once.weights())
    assert streamed.records("clients") == at_once.records("clients")
    (first, *_), after = streamed.records("rounds"), streamed.weights()
    assert first["finished"] >= 4 and any(t.is_floating_point() for t in after.values())


@pytest.mark.slow(smaller="simulation/test_shards.py::test_the_mean_is_over_those_whose_update_is_finite")
def test_the_mean_is_over_those_whose_update_is_finite(small: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """It is scaled to their weights, and so agrees to rounding."""
    attack = {"name": "scaling", "share": 0.3, "factor": 1e300}
    sections = {"fleet": {"failures": {"attack": attack}}, "schedule": {"name": "end-to-end", "rounds": 1}}
    streamed = edgefl.run(small(method="fedavg", **sections), out=tmp_path / "streamed")
    at_once = edgefl.run(small(method="at-once", **sections), out=tmp_path / "at-once")
    (first,), (second,) = streamed.records("rounds"), at_once.records("rounds")
    assert first["rejected"] == second["rejected"] and first["rejections"] == {"not finite": 5}
    assert streamed.records("clients") == at_once.records("clients")
    expected = at_once.weights()
    for address, value in streamed.weights().items():
        torch.testing.assert_close(value, expected[address], rtol=1e-4, atol=1e-6)


def test_parameters_that_were_added_up_can_not_be_read(small: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    line = r"test_streaming\.py:\d+\): the values of 'image[^']+' in the payload 'model' were added up as they arrived"
    with pytest.raises(MethodError, match=rf"Reading\.aggregate\(\) .* reads what is gone \(.*{line}"):
        edgefl.run(small(method="reading"), out=tmp_path / "run")


@pytest.mark.parametrize("method", ["fedavg", "at-once"])
def test_what_is_held_of_a_cohort(small: Callable[..., dict[str, Any]], tmp_path: Path, method: str) -> None:
    """Tensors in the shape of the image model's head, from the third client that lands to the twelfth."""
    counts = []

    def count(event: str, facts: Any) -> None:
        if event == "client" and facts["client"] < 12:
            tensors = (o for o in gc.get_objects() if type(o) is torch.Tensor and not o.is_meta)
            counts.append(sum(tuple(t.shape) == head for t in tensors))

    scenario = small(method=method)
    head = next(s.shape for n, s in kind_of(scenario).parameters().items() if n == "image.head.weight")
    edgefl.run(scenario, out=tmp_path / "run", on_progress=count)
    growth = counts[11] - counts[2]
    assert growth == (0 if method == "fedavg" else 9)


def kind_of(scenario: dict[str, Any]) -> Kind:
    return compose(load({"edgefl": 1, **scenario})).method.setting.kinds["image"]
