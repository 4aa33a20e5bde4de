"""Works as data: the way to JSON and back, and sizes that need no tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch
from edgefl_toys import Toy, make_work, training_pass
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.work import Edit, Item, Pass, Payload, Scalars, TensorSpec, Work, serialised_bytes
from edgefl.work.description import DTYPES

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPE = st.sampled_from(sorted(DTYPES))
JSON = st.dictionaries(
    NAMES,
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | NAMES
    | st.lists(st.integers(), max_size=3),
    max_size=3,
)
# plain parts; what they are parts of is built in the test, where annotated types are checked
ITEM = st.tuples(NAMES, SHAPES, DTYPE, NAMES)
PAYLOADS = st.lists(st.tuples(NAMES, st.lists(ITEM, max_size=3), st.sampled_from(["attached", "trained"])), max_size=2)
NAMED = st.lists(NAMES, max_size=3).map(tuple)
DATA = st.sampled_from(["private", "public", "validation", "test"])
PASSES = st.lists(st.tuples(NAMES, DATA, NAMED, st.integers(1, 99), st.booleans(), JSON), max_size=3)
EDITS = st.lists(st.tuples(NAMES, JSON), max_size=2)


def payloads(parts: Any) -> tuple[Payload, ...]:
    return tuple(Payload(name, tuple(Item(*item) for item in items), follows) for name, items, follows in parts)


@settings(deadline=None, max_examples=60)
@given(NAMES, JSON, NAMED, PASSES, PAYLOADS, PAYLOADS, EDITS, JSON, NAMED, st.booleans())
def test_a_work_comes_back_from_json_as_it_was(
    kind: str,
    model: Any,
    names: Any,
    passes: Any,
    down: Any,
    up: Any,
    edits: Any,
    optimizer: Any,
    keep: Any,
    flag: bool,
) -> None:
    work = Work(
        kind,
        model,
        names,
        tuple(Pass(*parts) for parts in passes),
        payloads(down),
        payloads(up),
        tuple(Edit(*parts) for parts in edits),
        optimizer,
        "bfloat16",
        keep,
        flag,
    )
    text = work.encode()
    json.loads(text)
    assert Work.decode(text) == work


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(NAMES, st.tuples(SHAPES, DTYPE), min_size=1, max_size=6))
def test_serialised_bytes_are_those_of_a_real_file(parts: dict[str, tuple[tuple[int, ...], str]]) -> None:
    specs = {name: TensorSpec(*spec) for name, spec in parts.items()}
    tensors = {name: torch.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for name, spec in specs.items()}
    assert serialised_bytes(specs) == len(safetensors.torch.save(tensors))


@pytest.mark.parametrize("count", [9, 10, 11, 99, 100, 101])
def test_offsets_of_any_number_of_digits(count: int) -> None:
    specs = {f"blocks.{i}": TensorSpec((i,), sorted(DTYPES)[i % len(DTYPES)]) for i in range(count)}
    tensors = {name: torch.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for name, spec in specs.items()}
    assert serialised_bytes(specs) == len(safetensors.torch.save(tensors))


def test_nothing_to_send_is_no_file() -> None:
    assert serialised_bytes({}) == 0
    assert Payload("empty", ()).tensor_bytes == 0


def test_a_payload_counts_its_tensors() -> None:
    payload = Payload("p", (Item("a", (2, 3), "float32", "k/a"), Item("b", (5,), "bfloat16", "k/b")))
    assert payload.tensor_bytes == 2 * 3 * 4 + 5 * 2
    assert payload.only(lambda item: item.name == "b").tensor_bytes == 10


def test_a_spec_of_a_tensor() -> None:
    assert TensorSpec.of(torch.zeros(2, 3, dtype=torch.int16)) == TensorSpec((2, 3), "int16")


@pytest.mark.parametrize(("samples", "batch"), [(100, 8), (5, 5), (1, 1)])
def test_a_private_batch_is_never_larger_than_the_samples(samples: int, batch: int) -> None:
    fitted = make_work().fitted(Toy(samples).size)
    assert [p.batch for p in fitted.passes] == [batch, batch]


def test_a_batch_of_the_server_stays_as_it_is() -> None:
    pass_ = Pass("score-classify", "validation", ("image",), 64, False)
    assert make_work(passes=(pass_, training_pass())).fitted(Toy(3).size).passes[0].batch == 64


def test_works_are_equal_whatever_their_scalars_but_for_zero() -> None:
    one = make_work(scalars={"lr": 0.1, "pull": 2.0})
    assert one == make_work(scalars={"lr": 0.2, "pull": 1e-9}) != make_work(scalars={"lr": 0.1, "pull": 0.0})
    assert one != make_work(scalars={"lr": 0.1})
    assert Scalars(pull=1.0) == Scalars(pull=2.0) and Scalars(pull=1.0) != {"pull": 2.0}


def test_scalars_among_the_optimizers_settings_are_moved_beside_the_work() -> None:
    work = make_work(optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip": 1.0}, scalars={"pull": 2.0})
    assert work.optimizer == {"name": "sgd", "clip": 1.0}
    assert dict(work.scalars) == {"lr": 0.1, "momentum": 0.9, "pull": 2.0} and work.loss_weights == {"pull": 2.0}
    slower = replace(work, optimizer={**work.optimizer, "lr": 0.05})
    assert dict(slower.scalars) == {"lr": 0.05, "momentum": 0.9, "pull": 2.0} and slower == work
