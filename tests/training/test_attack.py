"""What an attacker's device does: flipped labels are trained on, and a changed update leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from edgefl_toys import CPU, Toy, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.training import Assignment, Attack, Node
from edgefl.training.attack import Flipped, LabelFlip, Scaling, SignFlip
from edgefl.work import Item, Pass, Payload
from edgefl.work.codecs import Codec


class Toys:
    """Toy data for every node."""

    def client(self, index: int) -> Toy:
        return Toy(40 + index)

    def server(self) -> Toy:
        return Toy(60)


@dataclass(frozen=True)
class Renamed(Toy):
    """A toy whose data are stored with the labels 4, 3, 2, 1, 0 instead of 0 to 4."""

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for pattern, batch in super().batches(pass_, seed):
            label = [4 - y if y >= 0 else y for y in batch["label"].tolist()]
            yield pattern, {**batch, "label": torch.tensor(label)}


class Dishonest(Toys):
    """Nodes whose stored labels are wrong."""

    def client(self, index: int) -> Renamed:
        return Renamed(40 + index)


def scaled(strength: float) -> Attack:
    """One that sends its change this many times."""
    kind = SignFlip if strength < 0 else Scaling
    name = "sign-flip" if strength < 0 else "scaling"
    return kind(kind.Options(name=name, share=0.5, factor=abs(strength)))


FLIP = LabelFlip(LabelFlip.Options(name="label-flip", share=0.5), classes=5, seed=7)


def task(attack: Attack | None, **more: object) -> Assignment:
    work = replace(make_work(), **more)  # type: ignore[arg-type]
    return Assignment(work.form, work.scalars, inputs_of(work), 3, 5, True, attack)


def test_a_task_with_an_attack_travels() -> None:
    for attack in (None, scaled(-3.0), FLIP):
        assert Assignment.decode(*task(attack).encode()).attack == attack


def test_flipped_labels_are_really_trained_on() -> None:
    flipped = Node(Toys(), CPU).run_assignment(task(FLIP))
    stored = Node(Dishonest(), CPU).run_assignment(task(None))
    honest = Node(Toys(), CPU).run_assignment(task(None))
    assert flipped.loss == stored.loss != honest.loss
    assert_equal_tensors(flipped.payloads, stored.payloads)
    assert flipped.trace is not None
    assert flipped.trace == honest.trace


def test_labels_are_flipped_where_they_are_private_and_are_classes() -> None:
    class Few(Toy):
        def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
            target = torch.arange(10.0).view(2, 5)
            yield "image", {"image": torch.ones(6), "label": torch.tensor([0, 1, 4, 5, -1, 2]), "target": target}

    source = Flipped(Few(), 5)
    pass_ = training_pass()
    assert (source.spec(pass_, "image"), source.counts(pass_), source.size(pass_)) == (
        Few().spec(pass_, "image"), Few().counts(pass_), Few().size(pass_)
    )  # fmt: skip
    ((pattern, batch),) = source.batches(pass_, 1)
    assert pattern == "image" and batch["label"].tolist() == [4, 3, 0, 5, -1, 2]
    assert batch["target"].tolist() == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]] and bool((batch["image"] == 1).all())
    ((_, public),) = source.batches(replace(pass_, data="public"), 1)
    assert public["label"].tolist() == [0, 1, 4, 5, -1, 2]


@pytest.mark.parametrize("strength", [-1.0, -4.0, 10.0])
def test_a_changed_update_leaves_and_costs_what_an_honest_one_does(strength: float) -> None:
    node = Node(Toys(), CPU)
    honest, bad = node.run_assignment(task(None)), node.run_assignment(task(scaled(strength)))
    base = inputs_of(make_work())
    assert honest.loss == bad.loss and honest.trace == bad.trace
    moved = 0
    for name, value in honest.payloads["model"].items():
        expected = base[name] + strength * (value - base[name])
        torch.testing.assert_close(bad.payloads["model"][name], expected, rtol=1e-5, atol=1e-6)
        moved += int(not torch.equal(bad.payloads["model"][name], value))
    assert moved


def test_tables_integers_and_what_has_no_base_stay_as_they_are() -> None:
    sources = {"w": "k/w", "n": "k/n", "t": "table/t", "own": "k/own", "half": "k/half"}
    payload = Payload("model", tuple(Item(n, (2,), "float32", a) for n, a in sources.items()))
    tensors = {name: torch.tensor([3.0, 5.0]) for name in sources}
    tensors |= {"n": torch.tensor([3, 5]), "half": torch.tensor([3.0, 5.0], dtype=torch.float16)}
    base = {name: torch.ones(2) for name in ("w", "t", "half")} | {"n": torch.tensor([1, 1])}
    found = scaled(-2.0).attacked_upload(payload, tensors, base)
    assert {n: t.tolist() for n, t in found.items()} == {
        "w": [-3, -7], "n": [3, 5], "t": [3, 5], "own": [3, 5], "half": [-3, -7]
    }  # fmt: skip
    assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in tensors.items()}
    assert_equal_tensors(FLIP.attacked_upload(payload, tensors, base), tensors)


def test_a_changed_update_is_encoded_like_any_other() -> None:
    work = make_work()
    coded = tuple(replace(p, codec=Codec("int8")) for p in work.up)
    node = Node(Toys(), CPU)
    plain, bad = node.run_assignment(task(scaled(-10.0))), node.run_assignment(task(scaled(-10.0), up=coded))
    bases = work.bases(inputs_of(work))
    decoded = coded[0].decode_tensors(bad.payloads["model"], bases)
    for name, value in plain.payloads["model"].items():
        change = (value - bases[name]).abs().max()
        assert float((decoded[name] - value).abs().max()) <= float(change) / 100 + 1e-6
