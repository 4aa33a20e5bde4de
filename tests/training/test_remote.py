"""What a node elsewhere is told and says: an update that travelled as bytes is the one of this process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from edgefl_toys import CPU, Toy, make_work
from edgefl_toys import inputs_of as toy_inputs
from tensors import assert_equal_tensors

from edgefl.training import Assignment, Node
from edgefl.training.assignment import deserialise, serialise
from edgefl.training.remote import checksum, inputs_of, missing_copies, order_of, split_inputs, update_of, upload_bodies


class Toys:
    """Toy data for every node."""

    def client(self, index: int) -> Toy:
        return Toy(40 + index)

    def server(self) -> Toy:
        return Toy(60)


@pytest.fixture
def assignment() -> Assignment:
    work = make_work(gate="trainable")
    return Assignment(work.form, work.scalars, toy_inputs(work), 3, 5, metered=True)


def test_an_order_over_wires_gives_the_update_of_this_process(assignment: Assignment) -> None:
    """The server sends a part of the payloads; the node has held the rest since a round before."""
    down = tuple(payload.only(lambda item: ".blocks.0." not in item.name) for payload in assignment.form.down)
    bodies, own = split_inputs(assignment, down)
    assert own and all(".blocks.0." in name for name in own)
    order = json.loads(json.dumps(order_of(assignment)))

    held = {name: tensor.clone() for name, tensor in own.items()} | {"old": torch.ones(1)}
    assert missing_copies(held, {name: checksum(tensor) for name, tensor in own.items()}) == []
    for body in bodies:
        held |= deserialise(body)
    form = assignment.form.decode(order["form"])
    inputs = inputs_of(form, held)
    assert inputs.keys() == assignment.inputs.keys()  # not what no payload names
    ours = Node(Toys(), CPU).run_assignment(Assignment.from_data(order["facts"], form, inputs))
    ours = replace(ours, kept={"image.odd": torch.arange(3.0)})
    facts = json.loads(json.dumps(ours.to_data()))

    update = update_of(facts, assignment, upload_bodies(ours.payloads.values()), serialise(ours.kept))
    expected = Node(Toys(), CPU).run_assignment(assignment)
    assert_equal_tensors(update.payloads, expected.payloads)
    assert_equal_tensors(update.kept, ours.kept)
    assert (update.loss, update.metrics, update.client) == (expected.loss, expected.metrics, 3)
    assert update.trace is None and expected.trace is not None  # an order isn't metered


def test_a_copy_that_differs_or_lacks_is_named(assignment: Assignment) -> None:
    _, own = split_inputs(assignment, ())
    first, second, *_ = own
    sums = {name: checksum(tensor) for name, tensor in own.items()}
    held = {name: tensor for name, tensor in own.items() if name != first}
    held[second] = held[second] + 1e-6
    assert missing_copies(held, sums) == [first, second]


def test_an_empty_payload_does_not_travel(assignment: Assignment) -> None:
    bodies, own = split_inputs(assignment, [payload.only(lambda item: False) for payload in assignment.form.down])
    assert bodies == [] and own.keys() == assignment.inputs.keys()
    assert upload_bodies([{}, {"a": torch.ones(2)}]) == [serialise({"a": torch.ones(2)})]
