"""Works as data: the way to JSON and back, and sizes that need no tensors."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import fields, replace
from typing import Any

import pytest
import safetensors.torch
import torch
from edgefl_toys import Toy, make_work, training_pass
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.errors import MethodError
from edgefl.work import Codec, Edit, Form, Item, Pass, Payload, TensorSpec, Work, intern_form, serialised_bytes
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
    assert TensorSpec.from_tensor(torch.zeros(2, 3, dtype=torch.int16)) == TensorSpec((2, 3), "int16")


@pytest.mark.parametrize(("samples", "batch"), [(100, 8), (5, 5), (1, 1)])
def test_a_private_batch_is_never_larger_than_the_samples(samples: int, batch: int) -> None:
    fitted = make_work().limit_batches(Toy(samples).size)
    assert [p.batch for p in fitted.passes] == [batch, batch]


def test_a_batch_of_the_server_stays_as_it_is() -> None:
    pass_ = Pass("score-classify", "validation", ("image",), 64, False)
    assert make_work(passes=(pass_, training_pass())).limit_batches(Toy(3).size).passes[0].batch == 64


def test_works_of_one_form_differ_in_scalars_that_are_zero_in_none_or_all() -> None:
    one = make_work(scalars={"lr": 0.1, "pull": 2.0})
    other = make_work(scalars={"lr": 0.2, "pull": 1e-9})
    assert one != other and one == make_work(scalars={"lr": 0.1, "pull": 2.0})
    assert one.form == other.form and hash(one.form) == hash(other.form) and one.form.key == other.form.key
    for differs in ({"lr": 0.1, "pull": 0.0}, {"lr": 0.1}, {"lr": 0.1, "pull": 2.0, "push": 1.0}):
        assert make_work(scalars=differs).form != one.form
        assert make_work(scalars=differs).form.key != one.form.key


def test_every_field_is_in_the_key_of_a_form() -> None:
    work = make_work()
    first, item = work.passes[0], work.up[0].items[0]
    narrow = replace(work.up[0], items=(replace(item, cut=((((0, 1),),))), *work.up[0].items[1:]))
    changed: dict[str, Any] = {
        "kind": "other",
        "model": {**work.model, "width": 7},
        "trainable": work.trainable[1:],
        "passes": (replace(first, args={**first.args, "t": 1}), *work.passes[1:]),
        "down": (replace(work.down[0], follows="trained"), *work.down[1:]),
        "up": (narrow, *work.up[1:]),
        "edits": (Edit("gate"),),
        "split": {"image": 1},
        "optimizer": {**work.optimizer, "clip": 3.0},
        "precision": "bfloat16",
        "keep": ("x",),
        "reference": ("x",),
        "attention": "flash",
        "scalars": {**work.scalars, "pull": 1.0},
    }
    assert changed.keys() == {field.name for field in fields(Work)}
    keys = {work.form.key, *(replace(work, **{name: value}).form.key for name, value in changed.items())}
    assert len(keys) == len(changed) + 1
    # a batch of 1 is another than one of True, and a codec of another share
    half, all_ = (replace(work, up=(replace(work.up[0], codec=Codec(args={"top_k": share})),)) for share in (0.5, 1.0))
    assert half.form.upload != all_.form.upload != work.form.upload


@pytest.mark.slow(smaller="test_a_work_whose_batches_fit_is_the_same_object")
def test_equal_forms_are_one_object_while_somebody_holds_it() -> None:
    name = "interned only here"
    form = intern_form(replace(make_work(scalars={"lr": 0.1}), kind=name).form)
    assert intern_form(replace(make_work(scalars={"lr": 0.2}), kind=name).form) is form
    assert intern_form(form.bind({"lr": 0.3}).form) is form
    gone = weakref.ref(form)
    del form
    gc.collect()
    assert gone() is None


def test_a_form_is_bound_to_scalars_that_belong_to_it_and_to_no_others() -> None:
    work = make_work(scalars={"lr": 0.1, "pull": 0.0})
    assert work.form.bind(work.scalars) == work
    assert work.form.bind({"lr": 0.2, "pull": 0.0}) == replace(work, scalars={"lr": 0.2, "pull": 0.0})
    for wrong in ({"lr": 0.1, "pull": 1.0}, {"lr": 0.1}, {"lr": 0.0, "pull": 0.0}):
        with pytest.raises(ValueError, match="don't belong to this form"):
            work.form.bind(wrong)


def test_a_form_survives_its_text_and_has_no_learning_rate() -> None:
    form = make_work(scalars={"lr": 0.0123456789, "betas": [0.9, 0.999]}).form
    assert Form.decode(form.encode()) == form and Form.decode(form.encode()).key == form.key
    assert "0.0123456789" not in form.encode() and not hasattr(form, "scalars")


def test_a_work_whose_batches_fit_is_the_same_object() -> None:
    work = make_work()
    assert work.limit_batches(Toy(10**6).size) is work


def test_scalars_among_the_optimizers_settings_are_moved_beside_the_work() -> None:
    work = make_work(optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip": 1.0}, scalars={"pull": 2.0})
    assert work.optimizer == {"name": "sgd", "clip": 1.0}
    assert dict(work.scalars) == {"lr": 0.1, "momentum": 0.9, "pull": 2.0} and work.loss_weights == {"pull": 2.0}
    slower = replace(work, optimizer={**work.optimizer, "lr": 0.05})
    assert dict(slower.scalars) == {"lr": 0.05, "momentum": 0.9, "pull": 2.0} and slower.form == work.form


def test_a_wrapper_has_no_argument_that_batches_read() -> None:
    with pytest.raises(MethodError, match="the wrapper 'hook' can't have an argument 'share'"):
        make_work().around("hook", share=0.1)
